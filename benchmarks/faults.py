"""Faults injected into runs, and what became of them: kills, full disks, torn copies, flipped bits, strangers' folders.

    python benchmarks/faults.py [--only NAME,...] [--kills 220] [--seed 0] [--out docs/results/faults.md]

Runs are tiny (three clients, a linear model, four rounds) and write a checkpoint after every round, so that there is
much to interrupt. A run is killed in a fork of this process, which has everything imported and one thread. What the
tests of the package play once is played here for every parameter. The table says for each fault what was done, what
is promised, and what was counted; the exit code is 1 if any promise was not kept. Linux only; a full disk and one that
may only be read need the right to mount.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"  # a fork inherits no threads
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks"), str(ROOT)]

import torch  # noqa: E402
from injected import commands, copies, folders, kills  # noqa: E402
from injected.bench import Bench, Fault, Outcome  # noqa: E402

FAULTS: tuple[Fault, ...] = (*kills.FAULTS, *commands.FAULTS, *copies.FAULTS, *folders.FAULTS)
KILLS = 220


def inject(faults: Sequence[Fault], bench: Bench) -> list[tuple[Fault, Outcome]]:
    """Every fault, one after the other, told as it ends."""
    done = []
    for fault in faults:
        begun = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are the remarks that are counted
            outcome = fault.inject(bench)
        done.append((fault, outcome))
        state = "BROKEN" if outcome.broken else "kept" if outcome.tried else "not tried"
        print(f"{fault.name:20} {state}: {outcome.counted} [{time.perf_counter() - begun:.0f} s]", flush=True)
        for each in outcome.broken:
            print(f"    {each}", flush=True)
    return done


def table(done: Sequence[tuple[Fault, Outcome]]) -> str:
    """The rows of all faults; broken promises are listed below it."""
    rows = ["| fault | what is done | what is promised | outcome | kept |", "|---|---|---|---|---|"]
    for fault, outcome in done:
        kept = "**no**" if outcome.broken else "yes" if outcome.tried else "not tried"
        rows.append(f"| {fault.name} | {fault.done} | {fault.promise} | {outcome.counted} | {kept} |")
    broken = [f"- {fault.name}: {each}" for fault, outcome in done for each in outcome.broken]
    return "\n".join([*rows, *(["", "Not kept:", "", *broken] if broken else [])])


def page(done: Sequence[tuple[Fault, Outcome]], bench: Bench, commit: str, seconds: float) -> str:
    """The page of results."""
    killed, broken = sum(o.kills for _, o in done), sum(bool(o.broken) for _, o in done)
    verdict = f"{broken} of {len(done)} promises were not kept" if broken else "every promise was kept"
    asked = " ".join(arg for arg in sys.argv[1:] if not arg.startswith(str(ROOT)))
    about = (f"`python benchmarks/faults.py{' ' + asked if asked else ''}`, seed {bench.seed}, {_today()}, commit "
             f"`{commit}`, {_machine()}, {seconds / 60:.0f} minutes.")  # fmt: skip
    return f"""# Faults and what became of them

{about}

{len(done)} kinds of faults, **{killed} kills**; {verdict}. *Bit-identical*: the end has the same files as that of a run
that nothing happened to, and all of their tensors, lines (but for their times) and records agree bit for bit.
*Refused*: a sentence, and nothing is written. *Remarked*: a sentence, and the run ends bit-identical.

{table(done)}
"""


def _today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def _commit() -> str:
    done = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=ROOT, capture_output=True,
                          text=True, check=False)  # fmt: skip
    return done.stdout.strip() or "unknown"


def _machine() -> str:
    system = f"{platform.system()} {platform.release().split('-')[0]}"
    return (f"{platform.machine()} with {os.cpu_count()} cores, {system}, Python {platform.python_version()}, "
            f"PyTorch {torch.__version__}")  # fmt: skip


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help=f"some of: {', '.join(fault.name for fault in FAULTS)}")
    parser.add_argument("--kills", type=int, default=KILLS, help="of runs in forks; real commands are killed besides")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="where the table is written to, as Markdown")
    asked = parser.parse_args(given)
    names = [name for name in asked.only.split(",") if name]
    if wrong := {*names} - {fault.name for fault in FAULTS}:
        parser.error(f"there is no fault {sorted(wrong)[0]!r}; possible: {', '.join(fault.name for fault in FAULTS)}")
    torch.set_num_threads(1)
    begun, commit = time.perf_counter(), _commit()  # the code that is run, whatever is committed meanwhile
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as place:
        bench = Bench(Path(place), asked.seed, asked.kills)
        done = inject([fault for fault in FAULTS if not names or fault.name in names], bench)
    text = page(done, bench, commit, time.perf_counter() - begun)
    if asked.out:
        asked.out.write_text(text)
    print(text)
    return int(any(outcome.broken for _, outcome in done))


if __name__ == "__main__":
    sys.exit(main())
