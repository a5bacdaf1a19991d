"""Runs in one small file: what stands behind a published table, so that anybody can make it and its intervals again.

A file of packed runs is gzipped text with a JSON object a run: `folder` (its name alone), `facts` (run.json), `config`
(config.toml) and `lines`, those lines of metrics.jsonl from which the tables are made:

    rounds      all; the method's diagnostics at the rounds that the three rules choose
    scores      at the run's own evaluation point and of the common test set, of all rounds; at the chosen ones also at
                the other points, of newcomers, and with the numbers of every client, also where these are in files of
                their own; of a run across machines all rounds have the rows of every client

Numbers keep seven significant digits. The same runs give the same bytes.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from posterity.report.sections import FLOWER
from posterity.report.table import RULES, main_epochs, select_round
from posterity.runs.files import write_atomic
from posterity.runs.lines import Line, RoundLine, ScoreLine, to_json
from posterity.runs.read import ReportError, RunLog, find_runs, read_log, read_run

DIGITS = 7


def pack_runs(folder: Path, out: Path) -> Path:
    """Write the finished runs at or below `folder` to one file, at once or not at all."""
    logs = [read_log(found) for found in find_runs(folder)]
    left = [str(log.folder) for log in logs if log.facts.get("status") != "finished"]
    if left:
        raise ReportError(
            f"{left[0]} is not finished{f', nor are {len(left) - 1} others' if left[1:] else ''}: what is published "
            "must not change. Go on with it (posterity resume) or take it away."
        )
    if bare := next((log.folder for log in logs if not log.lines), None):
        raise ReportError(f"{bare} is finished, but has no metrics.jsonl, or an empty one: copy the whole folder, or "
                          "take it away. Nothing was written.")  # fmt: skip
    text = "".join(json.dumps(_packed(log), ensure_ascii=False, separators=(",", ":")) + "\n" for log in logs)
    data = io.BytesIO()
    with gzip.GzipFile(fileobj=data, mode="wb", mtime=0) as file:  # no time of writing: the same runs, the same bytes
        file.write(text.encode())
    write_atomic(out, data.getvalue())
    return out


def _packed(log: RunLog) -> dict[str, Any]:
    run = read_run(log)
    chosen = {selected.round for rule in RULES if (selected := select_round(run, rule)) is not None}
    own, rows = (run.scored, main_epochs(run, run.scored)), log.facts.get("engine") == FLOWER
    lines = [kept for line in log.lines if (kept := _kept(line, chosen, own, rows)) is not None]
    return {"folder": log.folder.name, "facts": log.facts, "config": log.config, "lines": _short(lines)}


def _kept(line: Line, chosen: set[int], own: tuple[str, int], rows: bool) -> dict[str, Any] | None:
    """What is kept of a line, or None; `rows`: with those of every client, since a site may have been away."""
    if isinstance(line, RoundLine):
        left_out = {"zeros"} if line.round in chosen else {"zeros", "report"}
        return {name: value for name, value in to_json(line).items() if name not in left_out}
    if not isinstance(line, ScoreLine):
        return None
    if line.round in chosen:
        return to_json(replace(line, clients=dict(line.clients)))  # a packed file has no others beside it
    clients = {"n": line.clients["n"]} if rows and line.clients else {}
    mine = (line.point, line.epochs) == own and line.group == "members"
    return to_json(replace(line, clients=clients, bins=(), flat=())) if mine or line.group == "common" else None


def _short(value: Any) -> Any:
    """Numbers with `DIGITS` significant digits."""
    if isinstance(value, Mapping):
        return {name: _short(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_short(each) for each in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
