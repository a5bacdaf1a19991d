"""The page of a table: every column that was run, the paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Sequence

from posterity.reproduce.beside import RULES, Entry, entries, gap
from posterity.reproduce.gather import Gathered, other_size
from posterity.reproduce.order import order
from posterity.reproduce.recipe import Recipe

SECONDS = "s a round"


def markdown(recipe: Recipe, found: Gathered) -> str:
    """The whole table."""
    pieces = [f"## {recipe.id}: {recipe.paper}, {recipe.title}", _listed("Left open by the paper", recipe.open)]
    run = [cell for cell in recipe.cells if found.of(cell)]
    for cell in run:
        each = entries(recipe, cell, found)
        pieces += [f"### {cell.name}", other_size(recipe, cell, found.of(cell)), _table(each), order(each)]
    pieces.append(_listed("Not yet run", [cell.name for cell in recipe.cells if cell not in run]))
    pieces.append(_listed("About the runs", found.remarks))
    return "\n\n".join(piece for piece in pieces if piece) + "\n"


def _listed(what: str, sentences: Sequence[str]) -> str:
    return f"{what}:\n\n" + "\n".join(f"- {each}" for each in sentences) if sentences else ""


def _table(found: Sequence[Entry]) -> str:
    own = found[-1].line.name
    heads = ["method", "paper", "validated", "best round", "last", "scored at", "seeds", f"{own} − it (95 %)"]
    lines = [heads, ["---", "--:", "--:", "--:", "--:", "---", "--:", "--:"]]
    for each in found:
        lines.append([each.name, each.paper, *(each.ours[rule] for rule in RULES), each.point,
                      str(each.seeds or ""), gap(each)])  # fmt: skip
    if any(each.seconds for each in found):
        lines = [[*line, more] for line, more in zip(lines, [SECONDS, "--:", *(e.seconds for e in found)], strict=True)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


__all__ = ["SECONDS", "markdown"]
