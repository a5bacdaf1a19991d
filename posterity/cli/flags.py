"""Flags made from the fields of `Config` (`settings/config.py`), documented there.

Nothing here imports PyTorch: `--help` must answer at once. What a flag was given is read by `settings/config.py`,
whose sentences say what was expected; here a flag only shows its type and completes in a shell (`completion.py`).

What a shell completes: methods, datasets and networks are files of a folder, so none of them is imported for it.

How a command shows what it found: a table, or the same numbers in a form for somebody else (`export.py`).

The flags are the same for every command that shows results. Nothing here imports PyTorch: `--help` must answer at once.

Flags and arguments of commands that are no settings of a run (`flags.py`), and the panels of `posterity --help`.
"""

from __future__ import annotations

import inspect
import pkgutil
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from posterity.settings.config import USES, Config, from_table, read_toml, settings_where
from posterity.settings.hyperparameters import Knob, knobs, parse_ranges, split_list
from posterity.settings.names import NAMES
from posterity.version import __version__

PACKAGE = Path(__file__).parents[1]


def files(folder: str) -> list[str]:
    """The public modules of a folder of this package, by name: what `--method`, `--dataset`, `--model` may be."""
    return sorted(m.name for m in pkgutil.iter_modules([str(PACKAGE / folder)]) if not m.name.startswith("_"))


def starting(words: Sequence[str]) -> Callable[[str], list[str]]:
    """The words that begin as what was typed."""
    return lambda incomplete: [word for word in words if word.startswith(incomplete) and ":" not in word]


def complete_method(incomplete: str) -> list[str]:
    """A method, a name for a spec, or a wrapper behind it: `fedavg+f` may go on as `fedavg+ft`."""
    before, plus, last = incomplete.rpartition("+")
    known = files("methods/wrappers") if plus else _methods()
    return [f"{before}{plus}{name}" for name in known if name.startswith(last)]


def _methods() -> list[str]:
    found = [name for name in files("methods") if name != "wrappers"]
    return sorted([*found, *(name for name, named in NAMES.items() if named.needs in found)])


def complete_methods(incomplete: str) -> list[str]:
    """The last of several methods."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in complete_method(last)]


def complete_dataset(incomplete: str) -> list[str]:
    """A dataset, or the next of a mix."""
    before, plus, last = incomplete.rpartition("+")
    return [f"{before}{plus}{name}" for name in files("data/datasets") if name.startswith(last)]


def complete_model(incomplete: str) -> list[str]:
    return [name for name in files("models") if name.startswith(incomplete)]


COMPLETED: dict[str, Callable[[str], list[str]]] = {
    "method": complete_method,
    "dataset": complete_dataset,
    "model": complete_model,
}


RUNNING = "Running"
PANELS = ("Data", "Training", RUNNING, "Machine", "Output")  # as `--help` has them
RULES = "validated (round chosen on validation, shown on test), paper (best round on all held out) or last"
WORDS = {int: "INTEGER", float: "FLOAT", str: "TEXT", bool: "BOOLEAN"}
ROOM = 20  # characters of a choice that a help of 80 columns has room for beside the flag


def option(
    kind: Any,
    default: Any,
    doc: str,
    *names: str,
    panel: str | None = None,
    metavar: str | None = None,
    words: Callable[[str], list[str]] | None = None,
) -> tuple[Any, Any]:
    """The annotation and the default of one flag; `words` completes what was begun in a shell."""
    made = typer.Option(
        *names, help=doc, rich_help_panel=panel, metavar=metavar, autocompletion=words, show_default=False
    )
    return Annotated[kind, made], default


def config_flags(leave_out: tuple[str, ...] = ()) -> dict[str, tuple[Any, Any]]:
    """One flag per field; every flag defaults to None, so that only what the user gave overrides a file."""
    flags = {knob.name: _flag(knob) for knob in knobs(Config) if knob.name not in leave_out}
    settings = "a setting of the method (xi=50), of its training (local.momentum=0.9), model.* or data.*; repeatable"
    flags["set"] = option(list[str] | None, None, settings, "--set", panel="Training", metavar="NAME=VALUE")
    flags["config"] = option(Path | None, None, "TOML file with any of these settings", "--config", panel=RUNNING,
                             metavar="FILE")  # fmt: skip
    return flags


def _flag(knob: Knob) -> tuple[Any, Any]:
    role = USES[knob.name].role.capitalize()
    panel = role if role in PANELS else RUNNING
    choice = f"[{'|'.join(knob.choices)}]"
    wide = bool(knob.choices) and len(choice) > ROOM
    doc = knob.doc + (f": {', '.join(knob.choices)}" if wide else "")
    doc += "" if knob.default is None else f" (default: {knob.default})"
    metavar = choice if knob.choices and not wide else metavar_of(knob.kind)
    words = COMPLETED.get(knob.name) or (starting(knob.choices) if knob.choices else None)
    name = "--" + knob.name.replace("_", "-")
    return option(str | None, None, doc, name, panel=panel, metavar=metavar, words=words)


def metavar_of(kind: Any) -> str:
    """A type as `--help` shows it."""
    kinds = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    return next((WORDS[k] for k in kinds if k in WORDS), "TEXT")


def with_flags(flags: dict[str, tuple[Any, Any]], leave_out: tuple[str, ...] = ()) -> Callable[[Any], Any]:
    """Give a command `(**flags)` a flag for each field of `Config`, and those named in `flags`."""
    every = {**flags, **{n: flag for n, flag in config_flags(leave_out).items() if n not in flags}}
    return with_only(dict(sorted(every.items(), key=lambda flag: PANELS.index(_panel(flag[1])))))


def with_only(every: dict[str, tuple[Any, Any]]) -> Callable[[Any], Any]:
    """Give a command `(**flags)` the flags and arguments that are named; one whose default is … must be given."""

    def decorate(command: Any) -> Any:
        kind = inspect.Parameter.KEYWORD_ONLY
        given = {n: inspect.Parameter.empty if d is ... else d for n, (_, d) in every.items()}
        parameters = [inspect.Parameter(n, kind, default=given[n], annotation=a) for n, (a, _) in every.items()]
        command.__signature__ = inspect.Signature(parameters)
        command.__annotations__ = {n: a for n, (a, _) in every.items()}
        return command

    return decorate


def _panel(flag: tuple[Any, Any]) -> str:
    panel: str = flag[0].__metadata__[0].rich_help_panel
    return panel


def read_config(given: dict[str, Any], **fixed: Any) -> Config:
    """The configuration of a command: the file's values, then the flags', then `fixed`."""
    path: Path | None = given.pop("config", None)
    table: dict[str, Any] = read_toml(path) if path else {}
    settings = dict(_pair(text) for text in given.pop("set", None) or [])
    base = from_table(table)
    flags = {name: value for name, value in given.items() if value is not None}
    return from_table({**flags, **fixed, "set": settings}, base)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"--set takes name=value; {text!r} was given")
    return name.strip(), value.strip()


def read_methods(text: str) -> list[str]:
    """The methods of a comma-separated list, which must not be empty."""
    from posterity.experiment.compare import name_all  # imports torch, which --help does not

    found = split_list(text)
    if not found:
        raise ValueError(f"--methods takes a comma-separated list; {text!r} was given")
    return name_all(found)


def read_seeds(text: str) -> list[int]:
    """`0,1,2` or `0-4`."""
    try:
        seeds = parse_ranges(text)
    except ValueError:
        raise ValueError(
            f"--seeds takes whole numbers (0,1,2) or a range from the lower one on (0-4); {text!r} was given"
        ) from None
    if twice := sorted({seed for seed in seeds if seeds.count(seed) > 1}):
        raise ValueError(f"--seeds names {', '.join(map(str, twice))} more than once; {text!r} was given")
    return seeds


def check_jobs(jobs: int | None) -> None:
    """`--jobs` counts runs: there is no fewer than one at once."""
    if jobs is not None and jobs < 1:
        raise ValueError(
            f"--jobs is the number of runs at once, 1 or more; {jobs} was given (leave it out for one a core)"
        )


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
    from posterity.evaluate import load_metrics
    from posterity.report import check_rule
    from posterity.report.table import known_columns
    from posterity.settings.hyperparameters import nearest

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


RUN, LOOK, WRITE = "Run", "Look at", "Write your own"  # panels of commands

Folder = Annotated[Path, typer.Argument(help="folder of a run or a comparison", metavar="FOLDER")]
Jobs = Annotated[int | None, typer.Option("--jobs", help="runs at once (default: one a core, one on a GPU)",
                                          metavar="INTEGER", rich_help_panel="Running")]  # fmt: skip
JobsAgain = Annotated[int | None, typer.Option("--jobs", help="runs at once (default: as many as when it began)",
                                               metavar="INTEGER", rich_help_panel="Running")]  # fmt: skip
OUT = option(Path | None, None, "folder to write to (default: a new one under runs/)", "--out", panel=PANEL,
             metavar="FOLDER")  # fmt: skip
COMMON = {"out": OUT, "quiet": (Quiet, False), **SHOWN}
MEASURED = {"metrics": option(str | None, None, MORE, "--metrics", panel=PANEL, metavar="NAME,…")}
Runs = Annotated[Path, typer.Argument(help="folder of a run or a comparison, or a file of packed runs",
                                      metavar="FOLDER")]  # fmt: skip
PAGE = option(Path | None, None, "file to write (default: report.html in the folder)", "--out", panel=PANEL,
              metavar="FILE")  # fmt: skip
TRUST = option(bool, False, "import the modules of its author's own that the folder names", "--trust")
METHODS = option(str, "local,fedavg,fedavg+ft,fedper,fedmap,pfedvmp", "methods, comma separated; 'all' means those "
                 r"not named; one may appear twice, with other settings: 'fedprox\[mu=0.1], fedprox\[mu=1]' (default: "
                 "local, fedavg, fedavg+ft, fedper, fedmap, pfedvmp)", "--methods", panel="Training", metavar="NAME,…",
                 words=complete_methods)  # fmt: skip
SEEDS = option(str, "0,1,2", "seeds, comma separated or a range (0-4; default: 0,1,2)", "--seeds", panel="Running",
               metavar="INTEGER,…")  # fmt: skip
ONE_SEED = option(str, "0", "seeds of every trial, comma separated or a range (default: 0)", "--seeds", panel="Running",
                  metavar="INTEGER,…")  # fmt: skip
TRIALS = option(int, 20, "trials of every method; the first has its defaults (default: 20)", "--trials",
                panel="Running", metavar="INTEGER")  # fmt: skip
SEARCH_SEED = option(int, 0, "seed of the search itself (default: 0)", "--search-seed", panel="Running",
                     metavar="INTEGER")  # fmt: skip
TUNED = option(Path | None, None, "file of 'posterity tune' with the values of all these methods (they win over --set)",
               "--tuned", panel="Training", metavar="FILE")  # fmt: skip
Together = Annotated[bool | None, typer.Option("--together/--apart", help="all seeds of a method at once, as more "
                                               "clients (default: on a GPU)", rich_help_panel="Running")]  # fmt: skip


HOW = settings_where(  # what says how a table of a paper is computed, and when it is scored
    lambda use: use.role == "machine" or (use.role == "scores" and not use.size)
)
TABLE = {  # what may be said about a table besides what it says itself
    "table": (Annotated[str | None, typer.Argument(help="its id: V-T1a, or that of a figure: V-F2")], None),
    "list_them": option(bool, False, "all tables: data, GPU minutes, how much is done", "--list", panel="Running"),
    "seeds": option(str | None, None, "seeds, comma separated or a range (default: the table's own)", "--seeds",
                    panel="Running", metavar="INTEGER,…"),
    "cells": option(str | None, None, "columns, comma separated (default: all)", "--cells", panel="Running",
                    metavar="NAME,…"),
    "methods": option(str | None, None, "rows, by their names or methods (default: all)", "--methods", panel="Running",
                      metavar="NAME,…"),
    "scale": option(float, 1.0, "share of its rounds, epochs and data: 0.01 shows that it runs", "--scale",
                    panel="Running", metavar="FLOAT"),
    "rounds": option(int | None, None, "rounds, instead of the table's own", "--rounds", panel="Running",
                     metavar="INTEGER"),
    "places": option(list[Path] | None, None, "print the table, or draw the figure, of runs in these folders and files "
                     "of packed runs, and run nothing; repeatable", "--from", panel="Running", metavar="PLACE"),
    "together": (Together, None),
    "jobs": (Jobs, None),
    **{name: flag for name, flag in config_flags().items() if name in ("data_dir", *HOW)},
    "out": option(Path | None, None, "folder to write to (default: runs/tables/ID, where a second call goes on; for "
                  "figures runs/)", "--out", panel=PANEL, metavar="FOLDER"),
    "quiet": COMMON["quiet"],
}  # fmt: skip


def _print_version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit()


Version = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version and exit")
]


def with_help_of_arguments(command: Any) -> Any:
    """The command, whose arguments say what they are: click 8.5 overwrites what older typer kept in `help`."""
    for inner in getattr(command, "commands", {}).values():
        with_help_of_arguments(inner)
    silent = [each for each in command.params if each.param_type_name == "argument" and not each.help]
    if silent:
        said = get_type_hints(inspect.unwrap(command.callback), include_extras=True)
        for argument in silent:
            argument.help = said[argument.name].__metadata__[0].help
    return command
