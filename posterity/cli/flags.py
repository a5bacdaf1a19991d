"""Flags made from the fields of `Config` (`experiment/config.py`), documented there, for the commands of `app.py`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from posterity.core.hyperparameters import knobs
from posterity.core.parse import parse_ranges, split_list
from posterity.experiment.config import Config, from_table, read_toml

SECTIONS = {
    "Data": ("dataset", "target", "client_column", "group", "data_dir", "clients", "newcomers", "partition", "subset",
             "split", "test_partition", "public"),
    "Training": ("method", "model", "rounds", "local_epochs", "local_steps", "batch_size", "lr", "optimiser",
                 "participation"),
    "Running": ("seed", "data_seed", "engine", "convolution", "onednn", "device", "dtype", "precision",
                "evaluate_every", "evaluate_clients", "newcomer_epochs", "metrics", "store", "memory"),
}  # fmt: skip
RULES = "validated (round chosen on validation, shown on test), paper (best round on all held out) or last"


def option(kind: Any, default: Any, doc: str, *names: str, panel: str | None = None) -> tuple[Any, Any]:
    """The annotation and the default of one flag."""
    return Annotated[kind, typer.Option(*names, help=doc, rich_help_panel=panel)], default


def config_flags(leave_out: tuple[str, ...] = ()) -> dict[str, tuple[Any, Any]]:
    """One flag per field; every flag defaults to None, so that only what the user gave overrides a file."""
    panels = {name: panel for panel, names in SECTIONS.items() for name in names}
    flags = {}
    for knob in knobs(Config):
        if knob.name in leave_out:
            continue
        shown = "" if knob.default is None else f" [default: {knob.default}]"
        choices = f" ({', '.join(knob.choices)})" if knob.choices else ""
        name = "--" + knob.name.replace("_", "-")
        flags[knob.name] = option(str | None, None, knob.doc + choices + shown, name, panel=panels[knob.name])
    settings = "a setting of the method (xi=50), of its training (local.momentum=0.9), model.* or data.*; repeatable"
    flags["set"] = option(list[str] | None, None, settings, "--set", panel="Training")
    flags["config"] = option(Path | None, None, "TOML file with any of these settings", "--config", panel="Running")
    return flags


def with_flags(flags: dict[str, tuple[Any, Any]], leave_out: tuple[str, ...] = ()) -> Callable[[Any], Any]:
    """Give a command `(**flags)` a flag for each field of `Config`, and those named in `flags`."""
    every = {**config_flags(leave_out), **flags}

    def decorate(command: Any) -> Any:
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters = [inspect.Parameter(n, kind, default=d, annotation=a) for n, (a, d) in every.items()]
        command.__signature__ = inspect.Signature(parameters)
        command.__annotations__ = {n: a for n, (a, _) in every.items()}
        return command

    return decorate


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


def read_list(text: str, what: str) -> list[str]:
    """A comma-separated list that must not be empty."""
    found = split_list(text)
    if not found:
        raise ValueError(f"--{what} takes a comma-separated list; {text!r} was given")
    return found


def read_seeds(text: str) -> list[int]:
    """`0,1,2` or `0-4`."""
    try:
        return parse_ranges(text)
    except ValueError:
        raise ValueError(f"--seeds takes whole numbers (0,1,2) or a range (0-4); {text!r} was given") from None
