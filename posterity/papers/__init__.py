"""Tables of the papers at one command each: `posterity reproduce V-T1a` prints the paper's numbers beside ours."""

from posterity.papers.recipe import Line, Recipe, RecipeCell, recipes

__all__ = ["Line", "Recipe", "RecipeCell", "recipes"]
