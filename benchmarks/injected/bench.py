"""A fault, what became of it, and processes that are cheap enough to be killed by the hundred."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from experiment.damage import own_files
from experiment.kills import remains

from posterity.runs import folder as run_folder

OPERATIONS = ("open", "write", "fsync", "replace", "unlink")  # of `os`: what a run does to its folder goes through them


@dataclass(frozen=True)
class Bench:
    """Where faults are injected, and how many."""

    folder: Path
    seed: int
    kills: int  # in all

    def chance(self, name: str) -> random.Random:
        return random.Random(f"{self.seed} {name}")

    @contextmanager
    def room(self) -> Iterator[Path]:
        """A folder of its own, gone afterwards."""
        with tempfile.TemporaryDirectory(dir=self.folder) as place:
            yield Path(place)


@dataclass(frozen=True)
class Outcome:
    """What was counted, and every promise that was not kept."""

    counted: str
    broken: tuple[str, ...] = ()
    kills: int = 0
    tried: bool = True


@dataclass(frozen=True)
class Fault:
    """What is done to a run, and what is promised for it."""

    name: str
    done: str
    promise: str
    inject: Callable[[Bench], Outcome]


Trial = tuple[str, Callable[[Path], object]]


def play(trials: Sequence[Trial], bench: Bench) -> Outcome:
    """Each trial in a folder of its own: it holds, or it raises (what a test asserts, a traceback of the program)."""
    broken, skipped = [], []
    for title, call in trials:
        with bench.room() as place:
            try:
                call(place)
            except pytest.skip.Exception as reason:
                skipped.append(str(reason))
            except (Exception, pytest.fail.Exception) as error:
                broken.append(f"{title}: {type(error).__name__}: {error}"[:300])
    played = len(trials) - len(skipped)
    counted = f"{played} tried, {played - len(broken)} as promised"
    told = f"; {len(skipped)} not tried: {skipped[0]}" if skipped else ""
    return Outcome(counted + told, tuple(broken), tried=played > 0)


def forked(work: Callable[[], object], kill_after: float | None = None) -> int:
    """The exit code of a child that has everything imported; it may be killed by the clock."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@contextmanager
def watched(seen: Callable[[], object]) -> Iterator[None]:
    """`seen` is called before every operation on files."""
    before = {name: getattr(os, name) for name in OPERATIONS}

    def watch(name: str) -> Callable[..., object]:
        def operation(*given: object, **named: object) -> object:
            seen()
            return before[name](*given, **named)

        return operation

    for name in OPERATIONS:
        setattr(os, name, watch(name))
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(os, name, function)


def end_of(folder: Path) -> dict[str, object]:
    """All that a finished run leaves, but times: what `remains` compares, the names of files, every other tensor."""
    names = [name for name in own_files(folder) if not name.startswith("personal/undo")]
    others = [name for name in names if name.endswith(".safetensors") and not name.startswith("checkpoint")]
    kept = {name: run_folder.read_saved(folder / name)[0] for name in others}
    bits = {name: {n: leaf.numpy().tobytes() for n, leaf in leaves.items()} for name, leaves in kept.items()}
    return {**remains(folder), "names": names, "tensors": bits}


def difference(one: dict[str, object], other: dict[str, object]) -> str:
    """Where two ends differ."""
    wrong = [name for name in one if one[name] != other.get(name)]
    told = f" ({one['names']} against {other['names']})" if "names" in wrong else ""
    return f"another end: {', '.join(wrong)}{told}" if wrong else ""
