"""Disks that are full or may only be read, a second writer, folders from strangers, and clients that poison."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from engine import test_round_unusable as unusable
from experiment import test_divergence
from experiment import test_resume_damage as test_damage
from experiment.kills import remains

from injected.bench import Bench, Fault, Outcome, Trial, end_of, play, watched
from injected.copies import STORES, made
from injected.kills import CASES, count_operations
from posterity.runs import files as run_files
from posterity.runs import folder as run_folder

LINKS = ("config.toml", "run.json", "metrics.jsonl", "checkpoint.safetensors", "lock", "run.json.part",
         "checkpoint.previous.safetensors", "personal/rows.bin", "personal/undo.bin", "personal/undo.tmp",
         "personal")  # fmt: skip
WRITERS = 8  # of each kind of run
BUSY = "is being written by another process"


# --- disks -------------------------------------------------------------------------------------------------------
def on_small_disk(test: Callable[..., object], store: str, given: dict[str, object], place: Path) -> None:
    """A test that wants a disk of its own."""
    with test_damage.mounted(place / "disk") as disk:
        test(store, small_disk=disk, **given)


def fill_disk(bench: Bench) -> Outcome:
    with bench.room() as base:
        ends = {store: remains(made(base)[f"{store} finished"]) for store in STORES}
        test = partial(on_small_disk, test_damage.test_a_full_disk_is_told_and_nothing_is_lost)
        trials: list[Trial] = [(store, partial(test, store, {"ends": ends})) for store in STORES]
        return play([*trials, ("rows", test_damage.test_rows_that_find_no_room_are_an_error_not_a_signal)], bench)


def close_disk(bench: Bench) -> Outcome:
    with bench.room() as base, bench.room() as page:
        test = partial(on_small_disk, test_damage.test_a_run_on_a_disk_that_may_only_be_read)
        given = {"made": made(base), "tmp_path": page}
        return play([(store, partial(test, store, given)) for store in STORES], bench)


# --- two writers -------------------------------------------------------------------------------------------------
def write_twice(bench: Bench) -> Outcome:
    """A run is halted before an operation on files; a second process tries; the first goes on to its end."""
    broken = []
    for name in STORES:
        chance, case = bench.chance(f"writers {name}"), CASES[name]
        with bench.room() as place:
            operations, _ = count_operations(case, place / "whole")
            whole = end_of(place / "whole")
            for i in range(WRITERS):
                number = chance.randint(3, operations - 3)  # while the lock is held
                wrong = second_writer(case.go, place / str(i), number, whole)
                broken += [f"{name}, at operation {number}: {wrong}"] if wrong else []
    tried = WRITERS * len(STORES)
    return Outcome(f"{tried} tried, {tried - len(broken)} refused, the first run bit-identical", tuple(broken))


def second_writer(go: Callable[[Path], object], out: Path, number: int, whole: dict[str, object]) -> str:
    """What went wrong."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with watched(halt_at(number)):
                go(out)
            code = 0
        finally:
            os._exit(code)
    os.waitpid(pid, os.WUNTRACED)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    try:
        go(out)
        wrong = "the second was not refused"
    except ValueError as error:
        wrong = "" if BUSY in str(error) else str(error)
    if {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} != before:
        wrong = "the second wrote something"
    os.kill(pid, signal.SIGCONT)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return wrong or ("" if code == 0 and end_of(out) == whole else f"the first came to another end ({code})")


def halt_at(number: int) -> Callable[[], None]:
    left = [number]

    def count_down() -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGSTOP)

    return count_down


# --- folders from strangers --------------------------------------------------------------------------------------
def meet_strangers(bench: Bench) -> Outcome:
    t, imported = test_damage, test_damage.test_modules_that_the_user_did_not_name_are_not_imported
    with bench.room() as base:
        runs = made(base)
        trials: list[Trial] = [
            *((f"link {name}", partial(t.test_links_are_refused, name, runs)) for name in LINKS),
            ("links before a run begins", t.test_a_new_run_is_not_written_through_links),
            ("a link as a plan", t.test_a_comparison_is_not_planned_through_a_link),
            ("a pipe", partial(t.test_a_pipe_in_the_place_of_a_file_is_refused, runs)),
            *((f"module as {name}", patched(partial(imported, name, runs))) for name in t.EVIL),
            ("module in run.json", patched(partial(t.test_an_engine_in_the_facts_is_not_imported, runs))),
            ("module in a plan", t.test_a_plan_is_looked_at_too),
            ("absurd headers", lambda place: t.test_absurd_numbers_allocate_nothing(place, runs)),
            ("links among clients' numbers", partial(link_clients, runs)),
        ]  # fmt: skip
        return play(trials, bench)


def patched(test: Callable[..., object]) -> Callable[[Path], object]:
    """A test that changes where modules are found, as a function of its folder."""

    def call(place: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            test(place, patch)

    return call


def link_clients(runs: dict[str, Path], place: Path) -> None:
    out, mine = test_damage.copy_of(runs, "memory cut", place), place / "mine"
    mine.mkdir()
    (out / "clients").symlink_to(mine)
    assert "symbolic link" in test_damage.take_up(out).text
    assert run_files.read_json(out / run_folder.RUN)["status"] != "finished"
    assert not any(mine.iterdir())


# --- clients that poison, and runs that explode ------------------------------------------------------------------
def poison(bench: Bench) -> Outcome:
    """One of eight clients sends a finite number that no other could survive; servers that fail; absurd step sizes."""
    numbers = ((1e30, unusable.torch.float32), (1e18, unusable.torch.float32), (1e200, unusable.torch.float64))
    send = unusable.test_a_finite_poisoner_is_refused_by_name_and_the_others_go_on
    fail = unusable.test_a_round_without_a_usable_result_is_rolled_back_and_named
    lost = test_divergence.test_more_than_half_of_the_rounds_lost_is_no_result
    trials: list[Trial] = [
        *((f"{number:g}, {engine.name}", alone(partial(send, engine, number, dtype)))
          for engine in unusable.ENGINES for number, dtype in numbers),
        *((f"{how}, {engine.name}", alone(partial(fail, engine, how)))
          for engine in unusable.ENGINES for how in ("nan", "inf", "large", "solver")),
        ("pfedvmp, lr 1e6", alone(unusable.test_a_step_size_of_a_million_ends_in_no_traceback)),
        ("more than half of the rounds lost",
         alone(partial(lost, (True, True, False), True))),
    ]  # fmt: skip
    return play(trials, bench)


def alone(test: Callable[[], object]) -> Callable[[Path], object]:
    """A test that needs no folder."""
    return lambda place: test()


FAULTS = (
    Fault("disk-full", "the disk fills up while a run goes on, records in memory and on disk; then space is made",
          "a sentence, no signal; nothing is lost: goes on and ends bit-identical", fill_disk),
    Fault("read-only", "a finished and an interrupted run on a disk that may only be read",
          "the finished one is loaded and reported; the other is refused in a sentence", close_disk),
    Fault("two-writers", "a second process goes on with a run while the first writes, at any operation on files",
          "the second is refused and writes nothing; the first ends bit-identical", write_twice),
    Fault("hostile-folder", "symbolic links and a pipe in the place of files, modules named without `--trust`, headers "
          "that claim terabytes", "refused in a sentence; nothing is written elsewhere, imported or allocated",
          meet_strangers),
    Fault("poisoner", "one of eight clients sends 1e30, 1e18 or 1e200; a server's result is NaN, infinite or fails; "
          "a step size of a million", "the poisoner is named and left out; the round is rolled back and named; the "
          "others go on", poison),
)  # fmt: skip
