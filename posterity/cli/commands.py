"""The commands that show something: `posterity report | pack | methods | datasets | models | partition | version`.

Tables come from `listing.py` and `show.py`. These import PyTorch, which `--help` must not, and so they are imported
inside the command.

The commands that run something: `posterity run | compare | tune | demo | reproduce | predict | resume`.

What was found is shown by `conclude.py`. The work is done by `experiment/` and `reproduce/`, processes come from
`launch.py`; these import PyTorch, which `--help` must not, and so they are imported inside the command.

The commands for what you write yourself: `posterity new method | check`.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from posterity.cli import interrupt
from posterity.cli.conclude import conclude, write_page
from posterity.cli.flags import (
    COMMON,
    LOOK,
    MEASURED,
    METHODS,
    ONE_SEED,
    PAGE,
    RUN,
    SEARCH_SEED,
    SEEDS,
    SHOWN,
    TABLE,
    TRIALS,
    TRUST,
    TUNED,
    WRITE,
    Folder,
    Jobs,
    JobsAgain,
    Output,
    Quiet,
    Runs,
    Together,
    check_jobs,
    check_output,
    complete_dataset,
    complete_method,
    complete_model,
    option,
    read_config,
    read_methods,
    read_seeds,
    take_names,
    take_output,
    with_flags,
    with_only,
)
from posterity.runs.files import check_out, new_folder
from posterity.settings.config import Config, settings_where
from posterity.version import __version__

if TYPE_CHECKING:
    from posterity.experiment.setup import Setup


app = typer.Typer()


@app.command(help="Run one method on one federation.", rich_help_panel=RUN)
@with_flags({**COMMON, **MEASURED})
def run(**given: Any) -> None:
    out, quiet = given.pop("out"), given.pop("quiet")
    output, theirs = take_output(given)
    config = read_config({**given, "metrics": theirs})
    folder = out or new_folder(f"{Path(config.dataset).stem}-{config.method}-seed{config.seed}")
    if os.environ.get("RANK", "0") == "0":  # of several processes the others come when the first has begun to write
        check_out(folder)
    from posterity.cli.terminal import print_setup, progress
    from posterity.engine.processes import started_first
    from posterity.experiment.models import keeping
    from posterity.experiment.run import start_run

    output = check_output(output)
    config = keeping(config, output.show)
    interrupt.writes_to(folder)
    setup = _set_up(config)
    if started_first() and not output.alone:
        print_setup(setup, config.dataset)
    with progress(config.method, config.rounds, quiet or output.alone or not started_first()) as watch:
        start_run(config, folder, watch, setup=setup)
    conclude(folder, output)


def _set_up(config: Config) -> Setup:
    """What a run needs; or the same command in several processes, where that was asked for."""
    from posterity.cli import launch
    from posterity.experiment.setup import set_up

    size = launch.processes_asked(config)
    if size == 1:
        return set_up(config)
    raise typer.Exit(launch.start_workers(size))


@app.command(help="Run several methods with several seeds on the same federations; finished runs are not repeated.",
             rich_help_panel=RUN)  # fmt: skip
@with_flags({"methods": METHODS, "seeds": SEEDS, "tuned": TUNED, "together": (Together, None), "jobs": (Jobs, None),
             **COMMON, **MEASURED}, leave_out=("method", "seed"))  # fmt: skip
def compare(**given: Any) -> None:
    out, quiet, jobs, together, tuned = (given.pop(n) for n in ("out", "quiet", "jobs", "together", "tuned"))
    methods, seeds = read_methods(given.pop("methods")), read_seeds(given.pop("seeds"))
    output, theirs = take_output(given)
    config = read_config({**given, "metrics": theirs})
    if tuned is not None:
        from posterity.cli.listing import take_tuned

        methods = take_tuned(methods, config, tuned)
    if config.engine == "processes":
        raise ValueError("a comparison already has a run for each core (--jobs): give another --engine")
    folder = out or new_folder(f"{Path(config.dataset).stem}-comparison")
    together = config.device.startswith("cuda") if together is None else together
    _compare(config, methods, seeds, folder, output, quiet, jobs, together)
    if not output.alone:
        from posterity.cli.terminal import print_notes

        print_notes(folder, config.dataset)


@app.command(help="Tune methods on validation data alone, each with the same budget; finished trials are not repeated.",
             rich_help_panel=RUN)  # fmt: skip
@with_flags({"methods": METHODS, "trials": TRIALS, "seeds": ONE_SEED, "search_seed": SEARCH_SEED, "out": COMMON["out"],
             "quiet": COMMON["quiet"]},
            leave_out=("method", "seed", *settings_where(lambda use: use.role == "output")))  # fmt: skip
def tune(**given: Any) -> None:
    names, seeds = read_methods(given.pop("methods")), read_seeds(given.pop("seeds"))
    trials, search_seed, out, quiet = (given.pop(n) for n in ("trials", "search_seed", "out", "quiet"))
    config = read_config(given)
    folder = out or new_folder(f"{Path(config.dataset).stem}-tuning")
    from posterity.cli.listing import tune_all

    interrupt.writes_to(folder)
    tune_all(config, names, seeds, trials, search_seed, folder, quiet)


@app.command(help="The main job on embedded data: six methods, three seeds, a table and a report.",
             rich_help_panel=RUN)  # fmt: skip
@with_only(COMMON)
def demo(**given: Any) -> None:
    out, quiet = given.pop("out"), given.pop("quiet")
    output = take_names(given)
    from posterity.experiment.compare import demo_plan

    config, methods, seeds = demo_plan()
    _compare(config, methods, seeds, out or new_folder("demo"), output, quiet, None)


def _compare(
    config: Config, names: list[str], seeds: list[int], folder: Path, output: Output, quiet: bool, jobs: int | None,
    together: bool = False,
) -> None:  # fmt: skip
    check_jobs(jobs)
    check_out(folder, comparison=True)
    from posterity.cli import launch
    from posterity.cli.terminal import progress
    from posterity.experiment.compare import compare_runs
    from posterity.experiment.models import keeping

    output = check_output(output)
    at_once = jobs or (launch.count_cores() if config.device == "cpu" else 1)  # a process gains more than a thread
    watching = lambda title, rounds: progress(title, rounds, quiet or output.alone)  # noqa: E731
    interrupt.writes_to(folder)
    compare_runs(keeping(config, output.show), names, seeds, folder, watching, at_once, together)
    conclude(folder, output)


@app.command(help="Run a table of a paper and print its numbers beside ours, or draw a figure; without an id: list.",
             rich_help_panel=RUN)  # fmt: skip
@with_only(TABLE)
def reproduce(**given: Any) -> None:
    table, listed, out, quiet = (given.pop(n) for n in ("table", "list_them", "out", "quiet"))
    papers = import_module("posterity.papers.cli")  # the floor above, found by its place, and by this command alone
    places = given.pop("places") or []
    if table is None or listed:
        papers.print_recipes(out or Path("runs") / "tables", places)
        return
    jobs, together, scale = (given.pop(n) for n in ("jobs", "together", "scale"))
    cells, rows, asked = (given.pop(n) for n in ("cells", "methods", "seeds"))
    check_jobs(jobs)
    from posterity.cli import launch
    from posterity.cli.terminal import progress

    more = {name: value for name, value in given.items() if value is not None}
    device = str(more.get("device", "cpu"))
    folder = out or papers.default_folder(table)
    interrupt.writes_to(folder)
    if places:
        if asked or scale != 1 or more:
            raise ValueError("--from runs nothing: it goes with --cells, --methods and --out, and no other flag")
        papers.merge_table(table, places, folder, _split("--cells", cells), _split("--methods", rows))
        return
    request = papers.RunRequest(
        None if asked is None else read_seeds(asked), scale, more, lambda title, rounds: progress(title, rounds, quiet),
        jobs or (launch.count_cores() if device == "cpu" else 1),
        device.startswith("cuda") if together is None else together,
    )  # fmt: skip
    papers.reproduce_table(table, folder, request, _split("--cells", cells), _split("--methods", rows))


def _split(flag: str, text: str | None) -> list[str]:
    """The names of a list; none where the flag was not given."""
    from posterity.settings.hyperparameters import split_list

    names = split_list(text or "")
    if text is not None and not names:
        raise ValueError(f"{flag} names nothing; {text!r} was given: leave the flag out for all of them")
    return names


@app.command(help="Predict with the clients' own models of a finished run: rows of a file in, a CSV file out.",
             rich_help_panel=RUN)  # fmt: skip
@with_only({
    "folder": (Annotated[Path, typer.Argument(help="folder of a finished run")], ...),
    "file": (Annotated[Path, typer.Argument(help="raw rows: .csv, .parquet (the training's columns) or .npz")], ...),
    "client": option(str | None, None, "whose model, if the file has no column of clients", "--client", metavar="NAME"),
    "show": SHOWN["show"],
    "trust": TRUST,
    "out": option(Path | None, None, "CSV file to write (default: print it)", "--out", metavar="FILE"),
})  # fmt: skip
def predict(**given: Any) -> None:
    folder, file, client, show, trust, out = (given[n] for n in ("folder", "file", "client", "show", "trust", "out"))
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
@with_only({"folder": (Folder, ...), "jobs": (JobsAgain, None), "trust": TRUST, "quiet": (Quiet, False), **SHOWN})
def resume(**given: Any) -> None:
    folder, jobs, trust, quiet = (given.pop(n) for n in ("folder", "jobs", "trust", "quiet"))
    check_jobs(jobs)
    output = take_names(given)
    from posterity.cli import launch
    from posterity.cli.terminal import progress
    from posterity.experiment.compare import resume_all
    from posterity.experiment.resume import check_trusted

    output = check_output(output)
    check_trusted(folder, trust)
    interrupt.writes_to(folder)
    if (size := launch.processes_before(folder)) > 1:
        raise typer.Exit(launch.start_workers(size))
    launch.check_runs(folder)
    resume_all(folder, lambda title, rounds: progress(title, rounds, quiet or output.alone), jobs)
    conclude(folder, output)


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
    from posterity.cli.terminal import say
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
        from posterity.cli.listing import print_json

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
        from posterity.cli.listing import print_dataset

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
@with_flags({}, leave_out=settings_where(lambda use: use.role not in ("data", "draws")))
def partition(**given: Any) -> None:
    config = read_config(given)
    from posterity.cli import listing
    from posterity.experiment.setup import load_federation

    listing.print_partition(load_federation(config))


@app.command(help="The version.", rich_help_panel=LOOK)
def version() -> None:
    print(__version__)


new = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="Write the files of something new.")


@new.command("method", help="Write a method's file and its test, ready to be run, checked and changed.")
def write_new_method(
    name: Annotated[str, typer.Argument(help="its name, as Python writes names")],
    folder: Annotated[Path, typer.Option(help="where to write")] = Path(),
) -> None:
    from posterity.cli import new as new_method

    made, test, path = new_method.write_method(name, folder)
    print(f"wrote {made} and {test}\nrun it:   posterity run --method {path}\ncheck it: posterity check {path}")


@app.command(help="Run the laws that every method must keep on a method of yours.", rich_help_panel=WRITE)
def check(
    method: Annotated[str, typer.Argument(help="a method or package.module:Class", autocompletion=complete_method)],
    model: Annotated[str, typer.Option(help="network to check it with", autocompletion=complete_model)] = "mlp",
    json: Annotated[bool, typer.Option("--json", help="print one JSON list and nothing else")] = False,
) -> None:
    from posterity.cli.listing import print_verdicts

    if not print_verdicts(method, model, json):
        raise typer.Exit(1)
