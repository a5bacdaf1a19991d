"""The commands for what you write yourself: `posterity new method | check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from posterity.cli.completion import complete_method, complete_model
from posterity.cli.options import WRITE

app = typer.Typer()
new = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="Write the files of something new.")


@new.command("method", help="Write a method's file and its test, ready to be run, checked and changed.")
def write_new_method(
    name: Annotated[str, typer.Argument(help="its name, as Python writes names")],
    folder: Annotated[Path, typer.Option(help="where to write")] = Path(),
) -> None:
    from posterity.cli import new_method

    made, test, path = new_method.write_method(name, folder)
    print(f"wrote {made} and {test}\nrun it:   posterity run --method {path}\ncheck it: posterity check {path}")


@app.command(help="Run the laws that every method must keep on a method of yours.", rich_help_panel=WRITE)
def check(
    method: Annotated[str, typer.Argument(help="a method or package.module:Class", autocompletion=complete_method)],
    model: Annotated[str, typer.Option(help="network to check it with", autocompletion=complete_model)] = "mlp",
    json: Annotated[bool, typer.Option("--json", help="print one JSON list and nothing else")] = False,
) -> None:
    from posterity.cli.check import print_verdicts

    if not print_verdicts(method, model, json):
        raise typer.Exit(1)


__all__ = ["app", "new"]
