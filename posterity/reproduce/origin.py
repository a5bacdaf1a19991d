"""Which code, on which machine, made the rows of a column."""

from __future__ import annotations

from posterity.report import Run
from posterity.reproduce.gather import Gathered
from posterity.reproduce.recipe import Recipe, RecipeCell


def origins(recipe: Recipe, cell: RecipeCell, found: Gathered) -> str:
    """A sentence for every kind of machine, with the commits; each has its rows where not all are of one."""
    rows: dict[str, dict[str, list[str]]] = {}  # machine -> code -> names
    for line in recipe.lines_of(cell):
        for run in found.runs.get((cell.folder, line.name), ()):
            names = rows.setdefault(_machine(run), {}).setdefault(_code(run), [])
            names += [line.name] if line.name not in names else []
    alike = len(rows) == 1 and all(len(codes) == 1 for codes in rows.values())
    return " ".join(
        f"Run on {machine}, by {', '.join(code if alike else f'{code} ({_joined(n)})' for code, n in codes.items())}."
        for machine, codes in rows.items()
    )


def _machine(run: Run) -> str:
    facts = run.facts
    return f"{facts.get('device', 'unknown')}, PyTorch {facts.get('torch', 'unknown')}, {facts.get('precision', '')}"


def _code(run: Run) -> str:
    commit = run.facts.get("commit")
    return f"commit {commit}" if commit else f"version {run.facts.get('posterity', 'unknown')}"


def _joined(names: list[str]) -> str:
    return "; ".join(names)  # some have commas


__all__ = ["origins"]
