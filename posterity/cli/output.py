"""How a command shows what it found: a table, or the same numbers in a form for somebody else (`export.py`).

The flags are the same for every command that shows results. Nothing here imports PyTorch: `--help` must answer at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from posterity.cli.completion import starting
from posterity.cli.flags import RULES, option
from posterity.core.parse import split_list

PANEL = "Output"
FORMS = {
    "json": "one JSON object, with the values of every seed",
    "markdown": "the table in Markdown",
    "latex": "the table in LaTeX",
    "csv": "the table as comma-separated values, unrounded",
}  # printed, and nothing else: `posterity report FOLDER --latex > table.tex`
COLUMNS = "columns to show, by name (accuracy,ece,brier)"
MORE = f"{COLUMNS}, and further metrics of your own (package.module:name)"

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="no progress", rich_help_panel=PANEL)]


def _switch(name: str) -> tuple[Any, Any]:
    return option(bool, False, f"print {FORMS[name]}, and nothing else", f"--{name}", panel=PANEL)


SHOWN: dict[str, tuple[Any, Any]] = {
    "show": option(str, "validated", f"{RULES} (default: validated)", "--show", panel=PANEL, metavar="RULE",
                   words=starting(("validated", "paper", "last"))),
    "metrics": option(str | None, None, COLUMNS, "--metrics", panel=PANEL, metavar="NAME,…"),
    "wide": option(bool, False, "all columns, however wide the terminal is", "--wide", panel=PANEL),
    **{name: _switch(name) for name in FORMS},
}  # fmt: skip
"""Flags that every command with results has, by name."""


@dataclass(frozen=True)
class Output:
    """What is shown of results: under which rule, in which form, and which columns."""

    show: str = "validated"
    form: str = "table"
    wide: bool = False
    metrics: tuple[str, ...] = ()  # columns by name; empty: as many as answer the question

    @property
    def alone(self) -> bool:
        """Whether nothing else may be printed: somebody reads the output by program."""
        return self.form != "table"


def take_output(given: dict[str, Any]) -> tuple[Output, str | None]:
    """What the flags of `SHOWN` say, taken out of all that were given; and the metrics of your own among them."""
    asked = [name for name in FORMS if given.pop(name)]
    if len(asked) > 1:
        raise ValueError(f"--{' and --'.join(asked)} are different forms of one table: give one of them")
    columns, theirs = split_metrics(given.pop("metrics"))
    return Output(given.pop("show"), asked[0] if asked else "table", given.pop("wide"), columns), theirs


def take_names(given: dict[str, Any]) -> Output:
    """Columns of runs that have been measured, or whose configuration says what will be."""
    output, theirs = take_output(given)
    if theirs:
        raise ValueError(f"--metrics takes names of columns here; {theirs} is measured by 'run' and 'compare' "
                         "alone, and shown under the name that it has there")  # fmt: skip
    return output


def split_metrics(text: str | None) -> tuple[tuple[str, ...], str | None]:
    """Names of columns, in order, and dotted paths of metrics as a run's configuration has them.

    With names, a path stands for the column of its metric; paths alone only add to the usual columns.
    """
    words = split_list(text or "")
    if text is not None and not words:
        raise ValueError(
            f"--metrics takes names of columns or package.module:name, comma separated; {text!r} was given"
        )
    paths = [word for word in words if ":" in word]
    return tuple(words) if len(paths) < len(words) else (), ",".join(paths) or None


def check_output(output: Output) -> Output:
    """Refuse an unknown rule or column before the work, not after it; dotted paths become names of columns."""
    from posterity.core.hyperparameters import nearest
    from posterity.evaluate import load_metrics
    from posterity.report import check_rule
    from posterity.report.columns import known_columns

    check_rule(output.show)
    known, names = known_columns(), []
    for word in output.metrics:
        if ":" in word:
            names.append(load_metrics(word)[0].name)
        elif word not in known:
            raise ValueError(f"there is no metric {word!r}: {nearest(word, known)}; your own: package.module:name")
        else:
            names.append(word)
    return Output(output.show, output.form, output.wide, tuple(names))
