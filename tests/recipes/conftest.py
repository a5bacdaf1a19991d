"""Recipes as modules, and FedMAP's plan cut down to two tiny rounds."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "recipes"


@pytest.fixture
def script(monkeypatch):
    """A recipe by its name, with its own folder in front of the path, as Python does for a script."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


@pytest.fixture
def common(script):
    return script("common")


@pytest.fixture
def tables(script):
    return script("fedmap_tables")


@pytest.fixture
def pages(script):
    return script("fedmap_page")


@pytest.fixture
def claims(script):
    return script("fedmap_claims")


@pytest.fixture
def tiny(tables):
    """A quick plan: one seed, the authors' data, the plain network."""

    def make(out, **changes):
        methods = ("local", "fedmap", "fedprox", "fedbn", "fedavg")
        plan = tables.BatchPlan(out, (0,), presets=("code",), models=("mlp",), methods=methods)
        return replace(tables.quick(plan), **changes)

    return make
