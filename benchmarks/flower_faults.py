"""Faults of sites, messages and servers across machines, and what became of them.

    python benchmarks/flower_faults.py [--only NAME,...] [--out PAGE]
    python benchmarks/flower_faults.py --deployment [--only NAME,...] [--out PAGE]     # SuperLink and SuperNodes
    python benchmarks/flower_faults.py --fuzz 10000 [--out PAGE]     # messages that were damaged at random
    python benchmarks/flower_faults.py --questions 10000 [--out PAGE]     # the same for the questions that sites get
    python benchmarks/flower_faults.py --orders [--out PAGE]     # no fault, but messages arrive in every order

A run has four clients with a handful of digits each and four rounds of SCAFFOLD, whose clients keep records and whose
state remembers them (FedAvg where messages are forged); on a deployment (posterity[flower]) three and three. Faults
happen in round 2. The end is held against that of an undisturbed run, and of one in which the client's message of that
round is missing: state and all records, bit for bit; where they differ the table says in which leaves and how far. The
exit code is 1 if an end is not the promised one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks"), str(ROOT)]

import torch  # noqa: E402
from injected import deployed, hostile, messages, orders  # noqa: E402
from injected.messages import Outcome  # noqa: E402


def table(done: Sequence[Outcome]) -> str:
    """The rows of all faults."""
    rows = ["| fault | what the server said and did | the end | kept |", "|---|---|---|---|"]
    rows += [f"| {each.fault} | {each.said} | {each.end} | {'yes' if each.kept else '**no**'} |" for each in done]
    return "\n".join(rows)


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="some of the faults, by name, with commas between")
    parser.add_argument("--deployment", action="store_true", help="real processes of Flower, on this machine")
    parser.add_argument("--fuzz", type=int, default=0, metavar="N", help="so many damaged messages for the server")
    parser.add_argument("--questions", type=int, default=0, metavar="N", help="so many damaged questions for a site")
    parser.add_argument("--orders", action="store_true", help="undisturbed runs whose messages arrive in every order")
    parser.add_argument("--out", type=Path, help="where the table is written to, as Markdown")
    asked = parser.parse_args(given)
    torch.set_num_threads(1)
    if asked.fuzz:
        from injected import fuzzed  # needs what tests need

        text, kept = fuzzed.table(asked.fuzz)
        return tell(text, asked.out, kept)
    if asked.questions:
        from injected import fuzzed_questions

        text, kept = fuzzed_questions.table(asked.questions)
        return tell(text, asked.out, kept)
    if asked.orders:
        return tell(orders.table(), asked.out, True)
    done: list[Outcome] = []
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        more = hostile.faults(stack, Path(place) / "deployment")
        faults = {**deployed.FAULTS, **more} if asked.deployment else messages.FAULTS
        names = [name for name in asked.only.split(",") if name] or list(faults)
        if wrong := [name for name in names if name not in faults]:
            parser.error(f"there is no fault {wrong[0]!r}; possible: {', '.join(faults)}")
        for name in names:
            begun = time.perf_counter()
            try:
                done.append(faults[name](Path(place) / name))
            except subprocess.TimeoutExpired as error:
                done.append(Outcome(name, "the run had no end", f"none within {error.timeout:.0f} s", False))
            print(f"{name}: {done[-1]} [{time.perf_counter() - begun:.0f} s]", flush=True)
    return tell(table(done), asked.out, all(each.kept for each in done))


def tell(text: str, page: Path | None, kept: bool) -> int:
    """The table for whoever asked, and the exit code."""
    if page:
        page.write_text(text + "\n")
    print(text)
    return int(not kept)


if __name__ == "__main__":
    sys.exit(main())
