"""What `posterity.compare` returns: the runs of several methods as a table, a report, a curve, columns of numbers."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from typing import Any

from posterity.core.network import Network
from posterity.data.federation import Federation
from posterity.experiment import compare as comparing
from posterity.experiment.compare import name_all
from posterity.experiment.models import keeping
from posterity.experiment.result import Result, as_run
from posterity.experiment.run import resume_run, run_seeds, silent
from posterity.report import Row, Run, check_rule, columns, complete, finding, headline, load_runs
from posterity.report.page import render
from posterity.report.show import FORMS, Plot, html_table, plot
from posterity.report.table import fetch
from posterity.runs.files import check_out, write_atomic
from posterity.settings.config import Config, check_seeds
from posterity.settings.hyperparameters import nearest, split_list


@dataclass(frozen=True)
class Results:
    """Runs of several methods and seeds, seen under one selection rule; a notebook shows their table."""

    runs: tuple[Run, ...] = field(repr=False)
    show: str = "validated"
    folder: Path | None = None

    @cached_property
    def rows(self) -> list[Row]:
        """One row a method, best first; `row.label`, `row.cells["accuracy"].mean`, `.sd`, `.text`, `.best`."""
        return headline(self.runs, self.show)

    @property
    def finding(self) -> str:
        """Who leads, by how much, and whether that is more than chance."""
        return finding(self.rows)

    def table(self, form: str = "markdown", metrics: Sequence[str] = ()) -> str:
        """The table as text: markdown, latex or csv; with the columns named in `metrics`, or all."""
        if form not in FORMS:
            raise ValueError(f"there is no form {form!r} of a table: {nearest(form, FORMS)}")
        rows = complete(self.rows)
        every = {c.key: c for table in ("main", "further") for c in columns(rows, table)}
        for name in metrics:
            if name not in every:
                raise ValueError(f"there is no metric {name!r} in these runs: {nearest(name, every)}")
        return FORMS[form](rows, [every[name] for name in metrics] or columns(self.rows))

    def report(self, out: str | Path | None = None) -> Path:
        """Write the HTML page; by default beside the runs."""
        if out is None and self.folder is None:
            raise ValueError("these runs have no folder: say where to write the page, report('page.html')")
        path = Path(out) if out is not None else Path(self.folder or "") / "report.html"
        write_atomic(path, render(self.runs, self.show).encode())
        return path

    def to_dict(self) -> dict[str, list[Any]]:
        """Column to list, one entry a run at its chosen round: `pandas.DataFrame(results.to_dict())`."""
        rows = complete(self.rows)
        every = [*columns(rows), *columns(rows, "further")]
        made: dict[str, list[Any]] = {n: [] for n in ("method", "seed", "point", "round", *(c.key for c in every))}
        for row in rows:
            for run, selected in row.picked:
                values = {c.key: fetch(run, selected, c) for c in every}
                for name, value in {"method": row.label, "seed": run.seed, "point": row.point,
                                    "round": selected.round, **values}.items():  # fmt: skip
                    made[name].append(value)
        return made

    def plot(self, metric: str | None = None, part: str = "test") -> Plot:
        """A metric by round, a line a method with a band of ± one sd over seeds; by default the one that ranks."""
        return plot(self.runs, metric, part)

    def __repr__(self) -> str:
        few = [c.key for c in columns(self.rows) if not c.wide_only]
        return f"{self.table('markdown', few)}\n{self.finding}"

    def _repr_html_(self) -> str:
        return html_table(self.rows, columns(self.rows), self.finding)


def compare_all(
    config: Config,
    methods: str | Sequence[str],
    seeds: Sequence[int],
    out: Path | None,
    federation: Federation | None = None,
    model: Network | None = None,
    show: str = "validated",
    jobs: int = 1,
    together: bool = False,
) -> Results:
    """Every method with every seed, in a folder or in memory."""
    names = name_all(split_list(methods) if isinstance(methods, str) else list(methods))
    each = check_seeds(seeds)
    check_rule(show)
    if not names or not each:
        raise ValueError(f"methods and seeds must be given, at least one of each; {names} and {each} were")
    if jobs < 1:
        raise ValueError(f"jobs is the number of runs at once, 1 or more; {jobs} was given")
    config = keeping(config, show)
    if out is not None:
        check_out(out, comparison=True)
    if out is not None and federation is None and model is None:
        comparing.compare_runs(config, names, each, out, lambda title, rounds: nullcontext(silent), jobs, together)
        return Results(tuple(load_runs(out)), show, out)
    if jobs > 1:
        raise ValueError("jobs=… starts processes, which need a folder (out=…) and names of data and network; objects "
                         "of your own and runs in memory go one after the other")  # fmt: skip
    run_here = partial(_run_here, out, federation, model, together)
    planned = groupby(comparing.planned(config, names, each, out or Path()), lambda run: run[0].parent)
    return Results(tuple(as_run(result) for _, seeds in planned for result in run_here(list(seeds))), show, out)


def _run_here(
    out: Path | None, federation: Federation | None, model: Network | None, together: bool,
    seeds: list[tuple[Path, Config]],
) -> list[Result]:  # fmt: skip
    """The runs of a method with objects of the caller's own; finished ones are read."""
    if out is None:
        groups = [seeds] if together else [[each] for each in seeds]
        configs = [[config for _, config in group] for group in groups]
        return [result for each in configs for result in run_seeds(each, None, silent, federation, model)]
    done: dict[Path, Result] = {}
    for task in comparing.tasks_left(seeds, together):
        done |= dict(zip((path for path, _ in task.runs), task.do(silent, federation, model), strict=True))
    return [done.get(path) or resume_run(path, federation=federation, model=model) for path, _ in seeds]
