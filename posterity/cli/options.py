"""Flags and arguments of commands that are no settings of a run (`flags.py`), and the panels of `posterity --help`."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from posterity import __version__
from posterity.cli.completion import complete_methods
from posterity.cli.flags import config_flags, option
from posterity.cli.output import MORE, PANEL, SHOWN, Quiet

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


MACHINE = (
    "data_dir",
    "evaluate_every",
    "evaluate_points",
    "engine",
    "convolution",
    "onednn",
    "device",
    "precision",
    "dtype",
    "store",
    "memory",
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
    **{name: flag for name, flag in config_flags().items() if name in MACHINE},
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
