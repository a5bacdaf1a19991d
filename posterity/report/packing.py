"""Runs in one small file: what stands behind a published table, so that anybody can make it and its intervals again.

A file of packed runs is text packed by xz with a JSON object a run: `folder` (its name alone), `facts` (run.json),
`config` (config.toml) and `lines`, what tables and figures need of metrics.jsonl, column by column (`columns_of`;
`runs/read.py` makes lines of them again):

    rounds      all; the method's diagnostics at the rounds that the three rules choose
    scores      those that a rule shows: of its round and its part of the data, at every point and of every group; with
                the numbers of every client at the run's own point and of newcomers
    curves      of all other scored rounds at the run's own point, and of the chosen ones at others: the headline
                metric and the ECE; all metrics of the common test set; of a run across machines every client's rows

Numbers keep seven significant digits. The same runs give the same bytes.
"""

import json
import lzma
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from posterity.report.sections import FLOWER, at
from posterity.report.table import RULES, goal, main_epochs, select_round
from posterity.runs.files import write_atomic
from posterity.runs.lines import Line, to_json
from posterity.runs.read import ReportError, Run, find_runs, read_log, read_run

DIGITS = 7


def pack_runs(folder: Path, out: Path) -> Path:
    """Write the finished runs at or below `folder` to one file, at once or not at all."""
    logs = [read_log(found) for found in find_runs(folder)]
    for log in logs:
        if log.facts.get("status") != "finished":
            raise ReportError(f"{log.folder} is not finished, and what is published must not change. Go on with it "
                              "(posterity resume) or take it away.")  # fmt: skip
        if not log.lines:
            raise ReportError(f"{log.folder} is finished, but has no metrics.jsonl, or an empty one: copy the whole "
                              "folder, or take it away. Nothing was written.")  # fmt: skip
    text = ""
    for log in logs:
        lines = columns_of([_short(to_json(line)) for line in _kept(read_run(log))])
        made = {"folder": log.folder.name, "facts": log.facts, "config": log.config, "lines": lines}
        text += json.dumps(made, ensure_ascii=False, separators=(",", ":")) + "\n"
    write_atomic(out, lzma.compress(text.encode(), preset=9))
    return out


def columns_of(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Lines with the same fields as a table: `names`, the path to each field, and `columns`, its values."""
    tables: dict[tuple[tuple[str, ...], ...], list[list[Any]]] = {}
    for line in lines:
        fields = dict(_fields(line))
        tables.setdefault(tuple(fields), []).append(list(fields.values()))
    return [{"names": names, "columns": list(zip(*rows, strict=True))} for names, rows in tables.items()]


def _fields(line: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in line.items():
        if isinstance(value, Mapping) and value:
            yield from _fields(value, (*path, name))
        else:
            yield (*path, name), value


def _kept(run: Run) -> Iterator[Line]:
    chosen = {selected.round for rule in RULES if (selected := select_round(run, rule)) is not None}
    kinds = {(point, epochs, group) for _, point, epochs, group in run.index}
    shown = {id(at(run, rule, *kind)) for rule in RULES for kind in kinds}
    own, sites = (run.scored, main_epochs(run, run.scored), "members"), run.facts.get("engine") == FLOWER
    for line in run.rounds:
        yield replace(line, zeros=None, report=line.report if line.round in chosen else {})
    for score in run.scores:
        mine = (score.point, score.epochs, score.group) == own
        if id(score) in shown and (mine or score.group != "members"):
            yield replace(score, clients=dict(score.clients))  # a packed file has no others beside it
        elif id(score) in shown or score.group == "common":
            yield replace(score, clients={}, bins=(), flat=())
        elif mine or score.round in chosen:
            metrics = {name: score.metrics[name] for name in (goal(run).name, "ece") if name in score.metrics}
            clients = {"n": score.clients["n"]} if mine and sites and score.clients else {}
            yield replace(score, metrics=metrics, fairness={}, clients=clients, bins=(), flat=())


def _short(value: Any) -> Any:
    """Numbers with `DIGITS` significant digits."""
    if isinstance(value, Mapping):
        return {name: _short(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_short(each) for each in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
