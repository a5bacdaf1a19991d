"""`make mutants`: makes one small mistake at a time in a copy of the package and says which test notices it.

    python tests/mutants/run.py                    every list, and docs/results/mutants.md
    python tests/mutants/run.py fedmap engine      these lists only, and no page
    python tests/mutants/run.py engine --only draw     of these the mutants in whose function or words "draw" occurs
    python tests/mutants/run.py --check            which entries are no change of the code as it is, and what is nearest
    python tests/mutants/run.py --mend             the same, after entries whose code has only moved were pointed there

A paper's quick oracles run first, then its quick method tests, then the slow ones of both, and the laws only if all of
these have noticed nothing. About a mutant of an area the tests that its entry names are asked, quick ones first.
PyTorch is imported once; each mutant is a fork that imports the package from a temporary folder.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path

import hypothesis  # noqa: F401  here, so that forks need not: it takes longer than most mutants live
import pytest
import scipy.stats  # noqa: F401  for the same reason
import sklearn.linear_model
import sklearn.metrics  # noqa: F401
import torch
import torch._dynamo  # `vmap` imports it at its first use

sys.path.insert(0, str(Path(__file__).parents[1]))
from mutants.catalogue import ROOT, Listing, Mutant, applied, fault, listings, moved, rewrite

PAGE = ROOT / "docs" / "results" / "mutants.md"
KINDS = {"oracles": "oracle", "methods": "method test", "laws": "law"}  # of a paper's tests, by their folder
FILES, OTHER = "own test", "other test"  # of an area's; a paper's mutants may be noticed by another test, too
LIMIT = 600  # seconds for one mutant
SLOW = 0.5  # seconds: tests that take longer wait until all others have passed
BAD = ("survived", "broken", "no end")
Times = dict[str, float]  # seconds of every test of a list, without a mutant


@dataclass(frozen=True)
class Job:
    listing: Listing
    mutant: Mutant | None  # None: the tests as they are, which must pass and are timed
    times: Times

    @property
    def stages(self) -> tuple[list[str], ...]:
        """What pytest is asked, one after the other until a test fails."""
        if self.mutant is None:
            return ([*self.listing.tests],)
        cases = f"test_law and {self.listing.laws}-"
        laws = ["tests/laws/test_methods.py", "tests/laws/test_networks.py", "-k", cases]
        return ([*self.mutant.tests], laws) if self.listing.laws else ([*self.mutant.tests],)


@dataclass(frozen=True)
class Verdict:
    outcome: str  # what kind of test noticed, one of BAD, or "passed"
    test: str = ""
    seconds: float = 0.0
    times: Times = field(default_factory=dict)


# --- in the fork ----------------------------------------------------------------------------------------------------
class Witness:
    """A plugin that puts quick tests first, and remembers which one failed first and how long each took."""

    def __init__(self, times: Times) -> None:
        self.known, self.times, self.failed = times, Times(), ""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=self.turn)

    def turn(self, item: pytest.Item) -> tuple[bool, bool, float]:
        seconds = self.known.get(item.nodeid, 0.0)
        return seconds > SLOW, not item.nodeid.startswith("tests/oracles/"), seconds

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.times[report.nodeid] = self.times.get(report.nodeid, 0.0) + report.duration
        if report.failed and not self.failed:
            self.failed = report.nodeid


def kinds(listing: Listing) -> tuple[str, ...]:
    return (*KINDS.values(), OTHER) if listing.laws else (FILES, OTHER)


def kind(listing: Listing, test: str) -> str:
    folder = test.split("/")[1]
    return KINDS.get(folder, OTHER) if listing.laws else FILES if folder == listing.name else OTHER


def examine(job: Job, folder: Path) -> Verdict:
    """What the tests say about a copy of the package with the mutant in it."""
    for part in ("posterity", "tests", "docs"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("results", "pictures"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    if job.mutant is not None:
        path, text = applied(job.mutant, folder)
        path.write_text(text, encoding="utf-8")
        for stale in path.parent.glob(f"__pycache__/{path.stem}.*"):
            stale.unlink()
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    import posterity

    if not Path(posterity.__file__).is_relative_to(folder):
        return Verdict("broken", f"posterity was imported from {posterity.__file__}")
    for tests in job.stages:
        witness = Witness(job.times)
        stop = ["-x"] if job.mutant else []
        code = pytest.main(["-q", "-p", "no:cacheprovider", *stop, "-m", "not everything", *tests], [witness])
        if witness.failed:
            return Verdict(kind(job.listing, witness.failed), witness.failed)
        if code != 0:
            return Verdict("broken", f"pytest ended with {code!r} and no failing test")
    return Verdict("survived" if job.mutant else "passed", times=witness.times)


def fork(job: Job, folder: Path) -> int:
    """Starts a process that writes its verdict to folder/verdict.json; its number."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        (folder / "verdict.json").write_text(json.dumps(vars(examine(job, folder / "copy"))))
        code = 0
    finally:
        sys.stdout.flush()
        os._exit(code)


# --- in the parent --------------------------------------------------------------------------------------------------
def all_verdicts(jobs: list[Job], workers: int) -> list[Verdict]:
    """Verdicts in the order of the jobs, some at a time; each is told as it comes."""
    found: dict[int, Verdict] = {}
    running: dict[int, tuple[int, Path, float]] = {}
    waiting = list(enumerate(jobs))
    while waiting or running:
        while waiting and len(running) < workers:
            place, job = waiting.pop(0)
            folder = Path(tempfile.mkdtemp(prefix="mutant-"))
            running[fork(job, folder)] = (place, folder, time.perf_counter())
        time.sleep(0.05)
        for pid, (place, folder, begun) in list(running.items()):
            seconds = time.perf_counter() - begun
            late = seconds > LIMIT
            if late:
                os.kill(pid, signal.SIGKILL)
            if os.waitpid(pid, 0 if late else os.WNOHANG)[0] == pid:
                found[place] = tell(jobs[place], verdict_of(folder, late, seconds))
                shutil.rmtree(folder)
                del running[pid]
    return [found[place] for place in range(len(jobs))]


def verdict_of(folder: Path, late: bool, seconds: float) -> Verdict:
    if late:
        return Verdict("no end", f"after {LIMIT} s", seconds)
    path = folder / "verdict.json"
    if not path.exists():
        return Verdict("broken", (folder / "log.txt").read_text(errors="replace")[-2000:], seconds)
    return Verdict(**{**json.loads(path.read_text()), "seconds": seconds})


def tell(job: Job, verdict: Verdict) -> Verdict:
    what = job.mutant.what if job.mutant else "no change"
    seen = {"survived": "SURVIVED: no test notices", "passed": "passes"}
    word = seen.get(verdict.outcome, f"{verdict.outcome}: {verdict.test}")
    print(f"{job.listing.name:10} {verdict.seconds:6.1f} s  {what}  ->  {word}", flush=True)
    return verdict


def table(chosen: list[Listing], jobs: list[Job], verdicts: list[Verdict]) -> str:
    """One row for each list of a kind, and their sum."""
    found = kinds(chosen[0])
    heads = ["paper" if chosen[0].laws else "area", "mutants", "killed", *(f"by {kind}" for kind in found)]
    rows = [f"| {' | '.join(heads)} |", "|---" + "|--:" * (len(heads) - 1) + "|"]
    pairs = list(zip(jobs, verdicts, strict=True))
    counts = {each.name: Counter(v.outcome for j, v in pairs if j.listing == each) for each in chosen}
    for name, count in [*sorted(counts.items()), ("all", sum(counts.values(), Counter()))]:
        killed = [count[kind] for kind in found]
        rows.append("| " + " | ".join(str(v) for v in (name, sum(count.values()), sum(killed), *killed)) + " |")
    return "\n".join(rows) + "\n"


def tables(chosen: list[Listing], jobs: list[Job], verdicts: list[Verdict]) -> list[str]:
    """A table of the papers and one of the areas; without those of which there is none."""
    halves = [[each for each in chosen if bool(each.laws) == papers] for papers in (True, False)]
    return [table(half, jobs, verdicts) for half in halves if half]


def page(papers: str, areas: str, minutes: float, workers: int) -> str:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = (used.ru_utime + used.ru_stime) / 60
    return f"""# Mutants

`make mutants` makes one small mistake at a time (a sign, an exponent, a weight, a bound, a forgotten case; all are
listed in `tests/mutants`) and runs tests until one notices. A mutant is counted where it was noticed first. The command
writes this page.

The five papers' code: quick oracles are asked first, then quick method tests, then slow ones, then laws.

{papers}
Everything around the methods: about each mutant the tests that its entry names are asked, quick ones first. "Own" tests
lie in the folder of the area.

{areas}
{date.today()}: {minutes:.1f} minutes, {busy:.1f} of processor time; {workers} processes, {os.cpu_count()} cores,
{platform.machine()}, PyTorch {torch.__version__}.
"""


def chosen_ones(names: list[str], only: str) -> list[Listing]:
    """The lists of these names (none: all), with the mutants in whose place, function or words `only` occurs."""
    listed = listings()
    asked = [listed[name] for name in names or listed]
    some = [
        replace(each, mutants=tuple(m for m in each.mutants if only in f"{m.where} {m.function} {m.what}"))
        for each in asked
    ]
    return [each for each in some if each.mutants]


def mend(chosen: list[Listing]) -> None:
    """Points entries whose code stands unchanged in one other function there."""
    for mutant in (m for each in chosen for m in each.mutants):
        if (after := moved(mutant)) is not None:
            rewrite(mutant, after)
            print(f"{mutant.listed}: {mutant.what}  ->  {after.where}, {after.function}")


def main() -> int:
    asked = argparse.ArgumentParser(description="Which test notices which mistake.")
    asked.add_argument("lists", nargs="*", choices=[*listings(), []], help="none: all of them")
    asked.add_argument("--only", default="", help="mutants in whose place, function or words this occurs")
    asked.add_argument("--check", action="store_true", help="run nothing: say which entries must be mended, and how")
    asked.add_argument("--workers", type=int, default=2)
    asked.add_argument("--mend", action="store_true", help="like --check, after following code that has only moved")
    given = asked.parse_args()
    if given.mend:
        mend(chosen_ones(given.lists, given.only))
    chosen = chosen_ones(given.lists, given.only)
    faults = [f for each in chosen for m in each.mutants if (f := fault(m))]
    if faults or given.check or given.mend:
        print(
            "\n\n".join([*faults, f"{sum(len(each.mutants) for each in chosen)} entries, {len(faults)} to be mended"])
        )
        return 1 if faults else 0
    begun = time.perf_counter()
    chosen.sort(key=lambda each: -len(each.mutants))  # the longest first: the processes then end together
    plain = all_verdicts([Job(each, None, {}) for each in chosen], given.workers)
    if any(v.outcome != "passed" for v in plain):
        print("The tests above fail without any mutant: mend them first.")
        return 1
    jobs = [Job(each, m, v.times) for each, v in zip(chosen, plain, strict=True) for m in each.mutants]
    verdicts = all_verdicts(jobs, given.workers)
    made, minutes = tables(chosen, jobs, verdicts), (time.perf_counter() - begun) / 60
    pairs = zip(jobs, verdicts, strict=True)
    alive = [f"{j.listing.name}: {j.mutant.what}" for j, v in pairs if v.outcome in BAD and j.mutant]
    print("\n" + "\n".join(made) + f"\n{minutes:.1f} minutes; not killed: {'; '.join(alive) or 'none'}")
    if not given.lists and not given.only:
        PAGE.write_text(page(*made, minutes, given.workers), encoding="utf-8")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
