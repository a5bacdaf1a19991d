"""Flags and arguments of all commands: those made from the fields of `Config`, and those that are no settings of a run.

What a flag was given is read by `settings/config.py`, whose sentences say what was expected; here a flag only shows its
type and completes in a shell: methods and datasets are files of a folder, so none is imported for it. Nothing here
imports PyTorch: `--help` must answer at once.
"""

import inspect
import pkgutil
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from posterity.settings.config import USES, Config, from_table, read_toml, settings_where
from posterity.settings.hyperparameters import Knob, knobs, nearest, parse_ranges, split_list
from posterity.settings.names import NAMES
from posterity.version import __version__

PACKAGE = Path(__file__).parents[1]
Flag = tuple[Any, Any]  # the annotation of a parameter, and its default


def files(folder: str) -> list[str]:
    """The public modules of a folder of this package: what `--method` and `--dataset` may be."""
    return sorted(m.name for m in pkgutil.iter_modules([str(PACKAGE / folder)]) if not m.name.startswith("_"))


def starting(words: Sequence[str]) -> Callable[[str], list[str]]:
    return lambda incomplete: [word for word in words if word.startswith(incomplete) and ":" not in word]


def complete_method(incomplete: str) -> list[str]:
    """A method, a name for a spec, or a wrapper behind it: `fedavg+f` may go on as `fedavg+ft`."""
    before, plus, last = incomplete.rpartition("+")
    found = [name for name in files("methods") if name != "wrappers"]
    named = [name for name, each in NAMES.items() if each.needs in found]
    known = files("methods/wrappers") if plus else sorted([*found, *named])
    return [f"{before}{plus}{name}" for name in known if name.startswith(last)]


def complete_methods(incomplete: str) -> list[str]:
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in complete_method(last)]


def complete_dataset(incomplete: str) -> list[str]:
    before, plus, last = incomplete.rpartition("+")
    return [f"{before}{plus}{name}" for name in files("data/datasets") if name.startswith(last)]


COMPLETED = {"method": complete_method, "dataset": complete_dataset}
RUNNING, OUTPUT = "Running", "Output"
PANELS = ("Data", "Training", RUNNING, "Machine", OUTPUT)  # as `--help` has them
WORDS = {int: "INTEGER", float: "FLOAT", str: "TEXT", bool: "BOOLEAN"}


def option(
    kind: Any, default: Any, doc: str, *names: str, panel: str | None = RUNNING, metavar: str | None = None,
    words: Callable[[str], list[str]] | None = None, least: int | None = None,
) -> Flag:  # fmt: skip
    """A flag, called as its parameter if no other name is given; `words` completes what was begun in a shell."""
    made = typer.Option(
        *names, help=doc, rich_help_panel=panel, metavar=metavar, autocompletion=words, min=least, show_default=False
    )
    return Annotated[kind, made], default


def argument(
    kind: Any, doc: str, default: Any = ..., metavar: str | None = None,
    words: Callable[[str], list[str]] | None = None,
) -> Flag:  # fmt: skip
    """An argument; one whose default is … must be given."""
    return Annotated[kind, typer.Argument(help=doc, metavar=metavar, autocompletion=words)], default


def config_flags(leave_out: tuple[str, ...] = ()) -> dict[str, Flag]:
    """One flag per field; all default to None: only what was given overrides a file."""
    flags = {knob.name: _flag(knob) for knob in knobs(Config) if knob.name not in leave_out}
    settings = "a setting of the method (xi=50), of its training (local.momentum=0.9), model.* or data.*; repeatable"
    flags["set"] = option(list[str] | None, None, settings, panel="Training", metavar="NAME=VALUE")
    flags["config"] = option(Path | None, None, "TOML file with any of these settings", metavar="FILE")
    return flags


def _flag(knob: Knob) -> Flag:
    panel = USES[knob.name].role.capitalize()
    doc = knob.doc + (f": {', '.join(knob.choices)}" if knob.choices else "")
    doc += "" if knob.default is None else f" (default: {knob.default})"
    kinds = typing.get_args(knob.kind) if isinstance(knob.kind, types.UnionType) else (knob.kind,)
    metavar = next(WORDS[kind] for kind in kinds if kind in WORDS)
    words = COMPLETED.get(knob.name) or (starting(knob.choices) if knob.choices else None)
    return option(str | None, None, doc, panel=panel if panel in PANELS else RUNNING, metavar=metavar, words=words)


def with_flags(flags: dict[str, Flag], leave_out: tuple[str, ...] = ()) -> Callable[[Any], Any]:
    """Give a command `(**flags)` a flag for each field of `Config`, and those named in `flags`."""
    every = {**flags, **{n: flag for n, flag in config_flags(leave_out).items() if n not in flags}}
    return with_only(dict(sorted(every.items(), key=lambda flag: PANELS.index(_panel(flag[1])))))


def _panel(flag: Flag) -> str:
    panel: str = flag[0].__metadata__[0].rich_help_panel
    return panel


def with_only(every: dict[str, Flag]) -> Callable[[Any], Any]:
    """Give a command `(**flags)` the flags and arguments that are named."""

    def decorate(command: Any) -> Any:
        kind = inspect.Parameter.KEYWORD_ONLY
        given = {n: inspect.Parameter.empty if d is ... else d for n, (_, d) in every.items()}
        parameters = [inspect.Parameter(n, kind, default=given[n], annotation=a) for n, (a, _) in every.items()]
        command.__signature__ = inspect.Signature(parameters)
        command.__annotations__ = {n: a for n, (a, _) in every.items()}
        return command

    return decorate


def read_config(given: dict[str, Any]) -> Config:
    """The configuration of a command: the file's values, then the flags'."""
    path: Path | None = given.pop("config", None)
    base = from_table(read_toml(path) if path else {})
    settings = {}
    for text in given.pop("set", None) or []:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ValueError(f"--set takes name=value; {text!r} was given")
        settings[name.strip()] = value.strip()
    return from_table({**{n: v for n, v in given.items() if v is not None}, "set": settings}, base)


def read_names(flag: str, text: str | None) -> list[str]:
    names = split_list(text or "")
    if text is not None and not names:
        raise ValueError(f"{flag} takes a comma-separated list of names; {text!r} was given")
    return names


def read_methods(text: str) -> list[str]:
    from posterity.experiment.compare import name_all

    return name_all(read_names("--methods", text))


def read_seeds(text: str) -> list[int]:
    try:
        seeds = parse_ranges(text)
    except ValueError:
        raise ValueError(f"--seeds takes 0,1,2 or a range from the lower one on (0-4); {text!r} was given") from None
    if twice := sorted({seed for seed in seeds if seeds.count(seed) > 1}):
        raise ValueError(f"--seeds names {', '.join(map(str, twice))} more than once; {text!r} was given")
    return seeds


FORMS = {
    "json": "one JSON object, with the values of every seed",
    "markdown": "the table in Markdown",
    "latex": "the table in LaTeX",
    "csv": "the table as comma-separated values, unrounded",
}  # printed, and nothing else: `posterity report FOLDER --latex > table.tex`
COLUMNS = "columns to show, by name (accuracy,ece,brier)"
SHOWN = {  # flags that every command with results has
    "show": option(str, "validated", "validated (round chosen on validation, shown on test), paper (best round on all "
                   "held out) or last (default: validated)", panel=OUTPUT, metavar="RULE",
                   words=starting(("validated", "paper", "last"))),
    "metrics": option(str | None, None, COLUMNS, panel=OUTPUT, metavar="NAME,…"),
    "wide": option(bool, False, "all columns, however wide the terminal is", "--wide", panel=OUTPUT),
    **{name: option(bool, False, f"print {form}, and nothing else", f"--{name}", panel=OUTPUT)
       for name, form in FORMS.items()},
}  # fmt: skip


@dataclass(frozen=True)
class Output:
    show: str = "validated"
    form: str = "table"
    wide: bool = False
    metrics: tuple[str, ...] = ()  # columns by name; empty: as many as answer the question

    @property
    def alone(self) -> bool:
        """Whether nothing else may be printed: somebody reads the output by program."""
        return self.form != "table"


def take_output(given: dict[str, Any]) -> tuple[Output, str | None]:
    """What the flags of `SHOWN` say, taken out of `given`; and the metrics of your own."""
    asked = [name for name in FORMS if given.pop(name)]
    if len(asked) > 1:
        raise ValueError(f"--{' and --'.join(asked)} are different forms of one table: give one of them")
    columns, theirs = split_metrics(given.pop("metrics"))
    return Output(given.pop("show"), asked[0] if asked else "table", given.pop("wide"), columns), theirs


def take_names(given: dict[str, Any]) -> Output:
    """Columns of runs that have been measured, or whose configuration says what will be."""
    output, theirs = take_output(given)
    if theirs:
        raise ValueError(f"--metrics takes names of columns here; {theirs} is measured by 'run' and 'compare' alone")
    return output


def split_metrics(text: str | None) -> tuple[tuple[str, ...], str | None]:
    """Names of columns, in order, and dotted paths of metrics as a run's configuration has them.

    With names, a path stands for the column of its metric; paths alone only add to the usual columns.
    """
    words = read_names("--metrics", text)
    paths = [word for word in words if ":" in word]
    return tuple(words) if len(paths) < len(words) else (), ",".join(paths) or None


def check_output(output: Output) -> Output:
    """Refuse an unknown rule or column before the work; dotted paths become names."""
    from posterity.evaluate import load_metrics
    from posterity.report import check_rule
    from posterity.report.table import known_columns

    check_rule(output.show)
    known = known_columns()
    names = [load_metrics(word)[0].name if ":" in word else word for word in output.metrics]
    for name, word in zip(names, output.metrics, strict=True):
        if ":" not in word and name not in known:
            raise ValueError(f"there is no metric {name!r}: {nearest(name, known)}; your own: package.module:name")
    return replace(output, metrics=tuple(names))


RUN, LOOK, WRITE = "Run", "Look at", "Write your own"  # panels of commands
FOLDER = argument(Path, "folder of a run or a comparison", metavar="FOLDER")
RUNS = argument(Path, "folder of a run or a comparison, or a file of packed runs", metavar="FOLDER")
OUT = option(Path | None, None, "folder to write to (default: a new one under runs/)", panel=OUTPUT, metavar="FOLDER")
QUIET = option(bool, False, "no progress", "--quiet", "-q", panel=OUTPUT)
COMMON = {"out": OUT, "quiet": QUIET, **SHOWN}
MEASURED = {"metrics": option(str | None, None, f"{COLUMNS}, and further metrics of your own (package.module:name)",
                              panel=OUTPUT, metavar="NAME,…")}  # fmt: skip
TRUST = option(bool, False, "import the modules of its author's own that the folder names", "--trust", panel=None)
JOBS = option(int | None, None, "runs at once (default: one a core, one on a GPU)", metavar="INTEGER", least=1)
TOGETHER = option(
    bool | None, None, "all seeds of a method at once, as more clients (default: on a GPU)", "--together/--apart"
)
METHODS = option(str, "local,fedavg,fedavg+ft,fedper,fedmap,pfedvmp", "methods, comma separated; 'all' means those "
                 r"not named; one may appear twice, with other settings: 'fedprox\[mu=0.1], fedprox\[mu=1]' (default: "
                 "local, fedavg, fedavg+ft, fedper, fedmap, pfedvmp)", panel="Training", metavar="NAME,…",
                 words=complete_methods)  # fmt: skip
SEEDS = option(str, "0,1,2", "seeds, comma separated or a range (0-4; default: 0,1,2)", metavar="INTEGER,…")
TUNED = option(
    Path | None, None, "file of 'posterity tune' with the values of all these methods (they win over --set)",
    panel="Training", metavar="FILE",
)  # fmt: skip
SEARCH = {  # of `tune`
    "trials": option(int, 20, "trials of every method; the first has its defaults (default: 20)"),
    "seeds": option(str, "0", "seeds of every trial, comma separated or a range (default: 0)", metavar="INTEGER,…"),
    "search_seed": option(int, 0, "seed of the search itself (default: 0)"),
}
HOW = settings_where(  # what says how a table of a paper is computed, and when it is scored
    lambda use: use.role == "machine" or (use.role == "scores" and not use.size)
)
TABLE = {  # what may be said about a table besides what it says itself
    "table": argument(str | None, "its id: V-T1a, or that of a figure: V-F2", None),
    "list_them": option(bool, False, "all tables: data, GPU minutes, results", "--list"),
    "seeds": option(str | None, None, "seeds, comma separated or a range (default: the table's own)",
                    metavar="INTEGER,…"),
    "cells": option(str | None, None, "columns, comma separated (default: all)", metavar="NAME,…"),
    "methods": option(str | None, None, "rows, by their names or methods (default: all)", metavar="NAME,…"),
    "scale": option(float, 1.0, "share of its rounds, epochs and data: 0.01 shows that it runs"),
    "rounds": option(int | None, None, "rounds, instead of the table's own"),
    "places": option(list[Path] | None, None, "print the table, or draw the figure, of runs in these folders and files "
                     "of packed runs, and run nothing; repeatable", "--from", metavar="PLACE"),
    "together": TOGETHER,
    "jobs": JOBS,
    **{name: flag for name, flag in config_flags().items() if name in ("data_dir", *HOW)},
    "out": option(Path | None, None, "folder to write to (default: runs/tables/ID, where a second call goes on; for "
                  "figures runs/)", panel=OUTPUT, metavar="FOLDER"),
    "quiet": QUIET,
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
        for each in silent:
            each.help = said[each.name].__metadata__[0].help
    return command
