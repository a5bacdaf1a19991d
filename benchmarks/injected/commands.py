"""Real commands and real signals: comparisons with workers, Ctrl-C."""

from __future__ import annotations

import os
import random
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from behaviour import test_stopping as tested

from injected.bench import Bench, Fault, Outcome, difference, end_of, play
from injected.kills import ALL

LONG = ["--dataset", "digits", "--clients", "4", "--rounds", "150", "--evaluate-every", "75", "--subset", "5%",
        "--model", "linear", "--quiet"]  # fmt: skip
LOST = r"error: \w+ seed \d: its process was killed by SIGKILL .*; go on with: posterity resume .*\n"


@dataclass(frozen=True)
class Command:
    """A command that starts processes: how it begins and goes on, and what it says when one of them is killed."""

    begin: tuple[str, ...]
    resume: tuple[str, ...]
    lost: str
    code: int


WORKERS = Command(("compare", "--methods", "fedavg,local", "--seeds", "0,1", "--jobs", "2", *LONG, "--engine", "loop"),
                  ("resume", "--quiet", "--jobs", "2"), LOST, 2)  # fmt: skip


def await_work(process: subprocess.Popen[str], out: Path) -> bool:
    """Wait until the command trains (runs that go on lose some lines first); False: it has ended."""
    fewest = [10**9]

    def grown() -> bool:
        lines = sum(path.read_bytes().count(b"\n") for path in out.rglob("metrics.jsonl"))
        fewest[0] = min(fewest[0], lines)
        return process.poll() is not None or lines > fewest[0] + 5

    tested.wait_for(grown)
    return process.poll() is None


def kill_parent(process: subprocess.Popen[str], command: Command, out: Path) -> None:
    process.kill()
    process.communicate(timeout=120)
    tested.wait_for(lambda: tested.members(process.pid) == [])


def kill_worker(process: subprocess.Popen[str], command: Command, out: Path) -> None:
    """One of its processes: the command names it, and nothing is left."""
    others = [pid for pid in tested.members(process.pid) if pid != process.pid]
    os.kill(max(others), signal.SIGKILL)
    _, said = process.communicate(timeout=600)
    assert process.returncode == command.code, (process.returncode, said)
    assert re.search(command.lost, said), said
    assert "Traceback" not in said, said
    assert tested.members(process.pid) == []


def interrupt(process: subprocess.Popen[str], command: Command, out: Path) -> None:
    """Ctrl-C: everything stops at once, with a sentence."""
    begun = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert time.monotonic() - begun < tested.BOUND
    assert said == f"stopped; go on with: posterity resume {shlex.quote(str(out))}\n", said
    assert process.returncode == 130
    assert tested.members(process.pid) == []


STEPS: tuple[Callable[[subprocess.Popen[str], Command, Path], None], ...] = (
    kill_parent, kill_parent, interrupt, kill_parent, kill_worker
)  # fmt: skip


def stop_again_and_again(command: Command, bench: Bench) -> Outcome:
    """One command, stopped in every way, each time while it trains; then it goes on to its end."""
    chance, broken, kills, stops = bench.chance(command.begin[0]), [], 0, 0
    with bench.room() as place:
        whole, out = place / "whole", place / "cut"
        code = tested.start([*command.begin], whole).wait(timeout=600)
        process = tested.start([*command.begin], out)
        for step in STEPS:
            try:
                if not pause(process, out, chance):
                    break
                step(process, command, out)
            except (AssertionError, subprocess.TimeoutExpired) as error:
                broken.append(f"{step.__name__}: {error}"[:300])
                end_all(process)
            kills, stops = kills + (step is not interrupt), stops + (step is interrupt)
            process = tested.start([*command.resume], out)
        said = process.communicate(timeout=600)[1]
        runs, wrong = compare_ends(whole, out)
        broken += [f"it did not go on (exit codes {code}, {process.returncode}): {said}"[:300]] * bool(
            code or process.returncode
        ) + wrong
    told = f"{kills} kills (of one process the last), {stops} Ctrl-C, nothing left running"
    return Outcome(f"{told}; {runs - len(wrong)} of {runs} runs bit-identical", tuple(broken), kills)


def pause(process: subprocess.Popen[str], out: Path, chance: random.Random) -> bool:
    """Let it train for a moment that chance chooses; False: it is over."""
    working = await_work(process, out)
    time.sleep(chance.uniform(0.0, 0.3))
    return working and process.poll() is None


def end_all(process: subprocess.Popen[str]) -> None:
    """Whatever a command that broke its promise has left."""
    for pid in tested.members(process.pid):
        os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=120)


def compare_ends(whole: Path, out: Path) -> tuple[int, list[str]]:
    """How many runs there are, and which have another end than those that were left alone."""
    places = sorted(path.parent.relative_to(whole) for path in whole.rglob("config.toml"))
    try:
        found = {str(each): difference(end_of(whole / each), end_of(out / each)) for each in places}
    except (ValueError, OSError) as error:
        return len(places), [f"no end: {error}"]
    return len(places), [f"{name}: {wrong}" for name, wrong in found.items() if wrong]


def interrupt_alone(bench: Bench) -> Outcome:
    """Commands without workers."""
    test = tested.test_one_signal_stops_everything_and_tells_how_to_go_on
    ways = [("run", "group"), ("run", "term"), ("one after the other", "parent")]
    return play([(f"{command}, {sender}", partial(test, command, sender)) for command, sender in ways], bench)


STOPPED = "nothing is left running, a sentence names what was lost and how to go on"
FAULTS = (
    Fault("kills-workers", "`compare --jobs 2`: SIGKILL of the command, Ctrl-C, SIGKILL of a worker, resumed after "
          "each",
          f"{STOPPED}; {ALL}",
          partial(stop_again_and_again, WORKERS)),
    Fault("ctrl-c", "Ctrl-C or SIGTERM to `run` and to a `compare` that does one run after the other",
          "stops within seconds, exit code 130 or 143, the sentence says how to go on", interrupt_alone),
)  # fmt: skip
