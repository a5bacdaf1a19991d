"""Folders that are not what was written: copies made while a run writes, missing and mixed files, flipped bits."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from experiment import damage
from experiment import test_resume_damage as test_damage
from experiment.kills import remains

from injected.bench import Bench, Fault, Outcome, Trial, end_of, play, watched
from injected.kills import tiny
from posterity.experiment import run

STORES, STATES = ("memory", "disk"), ("finished", "cut")
COPIES = 60  # of each kind of run
PLACES = 5  # bytes in each file that are changed, one at a time
Snapshot = dict[str, bytes]


@cache
def made(base: Path) -> dict[str, Path]:
    """Runs as the tests make them: with records in memory and on disk, finished and interrupted in the last round."""
    stop = {"finished": None, "cut": 4}
    return {f"{store} {state}": damage.make_run(base / f"{store}-{state}", store, stop_in=stop[state])
            for store in STORES for state in STATES}  # fmt: skip


# --- copies made while a run writes ------------------------------------------------------------------------------
def snapshots(out: Path, store: str) -> list[Snapshot]:
    """What a run's folder holds before each of its operations on files."""
    found: list[Snapshot] = []

    def look() -> None:
        names = damage.own_files(out) if out.exists() and not looking else []
        if not looking:
            looking.append(True)
            found.append({name: (out / name).read_bytes() for name in names})
            looking.clear()

    looking: list[bool] = []  # reading a file opens it
    with damage.every_round(), watched(look):
        run.start_run(tiny(store), out)
    found.append({name: (out / name).read_bytes() for name in damage.own_files(out)})
    return found


def live_copy(taken: list[Snapshot], chance: random.Random) -> Snapshot:
    """Files copied one by one, in some order, while the run goes on: each as it was a little later than the last."""
    names = sorted({name for each in taken for name in each})
    chance.shuffle(names)
    span = chance.choice((2, 10, len(taken)))  # a quick copy, a slow one
    first = chance.randrange(len(taken))
    times = sorted(min(len(taken) - 1, first + chance.randrange(span)) for _ in names)
    copy = {name: taken[time][name] for name, time in zip(names, times, strict=True) if name in taken[time]}
    if copy and chance.random() < 0.2:  # and one is cut off
        name = chance.choice(sorted(copy))
        copy[name] = copy[name][: chance.randrange(len(copy[name]))]
    return copy


def copy_lives(bench: Bench) -> Outcome:
    """Every copy is refused, or goes on to the same end."""
    kinds: Counter[str] = Counter()
    broken = []
    for store in STORES:
        chance = bench.chance(f"copies {store}")
        with bench.room() as place:
            taken = snapshots(place / "whole", store)
            whole = end_of(place / "whole")
            for number in range(COPIES):
                put(place / "copy", live_copy(taken, chance))
                kind, wrong = taken_up(place / "copy", whole)
                kinds[kind] += 1
                broken += [f"{store}, copy {number}: {wrong}"] if wrong else []
    return Outcome(f"{2 * COPIES} copies: {told(kinds)}", tuple(broken))


def put(folder: Path, files: Snapshot) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, data in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)


def taken_up(folder: Path, whole: dict[str, Any]) -> tuple[str, str]:
    """What became of a folder, in a word, and what is wrong with it."""
    try:
        with damage.every_round():
            outcome = damage.take_up(folder)
        if outcome.kind == "refused":
            return "refused", ""
        end = end_of(folder)
    except Exception as error:
        return "failed", f"{type(error).__name__}: {error}"
    wrong = [name for name in ("leaves", "round", "lines", "rows") if whole[name] != end[name]]
    wrong += [name for name, bits in whole["tensors"].items() if end["tensors"].get(name) != bits]  # more may be there
    same = "bit-identical" if outcome.kind == "silent" else "remarked and bit-identical"
    return (same, "") if not wrong else ("another end", f"another end, {outcome.kind}: {', '.join(wrong)}")


def told(kinds: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))


# --- flipped bits ------------------------------------------------------------------------------------------------
def flip_bits(bench: Bench) -> Outcome:
    """One byte of one file at a time, in every file of every kind of run."""
    kinds: Counter[str] = Counter()
    broken, files = [], 0
    with bench.room() as place:
        runs = made(place)
        for kind, whole in runs.items():
            end = remains(runs[f"{kind.split()[0]} finished"])
            for name in damage.own_files(whole):
                files += 1
                for spot in damage.places(whole / name, PLACES):
                    became, wrong = flipped(whole, place / "copy", name, spot, end)
                    kinds[became] += 1
                    broken += [f"{kind}, {name}, byte {spot}: {wrong}"] if wrong else []
    return Outcome(f"{kinds.total()} bytes of {files} files: {told(kinds)}", tuple(broken))


def flipped(whole: Path, copy: Path, name: str, spot: int, end: dict[str, object]) -> tuple[str, str]:
    try:
        outcome = damage.after_flip(whole, copy, name, spot, end)
    except Exception as error:
        return "failed", f"{type(error).__name__}: {error}"[:200]
    if outcome.noticed:
        return outcome.kind, ""
    return ("written anew", "") if damage.put_back(whole, name, spot) else ("silent", "nobody noticed")


# --- missing and mixed files, as the tests play them -------------------------------------------------------------
def mixed(bench: Bench) -> Outcome:
    """Copies of which files are missing, cut off, edited, or of another time."""
    with bench.room() as base:
        runs = made(base)
        ends = {store: remains(runs[f"{store} finished"]) for store in STORES}
        t = test_damage
        trials: list[Trial] = [
            *((f"torn checkpoint, {s}", partial(t.test_a_torn_checkpoint_gives_way_to_the_one_before, s, runs, ends))
              for s in STORES),
            *((f"both torn, {s}", partial(t.test_without_a_whole_checkpoint_nothing_goes_on, s, runs)) for s in STORES),
            *((f"personal removed, {s}", partial(t.test_removed_records_are_noticed, s, runs)) for s in STATES),
            *((f"metrics.jsonl {d}, {s}", partial(t.test_lines_that_are_missing_are_not_made_up, s, d, runs))
              for s in STATES for d in ("deleted", "half", "one byte short")),
            ("checkpoints removed", partial(t.test_missing_checkpoints_are_noticed, runs)),
            ("older checkpoint", named(t.test_a_checkpoint_older_than_the_records_is_refused, made=runs)),
            ("newer checkpoint", named(t.test_a_checkpoint_newer_than_the_records_is_refused, made=runs)),
            ("edited configuration", partial(t.test_an_edited_configuration_is_noticed, runs)),
            ("NaN in the state", partial(t.test_nan_in_the_state_is_noticed, runs)),
            ("another version", partial(t.test_other_versions_are_remarked, runs)),
            ("seeds at once", t.test_seeds_that_run_at_once_go_back_together),
        ]  # fmt: skip
        return play(trials, bench)


def named(test: Callable[..., object], **given: object) -> Callable[[Path], object]:
    """A test as a function of its folder."""
    return lambda place: test(tmp_path=place, **given)


FAULTS = (
    Fault("live-copy", "the files of a run copied one by one while it writes, in any order, quickly or slowly; "
          "some cut off", "refused, or goes on and ends bit-identical", copy_lives),
    Fault("mixed-copy", "files removed, cut off, edited, or of another time: checkpoints, `personal/`, "
          "`metrics.jsonl`, configuration", "refused in a sentence that names the file, or remarked and "
          "bit-identical", mixed),
    Fault("flipped-bits", "one byte changed in every file of finished and interrupted runs, records in memory and "
          "on disk", "noticed: refused, or remarked and bit-identical; or written anew, whatever stood there",
          flip_bits),
)  # fmt: skip
