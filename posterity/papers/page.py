"""A table as the paper prints it and as our runs give it, side by side, and the page of it.

`entries` has the rows of a column; `order` says which pairs of rows our runs put in the paper's order; `markdown` is
the page, with the code and the machine that made each row.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from posterity import report
from posterity.evaluate.paired import Paired, Samples, compare_pair
from posterity.papers.recipe import Line, Recipe, RecipeCell
from posterity.papers.runs import Gathered, departure, other_size
from posterity.papers.shown import Shown, find_score, read_samples, read_value
from posterity.report import Run
from posterity.report.findings import amount, signed
from posterity.report.table import Column, main_epochs, mark, point_name, select_round, summarise

RULES = ("validated", "paper", "last")


@dataclass(frozen=True)
class Entry:
    """A row of a column: the paper's number and ours."""

    line: Line
    paper: str
    ours: Mapping[str, str]  # selection rule -> mean ± sd over seeds, empty where nothing was run
    seeds: int  # that the numbers are of
    point: str  # at which evaluation point ours are
    pair: Paired | None  # the row that others are held against less this one, under the rule by which rows are compared
    column: Column
    samples: Samples  # ours by seed, under that rule
    seconds: str = ""  # of the median round of a seed, which shares the device as it did
    mark: str = ""  # whether runs of it exploded: its numbers are shown, and compared with nothing
    size: str = ""  # how its runs differ in size from the paper's: rows of different sizes are not compared

    @property
    def name(self) -> str:
        """The row as it is called in the table."""
        return f"{self.line.name} ({self.mark})" if self.mark else self.line.name


def entries(recipe: Recipe, cell: RecipeCell, found: Gathered, by: str = "") -> list[Entry]:
    """What there is of a column; rows are compared `by` a selection rule, or without leaks."""
    lines, shown = recipe.lines_of(cell), cell.shown
    runs = [found.runs.get((cell.folder, line.name), ()) for line in lines]
    texts = [{rule: _text(some, rule, shown) for rule in RULES} for some in runs]
    rule = by or _rule(texts)
    marks = [mark([(run, selected) for run in some if (selected := select_round(run, rule))]) for some in runs]
    mine = [read_samples(some, rule, shown) if shown.column.better and not word else {}
            for some, word in zip(runs, marks, strict=True)]  # fmt: skip
    sizes = [departure(recipe, cell, line, found) for line in lines]
    ran = [place for place, some in enumerate(runs) if some]
    own, of = (mine[ran[-1]], sizes[ran[-1]]) if ran else ({}, "")
    made = []
    for line, some, ours, its, word, size in zip(lines, runs, texts, mine, marks, sizes, strict=True):
        pair = compare_pair(own, its) if its is not own and size == of and own and its else None
        seeds = sum(read_value(run, rule, shown) is not None for run in some) or len(some)
        made.append(Entry(line, line.paper.get(cell.name, ""), ours, seeds, _point(some, shown), pair, shown.column,
                          its, _seconds(some) if recipe.timed else "", word, size))  # fmt: skip
    return made


def held_against(found: Sequence[Entry]) -> Entry:
    """The row that the others are compared with: the last, the paper's own method, or the last that was run."""
    return next((each for each in reversed(found) if each.seeds), found[-1])


def _rule(ours: Sequence[Mapping[str, str]]) -> str:
    """The rule by which rows are compared: `last` where members hold nothing out to validate a round by."""
    return "validated" if any(each["validated"] for each in ours) else "last"


def with_numbers(found: Sequence[Entry]) -> list[Entry]:
    """Rows that have a number, the paper's or ours, and the paper's own method."""
    return [each for each in found if each.paper or each.seeds or each is found[-1]]


def without_numbers(found: Sequence[Entry]) -> str:
    """A sentence about the other rows: settings that the paper does not have, and that were not run."""
    shown = with_numbers(found)
    names = [each.name for each in found if each not in shown]
    return f"Rows that the paper does not have, not yet run: {'; '.join(names)}." if names else ""


def _text(runs: Sequence[Run], rule: str, shown: Shown) -> str:
    found = summarise([read_value(run, rule, shown) for run in runs], shown.column)
    if found is None:
        return ""
    return f"+{found.text}" if shown.shows == "gap" and found.mean > 0 else found.text


def _point(runs: Sequence[Run], shown: Shown) -> str:
    if not runs:
        return ""
    score = find_score(runs[0], "last", shown)
    return point_name(score.point, score.epochs or main_epochs(runs[0], score.point), runs[:1]) if score else ""


def _seconds(runs: Sequence[Run]) -> str:
    """Of the median round: rounds that are recorded or scored, or in which the program was halted, take longer."""
    each = [line.seconds for run in runs for line in run.rounds if line.seconds is not None]
    return f"{median(each):.3f}" if each else ""


def gap(each: Entry) -> str:
    """By how much the row that others are held against is ahead, with the interval of this pair by itself."""
    pair = each.pair
    if pair is None or not pair.seeds:
        return ""
    return signed(pair.difference, each.column) + reach(pair, each.column)


def reach(pair: Paired, column: Column) -> str:
    """The 95 % interval of a difference, in brackets; nothing where one seed gives none."""
    if pair.interval is None:
        return ""
    low, high = (signed(end, column) for end in pair.interval)
    return f" ({low} to {high}{', level' if level(pair) else ''})"


def level(pair: Paired) -> bool:
    """Whether the interval leaves open which of two is ahead."""
    return pair.interval is None or pair.interval[0] <= 0 <= pair.interval[1]


NUMBER = re.compile(r"[-+−]?[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?")


def number(text: str) -> float | None:
    """The first number of a printed cell."""
    match = NUMBER.search(text)
    return float(match[0].replace("−", "-")) if match else None


def order(found: Sequence[Entry], by: str = "") -> str:
    """How many pairs of rows stand in the paper's order, in a sentence, and which are told apart the other way round.

    Rows of which runs exploded, or that have another size, have no place in it. Nothing where there are no two rows to
    compare. `by` is the selection rule that the rows were made by, if not the one without leaks.
    """
    rule = by or _rule([each.ours for each in found])
    pairs = [(a, b, theirs, ours) for a, b in combinations(found, 2) if not a.mark and not b.mark and a.size == b.size
             if (theirs := _theirs(a, b)) and (ours := _ours(a, b, rule)) is not None]  # fmt: skip
    if not pairs:
        return ""
    others = [(a, b) if ours > 0 else (b, a) for a, b, theirs, ours in pairs if theirs * ours <= 0]
    told = f"{len(pairs) - len(others)} of {len(pairs)} pairs of methods are in the paper's order."
    apart = [said for first, second in others if (said := _apart(first, second))]
    if not others:
        return told
    if not apart:
        one = max(each.seeds for each in found) == 1
        return f"{told} {'One seed tells no two apart' if one else 'Of the others our seeds tell none apart'}."
    return f"{told} Of the others our seeds tell apart: {'; '.join(apart)}."


def _theirs(first: Entry, second: Entry) -> float:
    """By how much the paper has the first above the second; 0 where it has them level, or one of them not at all."""
    a, b = number(first.paper), number(second.paper)
    return 0.0 if a is None or b is None else a - b


def _ours(first: Entry, second: Entry, rule: str) -> float | None:
    """By how much our runs have it so: over the seeds of both, of means that are not rounded as they are printed."""
    if first.samples and second.samples:
        each = compare_pair(first.samples, second.samples)
        return each.difference if each.seeds else None
    a, b = number(first.ours[rule]), number(second.ours[rule])
    return None if a is None or b is None else a - b


def _apart(first: Entry, second: Entry) -> str:
    """By how much the first is above the second; empty where the interval of this pair does not say so."""
    if not first.samples or not second.samples:
        return ""
    pair = compare_pair(first.samples, second.samples)
    if level(pair):
        return ""
    by = amount(pair.difference, first.column) + reach(pair, first.column)
    return f"{first.line.name} above {second.line.name} by {by}"


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
        pieces += [*sentences(recipe, cell, found, each), origins(recipe, cell, found)]
    pieces.append(_listed("Not yet run", [cell.name for cell in recipe.cells if cell not in run]))
    pieces.append(_listed("About the runs", found.remarks))
    return "\n\n".join(piece for piece in pieces if piece) + "\n"


def sentences(recipe: Recipe, cell: RecipeCell, found: Gathered, each: Sequence[Entry]) -> list[str]:
    """What stands below a column: the order of its rows, and which are not there; empty where there is nothing."""
    return [order(each), order_as_reported(recipe, cell, found), without_numbers(each)]


def order_as_reported(recipe: Recipe, cell: RecipeCell, found: Gathered) -> str:
    """The order of rows at the round that the paper itself reports, where that is not the one they are compared at."""
    made = entries(recipe, cell, found, recipe.reported)
    if recipe.reported in ("", _rule([each.ours for each in made])):
        return ""
    told = order(made, recipe.reported)
    return f"By *{HEADS[recipe.reported]}*, which the paper reports: {told}" if told else ""


def _legend(found: Sequence[Entry]) -> str:
    """What the columns are, where all three rules are there."""
    if not any(each.ours["validated"] for each in found):
        return ""
    rules = ". ".join(f"*{HEADS[rule]}*: {report.RULES[rule]}" for rule in RULES)
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
