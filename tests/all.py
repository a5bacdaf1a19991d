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
    halves = (["tests/laws"], ["tests", "--ignore=tests/laws"])  # two processes for two cores
    runs = [subprocess.Popen([sys.executable, "-m", "pytest", *half], cwd=ROOT, stdout=subprocess.PIPE, text=True)
            for half in halves]  # fmt: skip
    outputs = [run.communicate()[0] for run in runs]
    print("\n".join(outputs))
    counts: Counter[str] = Counter()
    for output in outputs:
        for number, word in re.findall(r"(\d+) (passed|failed|skipped|xfailed|errors?)", output.splitlines()[-1]):
            counts[word] += int(number)
    minutes = (time.perf_counter() - begun) / 60
    data = "yes" if os.environ.get("POSTERITY_DATA") else "no"
    machine = f"{os.cpu_count()} cores, {platform.machine()}"
    result = ", ".join(f"{number:,} {word}" for word, number in counts.items())
    row = f"| {date.today()} | {result} | {minutes:.1f} | {machine} | {torch.__version__} | {data} |\n"
    old = PAGE.read_text().split("|--:|---|---|---|\n")[1] if PAGE.exists() else ""
    PAGE.write_text(HEAD + row + old)
    print(row)
    return max(run.returncode for run in runs)


if __name__ == "__main__":
    sys.exit(main())
