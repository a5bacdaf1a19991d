"""Every method says where it comes from and where it departs from it."""

from __future__ import annotations

import ast
import inspect
from dataclasses import fields, is_dataclass

import pytest

from posterity.core.protocol import Method
from posterity.methods import available, suffixes

from .source import papers

FILES = papers()


def summary(file) -> str:
    return ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""


def test_every_method_and_wrapper_is_one_file_or_one_folder():
    assert list(FILES) == sorted({**available(), **suffixes()})


@pytest.mark.parametrize("name", FILES)
def test_says_how_it_differs_from_the_paper(name):
    assert "Differs from the paper" in summary(FILES[name][0])


@pytest.mark.parametrize("name", available())
def test_has_a_reference(name):
    assert "Reference" in summary(FILES[name][0])


@pytest.mark.parametrize("file", [file for files in FILES.values() for file in files[1:]], ids=lambda f: f.name)
def test_a_file_of_a_folder_says_what_of_the_paper_it_holds(file):
    assert len(summary(file)) > 50


@pytest.mark.parametrize("name", available())
def test_declares_itself(name):
    cls = available()[name]
    assert is_dataclass(cls)
    assert cls.__dataclass_params__.frozen
    assert all(isinstance(getattr(cls, n), str) and getattr(cls, n) for n in ("label", "reference", "absent"))
    assert cls.scored in ("received", "adapted", "trained")
    own = {n for n in vars(cls) if inspect.isfunction(vars(cls)[n])}
    assert {"passes", "message", "combine"} <= own
    assert [b for b in cls.__mro__[1:] if b in available().values()] == []  # methods do not inherit from methods
    assert Method in cls.__mro__


@pytest.mark.parametrize("name", [*available(), *suffixes()])
def test_every_hyper_parameter_is_documented(name):
    cls = {**available(), **suffixes()}[name]
    bare = [
        f.name
        for f in fields(cls)
        if not getattr(f.metadata.get("knob"), "doc", "") and f.name not in ("loss", "support_loss", "method")
    ]
    assert bare == []
