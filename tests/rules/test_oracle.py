"""The oracle is dull: it takes clients one by one, in few lines, without threads, clocks, recordings or exceptions."""

from __future__ import annotations

import ast

from .source import ROOT, imported

ENGINES, CLIENT = "posterity/engine/engines.py", "posterity/engine/client.py"
LOOP = ("Loop", "work", "_each")  # what the oracle is made of, beside `client.py`
CLEVER = (ast.Try, ast.While, ast.Raise)


def read(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text(encoding="utf-8"))


def loop() -> list[ast.stmt]:
    found = [node for node in read(ENGINES).body if getattr(node, "name", None) in LOOP]
    assert len(found) == len(LOOP)
    return found


def test_it_is_short():
    assert sum(node.end_lineno - node.lineno + 1 for node in loop()) <= 60
    assert len((ROOT / CLIENT).read_text(encoding="utf-8").splitlines()) <= 230


def test_there_is_nothing_to_argue_about():
    for part in (*loop(), read(CLIENT)):
        assert [node for node in ast.walk(part) if isinstance(node, CLEVER)] == []
        assert not {"vmap", "grad", "traces", "play"} & {n.id for n in ast.walk(part) if isinstance(n, ast.Name)}
    clever = ("time", "threading", "concurrent", "posterity.fast", "torch.func")
    assert [name for name in imported(read(CLIENT), CLIENT) if name.startswith(clever)] == []
