"""`posterity.core` has what a method needs under one roof, and costs nothing until it is asked."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from posterity import core, methods

ROOT = Path(methods.__file__).parent
FILES = [p for p in sorted(ROOT.rglob("*.py")) if p != ROOT / "__init__.py"]  # which is the registry


def imports(path: Path) -> list[ast.ImportFrom]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module]


def test_every_name_is_the_same_thing_wherever_it_is_found():
    modules = [vars(import_module(f"posterity.core.{name}")) for name in core.MODULES]
    for name in core.__all__:
        found = [m[name] for m in modules if name in m]
        assert found
        assert all(each is found[0] for each in found), name
        assert getattr(core, name) is found[0]


def test_the_type_checker_sees_the_same_names():
    seen = [n for n in imports(Path(core.__file__)) if n.module.startswith("posterity.core.")]
    assert sorted(a.name for n in seen for a in n.names) == sorted(core.__all__)
    assert {n.module.rpartition(".")[2] for n in seen} == set(core.MODULES)


def test_other_names_are_refused():
    with pytest.raises(AttributeError, match=r"'posterity.core' has no attribute 'math'"):
        _ = core.math


def test_pytorch_is_not_imported_before_it_is_needed():
    code = "import sys, posterity.core; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("file", FILES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_a_method_has_one_import_line_from_core(file):
    found = [n.module for n in imports(file) if f"{n.module}.".startswith("posterity.core.")]
    assert found in ([], ["posterity.core"])
