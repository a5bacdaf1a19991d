"""The oracle is dull: a short file that takes clients one by one, without threads, clocks, recordings or exceptions."""

from __future__ import annotations

import ast

import pytest

from .source import ROOT, imported

LOOP, CLIENT = "posterity/engine/engines.py", "posterity/engine/client.py"


@pytest.mark.parametrize(("file", "most"), [(LOOP, 120), (CLIENT, 200)])
def test_it_is_short(file, most):
    assert len((ROOT / file).read_text(encoding="utf-8").splitlines()) <= most


@pytest.mark.parametrize("file", [LOOP, CLIENT])
def test_there_is_nothing_to_argue_about(file):
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    clever = ("time", "threading", "concurrent", "posterity.fast", "posterity.fast", "torch.func")
    assert [name for name in imported(tree, file) if name.startswith(clever)] == []
    assert [node for node in ast.walk(tree) if isinstance(node, (ast.Try, ast.While, ast.Raise))] == []
