"""The commands of `posterity`: those that run something, those that show something, those for what you write yourself.

The work is done by `experiment/` and `papers/`, tables come from `terminal.py` and `listing.py`. All of
these import PyTorch, which `--help` must not, and so they are imported inside the command.
"""

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from posterity.cli import flags, interrupt
from posterity.cli.flags import LOOK, RUN, WRITE, Output, argument, option, with_flags, with_only
from posterity.runs.files import check_out, new_folder
from posterity.settings.config import Config, settings_where

EXIT = 3  # of a command whose runs came to nothing

app = typer.Typer()


@app.command(help="Run one method on one federation.", rich_help_panel=RUN)
@with_flags({**flags.COMMON, **flags.MEASURED})
def run(out: Path | None, quiet: bool, **given: Any) -> None:
    output, theirs = flags.take_output(given)
    config = flags.read_config({**given, "metrics": theirs})
    folder = out or new_folder(f"{Path(config.dataset).stem}-{config.method}-seed{config.seed}")
    if os.environ.get("RANK", "0") == "0":  # the first process writes, the others come later
        check_out(folder)
    from posterity.cli.terminal import print_setup, progress
    from posterity.engine.processes import started_first
    from posterity.experiment.models import keeping
    from posterity.experiment.run import start_run
    from posterity.experiment.setup import set_up

    output = flags.check_output(output)
    config = keeping(config, output.show)
    interrupt.writes_to(folder)
    setup = set_up(config)
    if started_first() and not output.alone:
        print_setup(setup, config.dataset)
    with progress(config.method, config.rounds, quiet or output.alone or not started_first()) as watch:
        start_run(config, folder, watch, setup=setup)
    conclude(folder, output)


def conclude(folder: Path, output: Output) -> None:
    """The table and the report of what was run, and which of it is no result."""
    from posterity.engine.processes import started_first
    from posterity.experiment.divergence import diverged_runs

    if not started_first():
        return
    write_page(folder, None, output)
    diverged = diverged_runs(folder)
    for line in diverged:
        print(f"no result: {line}", file=sys.stderr)
    if diverged:
        raise typer.Exit(EXIT)


def write_page(folder: Path, out: Path | None, output: Output) -> None:
    from posterity.cli.terminal import show_runs
    from posterity.report import write_report
    from posterity.runs.folder import check_finished

    check_finished(folder)
    page = write_report(folder, out, output.show)
    show_runs(folder, output, page)


@app.command(help="Run several methods with several seeds on the same federations; finished runs are not repeated.",
             rich_help_panel=RUN)  # fmt: skip
@with_flags({"methods": flags.METHODS, "seeds": flags.SEEDS, "tuned": flags.TUNED, "together": flags.TOGETHER,
             "jobs": flags.JOBS, **flags.COMMON, **flags.MEASURED}, leave_out=("method", "seed"))  # fmt: skip
def compare(
    methods: str, seeds: str, tuned: Path | None, together: bool | None, jobs: int | None, out: Path | None,
    quiet: bool, **given: Any,
) -> None:  # fmt: skip
    names, drawn = flags.read_methods(methods), flags.read_seeds(seeds)
    output, theirs = flags.take_output(given)
    config = flags.read_config({**given, "metrics": theirs})
    if tuned is not None:
        from posterity.cli.listing import take_tuned

        names = take_tuned(names, config, tuned)
    folder = out or new_folder(f"{Path(config.dataset).stem}-comparison")
    _compare(config, names, drawn, folder, output, quiet, jobs, together)
    if not output.alone:
        from posterity.cli.terminal import print_notes

        print_notes(folder, config.dataset)


@app.command(help="Tune methods on validation data alone, each with the same budget; finished trials are not repeated.",
             rich_help_panel=RUN)  # fmt: skip
@with_flags({"methods": flags.METHODS, **flags.SEARCH, "out": flags.OUT, "quiet": flags.QUIET},
            leave_out=("method", "seed", *settings_where(lambda use: use.role == "output")))  # fmt: skip
def tune(
    methods: str, seeds: str, trials: int, search_seed: int, out: Path | None, quiet: bool, **given: Any
) -> None:  # fmt: skip
    names, drawn = flags.read_methods(methods), flags.read_seeds(seeds)
    config = flags.read_config(given)
    folder = out or new_folder(f"{Path(config.dataset).stem}-tuning")
    from posterity.cli.listing import tune_all

    interrupt.writes_to(folder)
    tune_all(config, names, drawn, trials, search_seed, folder, quiet)


@app.command(help="The main job on embedded data: six methods, three seeds, a table and a report.",
             rich_help_panel=RUN)  # fmt: skip
@with_only(flags.COMMON)
def demo(out: Path | None, quiet: bool, **given: Any) -> None:
    output = flags.take_names(given)
    from posterity.experiment.compare import demo_plan

    config, methods, seeds = demo_plan()
    _compare(config, methods, seeds, out or new_folder("demo"), output, quiet, None)


def _compare(
    config: Config, names: list[str], seeds: list[int], folder: Path, output: Output, quiet: bool, jobs: int | None,
    together: bool | None = False,
) -> None:  # fmt: skip
    check_out(folder, comparison=True)
    from posterity.cli.terminal import progress
    from posterity.experiment.compare import compare_runs
    from posterity.experiment.models import keeping

    output = flags.check_output(output)
    at_once = _at_once(config.device, jobs, together)
    watching = lambda title, rounds: progress(title, rounds, quiet or output.alone)  # noqa: E731
    interrupt.writes_to(folder)
    compare_runs(keeping(config, output.show), names, seeds, folder, watching, *at_once)
    conclude(folder, output)


def _at_once(device: str, jobs: int | None, together: bool | None) -> tuple[int, bool]:
    """How many runs there are at once, and whether all seeds of a method are."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    usual = cores if device == "cpu" else 1  # a process gains more than a thread
    return jobs or usual, device.startswith("cuda") if together is None else together


@app.command(help="Run a table of a paper and print its numbers beside ours, or draw a figure; without an id: list.",
             rich_help_panel=RUN)  # fmt: skip
@with_only(flags.TABLE)
def reproduce(
    table: str | None, list_them: bool, seeds: str | None, cells: str | None, methods: str | None, scale: float,
    places: list[Path] | None, together: bool | None, jobs: int | None, out: Path | None, quiet: bool, **given: Any,
) -> None:  # fmt: skip
    papers = import_module("posterity.papers.cli")  # the floor above, found by its place
    if table is None or list_them:
        papers.print_recipes(out or Path("runs") / "tables")
        return
    from posterity.cli.terminal import progress

    more = {name: value for name, value in given.items() if value is not None}
    folder = out or papers.default_folder(table)
    interrupt.writes_to(folder)
    if places and (seeds or scale != 1 or more):
        raise ValueError("--from runs nothing: it goes with --cells, --methods and --out, and no other flag")
    drawn = None if seeds is None else flags.read_seeds(seeds)
    watching = lambda title, rounds: progress(title, rounds, quiet)  # noqa: E731
    at_once = _at_once(str(more.get("device", "cpu")), jobs, together)
    request = papers.RunRequest(drawn, scale, more, watching, *at_once, places or [])
    columns, rows = flags.read_names("--cells", cells), flags.read_names("--methods", methods)
    papers.reproduce_table(table, folder, request, columns, rows)


@app.command(help="Predict with the clients' own models of a finished run: rows of a file in, a CSV file out.",
             rich_help_panel=RUN)  # fmt: skip
@with_only({
    "folder": argument(Path, "folder of a finished run"),
    "file": argument(Path, "raw rows: .csv, .parquet (the training's columns) or .npz"),
    "client": option(str | None, None, "whose model, if the file has no column of clients", panel=None, metavar="NAME"),
    "show": flags.SHOWN["show"],
    "trust": flags.TRUST,
    "out": option(Path | None, None, "CSV file to write (default: print it)", panel=None, metavar="FILE"),
})  # fmt: skip
def predict(folder: Path, file: Path, client: str | None, show: str, trust: bool, out: Path | None) -> None:
    from posterity.cli.predict import check_place, predict_file, write_predictions

    if out is not None:
        check_place(out, file)
    text, notes = predict_file(folder, file, client, show, trust)
    typer.echo("\n".join(notes), err=True)
    if out is None:
        typer.echo(text, nl=False)
        return
    write_predictions(out, text)
    typer.echo(f"wrote {out}", err=True)


@app.command(help="Go on with a run (or all runs of a comparison) that was stopped or killed.", rich_help_panel=RUN)
@with_only({
    "folder": flags.FOLDER,
    "jobs": option(int | None, None, "runs at once (default: as many as when it began)", metavar="INTEGER", least=1),
    "trust": flags.TRUST, "quiet": flags.QUIET, **flags.SHOWN,
})  # fmt: skip
def resume(folder: Path, jobs: int | None, trust: bool, quiet: bool, **given: Any) -> None:
    output = flags.take_names(given)
    from posterity.cli.terminal import progress
    from posterity.experiment.compare import resume_all
    from posterity.experiment.resume import check_trusted

    output = flags.check_output(output)
    check_trusted(folder, trust)
    interrupt.writes_to(folder)
    resume_all(folder, lambda title, rounds: progress(title, rounds, quiet or output.alone), jobs)
    conclude(folder, output)


@app.command(help="Write the HTML page of a run, a comparison or a file of packed runs, and print its table.",
             rich_help_panel=LOOK)  # fmt: skip
@with_only({
    "folder": flags.RUNS,
    "out": option(Path | None, None, "file to write (default: report.html in the folder)", panel=flags.OUTPUT,
                  metavar="FILE"),
    **flags.SHOWN,
})  # fmt: skip
def report(folder: Path, out: Path | None, **given: Any) -> None:
    output = flags.take_names(given)
    if out is not None and out.is_dir():
        raise ValueError(f"--out is the file of the page, and {out} is a folder: give {out / 'report.html'}")
    write_page(folder, out, flags.check_output(output))


@app.command(help="Put finished runs into one small file, as those of published tables, for 'posterity report'.",
             rich_help_panel=LOOK)  # fmt: skip
@with_only({"folder": flags.FOLDER,
            "out": option(Path, ..., "file to write (NAME.jsonl.xz)", panel=None, metavar="FILE")})  # fmt: skip
def pack(folder: Path, out: Path) -> None:
    from posterity.cli.terminal import say
    from posterity.report import pack_runs

    path = pack_runs(folder, out)
    say(f"{path}: {path.stat().st_size:,} bytes; posterity report {path} shows it")


@app.command(help="The methods, or one method with its hyper-parameters and where their defaults come from.",
             rich_help_panel=LOOK)  # fmt: skip
@with_only({
    "name": argument(str | None, "a method, wrapper or package.module:Class", None, words=flags.complete_method),
})  # fmt: skip
def methods(name: str | None) -> None:
    from posterity.cli import listing

    listing.print_methods(name)


@app.command(help="The datasets, or one dataset: where its files come from, where they belong, which are there.",
             rich_help_panel=LOOK)  # fmt: skip
@with_only({
    "name": argument(str | None, "a dataset", None, words=flags.complete_dataset),
    "data_dir": option(str | None, None, "folder of the files (else POSTERITY_DATA)", panel=None, metavar="FOLDER"),
})  # fmt: skip
def datasets(name: str | None, data_dir: str | None) -> None:
    from posterity.cli import listing

    if name is None:
        listing.print_datasets()
    else:
        listing.print_dataset(name, data_dir)


@app.command(help="The networks, or one network with its options (--set model.NAME=VALUE).", rich_help_panel=LOOK)
@with_only({"name": argument(str | None, "a network", None)})
def models(name: str | None) -> None:
    from posterity.cli import listing

    listing.print_models(name)


@app.command(help="Show how a federation is divided: samples and classes of every client.", rich_help_panel=LOOK)
@with_flags({}, leave_out=settings_where(lambda use: use.role not in ("data", "draws")))
def partition(**given: Any) -> None:
    config = flags.read_config(given)
    from posterity.cli import listing
    from posterity.experiment.setup import load_federation

    listing.print_partition(load_federation(config))


new = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="Write the files of something new.")


@new.command("method", help="Write a method's file and its test, ready to be run, checked and changed.")
def write_new_method(
    name: Annotated[str, typer.Argument(help="its name, as Python writes names")],
    folder: Annotated[Path, typer.Option(help="where to write")] = Path(),
) -> None:
    from posterity.cli.new import write_method

    made, test, path = write_method(name, folder)
    print(f"wrote {made} and {test}\nrun it:   posterity run --method {path}\ncheck it: posterity check {path}")


@app.command(help="Run the laws that every method must keep on a method of yours.", rich_help_panel=WRITE)
@with_only({
    "method": argument(str, "a method or package.module:Class", words=flags.complete_method),
    "model": option(str, "mlp", "network to check it with (default: mlp)", panel=None),
})  # fmt: skip
def check(method: str, model: str) -> None:
    from posterity.cli.listing import print_verdicts

    if not print_verdicts(method, model):
        raise typer.Exit(1)
