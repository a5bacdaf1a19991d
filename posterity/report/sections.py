"""The page's sections beside the headline: what to know before comparing, tables, clients, and how the runs went.

Clients that a partition drew are others with every seed, so those seeds have a table each; named clients, and those of
a fixed data seed, are the same, and one table has their means.
"""

import math
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from posterity.core.protocol import POINTS
from posterity.report import table
from posterity.report.findings import goal_column, join, span
from posterity.report.table import PART, RULES, WEIGHT, Arm, Cell, Column, Row, goal, point_name
from posterity.runs.lines import ScoreLine
from posterity.runs.read import Run
from posterity.settings.config import settings_where

LINES = 60  # of a table: with more clients, the worst and the best served
CELLS = 3000  # of all tables: the page must stay small
TABLES = 6  # seeds that have a table
TINTS = 6  # steps from the lowest to the highest value


@dataclass(frozen=True)
class ClientLine:
    """One client: its held-out rows, and per method its value (None: not scored) and the tint of its cell."""

    name: str
    rows: str
    cells: tuple[tuple[Cell | None, int], ...]


@dataclass(frozen=True)
class ClientTable:
    """The clients that some seeds share, worst served by the leading method first."""

    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    lines: tuple[ClientLine, ...]
    clients: int  # that were scored; `lines` may be fewer
    unscored: int


def member_tables(rows: Sequence[Row]) -> list[ClientTable]:
    """Every member under every method, at the round of the headline."""
    return client_tables(rows, lambda run, chosen: chosen)


def newcomer_tables(rows: Sequence[Row]) -> list[ClientTable]:
    """Every newcomer, after the longest adaptation."""
    members = rows[0].arm.runs[0].federation.members
    return client_tables(rows, lambda run, _: longest_adapted(run, rows[0].rule), members)


def client_tables(
    rows: Sequence[Row], scored: Callable[[Run, ScoreLine], ScoreLine | None], first: int = 0
) -> list[ClientTable]:
    """A table for each set of clients, by its first seed; the client with number `first` is the first of the scores."""
    groups: dict[Hashable, dict[int, list[tuple[Run, ScoreLine]]]] = {}
    for row in rows:
        for run, selected in row.picked:
            score = scored(run, selected)
            if score is not None and score.by_client("n"):
                groups.setdefault(_clients_of(run), {}).setdefault(row.arm.index, []).append((run, score))
    room = CELLS // max(len(rows) * min(len(groups), TABLES), 1)
    made = [_table(rows, found, first, min(max(room, 10), LINES)) for found in groups.values()]
    return sorted(made, key=lambda table: table.seeds)


def _clients_of(run: Run) -> Hashable:
    """Equal for two runs where a client of one is the same client in the other."""
    fed = run.federation
    if fed.numbered:  # number 3 of another partition is another client: they are told by what they hold
        return fed.names, fed.train, fed.validation, fed.test, fed.histogram
    return fed.names


def _table(rows: Sequence[Row], found: dict[int, list[tuple[Run, ScoreLine]]], first: int, most: int) -> ClientTable:
    shown = [row for row in rows if row.arm.index in found]
    column = goal_column(rows[0].arm.runs[0])
    heard = [pair for arm in found.values() for pair in arm]
    sizes = _transposed([score.by_client("n") for _, score in heard])
    by_arm = [_cells([s for _, s in found[row.arm.index]], column, len(sizes)) for row in shown]
    tint = _tints([cell.mean for cells in by_arm for cell in cells if cell])
    federation = heard[0][0].federation
    lines = [
        ClientLine(federation.client(first + k), span(sizes[k], "–"), tuple((c[k], tint(c[k])) for c in by_arm))
        for k in _kept(_ranked(by_arm, column), most)
    ]
    scored = sum(any(cells[k] for cells in by_arm) for k in range(len(sizes)))
    return ClientTable(
        arms=tuple(row.arm for row in shown),
        seeds=tuple(sorted({run.seed for run, _ in heard if run.seed is not None})),
        lines=tuple(lines),
        clients=scored,
        unscored=len(sizes) - scored,
    )


def _cells(scores: Sequence[ScoreLine], column: Column, clients: int) -> list[Cell | None]:
    """Each client under one method, over the seeds."""
    values = _transposed([score.by_client(column.key) for score in scores])
    return [table.summarise(each, column) for each in values] + [None] * (clients - len(values))


def _transposed(lists: Sequence[Sequence[float | None]]) -> list[list[float]]:
    """Per client what is known of it."""
    longest = max((len(each) for each in lists), default=0)
    return [[v for each in lists if k < len(each) and (v := each[k]) is not None] for k in range(longest)]


def _ranked(by_arm: Sequence[Sequence[Cell | None]], column: Column) -> list[int]:
    """The clients that were scored, from the worst to the best served by the first method."""
    sign = -1 if column.better < 0 else 1
    known = [k for k in range(len(by_arm[0])) if any(cells[k] for cells in by_arm)]
    return sorted(known, key=lambda k: sign * cell.mean if (cell := by_arm[0][k]) else math.inf)


def _kept(order: Sequence[int], most: int) -> list[int]:
    """All, or the worst and the best."""
    return list(order) if len(order) <= most else [*order[: most - most // 2], *order[len(order) - most // 2 :]]


def _tints(values: Sequence[float]) -> Callable[[Cell | None], int]:
    """From the lowest value of a table (0) to the highest (TINTS); in the middle where all are equal."""
    known = [v for v in values if math.isfinite(v)]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)

    def tint(cell: Cell | None) -> int:
        if cell is None or not math.isfinite(cell.mean) or high == low:
            return TINTS // 2
        return round(TINTS * (cell.mean - low) / (high - low))

    return tint


def describe_tables(tables: Sequence[ClientTable]) -> list[str]:
    """What a reader must know about these tables, in sentences."""
    said = []
    if len(tables) > 1:
        said.append("The data were divided anew with every seed, so the clients of one seed are not those of another.")
    if len(tables) > TABLES:
        said.append(f"The first {TABLES} of {len(tables)} such tables are here.")
    if any(len(table.lines) < table.clients for table in tables[:TABLES]):
        said.append("Of very many clients the worst and the best served are here; metrics.jsonl has all.")
    if absent := max((table.unscored for table in tables), default=0):
        said.append(f"Not scored, and not listed: {absent:,} clients without held-out rows or outside of the sample.")
    return said


NUMBER = re.compile(r"\d+")
FLOWER = "flower"  # the engine of a run across machines (`experiment/run.py`, which imports PyTorch)


def outside(rows: Sequence[Row]) -> str:
    """Which model was scored on the common test set, method by method; empty where the folders do not say."""
    labels: dict[str, list[str]] = {}
    for row in rows:
        if told := _method(row.arm.runs[0]).get("outside"):
            labels.setdefault(str(told), []).append(row.label)
    each = [f"{told} ({', '.join(some)})" for told, some in labels.items()]
    return f"No client's data were used: scored with {'; '.join(each)}." if each else ""


def positive_class(run: Run) -> str:
    """Which of two classes sensitivity, specificity and so on are about; empty if there are more, or fewer."""
    fed = run.federation
    if fed.task == "regression" or fed.classes != 2:
        return ""
    name = fed.class_names[1] if len(fed.class_names) == 2 else "1"
    return (f"“{name}” is the positive class, the second of the two in order: sensitivity, specificity, AUPRC and the "
            "calibration slope and intercept are about it")  # fmt: skip


def fitted(rows: Sequence[Row]) -> list[str]:
    """Whose numbers under the rule `paper` are those of the test half alone."""
    labels = ", ".join(row.label for row in rows if _method(row.arm.runs[0]).get("fitted"))
    return [f"{labels}: fitted on the validation half, so under “paper” only the test half is scored."] * bool(labels)


def described(rows: Sequence[Row]) -> str:
    """What the numbers of the headline are numbers of: so many rows, of so many clients."""
    scores = [selected for row in rows for _, selected in row.picked]
    counts = [[n or 0 for n in each] for score in scores if (each := score.by_client("n"))]
    if not counts:
        return ""
    tested, clients = [sum(each) for each in counts], [sum(n > 0 for n in each) for each in counts]
    part = "held-out" if PART[rows[0].rule] == "held" else PART[rows[0].rule]
    rows_of, clients_of = (span(each, " to ", ",.0f") for each in (tested, clients))
    return f"A run's numbers are over {rows_of} {part} rows of {clients_of} clients."


def uneven(rows: Sequence[Row]) -> list[str]:
    """Runs across machines some of whose rounds were not scored on everybody: a site was away, came late or left."""
    said = []
    for row in rows:
        for run, selected in row.picked if row.arm.runs[0].facts.get("engine") == FLOWER else ():
            scores = table.series(run, selected.part, run.scored, table.main_epochs(run, run.scored))
            who = [{k for k, n in enumerate(sizes) if n} for s in scores.values() if (sizes := s.by_client("n"))]
            every = set().union(*who)
            if fewer := sum(some != every for some in who):
                missed = f"{fewer} of {len(who)} rounds were not scored on all clients"
                said.append(f"{row.label}, seed {run.seed}: {missed}, so rounds are compared on different clients. "
                            f"Shown is round {selected.round}.")  # fmt: skip
    return said


def _first(items: Sequence[str]) -> str:
    """The first four."""
    return "; ".join([*items[:4], *([f"and {len(items) - 4} more"] if len(items) > 4 else [])])


def run_notes(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """What networks and methods had to say about themselves (`notes` in run.json): each once, with who says it."""
    who: dict[str, list[str]] = {}
    for row in rows:
        for run in (*row.arm.runs, *row.arm.aside):
            for note in run.facts.get("notes") or ():
                labels = who.setdefault(str(note), [])
                if row.label not in labels:
                    labels.append(row.label)
    return [("" if len(labels) == len(rows) > 1 else ", ".join(labels), note) for note, labels in who.items()]


def data_notes(runs: Sequence[Run]) -> list[str]:
    """What was noticed about the data, each once: seeds hold other rows out, and so may differ in the numbers."""
    found: dict[str, list[str]] = {}
    for note in dict.fromkeys(note for run in runs for note in run.federation.notes):
        found.setdefault(NUMBER.sub("#", note), []).append(note)
    return [same[0] + (" (other numbers with other seeds)" if len(same) > 1 else "") for same in found.values()]


def _method(run: Run) -> dict[str, object]:
    return dict(run.facts.get("method") or {})


# A difference in one of these makes a comparison between methods one between something else as well.
SETTING = settings_where(lambda use: use.changes in ("data", "division", "cohort", "training") and use.role != "draws")


@dataclass(frozen=True)
class SmallTable:
    """A small table: named columns, and per method a text for each (empty where nothing was measured)."""

    heads: tuple[str, ...]
    rows: tuple[tuple[Arm, tuple[str, ...]], ...]

    @property
    def filled(self) -> bool:
        return any(cell for _, cells in self.rows for cell in cells)


def small_table(
    rows: Sequence[Row], heads: Iterable[str], scores: Callable[[Row, Run], Sequence[ScoreLine | None]]
) -> SmallTable:
    """Mean and sd of the headline metric over the runs of each method, in each of the scores that a run has."""
    column, found = goal_column(rows[0].arm.runs[0]), []
    for row in rows:
        every = zip(*(scores(row, run) for run in row.arm.runs), strict=True)
        cells = [table.summarise([headline_value(score, column) for score in kind], column) for kind in every]
        found.append((row.arm, tuple(cell.text if cell else "" for cell in cells)))
    return SmallTable(tuple(heads), tuple(found))


def headline_value(score: ScoreLine | None, column: Column) -> float | None:
    return score.value(column.key, WEIGHT) if score else None


def by_rule(rows: Sequence[Row]) -> SmallTable:
    """The headline metric under each of the three rules."""
    return small_table(rows, RULES, lambda _, run: [table.select_round(run, rule) for rule in RULES])


def at(run: Run, rule: str, point: str, epochs: int, group: str) -> ScoreLine | None:
    """Scores of another point or group at the round chosen for the headline, or at the nearest earlier one."""
    selected = table.select_round(run, rule)
    if selected is None:
        return None
    for part in (PART[rule], "held", "test"):  # newcomers choose nothing, so some logs only have their whole held part
        scores = table.series(run, part, point, epochs, group)
        earlier = [r for r in scores if r <= selected.round]
        if scores:
            return scores[max(earlier) if earlier else min(scores)]
    return None


def by_point(rows: Sequence[Row], group: str = "members") -> SmallTable:
    """The headline metric at every evaluation point that was scored, at the round of the headline."""
    runs = [run for row in rows for run in row.arm.runs]
    kinds = [(p, e) for p in POINTS for e in sorted({e for r in runs for e in table.epochs_scored(r, p, group)})]
    heads = [point_name(p, e, [r for r in runs if e in table.epochs_scored(r, p, group)]) for p, e in kinds]
    return small_table(rows, heads, lambda row, run: [at(run, row.rule, p, e, group) for p, e in kinds])


def newcomers(rows: Sequence[Row]) -> SmallTable:
    """Newcomers at every point, members beside them, and the gap left after the longest adaptation."""
    base = by_point(rows, "newcomers")
    if not base.filled:
        return SmallTable((), ())
    column = goal_column(rows[0].arm.runs[0])
    found = []
    for row, (arm, cells) in zip(rows, base.rows, strict=True):
        member = row.cells.get(column.key)
        gap = table.summarise([_newcomer_gap(run, row.rule, column) for run in arm.runs], column)
        signed = f"{'+' if gap.mean > 0 else ''}{gap.text}".replace("-", "−") if gap else ""
        found.append((arm, (*cells, member.text if member else "", signed)))
    return SmallTable((*base.heads, "members", "gap"), tuple(found))


def longest_adapted(run: Run, rule: str) -> ScoreLine | None:
    """The newcomers' scores after the longest adaptation, or as received where none was scored."""
    kinds = [(p, e) for p in ("adapted", "received") for e in reversed(table.epochs_scored(run, p, "newcomers"))]
    return at(run, rule, *kinds[0], "newcomers") if kinds else None


def _newcomer_gap(run: Run, rule: str, column: Column) -> float | None:
    theirs = headline_value(longest_adapted(run, rule), column)
    ours = headline_value(table.select_round(run, rule), column)
    return theirs - ours if theirs is not None and ours is not None else None


def troubles(found: Sequence[Arm]) -> list[tuple[Arm, str, str]]:
    """Refused messages by reason, rounds that came to nothing, and what rounds note: each with its first places."""
    listed = []
    for arm in found:
        where: dict[tuple[str, str], list[str]] = {}
        for run, line in ((each, line) for each in (*arm.runs, *arm.aside) for line in each.rounds):
            place = f"seed {run.seed}, round {line.round}"
            for who, why in line.refused:
                where.setdefault(("refused", why), []).append(f"{place}, {_client(run, who)}")
            if line.rolled_back or line.empty:
                what = "rolled back" if line.rolled_back else "empty round"
                where.setdefault((what, line.rolled_back), []).append(place)
            for note in line.notes:
                where.setdefault(("", note), []).append(place)
        for (what, why), places in where.items():
            said = f"{len(places)} × {what}{': ' * bool(why)}{why}" if what else why
            listed.append((arm, said, _first(places)))
    return listed


def _client(run: Run, who: int | str) -> str:
    """By its name, where the log has only its number."""
    return who if isinstance(who, str) else run.federation.client(who)


def cautions(runs: Sequence[Run], rows: Sequence[Row]) -> list[str]:
    """What a reader must know before trusting the comparison."""
    said = [f"{r.label}, seed {r.seed}: {table.progress(r)}." + _fate(r, rows) for r in runs if not r.finished]
    said = [*table.describe_divergence(rows), *said, *unlike(rows), *uneven(rows), *fitted(rows)]
    if len(points := {row.point for row in rows}) > 1:
        names = join([f"“{p}”" for p in sorted(points)])
        said.append(f"The methods are scored at different evaluation points ({names}), each at the one its paper "
                    "means.")  # fmt: skip
    return said


def unlike(rows: Sequence[Row]) -> list[str]:
    """What besides the method is not the same in all rows: settings, data, seeds."""
    said, firsts = [], [row.arm.runs[0] for row in rows]
    for key in SETTING:
        values = {str(table.settings(run).get(key)) for run in firsts}
        if len(values) > 1:
            said.append(f"The methods were not run with the same {key.replace('_', ' ')}: {', '.join(sorted(values))}.")
    said += _other_data(rows)
    seeds = {tuple(sorted(r.seed for r in row.arm.runs if r.seed is not None)) for row in rows}
    if len(seeds) > 1:
        said.append("The methods were not run with the same seeds; see “Every run”.")
    if twice := [row.label for row in rows if any(_twice(run, row.arm) for run in row.arm.aside)]:
        said.append(
            f"{join(twice)}: several finished runs with the same seed; the first of them counts, others do not."
        )
    if drawn := [row.label for row in rows if len({r.seed for r in row.arm.runs}) < len(row.arm.runs)]:
        said.append(
            f"{join(drawn)}: several partitions (data_seed) with the same seed; pairs of methods use the first of them."
        )
    return said


def _twice(run: Run, arm: Arm) -> bool:
    """Whether a run is set aside because another one of its seed counts."""
    return run.finished and any(table.draws(run) == table.draws(counted) for counted in arm.runs)


def _other_data(rows: Sequence[Row]) -> list[str]:
    """Seeds with which not all methods had the same values in the same parts, as far as folders know them."""
    found: dict[tuple[int | None, object], set[str]] = {}
    for run in (run for row in rows for run in row.arm.runs if run.federation.fingerprint):
        found.setdefault(table.draws(run), set()).add(run.federation.fingerprint)
    seeds = [str(seed) for (seed, _), prints in found.items() if len(prints) > 1]
    if not seeds:
        return []
    return [f"The methods were not run on the same data, or not on the same parts of them (seed {join(seeds)}): "
            "clients are not paired there."]  # fmt: skip


def _fate(run: Run, rows: Sequence[Row]) -> str:
    if not run.scores:
        return " It has no scores yet and is in no table."
    if any(run in row.arm.aside for row in rows):
        return " It is left out of the means, because other seeds of this method finished."
    return " Its row is provisional."


def every_run(rows: Sequence[Row]) -> list[tuple[Run, Arm, str, tuple[str, ...]]]:
    """Run by run: the raw values behind the means, under the three rules."""
    listed = []
    for row in rows:
        for run in (*row.arm.runs, *row.arm.aside):
            column = goal_column(run)
            chosen = {rule: table.select_round(run, rule) for rule in RULES}
            values = [headline_value(score, column) for score in chosen.values()]
            cells = tuple("" if v is None else table.text(v, None, column) for v in values)
            selected = chosen[row.rule]
            listed.append((run, row.arm, str(selected.round) if selected else "", cells))
    return listed


def curve(run: Run, part: str) -> dict[int, float]:
    """The headline metric by round, at the run's own evaluation point."""
    scores = table.series(run, part, run.scored, table.main_epochs(run, run.scored))
    return {r: v for r, s in sorted(scores.items()) if (v := s.value(goal(run).name, WEIGHT)) is not None}
