"""Figures that need no more than the logs of runs: curves by round, accuracy against a share, reliability diagrams.

They are drawn from packed runs too; only the curves of single clients (A-F1) want the folders, since packed runs have
each client's numbers in chosen rounds alone.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from posterity.papers.figures.catalogue import Figure
from posterity.papers.figures.material import FigureDrawing, Material, chosen_values, spread_text
from posterity.papers.figures.sheet import Panel
from posterity.papers.page import number
from posterity.papers.recipe import RecipeCell
from posterity.report import Run, charts
from posterity.report.charts import LearningCurve
from posterity.report.sections import curve
from posterity.report.svg import COLOURS, AxisScale, Canvas, axes, colour, percent, spread, ticks, widen
from posterity.report.table import Arm, main_epochs, point_name, select_round, series

CURVES, CLIENTS = 940.0, 470.0  # widths of panels


def curves(figure: Figure, made: Sequence[Material]) -> FigureDrawing:
    """Accuracy above, loss below, for each column: means with a band of ± one sd over seeds."""
    panels, about, numbers = [], [], []
    for found in made:
        for cell in found.recipe.cells:
            arms = arms_of(found, cell)
            for title, y_axis, values in (
                ("Accuracy on held-out samples", ("accuracy, %", True), lambda run: curve(run, "held")),
                ("Training loss", ("loss, nats a sample", False), loss),
            ):
                lines = [mean_curve(arm, values) for arm in arms]
                drawn = charts.line_chart([line.thinned() for line in lines], CURVES, title, y_axis=y_axis)
                panels.append(Panel(title, drawn, f"{cell.name}; line: mean over seeds, band: ± one sd"))
                numbers += [_describe(title, line) for line in lines]
            about += [found.about(cell), _points(arms)]
    return FigureDrawing(panels, about, {"curves": numbers}, 1)


def arms_of(found: Material, cell: RecipeCell) -> list[Arm]:
    """Each row of a column with its runs; numbered by their place, so that a colour does not depend on results."""
    every = [Arm(line.name, i, tuple(found.runs(cell, line))) for i, line in enumerate(found.recipe.lines_of(cell))]
    return [arm for arm in every if arm.runs]


def loss(run: Run) -> dict[int, float]:
    """The loss that the cohort saw while training."""
    return {line.round: line.loss for line in run.rounds if line.loss is not None}


def mean_curve(arm: Arm, values: Callable[[Run], Mapping[int, float]]) -> LearningCurve:
    """Mean and sample sd over seeds, in the rounds that all of them have."""
    found = charts.mean_curve(arm, values)
    if not found.x:
        raise ValueError(f"runs of {arm.label} have no round with a value in common: is one of them of another size?")
    return found


def _describe(what: str, line: LearningCurve) -> dict[str, Any]:
    return {"panel": what, "name": line.arm.label, "rounds": [int(x) for x in line.x], "mean": line.y, "sd": line.band,
            "seeds": [run.seed for run in line.arm.runs]}  # fmt: skip


def _points(arms: Sequence[Arm]) -> str:
    """At which evaluation points the methods are scored."""
    found: dict[str, list[str]] = {}
    for arm in arms:
        run = arm.runs[0]
        found.setdefault(point_name(run.scored, main_epochs(run, run.scored), [run]), []).append(arm.label)
    return "Scored " + "; ".join(f"as {point}: {', '.join(names)}" for point, names in found.items()) + "."


def clients(figure: Figure, made: Sequence[Material]) -> FigureDrawing:
    """The validation accuracy of every client of one method by round, a panel for each setting.

    Clients are numbered from 1, as the paper does; those of the second half have dashed lines.
    """
    panels, about, numbers = [], list[str](), []
    for found in made:
        for cell in found.recipe.cells:
            runs = tuple(found.runs(cell, found.recipe.lines_of(cell)[0]))
            members = runs[0].federation.members
            half = (members + 1) // 2
            arms = [Arm(f"client {k + 1}", k if k < half else COLOURS + k - half, runs) for k in range(members)]
            lines = [mean_curve(arm, partial(by_client, client=k, metric=figure.metric)) for k, arm in enumerate(arms)]
            title = f"{figure.metric.replace('_', ' ')}, %"
            thinned = [replace(line.thinned(), band=()) for line in lines]
            drawn = charts.line_chart(thinned, CLIENTS, cell.name, y_axis=(title, True))
            remark = "mean over seeds" if lines[0].band else "one seed"
            panels.append(Panel(f"{found.recipe.lines[0].name}, {cell.name}", drawn, remark))
            numbers += [{"cell": cell.name, **_describe(figure.metric, line)} for line in lines]
        about += dict.fromkeys(found.about(cell) for cell in found.recipe.cells)
        about.append("Dashed: the second half of the clients, which is the skewed one where amounts or labels are.")
    return FigureDrawing(panels, about, {"curves": numbers}, len(panels))


def by_client(run: Run, client: int, metric: str) -> dict[int, float]:
    """One client's number on what it holds out, by round."""
    scores = series(run, "held", run.scored, main_epochs(run, run.scored))
    without = [r for r, score in scores.items() if metric not in score.clients]
    if without:
        raise ValueError(f"the log of {run.label}, seed {run.seed} ({run.folder}) has each client's {metric} in "
                         f"{len(scores) - len(without)} of {len(scores)} rounds, as packed runs have it, and all are "
                         "to be drawn: give the folder of the run, or leave --from out to run it")  # fmt: skip
    found = {r: score.by_client(metric) for r, score in scores.items()}
    return {r: value for r, values in found.items() if client < len(values) and (value := values[client]) is not None}


SHARE_WIDTH, SHARE_HEIGHT = 620.0, 380.0


Points = Sequence[tuple[float, float, float]]
"""Accuracy by p: p, mean and sd over seeds, 0 where there is none."""


def proportion(figure: Figure, made: Sequence[Material]) -> FigureDrawing:
    """Accuracy against the share p of parameters that are personal (FedBPS), ours with ± one sd and the paper's."""
    panels, about, numbers = [], [], []
    for found in made:
        for cell in found.recipe.cells:
            both = {"ours": _ours(found, cell, figure.metric), "the paper": _printed(found, cell)}
            courses = {name: sorted(rows) for name, rows in both.items() if rows}
            remark = "ours: round chosen on validation samples; ± one sd over seeds"
            panels.append(Panel(cell.name, _share_chart(courses), remark))
            for name, rows in courses.items():
                columns = dict(zip(("p", "mean", "sd"), zip(*rows, strict=True), strict=True))
                numbers.append({"cell": cell.name, "name": name, **columns})
            about.append(found.about(cell))
    return FigureDrawing(panels, about, {"courses": numbers}, 2)


def _share(row: str) -> float:
    """p of a row by its name, such as "p = 30 %": the usual one has no setting that says it."""
    return float(row.removeprefix("p = ").removesuffix(" %")) / 100


def _ours(found: Material, cell: RecipeCell, metric: str) -> Points:
    """The accuracy of the chosen round on the test half, over seeds."""
    rows = []
    for line in found.recipe.lines_of(cell):
        if values := chosen_values(found.runs(cell, line), metric):
            sd = statistics.stdev(values) if len(values) > 1 else 0.0
            rows.append((_share(line.name), statistics.fmean(values), sd))
    return rows


def _printed(found: Material, cell: RecipeCell) -> Points:
    """The paper's numbers."""
    values = {_share(line.name): number(line.paper.get(cell.name, "")) for line in found.recipe.lines_of(cell)}
    return [(p, v / 100, 0.0) for p, v in values.items() if v is not None]


def _share_chart(courses: Mapping[str, Points]) -> str:
    canvas = Canvas(SHARE_WIDTH, SHARE_HEIGHT, "Accuracy against p")
    low, high = widen((m + k * s for c in courses.values() for _, m, s in c for k in (-1, 1)), floor=0.0, ceiling=1.0)
    every = sorted({p for c in courses.values() for p, _, _ in c})
    x, y = AxisScale(every[0], every[-1], 50, SHARE_WIDTH - 100), AxisScale(low, high, SHARE_HEIGHT - 44, 34)
    axes(canvas, x, y, every, ticks(low, high, 8), percent, percent)
    canvas.text(44, 20, "accuracy, %", "name")
    canvas.text(x.end, SHARE_HEIGHT - 10, "personal parameters p, %", "name", "end")
    for i, (name, course) in enumerate(courses.items()):
        canvas.path([(x(p), y(m)) for p, m, _ in course], f"line m{i} dash{i}")
        for p, m, s in course:
            if s:
                charts.whisker(canvas, x(p), y(m + s), y(m - s), f"whisker m{i}", 5.0)
        for p, m, _ in course:
            canvas.add("circle", f"dot {colour(i)}", f"{name}, p = {p:.0%}: {m:.2%}", cx=x(p), cy=y(m), r=4)
    ends = [y(course[-1][1]) for course in courses.values()]
    for i, (name, place) in enumerate(zip(courses, spread(ends, 16, y.end, y.start), strict=True)):
        canvas.text(x.end + 14, place + 4, name, f"end {colour(i)}")
    return canvas.svg()


COLUMNS = 4
AXES = {"flat": ("class probability, %", "labels, %"), "bins": ("confidence, %", "accuracy, %")}
NAMES = {"flat": ("all classes", "ece_flat", "mce_flat"), "bins": ("top label", "ece", "mce")}
KEY = (
    "All classes: every class probability of every sample counts once (MetaVD's programme; most are near 0, which "
    "makes the ECE about as many times smaller as there are classes). Top label: the most probable class alone. "
    "Whiskers: 95 % (Wilson). Pale bars: share of predictions in a bin. ECE and MCE in %, mean ± sd over seeds."
)


def reliability(figure: Figure, made: Sequence[Material]) -> FigureDrawing:
    """Diagrams side by side: over all class probabilities, as MetaVD's programme has them (erratum M9), and below over
    the most probable class alone, which is what the words "confidence" and "accuracy" mean.

    The bins are those of the metrics (`evaluate/scores.py`), as the log has them of the round that was chosen: of the
    test rows of the members, judged by their own models, all clients as one.
    """
    panels, about, numbers = [], [], []
    for found in made:
        for cell in found.recipe.cells:
            arms = arms_of(found, cell)
            for start in range(0, len(arms), COLUMNS):
                panels += [_diagram(arm, kind) for kind in NAMES for arm in arms[start : start + COLUMNS]]
            for arm in arms:
                metrics = {name: chosen_values(arm.runs, name) for _, *names in NAMES.values() for name in names}
                bins = {kind: bins_of(arm, kind) for kind in NAMES}
                numbers.append({"method": arm.label, "seeds": [run.seed for run in arm.runs], **metrics, **bins})
            about += [found.about(cell), KEY]
    return FigureDrawing(panels, about, {"methods": numbers}, min(COLUMNS, len(numbers)))


def bins_of(arm: Arm, kind: str) -> list[tuple[float, float, float]]:
    """Count, sum of probabilities and sum of labels in each bin, added over seeds."""
    for run in arm.runs:
        chosen = select_round(run, "validated")
        if chosen is None or not getattr(chosen, kind):
            raise ValueError(f"the log of {arm.label}, seed {run.seed} ({run.folder}) does not have the bins of "
                             f"{NAMES[kind][0]}: it is of sites that keep them, or has no test rows; run it again, or "
                             "name other rows with --methods")  # fmt: skip
    return charts.pooled_bins(arm, "validated", kind)


def _diagram(arm: Arm, kind: str) -> Panel:
    what, *metrics = NAMES[kind]
    drawn = charts.reliability(arm, bins_of(arm, kind), len(arm.runs), *AXES[kind])
    found = [[100 * v for v in chosen_values(arm.runs, metric)] for metric in metrics]
    ece, mce = (spread_text(each, digits) for each, digits in zip(found, (2, 1), strict=True))
    return Panel(f"{arm.label}, {what}", drawn, f"ECE {ece}, MCE {mce}")
