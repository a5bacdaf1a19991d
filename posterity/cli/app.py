"""`posterity demo | run | compare | resume | report | pack | methods | datasets | models | partition | new | check`.

Each command is a function here. Flags come from `cli/flags.py`, tables from `cli/listing.py` and `cli/show.py`,
processes from `cli/launch.py`; the work is done by `experiment/`. PyTorch takes seconds to import and `--help` should
not: whatever needs it is imported inside the command that does.
"""

from __future__ import annotations

import os
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from posterity import __version__
from posterity.cli.completion import complete_method, complete_methods, complete_model, starting
from posterity.cli.flags import RULES, check_jobs, option, read_config, read_list, read_seeds, with_flags
from posterity.experiment.config import Config
from posterity.experiment.place import check_out, new_folder

if TYPE_CHECKING:
    from posterity.experiment.setup import Setup

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich",
                  help="Personalised federated learning with honest uncertainty.")  # fmt: skip
new = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="Write the files of something new.")
app.add_typer(new, name="new", rich_help_panel="Write your own")

PANEL = "Output"
WORKING, LOOKING, MAKING = "Run", "Look at", "Write your own"  # panels of commands
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="no progress", rich_help_panel=PANEL)]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else", rich_help_panel=PANEL)]
Show = Annotated[str, typer.Option("--show", help=RULES, rich_help_panel=PANEL, metavar="RULE",
                                   autocompletion=starting(("validated", "paper", "last")))]  # fmt: skip
Folder = Annotated[Path, typer.Argument(help="folder of a run or a comparison")]
OUT = option(Path | None, None, "folder to write to (default: a new one under runs/)", "--out", panel=PANEL,
             metavar="FOLDER")  # fmt: skip
COMMON = {"out": OUT, "show": (Show, "validated"), "quiet": (Quiet, False), "json": (Json, False)}


def _print_version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit()


Version = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version and exit")
]


@app.callback()
def begin(version: Version = False) -> None:
    """Flags of all commands."""


def conclude(folder: Path, show: str, as_json: bool) -> None:
    """The table and the report of what was run."""
    from posterity.engine.distributed import started_first

    if started_first():
        _report(folder, None, show, as_json)


def _report(folder: Path, out: Path | None, show: str, as_json: bool) -> None:
    from posterity.cli.show import print_json, print_table, say
    from posterity.report import write_report

    page = write_report(folder, out, show)
    if as_json:
        print_json(folder, show, page)
        return
    print_table(folder, show)
    say(f"report: {page}")


@app.command(help="Run one method on one federation.", rich_help_panel=WORKING)
@with_flags(COMMON)
def run(**given: Any) -> None:
    out, show, quiet, as_json = (given.pop(n) for n in COMMON)
    config = read_config(given)
    folder = out or new_folder(f"{Path(config.dataset).stem}-{config.method}-seed{config.seed}")
    check_out(folder)
    from posterity.cli.show import progress
    from posterity.engine.distributed import started_first
    from posterity.experiment.chosen import keeping
    from posterity.experiment.run import start_run
    from posterity.report import check_rule

    check_rule(show)
    config = keeping(config, show)
    setup = _set_up(config)
    with progress(config.method, config.rounds, quiet or as_json or not started_first()) as watch:
        start_run(config, folder, watch, setup=setup)
    conclude(folder, show, as_json)


def _set_up(config: Config) -> Setup:
    """What a run needs; or the same command in several processes, where that was asked for or is clearly faster."""
    from posterity.cli import launch
    from posterity.experiment.setup import set_up

    size, why = launch.processes_asked(config), ""
    if size == 1:
        setup = set_up(config, cores=launch.count_cores() if launch.may_share(config) else 1)
        size = launch.processes_worth(config, setup) if launch.may_share(config) else 1
        if size == 1:
            return setup
        now, then = (1000 * seconds for seconds in (setup.choice.step, setup.choice.apart))
        why = f"{size} processes of one thread: {then:.1f} ms a step instead of {now:.1f}"
    raise typer.Exit(launch.start_workers(size, why))


Jobs = Annotated[int | None, typer.Option("--jobs", help="runs at once (default: one per core on the CPU)",
                                          metavar="INTEGER", rich_help_panel="Running")]  # fmt: skip
METHODS = option(str, "local,fedavg,fedavg+ft,fedper,fedmap,pfedvmp", "methods, comma separated (default: local, "
                 "fedavg, fedavg+ft, fedper, fedmap, pfedvmp)", "--methods", panel="Training", metavar="NAME,…",
                 words=complete_methods)  # fmt: skip
SEEDS = option(str, "0,1,2", "seeds, comma separated or a range (0-4; default: 0,1,2)", "--seeds", panel="Running",
               metavar="INTEGER,…")  # fmt: skip
Together = Annotated[bool | None, typer.Option("--together/--apart", help="all seeds of a method at once, as more "
                                               "clients (default: on a GPU)", rich_help_panel="Running")]  # fmt: skip


@app.command(help="Run several methods with several seeds on the same federations; finished runs are not repeated.",
             rich_help_panel=WORKING)  # fmt: skip
@with_flags({"methods": METHODS, "seeds": SEEDS, "together": (Together, None), "jobs": (Jobs, None), **COMMON},
            leave_out=("method", "seed"))  # fmt: skip
def compare(**given: Any) -> None:
    out, show, quiet, as_json, jobs, together = (given.pop(n) for n in (*COMMON, "jobs", "together"))
    methods, seeds = read_list(given.pop("methods"), "methods"), read_seeds(given.pop("seeds"))
    config = read_config(given)
    if config.engine == "processes":
        raise ValueError("a comparison already has a run for each core (--jobs): give another --engine")
    folder = out or new_folder(f"{Path(config.dataset).stem}-comparison")
    together = config.device.startswith("cuda") if together is None else together
    _compare(config, methods, seeds, folder, show, quiet or as_json, jobs, together)
    conclude(folder, show, as_json)


@app.command(help="The main job on embedded data: six methods, three seeds, a table and a report.",
             rich_help_panel=WORKING)  # fmt: skip
def demo(out: Annotated[Path | None, typer.Option(help="folder to write to", metavar="FOLDER",
                                                  rich_help_panel=PANEL)] = None,
         show: Show = "validated", quiet: Quiet = False, json: Json = False) -> None:  # fmt: skip
    from posterity.experiment.compare import demo_plan

    config, methods, seeds = demo_plan()
    folder = out or new_folder("demo")
    _compare(config, methods, seeds, folder, show, quiet or json, None)
    conclude(folder, show, json)


def _compare(
    config: Config, names: list[str], seeds: list[int], folder: Path, show: str, quiet: bool, jobs: int | None,
    together: bool = False,
) -> None:  # fmt: skip
    check_jobs(jobs)
    check_out(folder, comparison=True)
    from posterity.cli import launch
    from posterity.cli.show import progress
    from posterity.experiment.chosen import keeping
    from posterity.experiment.compare import compare_runs
    from posterity.report import check_rule

    check_rule(show)  # before the work, not after it
    at_once = jobs or (launch.count_cores() if config.device == "cpu" else 1)  # a process gains more than a thread
    watching = lambda title, rounds: progress(title, rounds, quiet)  # noqa: E731
    compare_runs(keeping(config, show), names, seeds, folder, watching, at_once, together)


@app.command(help="Go on with a run (or all runs of a comparison) that was stopped or killed.", rich_help_panel=WORKING)
def resume(
    folder: Folder, show: Show = "validated", quiet: Quiet = False, json: Json = False, jobs: Jobs = None
) -> None:
    check_jobs(jobs)
    from posterity.cli import launch
    from posterity.cli.show import progress
    from posterity.experiment.compare import resume_all

    if (size := launch.processes_before(folder)) > 1:
        raise typer.Exit(launch.start_workers(size))
    launch.check_runs(folder)
    resume_all(folder, lambda title, rounds: progress(title, rounds, quiet or json), jobs or 1)
    conclude(folder, show, json)


@app.command(help="Write the HTML page of a run, a comparison or a file of packed runs, and print its table.",
             rich_help_panel=LOOKING)  # fmt: skip
def report(
    folder: Annotated[Path, typer.Argument(help="folder of a run or a comparison, or a file of packed runs")],
    out: Annotated[Path | None, typer.Option(help="file to write", metavar="FILE", rich_help_panel=PANEL)] = None,
    show: Show = "validated",
    json: Json = False,
) -> None:
    _report(folder, out, show, json)


@app.command(
    help="Put finished runs into one small file: the raw metrics of a published table, for `posterity report`.",
    rich_help_panel=LOOKING,
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
             rich_help_panel=LOOKING)  # fmt: skip
def methods(
    name: Annotated[str | None, typer.Argument(help="a method, wrapper or package.module:Class",
                                               autocompletion=complete_method)] = None,
) -> None:  # fmt: skip
    from posterity.cli import listing

    listing.print_methods(name)


@app.command(help="The datasets, their clients and what they need.", rich_help_panel=LOOKING)
def datasets() -> None:
    from posterity.cli import listing

    listing.print_datasets()


@app.command(help="The networks, or one network with its options (--set model.NAME=VALUE).", rich_help_panel=LOOKING)
def models(
    name: Annotated[str | None, typer.Argument(help="a network", autocompletion=complete_model)] = None,
) -> None:
    from posterity.cli import listing

    listing.print_models(name)


@app.command(help="Show how a federation is divided: samples and classes of every client.", rich_help_panel=LOOKING)
@with_flags({}, leave_out=("method", "model", "rounds", "local_epochs", "local_steps", "batch_size", "lr", "optimiser",
                           "participation", "engine", "convolution", "onednn", "device", "dtype", "evaluate_every",
                           "newcomer_epochs", "metrics", "store", "memory"))  # fmt: skip
def partition(**given: Any) -> None:
    config = read_config(given)
    from posterity.cli import listing
    from posterity.experiment.setup import load_federation

    listing.print_partition(load_federation(config))


@new.command("method", help="Write a method's file and its test, ready to be run, checked and changed.")
def write_new_method(
    name: Annotated[str, typer.Argument(help="its name, as Python writes names")],
    folder: Annotated[Path, typer.Option(help="where to write")] = Path(),
) -> None:
    from posterity.cli import new_method

    made, test, path = new_method.write_method(name, folder)
    print(f"wrote {made} and {test}\nrun it:   posterity run --method {path}\ncheck it: posterity check {path}")


@app.command(help="Run the laws that every method must keep on a method of yours.", rich_help_panel=MAKING)
def check(
    method: Annotated[str, typer.Argument(help="a method or package.module:Class", autocompletion=complete_method)],
    model: Annotated[str, typer.Option(help="network to check it with", autocompletion=complete_model)] = "mlp",
    json: Json = False,
) -> None:
    from posterity.cli import listing

    if not listing.print_verdicts(method, model, json):
        raise typer.Exit(1)


@app.command(help="The version.", rich_help_panel=LOOKING)
def version() -> None:
    print(__version__)


def told(error: Any) -> str:
    """What a mistake in the flags says, with the nearest command: typer names it since 0.20, and we support 0.13."""
    message = str(getattr(error, "message", error))
    context = getattr(error, "ctx", None)
    if "No such command" not in message or "Did you mean" in message or context is None:
        return message
    close = get_close_matches(message.split("'")[1], list(getattr(context.command, "commands", {})))
    return message + (f" Did you mean {' or '.join(map(repr, close))}?" if close else "")


def _harmless(error: Exception) -> str:
    """A sentence may name a column or a client as somebody's file does."""
    from posterity.cli.neutral import harmless_lines

    return harmless_lines(str(error))


def main() -> None:
    """Run the command line; what users did wrong is told in a sentence, without a traceback."""
    if os.environ.get("POSTERITY_WORKER"):  # one of several processes of a run
        from posterity.cli import launch

        launch.end_with_parent()
    sys.path.insert(0, os.getcwd())  # what you wrote yourself may lie in the current folder
    try:
        code = app(prog_name="posterity", standalone_mode=False)  # what `typer.Exit` carried, or None
        if isinstance(code, int) and code:
            sys.exit(code)
    except (typer.Abort, KeyboardInterrupt):
        print("stopped; 'posterity resume FOLDER' goes on", file=sys.stderr)
        sys.exit(130)
    except ValueError as error:
        if os.environ.get("POSTERITY_DEBUG"):
            raise
        print(f"error: {_harmless(error)}", file=sys.stderr)
        sys.exit(2)
    except Exception as error:
        if not hasattr(error, "exit_code"):  # a mistake in the flags; typer brings its own copy of click's classes
            raise
        error.message = told(error)  # type: ignore[attr-defined]
        error.show()  # type: ignore[attr-defined]
        sys.exit(error.exit_code)
