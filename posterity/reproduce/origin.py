"""Which code, on which machine, made the rows of a column."""

from __future__ import annotations

from posterity.report import Run
from posterity.reproduce.gather import Gathered
from posterity.reproduce.recipe import Recipe, RecipeCell


def origins(recipe: Recipe, cell: RecipeCell, found: Gathered) -> str:
    """A sentence for every kind of machine, with the commits; each has its rows where not all are of one."""
    rows: dict[str, dict[str, dict[str, None]]] = {}  # machine -> code -> names, in the order of the table
    for line in recipe.lines_of(cell):
        for run in found.runs.get((cell.folder, line.name), ()):
            rows.setdefault(_machine(run), {}).setdefault(_code(run), {})[line.name] = None
    alike = sum(map(len, rows.values())) == 1
    told = {machine: [code if alike else f"{code} ({'; '.join(names)})" for code, names in codes.items()]
            for machine, codes in rows.items()}  # fmt: skip
    return " ".join(f"Run on {machine}, by {', '.join(codes)}." for machine, codes in told.items())


def _machine(run: Run) -> str:
    facts = {"torch": "unknown", "device": "an unknown device", "precision": "unknown precision", **run.facts}
    return f"{facts['device']}, PyTorch {facts['torch']}, {facts['precision']}"


def _code(run: Run) -> str:
    commit = run.facts.get("commit")
    return f"commit {commit}" if commit else f"version {run.facts.get('posterity', 'unknown')}"


__all__ = ["origins"]
