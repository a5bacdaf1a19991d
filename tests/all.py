"""`make test-all`: every test, and a line in docs/results/tests.md that says when, how long and with what result."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
import time
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
    import os

    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    print(done.stdout)
    found = re.findall(r"\d+ (?:passed|failed|skipped|xfailed|error\w*)", done.stdout.splitlines()[-1])
    minutes = (time.perf_counter() - begun) / 60
    data = "yes" if os.environ.get("POSTERITY_DATA") else "no"
    machine = f"{os.cpu_count()} cores, {platform.machine()}"
    row = f"| {date.today()} | {', '.join(found)} | {minutes:.1f} | {machine} | {torch.__version__} | {data} |\n"
    old = PAGE.read_text().split("|--:|---|---|---|\n")[1] if PAGE.exists() else ""
    PAGE.write_text(HEAD + row + old)
    print(row)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
