"""Every numbered oracle of the five papers is a test that is named after it.

O7 of FedBPS is `test_o07_…` in tests/oracles/test_fedbps.py. One that belongs to data or metrics may be elsewhere in
tests/, and its name ends in `_fedbps_o14`.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
ORACLES = {"fedbps": 15, "fedmap": 12, "fednp": 17, "metavd": 17, "pfedvmp": 14}


def functions(path: Path) -> list[str]:
    return [n.name for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, ast.FunctionDef)]


@cache
def names() -> dict[Path, list[str]]:
    """Of all tests by their file; found when they are asked for, not when tests are collected."""
    return {path: functions(path) for path in sorted(TESTS.rglob("test_*.py"))}


@pytest.mark.parametrize(("paper", "number"), [(p, n) for p, last in ORACLES.items() for n in range(1, last + 1)])
def test_an_oracle_has_its_test(paper, number):
    own = [n for n in names()[TESTS / "oracles" / f"test_{paper}.py"] if n.startswith(f"test_o{number:02}_")]
    pattern = re.compile(rf"test_.*_{paper}_o{number:02}")
    assert own or [n for found in names().values() for n in found if pattern.fullmatch(n)]
