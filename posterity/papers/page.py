"""The page of a table: every column that was run, the paper's numbers beside ours.

Which code, on which machine, made the rows of a column.
"""

from __future__ import annotations

from collections.abc import Sequence

from posterity.papers.beside import (
    RULES,
    Entry,
    compared_by,
    entries,
    gap,
    held_against,
    order,
    with_numbers,
    without_numbers,
)
from posterity.papers.recipe import Recipe, RecipeCell
from posterity.papers.runs import Gathered, other_size
from posterity.report import RULES as MEANINGS
from posterity.report import Run


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


SECONDS = "s a round"
TIMES = (
    "the seconds of the median round of one seed. Seeds that are trained at once have equal shares of a round, and "
    "programs beside it on a device slow it down"
)
HEADS = {"validated": "validated", "paper": "best round", "last": "last"}


def markdown(recipe: Recipe, found: Gathered) -> str:
    """The whole table."""
    pieces = [f"## {recipe.id}: {recipe.paper}, {recipe.title}", _listed("Left open by the paper", recipe.open),
              _listed("Differs from the paper", recipe.differs)]  # fmt: skip
    run = [cell for cell in recipe.cells if found.of(cell)]
    made = [entries(recipe, cell, found) for cell in run]
    pieces.append(_legend([entry for each in made for entry in each]))
    for cell, each in zip(run, made, strict=True):
        pieces += [f"### {cell.name}", other_size(recipe, cell, found), _table(with_numbers(each))]
        pieces += [order(each), order_as_reported(recipe, cell, found), without_numbers(each)]
        pieces.append(origins(recipe, cell, found))
    pieces.append(_listed("Not yet run", [cell.name for cell in recipe.cells if cell not in run]))
    pieces.append(_listed("About the runs", found.remarks))
    return "\n\n".join(piece for piece in pieces if piece) + "\n"


def order_as_reported(recipe: Recipe, cell: RecipeCell, found: Gathered) -> str:
    """The order of rows at the round that the paper itself reports, where that is not the one they are compared at."""
    made = entries(recipe, cell, found, recipe.reported)
    if recipe.reported in ("", compared_by(made)):
        return ""
    told = order(made, recipe.reported)
    return f"By *{HEADS[recipe.reported]}*, which the paper reports: {told}" if told else ""


def _legend(found: Sequence[Entry]) -> str:
    """What the columns are, where all three rules are there."""
    if not any(each.ours["validated"] for each in found):
        return ""
    rules = ". ".join(f"*{HEADS[rule]}*: {MEANINGS[rule]}" for rule in RULES)
    timed = f" *{SECONDS}*: {TIMES}." if any(each.seconds for each in found) else ""
    return (f"{rules}. Rounds are chosen by accuracy, every sample of the members counted once, whatever a column "
            f"shows. The parts are other rows, so *best round* may be below *validated*.{timed}")  # fmt: skip


def _listed(what: str, sentences: Sequence[str]) -> str:
    return f"{what}:\n\n" + "\n".join(f"- {each}" for each in sentences) if sentences else ""


def _table(found: Sequence[Entry]) -> str:
    own = held_against(found).line.name
    heads = ["method", "paper", *(HEADS[rule] for rule in RULES), "scored at", "seeds", f"{own} − it (95 %)"]
    lines = [heads, ["---", "--:", "--:", "--:", "--:", "---", "--:", "--:"]]
    for each in found:
        lines.append([each.name, each.paper, *(each.ours[rule] for rule in RULES), each.point,
                      str(each.seeds or ""), gap(each)])  # fmt: skip
    if any(each.seconds for each in found):
        lines = [[*line, more] for line, more in zip(lines, [SECONDS, "--:", *(e.seconds for e in found)], strict=True)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
