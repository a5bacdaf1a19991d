"""Several methods, several seeds, the same federations: one folder of runs."""

from __future__ import annotations

import multiprocessing
import sys
import tomllib
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from posterity import methods
from posterity.data import Partition, parse_partition
from posterity.evaluate import load_metrics
from posterity.experiment import run_folder
from posterity.experiment.config import Config, from_table, read_toml, to_toml
from posterity.experiment.run import Watch, check_rule, resume_run, run_seeds, start_run
from posterity.experiment.setup import load_federation

PLAN = "comparison.json"  # what a comparison is to run, so that `resume` knows what has not begun
Run = tuple[Path, Config]
Watching = Callable[[str, int], AbstractContextManager[Watch]]


def demo_plan() -> tuple[Config, list[str], list[int]]:
    """What `posterity demo` runs: digits, Dirichlet(0.3), 20 clients, six methods, three seeds.

    ξ₁ = 10 was chosen for pFedVMP among 0.5, 2, 5 and 10 on the validation halves of seeds 0 and 1: the paper's 50 is
    for 512 features and a step size of 0.01, and over-regularises 64 features at 0.1.
    """
    names = ["local", "fedavg", "fedavg+ft", "fedper", "fedmap", "pfedvmp"]
    config = Config(
        dataset="digits",
        partition="dirichlet:0.3",
        clients=20,
        rounds=30,
        evaluate_every=5,
        lr=0.1,
        batch_size=20,
        local_epochs=2,
        set={"xi": 10.0},
    )
    return config, names, [0, 1, 2]


@dataclass(frozen=True)
class Task:
    """One run of a comparison, and the other seeds that run at once with it."""

    title: str
    path: Path
    config: Config
    others: tuple[Run, ...] = ()

    @staticmethod
    def of(runs: Sequence[Run]) -> Task:
        """The task of one run, or of several seeds at once."""
        seeds = ", ".join(str(config.seed) for _, config in runs)
        title = f"{runs[0][1].method} seed{'s' * (len(runs) > 1)} {seeds}"
        return Task(title, *runs[0], tuple(runs[1:]))

    @property
    def runs(self) -> tuple[Run, ...]:
        return ((self.path, self.config), *self.others)

    def do(self, watch: Watch) -> None:
        """Start it, or go on with it."""
        if self.others:
            run_seeds([config for _, config in self.runs], [path for path, _ in self.runs], watch)
        elif (self.path / run_folder.CONFIG).exists():
            resume_run(self.path, watch)
        else:
            start_run(self.config, self.path, watch)


def compare_runs(
    config: Config,
    names: list[str],
    seeds: list[int],
    out: Path,
    watching: Watching,
    jobs: int = 1,
    together: bool = False,
) -> None:
    """Run every method with every seed under `out`; what is finished stays, what was interrupted goes on.

    With `together`, the seeds of a method run at once where none of them has begun alone.
    """
    own = {k: v for k, v in config.set.items() if not k.startswith(("model.", "data.", "local."))}
    load_metrics(config.metrics)  # for its mistakes
    tasks: list[Task] = []
    for name in names:
        each = replace(config, method=name, set=_fitting(name, config, own, names))
        methods.build(name, each.settings(), each.training())  # every mistake is told before the first run
        tasks += _tasks([(out / _safe(name) / f"seed-{seed}", replace(each, seed=seed)) for seed in seeds], together)
    if tasks:
        _check_clients(config, [path.parent for path in sorted(out.glob(f"*/seed-*/{run_folder.RUN}"))])
    tasks.sort(key=lambda task: seeds.index(task.config.seed))  # the first seed of all methods, then the second
    out.mkdir(parents=True, exist_ok=True)
    plan = {"methods": names, "seeds": seeds, "config": to_toml(config), "together": together}
    run_folder.write_json(out / PLAN, plan)
    execute(tasks, watching, jobs)


def resume_all(folder: Path, watching: Watching, jobs: int = 1) -> None:
    """Go on with every unfinished run in or under `folder`; of a comparison, also with those not yet begun."""
    if (folder / PLAN).exists():
        plan = run_folder.read_json(folder / PLAN)
        config = from_table(tomllib.loads(plan["config"]))
        together = plan.get("together", False)
        compare_runs(config, plan["methods"], plan["seeds"], folder, watching, jobs, together)
        return
    found = sorted(p.parent for p in folder.rglob(run_folder.CONFIG)) if folder.is_dir() else []
    if not found:
        raise ValueError(f"{folder} holds no run (there is no {run_folder.CONFIG} in or under it)")
    execute(_tasks([(path, from_table(read_toml(path / run_folder.CONFIG))) for path in found], False), watching, jobs)


def _check_clients(config: Config, begun: list[Path]) -> None:
    """Runs to come are compared with those begun before: refuse it if these have clients of another version."""
    facts = [run_folder.read_json(path / run_folder.RUN).get("federation", {}) for path in begun]
    if not facts:
        return
    if told := facts[0].get("partition"):
        rule: Partition | None = Partition(told["rule"])
    else:
        rule = parse_partition(config.partition) if config.partition else load_federation(config).partition
    for path, before in zip(begun, facts, strict=True):
        check_rule(before, rule, path)


def _tasks(runs: list[Run], together: bool) -> list[Task]:
    """What is left to do: seeds that began at once go on at once, and with `together` all that have not begun do."""
    tasks: list[Task] = []
    fresh: list[Run] = []
    for path, config in runs:
        if not (path / run_folder.CONFIG).exists():
            fresh.append((path, config))
            continue
        if from_table(read_toml(path / run_folder.CONFIG)) != config:
            raise ValueError(f"{path} holds a run with other settings; give another --out")
        seeds = run_folder.read_json(path / run_folder.RUN).get("together", [])
        at_once = [(path.parent / f"seed-{seed}", replace(config, seed=seed)) for seed in seeds] or [(path, config)]
        if not _finished(path) and not any(path == other for task in tasks for other, _ in task.runs):
            tasks.append(Task.of(at_once))
    begun = {path for task in tasks for path, _ in task.runs}  # a kill may have come before all of them had begun
    left = [run for run in fresh if run[0] not in begun]
    return tasks + ([Task.of(left)] if together and left else [Task.of([run]) for run in left])


def execute(tasks: list[Task], watching: Watching, jobs: int) -> None:
    """All tasks: one after the other, or in `jobs` processes that share the cores."""
    if jobs <= 1 or len(tasks) <= 1:
        for task in tasks:
            with watching(task.title, task.config.rounds) as watch:
                task.do(watch)
        return
    context = multiprocessing.get_context("spawn")
    threads = max(1, torch.get_num_threads() // jobs)
    with context.Manager() as manager:
        news = manager.Queue()
        with ProcessPoolExecutor(min(jobs, len(tasks)), context, _prepare, (threads, sys.path)) as pool:
            pending = {pool.submit(_work, task, news): task for task in tasks}
            with watching(f"{len(tasks)} runs, {jobs} at once", sum(t.config.rounds for t in tasks)) as watch:
                _follow(pending, news, watch)


def _prepare(threads: int, path: list[str]) -> None:
    """A worker's start: its share of the cores, and the same places to look for methods and networks."""
    torch.set_num_threads(threads)
    sys.path[:] = path


def _work(task: Task, news: Any) -> None:
    task.do(lambda round, rounds, lines: news.put(lines[:1]))


def _follow(pending: dict[Future[None], Task], news: Any, watch: Watch) -> None:
    """Pass on what the workers report; the first failure ends the comparison, finished runs stay."""
    total, done = sum(t.config.rounds for t in pending.values()), 0
    while pending:
        finished, _ = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
        while not news.empty():
            lines = news.get()
            done += 1
            watch(done, total, lines)
        for future in finished:
            task = pending.pop(future)
            if (error := future.exception()) is not None:
                for other in pending:
                    other.cancel()
                raise ValueError(f"{task.title}: {error}") from error


def _fitting(name: str, config: Config, shared: dict[str, object], names: list[str]) -> dict[str, object]:
    """Settings of one method in a comparison: what only others have is theirs; what none has is a mistake."""
    kept = {k: v for k, v in config.set.items() if k not in shared}
    for key, value in shared.items():
        errors = {}
        for each in names:
            try:
                methods.build(each, {key: value})
            except ValueError as error:
                errors[each] = error
        if len(errors) == len(names):
            raise next(iter(errors.values()))
        if name not in errors:
            kept[key] = value
    return kept


def _finished(path: Path) -> bool:
    return (path / run_folder.RUN).exists() and run_folder.read_json(path / run_folder.RUN).get("status") == "finished"


def _safe(name: str) -> str:
    return name.replace(":", "-").replace("/", "-").replace("@", "-")
