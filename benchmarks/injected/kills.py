"""Runs killed at any instant: by the clock, before the n-th operation on files, in the middle of a write."""

from __future__ import annotations

import math
import random
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from experiment import kills as tested
from experiment.damage import small

from injected.bench import Bench, Fault, Outcome, difference, end_of, forked, watched
from posterity.experiment import run
from posterity.experiment.compare import PLAN, compare_runs, resume_all
from posterity.settings.config import Config

TINY = {"model": "linear", "clients": 3, "subset": "8%", "participation": "70%", "engine": "stacked", "set": {}}
SEEDS = (0, 1)
HALVES = (*tested.MOMENTS, tested.GAP)  # writes that are left half done
TIMES = 2  # kills of each run: the second meets a run that goes on
SHARES = {"memory": 0.3, "disk": 0.35, "seeds": 0.2, "compare": 0.15}  # of all kills


@dataclass(frozen=True)
class Case:
    """A way to run: `go` begins in a folder or goes on there, `runs` are the runs in it."""

    name: str
    go: Callable[[Path], object]
    runs: tuple[str, ...] = ("",)
    halves: tuple[str, ...] = HALVES[:3] + HALVES[-1:]

    def ends(self, out: Path) -> list[dict[str, object]]:
        return [end_of(out / name) for name in self.runs]


def tiny(store: str = "memory", **more: object) -> Config:
    return small(store, **{**TINY, **more})


def go_alone(store: str, out: Path) -> None:
    tested.go(tiny(store), str(out), None, 0)


def go_together(out: Path) -> None:
    run.run_seeds([tiny(seed=seed) for seed in SEEDS], [out / f"seed-{seed}" for seed in SEEDS])


def go_compare(out: Path) -> None:
    """A comparison of two methods with two seeds, one run after the other, as `compare` and `resume` do it."""
    unwatched = lambda title, rounds: nullcontext(run.silent)  # noqa: E731
    if (out / PLAN).exists():
        resume_all(out, unwatched)
    else:
        base = replace(tiny(rounds=2, evaluate_every=1), method="fedavg")
        compare_runs(base, ["fedavg", "local"], list(SEEDS), out, unwatched)


CASES = {
    "memory": Case("memory", partial(go_alone, "memory")),
    "disk": Case("disk", partial(go_alone, "disk"), halves=HALVES),
    "seeds": Case("seeds", go_together, tuple(f"seed-{seed}" for seed in SEEDS)),
    "compare": Case("compare", go_compare, tuple(f"{m}/seed-{s}" for m in ("fedavg", "local") for s in SEEDS)),
}


def count_operations(case: Case, out: Path) -> tuple[int, float]:
    """How many operations on files, and how many seconds, a run takes that nothing happens to."""
    seen = [0]

    def one_more() -> None:
        seen[0] += 1

    run.WRITING = math.inf  # a checkpoint after every round: much to interrupt
    case.go(out)  # warms up what children inherit
    shutil.rmtree(out)
    begun = time.perf_counter()
    with watched(one_more):
        case.go(out)
    return seen[0], time.perf_counter() - begun


def dying(case: Case, out: Path, number: int, half: str) -> None:
    """Go on until the `number`-th operation, or the `number`-th write of a kind, which is left half done."""
    left = [number]

    def count_down() -> None:
        left[0] -= 1
        if left[0] == 0:
            tested.die()

    if half:
        tested.arm(half, number)
    with nullcontext() if half else watched(count_down):
        case.go(out)


def kill_once(case: Case, out: Path, chance: random.Random, operations: int, seconds: float) -> bool:
    """One kill at an instant that chance chooses; False: the run was over before."""
    kind = chance.choice(("clock", "operation", "operation", "half"))
    if kind == "clock":
        return forked(partial(case.go, out), chance.uniform(0.0, seconds)) == -signal.SIGKILL
    half = chance.choice(case.halves) if kind == "half" else ""
    number = chance.randint(1, 3) if half else chance.randint(1, operations)
    return forked(partial(dying, case, out, number, half)) == -signal.SIGKILL


def kill_runs(case: Case, bench: Bench, wanted: int) -> Outcome:
    """So many kills, a few to each run; then the run goes on to its end, which must be that of an untouched one."""
    chance, broken, kills, runs = bench.chance(case.name), [], 0, 0
    with bench.room() as place:
        operations, seconds = count_operations(case, place / "whole")
        whole = case.ends(place / "whole")
        while kills < wanted:
            out, before = place / "run", kills
            for _ in range(TIMES):
                kills += kill_once(case, out, chance, operations, seconds)
            if kills == before:
                shutil.rmtree(out)
                continue
            runs += 1
            broken += [f"run {runs} (killed {kills - before} times): {why}" for why in finish(case, out, whole)]
            shutil.rmtree(out)
    told = f"{kills} kills of {runs} runs, {runs - len(broken)} of {runs} runs bit-identical"
    return Outcome(f"{told} ({operations} operations on files in a run)", tuple(broken), kills)


def finish(case: Case, out: Path, whole: list[dict[str, object]]) -> list[str]:
    """Go on to the end; what is wrong with it."""
    code = forked(partial(case.go, out))
    if code:
        return [f"it did not go on (exit code {code})"]
    wrong = [difference(*pair) for pair in zip(whole, case.ends(out), strict=True)]
    return [text for text in wrong if text][:1]


def kill(name: str) -> Callable[[Bench], Outcome]:
    return lambda bench: kill_runs(CASES[name], bench, max(1, round(SHARES[name] * bench.kills)))


SAME = "goes on and ends with the same files, bit for bit"
ALL = "all go on and end with the same files, bit for bit"
HOW = "SIGKILL by the clock, before the n-th operation on files, or in the middle of a write; twice in most runs"
FAULTS = (
    Fault("kills-memory", f"a run with records in memory: {HOW}", SAME, kill("memory")),
    Fault("kills-disk", f"a run with records on disk: {HOW}", SAME, kill("disk")),
    Fault("kills-seeds", f"two seeds that run at once: {HOW}", ALL, kill("seeds")),
    Fault("kills-compare", f"a comparison, two methods with two seeds: {HOW}", ALL, kill("compare")),
)
__all__ = ["ALL", "CASES", "FAULTS", "SAME", "Case", "finish", "kill_runs", "tiny"]
