"""Flags made from the fields of `Config` (`experiment/config.py`), documented there.

Nothing here imports PyTorch: `--help` must answer at once. What a flag was given is read by `experiment/config.py`,
whose sentences say what was expected; here a flag only shows its type and completes in a shell (`completion.py`).
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from posterity.cli.completion import COMPLETED, starting
from posterity.core.hyperparameters import Knob, knobs
from posterity.core.parse import parse_ranges, split_list
from posterity.experiment.config import Config, from_table, read_toml

SECTIONS = {
    "Data": ("dataset", "target", "client_column", "group", "data_dir", "clients", "newcomers", "partition", "subset",
             "split", "test_partition", "public"),
    "Training": ("method", "model", "rounds", "local_epochs", "local_steps", "batch_size", "lr", "optimiser",
                 "augment", "participation", "min_count"),
    "Machine": ("engine", "convolution", "onednn", "device", "precision", "dtype", "store", "memory"),
    "Output": ("metrics",),
}  # fmt: skip
ELSE = "Running"  # the panel of every other field
PANELS = ("Data", "Training", "Running", "Machine", "Output")  # as `--help` has them
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
    panels = {name: panel for panel, names in SECTIONS.items() for name in names}
    flags = {}
    for knob in knobs(Config):
        if knob.name not in leave_out:
            flags[knob.name] = _flag(knob, panels.get(knob.name, ELSE))
    settings = "a setting of the method (xi=50), of its training (local.momentum=0.9), model.* or data.*; repeatable"
    flags["set"] = option(list[str] | None, None, settings, "--set", panel="Training", metavar="NAME=VALUE")
    flags["config"] = option(Path | None, None, "TOML file with any of these settings", "--config", panel=ELSE,
                             metavar="FILE")  # fmt: skip
    return flags


def _flag(knob: Knob, panel: str) -> tuple[Any, Any]:
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
    from posterity.experiment.variants import name_all  # imports torch, which --help does not

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
