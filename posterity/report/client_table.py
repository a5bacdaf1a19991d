"""Every client under every method: the goal metric at the round of the headline, and the rows behind it.

Clients that a partition drew are others with every seed, so those seeds have a table each; named clients, and those of
a fixed data seed, are the same, and one table has their means.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from posterity.report.columns import Column
from posterity.report.read_runs import Run, ScoreLine
from posterity.report.selected_round import SelectedRound
from posterity.report.tables import Arm, Cell, Row, summarise
from posterity.report.verdict import goal_column

LINES = 60  # of a table: with more clients, the worst and the best served
CELLS = 3000  # of all tables: the page must stay small
TABLES = 6  # seeds that have a table
TINTS = 6  # steps from the lowest to the highest value

Scored = Callable[[Run, SelectedRound], ScoreLine | None]
"""Which scores of a run are meant: those of the headline, or of newcomers."""


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
    smallest: int  # held-out rows of the smallest client; 0: unknown

    @property
    def cut(self) -> bool:
        return len(self.lines) < self.clients


def client_tables(rows: Sequence[Row], scored: Scored, first: int = 0) -> list[ClientTable]:
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
        ClientLine(federation.client(first + k), _range(sizes[k]), tuple((c[k], tint(c[k])) for c in by_arm))
        for k in _kept(_ranked(by_arm, column), most)
    ]
    scored = sum(any(cells[k] for cells in by_arm) for k in range(len(sizes)))
    return ClientTable(
        arms=tuple(row.arm for row in shown),
        seeds=tuple(sorted({run.seed for run, _ in heard if run.seed is not None})),
        lines=tuple(lines),
        clients=scored,
        unscored=len(sizes) - scored,
        smallest=int(min((n for known in sizes for n in known if n), default=0)),
    )


def _cells(scores: Sequence[ScoreLine], column: Column, clients: int) -> list[Cell | None]:
    """Each client under one method, over the seeds."""
    values = _transposed([score.by_client(column.key) for score in scores])
    return [summarise(each, column) for each in values] + [None] * (clients - len(values))


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


def _range(counts: Sequence[float]) -> str:
    if not counts:
        return ""
    low, high = min(counts), max(counts)
    return f"{low:.0f}" if low == high else f"{low:.0f}–{high:.0f}"


def leading(tables: Sequence[ClientTable]) -> str:
    """By whom the clients of these tables are ordered: some seeds may be without the leading method."""
    labels = {table.arms[0].label for table in tables}
    return labels.pop() if len(labels) == 1 else "the first method of a table"


def told(tables: Sequence[ClientTable], column: Column) -> list[str]:
    """What a reader must know about these tables, in sentences."""
    said = []
    if len(tables) > 1:
        said.append("The data were divided anew with every seed, so the clients of one seed are not those of another.")
        if len(tables) > TABLES:
            said.append(f"The first {TABLES} of {len(tables)} such tables are here.")
    if any(table.cut for table in tables[:TABLES]):
        one = max(tables[:TABLES], key=lambda table: table.clients)
        half = len(one.lines) // 2
        said.append(f"Of {one.clients:,} clients the {len(one.lines) - half} worst and the {half} best served by "
                    f"{one.arms[0].label}; metrics.jsonl has all.")  # fmt: skip
    if absent := max((table.unscored for table in tables), default=0):
        said.append(f"Not scored, and not listed: {absent:,} clients without held-out rows or outside of the sample.")
    smallest = min((table.smallest for table in tables if table.smallest), default=0)
    if smallest and column.row_mean and column.unit == "%":
        rows = "1 row" if smallest == 1 else f"{smallest} rows"
        step = f"{100 / smallest:.3g}"
        said.append(
            f"The smallest client has {rows}: a single one, right or wrong, moves its {column.noun} by {step} points."
        )
    return said
