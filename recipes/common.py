"""What recipes share: runs that are done once, tables with the paper's number beside ours, a line of versions."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import posterity
from posterity.experiment.compare import Task
from posterity.experiment.facts import source_commit
from posterity.experiment.run import silent
from posterity.runs import files
from posterity.runs import folder as run_folder
from posterity.runs.folder import write_run
from posterity.settings.config import Config, from_table, read_toml, to_toml

# --- runs -------------------------------------------------------------------------------------------------------------


def perform(tasks: Sequence[Task], jobs: int = 1) -> None:
    """Do what is not finished yet, each run with one thread, and print a line when a run ends.

    A run that was killed goes on where it was. A finished run that is now asked for more rounds is lengthened. A run
    that fails stops no other; all that failed are named at the end.
    """
    paths = [path for task in tasks for path, _ in task.runs]
    if len(set(paths)) < len(paths):
        raise ValueError(f"two of the runs share a folder: {sorted(map(str, paths))}")
    left = [task for task in map(_left, tasks) if task is not None]
    print(f"{len(tasks)} runs, {len(tasks) - len(left)} of them finished before", flush=True)
    failed = []
    for number, (task, error, seconds) in enumerate(_results(left, jobs), 1):
        failed += [f"{task.title}: {error}"] * bool(error)
        print(f"[{number}/{len(left)}] {task.title}: {error or f'{seconds:.0f} s'}", flush=True)
    if failed:
        raise RuntimeError("; ".join(failed))


def _results(tasks: Sequence[Task], jobs: int) -> Iterator[tuple[Task, str, float]]:
    if jobs <= 1:
        yield from map(_do, tasks)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, _prepare, (sys.path,)) as pool:
        for future in as_completed([pool.submit(_do, task) for task in tasks]):
            yield future.result()


def lengthen(path: Path, rounds: int) -> None:
    """Let a run go on to `rounds`. Only for methods that do not look at the number of rounds to come."""
    config = from_table(read_toml(path / run_folder.CONFIG))
    facts = {**files.read_json(path / run_folder.RUN), "status": "running"}
    write_run(path, facts, to_toml(replace(config, rounds=rounds)))


def _left(task: Task) -> Task | None:
    """The task without those of its seeds that are finished; None if all are."""
    left = [(path, config) for path, config in task.runs if not _done(path, config)]
    return Task(task.title, tuple(left)) if left else None


def _done(path: Path, config: Config) -> bool:
    """Whether the run is there with all its rounds; one with other settings in its place is an error."""
    if not (path / run_folder.CONFIG).exists():
        return False
    found = from_table(read_toml(path / run_folder.CONFIG))
    if _essential(found) != _essential(config):
        raise ValueError(f"{path} holds a run with other settings; give another --out")
    if found.rounds < config.rounds:
        lengthen(path, config.rounds)
    return reached(path) >= config.rounds


def _essential(config: Config) -> Config:
    """What decides a run's numbers up to rounding: engine, device and memory do not."""
    return replace(config, rounds=1, engine="auto", device="cpu", memory=1, data_dir=None)


def _prepare(path: list[str]) -> None:
    sys.path[:] = path


def _do(task: Task) -> tuple[Task, str, float]:
    """The task, what went wrong with it, and the seconds it took."""
    torch.set_num_threads(1)  # sums in other pieces round otherwise; and small networks gain nothing from a second
    begun, error = time.perf_counter(), ""
    try:
        task.do(silent)
    except Exception as problem:  # the other runs are worth having
        error = f"{type(problem).__name__}: {problem}"
    return task, error, time.perf_counter() - begun


def reached(path: Path) -> int:
    """The rounds of a finished run; 0 if there is none, or it is still going."""
    if not (path / run_folder.CONFIG).exists() or files.read_json(path / run_folder.RUN).get("status") != "finished":
        return 0
    return from_table(read_toml(path / run_folder.CONFIG)).rounds


def read_run(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A run's facts and its lines."""
    return files.read_json(path / run_folder.RUN), files.read_lines(path / run_folder.METRICS)


def read_score(path: Path, round: int, point: str | None = None, part: str = "held") -> dict[str, Any]:
    """The members' line of one evaluated round, by default at the point that the method's paper means."""
    facts, lines = read_run(path)
    want = ("score", "members", point or facts["method"]["scored"], part, round)
    for line in lines:
        if (line["kind"], line.get("group"), line.get("point"), line.get("part"), line["round"]) == want:
            return line
    raise ValueError(f"{path} has no score of {want[2]}, {part} at round {round}: was it evaluated there?")


# --- numbers and tables -----------------------------------------------------------------------------------------------


def spread(values: Sequence[float], scale: float = 100.0, digits: int = 1) -> str:
    """Mean ± sample standard deviation over seeds; one value has no deviation."""
    known = [v * scale for v in values if v is not None and math.isfinite(v)]
    if not known:
        return "–"
    mean = f"{statistics.fmean(known):.{digits}f}"
    missing = f" ({len(known)} of {len(values)} seeds)" if len(known) < len(values) else ""
    return (f"{mean} ± {statistics.stdev(known):.{digits}f}" if len(known) > 1 else mean) + missing


def beside(ours: str, paper: float | str | None) -> str:
    """Our number and, in brackets, the paper's."""
    return ours if paper is None else f"{ours} ({paper})"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """A Markdown table; the first `words` columns hold words, the others numbers."""
    rule = ["---" if i < words else "--:" for i in range(len(head))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *rows)) + "\n"


def versions() -> str:
    """Versions of everything that can move a number, in one line."""
    parts = [f"posterity {posterity.__version__} ({source_commit() or 'no commit'})", f"PyTorch {torch.__version__}",
             f"Python {platform.python_version()}", f"{platform.machine()}, {os.cpu_count()} cores"]  # fmt: skip
    return ", ".join(parts)


def write(folder: Path, name: str, page: str, numbers: Any) -> None:
    """The page as `name.md` and its numbers as `name.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(page, encoding="utf-8")
    (folder / f"{name}.json").write_text(json.dumps(files.clean(numbers), indent=1, ensure_ascii=False) + "\n")
