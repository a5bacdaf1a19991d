"""Every method says where it comes from and where it departs from it."""

from __future__ import annotations

import ast
import inspect
from dataclasses import fields, is_dataclass

import pytest

from posterity.core.protocol import Method
from posterity.methods import available, suffixes

from .source import modules

FILES = {file: tree for file, tree in modules().items() if file.startswith("posterity/methods/")}
TEXTS = {file: ast.get_docstring(tree) or "" for file, tree in FILES.items() if not file.endswith("__init__.py")}
PLAIN = [file for file in TEXTS if "/wrappers/" not in file]


@pytest.mark.parametrize("file", TEXTS)
def test_says_how_it_differs_from_the_paper(file):
    assert "Differs from the paper" in TEXTS[file]


@pytest.mark.parametrize("file", PLAIN)
def test_has_a_reference(file):
    assert "Reference" in TEXTS[file]


@pytest.mark.parametrize("name", available())
def test_declares_itself(name):
    cls = available()[name]
    assert is_dataclass(cls)
    assert cls.__dataclass_params__.frozen
    assert all(isinstance(getattr(cls, n), str) and getattr(cls, n) for n in ("label", "reference", "absent"))
    assert cls.scored in ("received", "adapted", "trained")
    own = {n for n in vars(cls) if inspect.isfunction(vars(cls)[n])}
    assert {"init", "start", "passes", "message", "combine"} <= own
    assert [b for b in cls.__mro__[1:] if b in available().values()] == []  # methods do not inherit from methods
    assert Method in cls.__mro__


@pytest.mark.parametrize("name", [*available(), *suffixes()])
def test_every_hyper_parameter_is_documented(name):
    cls = {**available(), **suffixes()}[name]
    bare = [
        f.name for f in fields(cls) if not f.metadata.get("doc") and f.name not in ("loss", "support_loss", "method")
    ]
    assert bare == []
