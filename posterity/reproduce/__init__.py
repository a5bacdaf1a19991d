"""Tables of the papers at one command each: `posterity reproduce V-T1a` prints the paper's numbers beside ours."""

from __future__ import annotations

from posterity.reproduce.recipe import Cell, Line, Recipe, recipes

__all__ = ["Cell", "Line", "Recipe", "recipes"]
