"""What null stands for in a line of scores: JSON knows neither infinity nor NaN, and both are written as null.

A NLL or a squared error is infinite where a model was certain and wrong, or its prediction was no number, and undefined
only where there are no rows (`scores.py`). So a null with rows behind it was infinite, and one without was undefined.
The other metrics of the package are never infinite. A metric of somebody's own may be, and undefined as well, so a line
notes where it was infinite. Whoever reads lines puts back here what was written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

UNBOUNDED = ("mse", "nll")
NOTE = "infinite"  # of a line: {"metrics": {name: {rule: sign}}, "clients": {name: {client: sign}}}


def noted(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line with a note of the infinite values that nobody could tell from undefined ones when they are null."""
    metrics, clients = line.get("metrics"), line.get("clients")
    if line.get("kind") != "score" or not isinstance(metrics, dict):
        return dict(line)
    each = clients if isinstance(clients, dict) else {}  # columns in a file know infinity
    listed = {name: {str(k): v for k, v in enumerate(values)} for name, values in each.items() if name != "n"}
    note = {"metrics": _signs(metrics), "clients": _signs(listed)}
    return {**line, **({NOTE: note} if any(note.values()) else {})}


def _signs(by_name: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """1 or -1 for every infinite value of a metric that is not of the package."""
    found = {name: {place: 1 if v > 0 else -1 for place, v in values.items() if isinstance(v, float) and math.isinf(v)}
             for name, values in by_name.items() if name not in UNBOUNDED}  # fmt: skip
    return {name: signs for name, signs in found.items() if signs}


def restored(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line of `metrics.jsonl` with the infinite values that it was written from."""
    return _known(_as_noted(line))


def _as_noted(line: Mapping[str, Any]) -> dict[str, Any]:
    """The values that the line has a note of; a packed one may have lost its clients."""
    read = {name: value for name, value in line.items() if name != NOTE}
    note = line.get(NOTE)
    if not isinstance(note, dict):
        return read
    metrics, clients = dict(read.get("metrics") or {}), read.get("clients")
    for name, signs in note.get("metrics", {}).items():
        metrics[name] = {**metrics.get(name, {}), **{rule: sign * math.inf for rule, sign in signs.items()}}
    listed = dict(clients) if isinstance(clients, dict) else {}
    for name, signs in note.get("clients", {}).items():
        if name in listed:
            listed[name] = [signs[str(k)] * math.inf if str(k) in signs else v for k, v in enumerate(listed[name])]
    return {**read, "metrics": metrics, **({"clients": listed} if isinstance(clients, dict) else {})}


def _known(line: Mapping[str, Any]) -> dict[str, Any]:
    """What follows from the rows behind a null."""
    metrics, clients = line.get("metrics"), line.get("clients")
    if line.get("kind") != "score" or not isinstance(metrics, dict):
        return dict(line)
    again = {name: _summary(metrics[name]) for name in UNBOUNDED if name in metrics}
    known = _known_clients(clients) if isinstance(clients, dict) else clients
    return {**line, "metrics": {**metrics, **again}, **({"clients": known} if "clients" in line else {})}


def _known_clients(clients: Mapping[str, Any]) -> dict[str, Any]:
    """The same for every client's numbers."""
    rows = clients.get("n") or ()
    return {**clients, **{name: _values(clients[name], rows) for name in UNBOUNDED if name in clients}}


def _summary(by_rule: Any) -> Any:
    """One metric by rule; without an infinite value of all rows together no client has one."""
    if not isinstance(by_rule, dict) or by_rule.get("pooled", 0.0) is not None or not by_rule.get("clients"):
        return by_rule
    return {rule: math.inf if value is None else value for rule, value in by_rule.items()}


def _values(values: Sequence[Any], rows: Sequence[Any]) -> Sequence[Any]:
    if None not in values or len(values) != len(rows):
        return values
    return [math.inf if value is None and n else value for value, n in zip(values, rows, strict=True)]


__all__ = ["UNBOUNDED", "noted", "restored"]
