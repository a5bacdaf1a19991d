"""Runs in one small file: what stands behind a published table, so that anybody can make it and its intervals again.

A file of packed runs is gzipped text with a JSON object a run: `folder` (its name alone), `facts` (run.json), `config`
(config.toml) and `lines`, those lines of metrics.jsonl from which the tables are made:

    rounds      all; the method's diagnostics at the rounds that the three rules choose
    scores      at the run's own evaluation point and of the common test set, of all rounds; at the chosen ones also at
                the other points, of newcomers, and with the numbers of every client

Numbers keep seven significant digits. The same runs give the same bytes.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posterity.report.logs import ReportError, RunLog, find_runs, read_log, write_atomic
from posterity.report.read_runs import read_run
from posterity.report.selected_round import RULES, main_epochs, select_round

ROUND = ("kind", "round", "cohort", "accepted", "refused", "empty", "loss", "bytes_up", "bytes_down", "seconds",
         "rolled_back", "notes")  # fmt: skip
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
    own = (run.scored, main_epochs(run, run.scored))
    lines = [kept for line in log.lines if (kept := _kept(line, chosen, own)) is not None]
    return {"folder": log.folder.name, "facts": log.facts, "config": log.config, "lines": _short(lines)}


def _kept(line: Mapping[str, Any], chosen: set[int], own: tuple[str, int]) -> Mapping[str, Any] | None:
    """What is kept of a line, or None."""
    if line.get("kind") == "round":
        names = (*ROUND, "report") if line["round"] in chosen else ROUND
        return {name: line[name] for name in names if name in line}
    if line.get("kind") != "score":
        return None
    if line["round"] in chosen:
        return line
    group = line.get("group", "members")
    mine = (line["point"], line.get("epochs") or 0) == own and group == "members"
    return {**line, "clients": {}, "bins": [], "flat": []} if mine or group == "common" else None


def _short(value: Any) -> Any:
    """Numbers with `DIGITS` significant digits."""
    if isinstance(value, Mapping):
        return {name: _short(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_short(each) for each in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
