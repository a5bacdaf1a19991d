"""`make test-all`: every test, and a line in docs/results/tests.md that says when, how long and with what result."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import time
from collections import Counter
from datetime import date
from pathlib import Path

import torch

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "results" / "tests.md"
HEAD = """# The whole test suite

`make test-all` runs everything, the long forms included (`make test` leaves those out), and writes this page.

| date | result | minutes | machine | torch | real data |
|---|---|--:|---|---|---|
"""


def main() -> int:
    begun = time.perf_counter()
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadscope"]  # two processes for two cores
    run = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True,
                           env={**os.environ, "OMP_NUM_THREADS": "1"})  # fmt: skip
    output = []
    assert run.stdout is not None
    for line in run.stdout:  # shown as it comes
        print(line, end="", flush=True)
        output.append(line)
    run.wait()
    counts: Counter[str] = Counter()
    for number, word in re.findall(r"(\d+) (passed|failed|skipped|xfailed|errors?)", output[-1]):
        counts[word] += int(number)
    minutes = (time.perf_counter() - begun) / 60
    data = "yes" if os.environ.get("POSTERITY_DATA") else "no"
    machine = f"{os.cpu_count()} cores, {platform.machine()}"
    result = ", ".join(f"{number:,} {word}" for word, number in counts.items())
    row = f"| {date.today()} | {result} | {minutes:.1f} | {machine} | {torch.__version__} | {data} |\n"
    old = PAGE.read_text().split("|--:|---|---|---|\n")[1] if PAGE.exists() else ""
    PAGE.write_text(HEAD + row + old)
    print(row)
    return run.returncode


if __name__ == "__main__":
    sys.exit(main())
