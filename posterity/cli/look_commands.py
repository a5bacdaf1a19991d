"""The commands that show something: `posterity report | pack | methods | datasets | models | partition | version`.

Tables come from `listing.py` and `show.py`. These import PyTorch, which `--help` must not, and so they are imported
inside the command.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from posterity import __version__
from posterity.cli.completion import complete_dataset, complete_method, complete_model
from posterity.cli.conclude import write_page
from posterity.cli.flags import read_config, with_flags, with_only
from posterity.cli.options import LOOK, PAGE, Folder, Runs
from posterity.cli.output import SHOWN, check_output, take_names

app = typer.Typer()


@app.command(help="Write the HTML page of a run, a comparison or a file of packed runs, and print its table.",
             rich_help_panel=LOOK)  # fmt: skip
@with_only({"folder": (Runs, ...), "out": PAGE, **SHOWN})
def report(**given: Any) -> None:
    folder, out = given.pop("folder"), given.pop("out")
    output = take_names(given)
    if out is not None and out.is_dir():
        raise ValueError(f"--out is the file of the page, and {out} is a folder: give {out / 'report.html'}")
    write_page(folder, out, check_output(output))


@app.command(
    help="Put finished runs into one small file: the raw metrics of a published table, for `posterity report`.",
    rich_help_panel=LOOK,
)
def pack(
    folder: Folder,
    out: Annotated[Path, typer.Option(help="file to write (NAME.jsonl.gz)", metavar="FILE")],
) -> None:
    from posterity.cli.show import say
    from posterity.report import pack_runs

    path = pack_runs(folder, out)
    say(f"{path}: {path.stat().st_size:,} bytes; posterity report {path} shows it")


@app.command(help="The methods, or one method with its hyper-parameters and where their defaults come from.",
             rich_help_panel=LOOK)  # fmt: skip
def methods(
    name: Annotated[str | None, typer.Argument(help="a method, wrapper or package.module:Class",
                                               autocompletion=complete_method)] = None,
    json: Annotated[bool, typer.Option("--json", help="print one JSON object of all methods, wrappers and names, "
                                       "and nothing else")] = False,
) -> None:  # fmt: skip
    if json:
        from posterity.cli.catalogue import print_json

        print_json(name)
        return
    from posterity.cli import listing

    listing.print_methods(name)


@app.command(help="The datasets, or one dataset: where its files come from, where they belong, which are there.",
             rich_help_panel=LOOK)  # fmt: skip
def datasets(
    name: Annotated[str | None, typer.Argument(help="a dataset", autocompletion=complete_dataset)] = None,
    data_dir: Annotated[str | None, typer.Option(help="folder of the files (else POSTERITY_DATA)",
                                                 metavar="FOLDER")] = None,
) -> None:  # fmt: skip
    if name is not None:
        from posterity.cli.dataset import print_dataset

        print_dataset(name, data_dir)
        return
    from posterity.cli import listing

    listing.print_datasets()


@app.command(help="The networks, or one network with its options (--set model.NAME=VALUE).", rich_help_panel=LOOK)
def models(
    name: Annotated[str | None, typer.Argument(help="a network", autocompletion=complete_model)] = None,
) -> None:
    from posterity.cli import listing

    listing.print_models(name)


@app.command(help="Show how a federation is divided: samples and classes of every client.", rich_help_panel=LOOK)
@with_flags({}, leave_out=("method", "model", "rounds", "local_epochs", "local_steps", "batch_size", "lr", "optimiser",
                           "augment", "participation", "min_count", "engine", "convolution", "onednn", "device",
                           "precision", "dtype", "evaluate_every", "evaluate_clients", "evaluate_points",
                           "newcomer_epochs", "keep", "metrics", "store", "memory"))  # fmt: skip
def partition(**given: Any) -> None:
    config = read_config(given)
    from posterity.cli import listing
    from posterity.experiment.setup import load_federation

    listing.print_partition(load_federation(config))


@app.command(help="The version.", rich_help_panel=LOOK)
def version() -> None:
    print(__version__)


__all__ = ["app"]
