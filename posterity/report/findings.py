"""Who is better than whom: every pair of methods on every ranked column, over the same seeds and clients, in words.

The statistics are in `evaluate/paired.py`; page and terminal print the sentences.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from posterity.evaluate import paired
from posterity.evaluate.paired import ClientValues, Paired, Sample, compare_all
from posterity.report import table
from posterity.report.table import PART, WEIGHT, Cell, Column, Row, goal, text
from posterity.runs.lines import ScoreLine
from posterity.runs.read import Run


@dataclass(frozen=True, eq=False)
class Comparison:
    """The settled methods that have a number in one column, best first, and every pair of them (first above second)."""

    column: Column
    rows: tuple[Row, ...]
    pairs: Mapping[tuple[int, int], Paired]

    def beaten(self, k: int) -> bool:
        """Whether the first of the ranking is better than this one, by more than chance."""
        if k == 0:
            return False
        return self.better(0, k) and self.pairs[0, k].separated

    def better(self, i: int, j: int) -> bool:
        """Whether i is ahead of j over the seeds that both ran (their means may be over others as well)."""
        return self.column.better * self.pairs[i, j].difference > 0

    @property
    def tested(self) -> int:
        """How many pairs Holm's correction runs over."""
        return sum(pair.p is not None for pair in self.pairs.values())

    @property
    def winner(self) -> Row | None:
        won = len(self.rows) > 1 and all(self.beaten(k) for k in range(1, len(self.rows)))
        return self.rows[0] if won else None

    @property
    def level(self) -> list[int]:
        """The places of those that the first does not beat, besides itself."""
        return [k for k in range(1, len(self.rows)) if not self.beaten(k)]

    @cached_property
    def detectable(self) -> float | None:
        """The gap that these seeds would have shown among so many pairs."""
        return paired.detectable([pair for pair in self.pairs.values() if pair.p is not None])

    @property
    def listed(self) -> list[tuple[int, int]]:
        """The pairs that a table shows: all of up to six methods; else neighbours, and the best against each."""
        everyone = len(self.rows) <= 6
        return [(i, j) for i, j in self.pairs if everyone or j == i + 1 or i == 0]


def compare_methods(rows: Sequence[Row], column: Column) -> Comparison:
    """A run that is still going has not won or lost yet; a method whose mean is infinite is ranked last, untested."""
    rivals = [r for r in rows if not r.mark and column.key in r.cells]
    rivals.sort(key=lambda r: -column.better * r.cells[column.key].mean)
    return Comparison(column, tuple(rivals), compare_all([samples(r.picked, column) for r in rivals]))


def samples(picked: Sequence[tuple[Run, ScoreLine]], column: Column) -> dict[int, Sample]:
    """A method's numbers by seed; of two runs with the same seed the first counts."""
    found: dict[int, Sample] = {}
    for run, selected in picked:
        value = table.fetch(run, selected, column)
        if run.seed is not None and value is not None and run.seed not in found:
            found[run.seed] = Sample(value, _clients(run, selected, column))
    return found


def _clients(run: Run, selected: ScoreLine, column: Column) -> ClientValues | None:
    if not column.row_mean or column.source[2] != WEIGHT:
        return None
    sizes, values = selected.by_client("n"), selected.by_client(column.source[1])
    if not sizes or len(sizes) != len(values):
        return None  # of very many clients a log holds no list
    numbers = np.array([math.nan if v is None else v for v in values])
    return ClientValues(numbers, np.array([n or 0.0 for n in sizes]), *_identity(run))


def _identity(run: Run) -> tuple[int, int]:
    """Of the clients' rows, and of the clients."""
    fed = run.federation
    parts = (fed.names[: fed.members], fed.train, fed.validation, fed.test)
    return hash((*parts, fed.histogram, fed.fingerprint)), hash((*parts, _lasting(run)))


def _lasting(run: Run) -> str | int | None:
    """What must be equal for clients to be the same ones: those that a partition drew last as long as its seed does.

    Where no rule is known, clients with names of their own are the same, and numbered ones if their data are.
    """
    fed, fixed = run.federation, run.config.get("data_seed")
    drawn = fed.rule != "natural" if fed.rule else fed.names[: fed.members] == _numbered(fed.members)
    if not drawn:
        return None
    return fed.fingerprint if fed.fingerprint and not fed.rule else run.seed if fixed is None else fixed


def _numbered(count: int) -> tuple[str, ...]:
    return tuple(f"client {k}" for k in range(count))


def headline(runs: Sequence[Run], show: str = "validated") -> list[Row]:
    """One row per method, best first, under the selection rule `show`."""
    table.check_rule(show)
    table.check_scores(runs)
    among = table.table_columns(runs)
    rows = [table.make_row(arm, show, among) for arm in table.arms(runs)]
    key, sign = goal(runs[0]).name, -1 if goal(runs[0]).higher else 1
    rows.sort(key=lambda r: (table.has_diverged(r.mark), sign * r.cells[key].mean if key in r.cells else math.inf))
    return mark_best(rows, table.oriented(among, runs[0]))


def complete(rows: Sequence[Row]) -> list[Row]:
    """The rows with the metrics of both tables."""
    return [replace(row, cells={**row.cells, **more.cells}) for row, more in zip(rows, further(rows), strict=True)]


def further(rows: Sequence[Row]) -> list[Row]:
    """The metrics the headline has no room for, in the headline's order."""
    among = table.table_columns([run for row in rows for run in row.arm.runs], "further")
    return mark_best([table.make_row(row.arm, row.rule, among) for row in rows], among)


def mark_best(rows: Sequence[Row], among: Sequence[Column]) -> list[Row]:
    """Mark the best of each column, and whatever is not separated from it; bytes are exact, so only equals are."""
    marked = {id(row): dict(row.cells) for row in rows}
    for column in among:
        rivals = [row for row in rows if column.key in row.cells and not row.mark]
        if not column.better or len(rivals) < 2:
            continue
        for row in _best(rivals, column):
            marked[id(row)][column.key] = replace(row.cells[column.key], best=True)
    return [replace(row, cells=marked[id(row)]) for row in rows]


def _best(rivals: Sequence[Row], column: Column) -> list[Row]:
    top = max(column.better * row.cells[column.key].mean for row in rivals)
    equal = [row for row in rivals if column.better * row.cells[column.key].mean == top]
    if column.source == ("bytes",) or not math.isfinite(top):
        return equal
    comparison = compare_methods(rivals, column)
    if not comparison.tested:  # one seed shows which value is the highest, and nothing else
        return equal
    return [
        r for k, r in enumerate(comparison.rows) if not comparison.beaten(k) and math.isfinite(r.cells[column.key].mean)
    ]


DESIGNS = {
    "nested": "Every seed has its own clients: Student's t over seeds, with the variance of the seeds' differences or "
    "the one that the clients inside a seed imply, whichever is larger. It speaks about other seeds: other partitions "
    "of this data, other initial models, other batches.",
    "crossed": "The clients are the same with every seed: the variance of the seeds' differences and the one between "
    "clients together. It speaks about other seeds, and about other clients like these.",
    "seeds": "Student's t over the seeds' differences; the clients' own numbers are not there, or not of the same "
    "clients for both methods. It speaks about other seeds.",
}


@dataclass(frozen=True)
class PairText:
    """A pair of methods as text."""

    first: Row
    second: Row
    difference: str
    interval: str
    ahead: str
    p: str
    needed: str
    separated: bool


def goal_column(run: Run) -> Column:
    return table.metric_column(goal(run).facts())


def main_comparison(rows: Sequence[Row]) -> Comparison:
    """The methods compared by the headline metric."""
    return compare_methods(rows, goal_column(rows[0].arm.runs[0]))


def finding(rows: Sequence[Row]) -> str:
    """Who leads on the headline metric, by how much, and whether that is more than chance."""
    return describe(main_comparison(rows), rows)


def describe(comparison: Comparison, rows: Sequence[Row]) -> str:
    """The finding of a comparison among these rows."""
    column = comparison.column
    if not comparison.rows:
        return _unsettled(column, rows)
    top = comparison.rows[0].cells[column.key]
    if len(comparison.rows) == 1:
        over = f"over {top.n} seeds" if top.n > 1 else "with a single seed"
        alone = "there is no other method here" if len(rows) == 1 else "no other method here has a result"
        article = "an" if column.noun[0] in "aeiou" else "a"
        shown = f"{comparison.rows[0].label} reaches {article} {column.noun} of {quoted(top, column)} {over}"
        return f"{shown}; {alone} to compare it with."
    extreme = "lowest" if column.better < 0 else "highest"
    lead = f"{comparison.rows[0].label} has the {extreme} {column.noun}, {quoted(top, column)}, {_rival(comparison)}"
    if comparison.winner is not None:
        others = len(comparison.rows) - 1
        return f"{lead}; it is separated from {f'the {others} other methods' if others > 1 else 'it'}."
    if not comparison.tested:
        why, more = untested(comparison), "" if _share_seeds(comparison) else " (--seeds 0-9 gives ten)"
        few = f"{why[0].upper()}{why[1:]}, so there is no spread to test against{more}."
        return f"No method is called better. {lead}. {few}"
    names = [comparison.rows[k].label for k in comparison.level]
    verb = "is" if len(names) == 1 else "are"
    level = f"{join(names)} {verb} not separated from it"
    return f"No method is separated from all others. {lead}; {level}. {reach(comparison)}"


def untested(comparison: Comparison) -> str:
    """Why no pair of methods is tested, in a clause; empty where one is."""
    if comparison.tested:
        return ""
    if len(comparison.rows) < 2:
        return "no two methods here have results to compare"
    return "no difference varies from seed to seed" if _share_seeds(comparison) else "no two methods share two seeds"


def _share_seeds(comparison: Comparison) -> bool:
    return any(pair.seeds > 1 for pair in comparison.pairs.values())


def _unsettled(column: Column, rows: Sequence[Row]) -> str:
    some = any(table.has_diverged(row.mark) for row in rows)
    if some or any(column.key in row.cells for row in rows):
        none = "No method has a result (runs diverged)" if some else "No run has finished"
        return f"{none}, so nothing is compared; what is shown is provisional."
    federations = [run.federation for row in rows for run in row.arm.runs]
    if all(fed.test and not any((*fed.validation[: fed.members], *fed.test[: fed.members])) for fed in federations):
        return "No member holds rows out (--split), so nothing is scored."
    return f"The scores that the rule “{rows[0].rule}” needs were not written, so nothing can be ranked by it."


def _rival(comparison: Comparison) -> str:
    """The first against the second, in a clause."""
    column, second, pair = comparison.column, comparison.rows[1], comparison.pairs[0, 1]
    rival = quoted(second.cells[column.key], column)
    if not pair.seeds:
        return f"and shares no seed with {second.label} ({rival}), so the two cannot be paired"
    past = {True: ("ahead of", "below"), False: ("behind", "above")}[comparison.better(0, 1)][column.better < 0]
    gap = f"{amount(abs(pair.difference), column)} {past}" if pair.difference else "level with"
    over = f"the {pair.seeds} seeds" if pair.seeds > 1 else "the single seed"
    said = f"{gap} {second.label} over {over} that both ran ({rival}"
    if pair.interval is None:
        return f"{said})" if pair.seeds == 1 else f"{said}; the same with each seed, so there is no spread to test)"
    sign = -1 if pair.difference < 0 else 1
    low, high = sorted(sign * x for x in pair.interval)
    inside = f"95 % interval of the gap {signed(low, column)} to {signed(high, column)}"
    return f"{said}; {inside}; {p_value(pair.holm)} by Holm over {_pairs(comparison)})"


def _pairs(comparison: Comparison) -> str:
    return f"{comparison.tested} pair{'' if comparison.tested == 1 else 's'}"


def reach(comparison: Comparison) -> str:
    """What so many seeds and pairs could have shown."""
    gap = comparison.detectable
    if gap is None:
        return ""
    seeds = sorted({pair.seeds for pair in comparison.pairs.values() if pair.p is not None})
    none = comparison.column.unit == "%" and gap >= 1
    most = "no gap at all" if none else f"only a gap of about {amount(gap, comparison.column)}"
    said = f"With {span(seeds)} seeds and {_pairs(comparison)} {most} would have"
    return f"{said} shown (power 80 %, at the spread seen here)."


def lines(comparison: Comparison, keys: Sequence[tuple[int, int]]) -> list[PairText]:
    """Some pairs of a comparison as text."""
    column, rows, made = comparison.column, comparison.rows, []
    for i, j in keys:
        pair = comparison.pairs[i, j]
        difference = signed(pair.difference, column) if pair.seeds else ""
        interval = " to ".join(signed(end, column) for end in pair.interval or ())
        ahead = sum(column.better * d > 0 for d in pair.each)  # equal is not better
        p = p_value(pair.holm).removeprefix("p = ").removeprefix("p ") if pair.holm is not None else ""
        needed = "" if pair.p is None else str(pair.needed or f"> {paired.MOST:,}")
        made.append(
            PairText(rows[i], rows[j], difference, interval, f"{ahead} of {pair.seeds}", p, needed, pair.separated)
        )
    return made


def paired_over(comparison: Comparison) -> str:
    split = {pair.design != "seeds" for pair in comparison.pairs.values() if pair.p is not None}
    if split == {True, False}:
        return "the same seeds, and clients where both had the same"
    return "the same seeds and clients" if True in split else "the same seeds"


def explained(comparison: Comparison, rule: str) -> list[str]:
    """What was tested, over what, and about what it speaks."""
    metric, part = comparison.column.noun, "held-out" if PART[rule] == "held" else PART[rule]
    said = [
        f"Differences of the {metric} over all {part} rows, paired over {paired_over(comparison)}, each run at the "
        f"round that its rule chose. The 95 % interval is that of a pair by itself. p is adjusted by Holm's method for "
        f"all {_pairs(comparison)}, since the best is only known after looking; separated means p < 0.05."
    ]
    used = {pair.design for pair in comparison.pairs.values() if pair.p is not None}
    return said + [DESIGNS[name] for name in DESIGNS if name in used]


def worst_note(rows: Sequence[Row]) -> str:
    """How many clients and held-out rows stand behind the figures of the worst tenth; empty where nobody knows."""
    found = [behind for row in rows for _, selected in row.picked if (behind := worst_rows(selected)) is not None]
    if not found or not any("worst10" in row.cells for row in rows):
        return ""
    few, of, tested = map(span, zip(*found, strict=True))
    part = "held-out" if PART[rows[0].rule] == "held" else PART[rows[0].rule]
    return (f"Worst 10 %: the mean accuracy of the {few} worst of {of} clients; {tested} {part} rows in all stand "
            "behind the figure of a run.")  # fmt: skip


def worst_rows(score: ScoreLine) -> tuple[int, int, int] | None:
    """Clients in the worst tenth, clients in all, and the tenth's rows."""
    rows, of = score.fairness.get("worst10_rows"), score.fairness.get("clients")
    return (max(1, int(of) // 10), int(of), int(rows)) if rows is not None and of else None


def span(counts: Sequence[float], to: str = " to ", form: str = ".0f") -> str:
    """One number, or the lowest and the highest; nothing where there is none."""
    if not counts:
        return ""
    low, high = min(counts), max(counts)
    return f"{low:{form}}" if low == high else f"{low:{form}}{to}{high:{form}}"


def p_value(p: float | None) -> str:
    if p is None:
        return "not tested"
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


def quoted(cell: Cell, column: Column) -> str:
    return cell.text + (" %" if column.unit == "%" else "")


def signed(value: float, column: Column) -> str:
    """With a sign, a true minus included; what rounds to nothing has none."""
    shown = text(abs(value), None, column)
    return f"{'−' if value < 0 else '+'}{shown}" if any(digit in shown for digit in "123456789") else shown


def amount(size: float, column: Column) -> str:
    """A difference with its unit."""
    shown = text(size, None, column)
    if column.unit == "%":
        return f"{shown} percentage point{'' if shown == '1.0' else 's'}"
    return shown


def join(names: Sequence[str]) -> str:
    """In a sentence."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
