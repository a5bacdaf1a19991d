"""What else the papers show: tables that no run here makes and figures without numbers, each with the reason."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class Elsewhere:
    """A table or figure without a recipe."""

    id: str
    paper: str
    title: str
    why: str  # it has none, and what there is instead


@cache
def without_recipe() -> dict[str, Elsewhere]:
    """Every table and figure of the papers that has no recipe, by its id (`without_recipe.toml`)."""
    text = files("posterity.reproduce").joinpath("without_recipe.toml").read_text(encoding="utf-8")
    return {raw["id"]: Elsewhere(**raw) for raw in tomllib.loads(text)["item"]}


__all__ = ["Elsewhere", "without_recipe"]
