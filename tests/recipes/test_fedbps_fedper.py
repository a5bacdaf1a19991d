"""The finding about FedBPS's Table 1: its page has the differences that its runs have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_differences_of_the_stored_runs():
    done = subprocess.run([sys.executable, ROOT / "recipes" / "fedbps_fedper.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.strip()
    assert lines.count("\n") == 7  # four rows, two data sets
    assert lines in (ROOT / "docs" / "results" / "fedbps.md").read_text(encoding="utf-8")
