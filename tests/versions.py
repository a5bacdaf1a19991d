"""The test suite at the floor and at the ceiling of every direct dependency, each in an environment of its own.

    python tests/versions.py                       # both, all of `make test`
    python tests/versions.py floor -- tests/cli    # one of them, some tests
    python tests/versions.py --python python3.13   # with another interpreter

The floor is the lower bound that pyproject.toml states; the ceiling the newest version that it allows, without
constraints.txt. Environments lie under build/versions and are kept. What was tried, with which versions, is
printed as a line for docs/results/versions.md.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PLACE = ROOT / "build" / "versions"
END = ("floor", "ceiling")
NEEDED = re.compile(r"^([A-Za-z0-9_-]+)>=([0-9.]+)(.*)$")


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def requirements(end: str) -> list[str]:
    """The direct dependencies, each at one end of what is allowed."""
    found = []
    for text in project()["dependencies"]:
        match = NEEDED.match(text)
        if match is None:
            raise SystemExit(f"{text!r} in pyproject.toml states no lower bound: write name>=version")
        name, low, _ = match.groups()
        found.append(f"{name}=={low}" if end == "floor" else text)
    return found


def environment(end: str, python: str) -> Path:
    """The interpreter of an environment with these versions, made if there is none."""
    place = PLACE / f"{end}-{Path(python).name}"
    made = place / "bin" / "python"
    if not (place / ".ready").exists():
        subprocess.run([python, "-m", "venv", "--clear", place], check=True)
        wanted = requirements(end)
        torch = [text for text in wanted if text.startswith("torch")]
        pip = [made, "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, *torch], check=True)  # alone and first: the rest must not choose another build of it
        subprocess.run([*pip, *wanted, *project()["optional-dependencies"]["test"]], check=True)
        (place / ".ready").touch()
    return made


def versions(python: Path, end: str) -> str:
    """What is installed there of the direct dependencies."""
    names = [re.split(r"[=<>]", text)[0] for text in requirements(end)]
    code = f"from importlib.metadata import version as v; print(', '.join(f'{{n}} {{v(n)}}' for n in {names}))"
    asked = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return asked.stdout.strip()


def run(end: str, python: str, rest: list[str]) -> int:
    """Make the environment, run the tests, print the line; the tests' exit code."""
    made, begun = environment(end, python), time.monotonic()
    command = [made, "-m", "pytest", "-q", "-m", "not everything", "-n", "2", "--dist", "loadscope", *rest]
    own = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=own, stdout=subprocess.PIPE, text=True) as tests:
        last = ""
        for line in tests.stdout or ():
            print(line, end="")
            last = line.strip(" =\n") or last
    said = subprocess.run([made, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    minutes = (time.monotonic() - begun) / 60
    today = datetime.now(UTC).date()
    print(f"| {today} | {end} | {said}, {versions(made, end)} | {' '.join(rest) or 'all'} | {last} | {minutes:.1f} |")
    return tests.returncode


def main() -> int:
    own, _, rest = " ".join(sys.argv[1:]).partition("-- ")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ends", nargs="*", default=list(END), help="floor, ceiling (default: both)")
    parser.add_argument("--python", default=sys.executable, help="interpreter to make environments with")
    given = parser.parse_args(own.split())
    if unknown := [end for end in given.ends if end not in END]:
        raise SystemExit(f"there is no end {unknown[0]!r}: expected floor or ceiling")
    return max(run(end, given.python, rest.split()) for end in given.ends)


if __name__ == "__main__":
    sys.exit(main())
