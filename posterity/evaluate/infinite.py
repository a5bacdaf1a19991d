"""What null stands for in a line of scores: JSON knows neither infinity nor NaN, and both are written as null.

A NLL or a squared error is infinite where a model was certain and wrong, or its prediction was no number, and undefined
only where there are no rows (`scores.py`). So a null with rows behind it was infinite, and one without was undefined.
The other metrics of the package are never infinite. Whoever reads lines puts back here what was written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

UNBOUNDED = ("mse", "nll")


def restored(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line of `metrics.jsonl` with the infinite values that it was written from."""
    metrics, clients = line.get("metrics"), line.get("clients")
    if line.get("kind") != "score" or not isinstance(metrics, dict):
        return dict(line)
    again = {name: _summary(metrics[name]) for name in UNBOUNDED if name in metrics}
    known = restored_clients(clients) if isinstance(clients, dict) else clients  # columns in a file know infinity
    return {**line, "metrics": {**metrics, **again}, **({"clients": known} if "clients" in line else {})}


def restored_clients(clients: Mapping[str, Any]) -> dict[str, Any]:
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


__all__ = ["UNBOUNDED", "restored", "restored_clients"]
