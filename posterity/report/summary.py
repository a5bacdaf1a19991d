"""The tables beside the headline (`tables.py`), and what a reader must know before trusting the comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from posterity.report.columns import Column, text
from posterity.report.read_runs import POINTS, RoundLine, Run, ScoreLine
from posterity.report.selected_round import PART, RULES, WEIGHT, epochs_scored, goal, main_epochs, select_round, series
from posterity.report.tables import Arm, Row, draws, point_name, progress, settings, summarise
from posterity.report.verdict import goal_column, join

# A difference in one of these makes a comparison between methods one between something else as well.
SETTING = ("dataset", "subset", "partition", "clients", "newcomers", "split", "test_partition", "public", "model",
           "augment", "rounds", "participation", "batch_size", "local_epochs", "local_steps")  # fmt: skip


@dataclass(frozen=True)
class SmallTable:
    """A small table: named columns, and per method a text for each (empty where nothing was measured)."""

    heads: tuple[str, ...]
    rows: tuple[tuple[Arm, tuple[str, ...]], ...]

    @property
    def filled(self) -> bool:
        return any(cell for _, cells in self.rows for cell in cells)


def by_rule(rows: Sequence[Row]) -> SmallTable:
    """The headline metric under each of the three rules."""
    column = goal_column(rows[0].arm.runs[0])
    found = []
    for row in rows:
        cells = [summarise([_chosen(run, rule) for run in row.arm.runs], column) for rule in RULES]
        found.append((row.arm, tuple(c.text if c else "" for c in cells)))
    return SmallTable(tuple(RULES), tuple(found))


def _chosen(run: Run, rule: str) -> float | None:
    selected = select_round(run, rule)
    return selected.score.value(goal(run).name, WEIGHT) if selected else None


def at(run: Run, rule: str, point: str, epochs: int, group: str) -> ScoreLine | None:
    """Scores of another point or group at the round chosen for the headline, or at the nearest earlier one."""
    selected = select_round(run, rule)
    if selected is None:
        return None
    for part in (PART[rule], "held", "test"):  # newcomers choose nothing, so some logs only have their whole held part
        scores = series(run, part, point, epochs, group)
        earlier = [r for r in scores if r <= selected.round]
        if scores:
            return scores[max(earlier) if earlier else min(scores)]
    return None


def by_point(rows: Sequence[Row], group: str = "members") -> SmallTable:
    """The headline metric at every evaluation point that was scored, at the round of the headline."""
    runs = [run for row in rows for run in row.arm.runs]
    kinds = [(p, e) for p in POINTS for e in sorted({e for r in runs for e in epochs_scored(r, p, group)})]
    column = goal_column(rows[0].arm.runs[0])
    found = []
    for row in rows:
        scores = [[at(run, row.rule, p, e, group) for run in row.arm.runs] for p, e in kinds]
        cells = [summarise([s.value(column.key, WEIGHT) if s else None for s in kind], column) for kind in scores]
        found.append((row.arm, tuple(c.text if c else "" for c in cells)))
    heads = (point_name(p, e, [r for r in runs if e in epochs_scored(r, p, group)]) for p, e in kinds)
    return SmallTable(tuple(heads), tuple(found))


def newcomers(rows: Sequence[Row]) -> SmallTable:
    """Newcomers at every point, members beside them, and the gap left after the longest adaptation."""
    base = by_point(rows, "newcomers")
    if not base.filled:
        return SmallTable((), ())
    column = goal_column(rows[0].arm.runs[0])
    found = []
    for row, (arm, cells) in zip(rows, base.rows, strict=True):
        member = row.cells.get(column.key)
        gap = summarise([_newcomer_gap(run, row.rule, column) for run in arm.runs], column)
        signed = f"{'+' if gap.mean > 0 else ''}{gap.text}".replace("-", "−") if gap else ""
        found.append((arm, (*cells, member.text if member else "", signed)))
    return SmallTable((*base.heads, "members", "gap"), tuple(found))


def longest_adapted(run: Run, rule: str) -> ScoreLine | None:
    """The newcomers' scores after the longest adaptation, or as received where none was scored."""
    kinds = [(p, e) for p in ("adapted", "received") for e in reversed(epochs_scored(run, p, "newcomers"))]
    return at(run, rule, *kinds[0], "newcomers") if kinds else None


def _newcomer_gap(run: Run, rule: str, column: Column) -> float | None:
    selected = select_round(run, rule)
    score = longest_adapted(run, rule)
    theirs = score.value(column.key, WEIGHT) if score else None
    ours = selected.score.value(column.key, WEIGHT) if selected else None
    return theirs - ours if theirs is not None and ours is not None else None


def troubles(found: Sequence[Arm]) -> list[tuple[Arm, str, str]]:
    """Refused messages by reason, rounds that came to nothing, and what rounds note."""
    listed: list[tuple[Arm, str, str]] = []
    for arm in found:
        every = [(run, r) for run in (*arm.runs, *arm.aside) for r in run.rounds]
        refused = [(why, f"{_when(run, r)}, {_client(run, who)}") for run, r in every for who, why in r.refused]
        back = [(r.rolled_back, _when(run, r)) for run, r in every if r.rolled_back]
        empty = [("", _when(run, r)) for run, r in every if r.empty and not r.rolled_back]
        notes = [(note, _when(run, r)) for run, r in every for note in r.notes]
        told = (
            *_by_reason(refused, lambda count, why: f"{count} refused: {why}"),
            *_by_reason(back, lambda count, why: f"{count} round{'s' if count > 1 else ''} rolled back: {why}"),
            *_by_reason(empty, lambda count, _: f"{count} empty round{'s' if count > 1 else ''}"),
            *_by_reason(notes, lambda _, note: note),
        )
        listed += [(arm, what, where) for what, where in told]
    return listed


def _when(run: Run, line: RoundLine) -> str:
    return f"seed {run.seed}, round {line.round}"


def _by_reason(events: Sequence[tuple[str, str]], say: Callable[[int, str], str]) -> list[tuple[str, str]]:
    """What happened how often, most often first, and where: the first four places."""
    told = []
    for reason, count in Counter(reason for reason, _ in events).most_common():
        where = [place for why, place in events if why == reason]
        told.append((say(count, reason), "; ".join(where[:4]) + (f"; and {count - 4} more" if count > 4 else "")))
    return told


def _client(run: Run, who: int | str) -> str:
    """By its name, where the log has only its number."""
    return who if isinstance(who, str) else run.federation.client(who)


def cautions(runs: Sequence[Run], rows: Sequence[Row]) -> list[str]:
    """What a reader must know before trusting the comparison."""
    said = [f"{r.label}, seed {r.seed}: {progress(r)}." + _fate(r, rows) for r in runs if not r.finished]
    points = {row.point for row in rows}
    if len(points) == 1:
        return said + unlike(rows)
    names = join([f"“{p}”" for p in sorted(points)])
    at = f"The methods are scored at different evaluation points ({names}), each at the one its paper means."
    return [*said, *unlike(rows), at]


def unlike(rows: Sequence[Row]) -> list[str]:
    """What besides the method is not the same in all rows: settings, data, seeds, source."""
    said, firsts = [], [row.arm.runs[0] for row in rows]
    for key in SETTING:
        values = {str(settings(run).get(key)) for run in firsts}
        if len(values) > 1:
            said.append(f"The methods were not run with the same {key.replace('_', ' ')}: {', '.join(sorted(values))}.")
    said += _other_data(rows) + _edited(rows)
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
    return run.finished and any(draws(run) == draws(counted) for counted in arm.runs)


def _other_data(rows: Sequence[Row]) -> list[str]:
    """Seeds with which not all methods had the same values in the same parts, as far as folders know them."""
    found: dict[tuple[int | None, object], set[str]] = {}
    for run in (run for row in rows for run in row.arm.runs if run.federation.fingerprint):
        found.setdefault(draws(run), set()).add(run.federation.fingerprint)
    seeds = [str(seed) for (seed, _), prints in found.items() if len(prints) > 1]
    if not seeds:
        return []
    return [f"The methods were not run on the same data, or not on the same parts of them (seed {join(seeds)}): "
            "clients are not paired there."]  # fmt: skip


def _edited(rows: Sequence[Row]) -> list[str]:
    """Methods whose own source, outside this package, was not the same in all of their runs."""
    said = []
    for row in rows:
        own = [{n: s for n, s in (r.facts.get("sources") or {}).items() if not n.startswith("posterity.")}
               for r in row.arm.runs if "sources" in r.facts]  # fmt: skip
        names = sorted({n for each in own for n in each if each[n] != own[0].get(n)})
        if names:
            said.append(f"{row.label}: the source of {join(names)} was edited between its runs.")
    return said


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
            cells = tuple(text(v, None, column) if (v := _chosen(run, rule)) is not None else "" for rule in RULES)
            selected = select_round(run, row.rule)
            listed.append((run, row.arm, str(selected.round) if selected else "", cells))
    return listed


def curve(run: Run, part: str) -> dict[int, float]:
    """The headline metric by round, at the run's own evaluation point."""
    scores = series(run, part, run.scored, main_epochs(run, run.scored))
    return {r: v for r, s in sorted(scores.items()) if (v := s.value(goal(run).name, WEIGHT)) is not None}
