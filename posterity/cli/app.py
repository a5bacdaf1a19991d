"""`posterity demo | run | compare | methods | datasets | partition | report | pack | resume | new method | check`.

Each command is a function here. Flags come from `cli/flags.py`, tables from `cli/listing.py` and `cli/show.py`,
processes from `cli/launch.py`; the work is done by `experiment/`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from posterity import __version__
from posterity.cli import launch, listing, new_method
from posterity.cli.flags import RULES, option, read_config, read_list, read_seeds, with_flags
from posterity.cli.remarks import print_notes, print_setup
from posterity.cli.show import console, print_json, print_table, progress
from posterity.core.outside import place_of, told
from posterity.engine.distributed import started_first
from posterity.experiment.compare import compare_runs, demo_plan, resume_all
from posterity.experiment.config import Config
from posterity.experiment.run import start_run
from posterity.experiment.setup import Setup, load_federation, set_up
from posterity.report import check_rule, pack_runs, write_report

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
                  help="Personalised federated learning with honest uncertainty.")  # fmt: skip
new = typer.Typer(no_args_is_help=True, help="Write the files of something new.")
app.add_typer(new, name="new")

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="no live progress")]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else")]
Show = Annotated[str, typer.Option("--show", help=RULES)]
OUT = option(Path | None, None, "folder to write to (default: a new one under runs/)", "--out", panel="Running")
COMMON = {"out": OUT, "show": (Show, "validated"), "quiet": (Quiet, False), "json": (Json, False)}


def new_folder(name: str) -> Path:
    """`runs/name`, or `runs/name-2` and so on if that exists."""
    safe = "".join(c if c.isalnum() or c in "+-_." else "-" for c in name)
    for number in range(1, 10_000):
        path = Path("runs") / (safe if number == 1 else f"{safe}-{number}")
        if not path.exists():
            return path
    raise ValueError("there are 9,999 folders of this name under runs/; give --out")


def conclude(folder: Path, show: str, as_json: bool) -> None:
    """The table and the report of what was run."""
    if not started_first():
        return
    page = write_report(folder, show=show)
    if as_json:
        print_json(folder, show, page)
        return
    print_table(folder, show)
    console.print(f"report: {page}", soft_wrap=True)


@app.command(help="Run one method on one federation.")
@with_flags(COMMON)
def run(**given: Any) -> None:
    out, show, quiet, as_json = (given.pop(n) for n in COMMON)
    check_rule(show)
    config = read_config(given)
    folder = out or new_folder(f"{Path(config.dataset).stem}-{config.method}-seed{config.seed}")
    setup = _set_up(config)
    if started_first() and not as_json:
        print_setup(setup)
    with progress(config.method, config.rounds, quiet or as_json or not started_first()) as watch:
        start_run(config, folder, watch, setup=setup)
    conclude(folder, show, as_json)


def _set_up(config: Config) -> Setup:
    """What a run needs; or the same command in several processes, where that was asked for or is clearly faster."""
    size, why = launch.processes_asked(config), ""
    if size == 1:
        setup = set_up(config, cores=launch.count_cores() if launch.may_share(config) else 1)
        size = launch.processes_worth(config, setup) if launch.may_share(config) else 1
        if size == 1:
            return setup
        now, then = (1000 * seconds for seconds in (setup.choice.step, setup.choice.apart))
        why = f"{size} processes of one thread: {then:.1f} ms a step instead of {now:.1f}"
    raise typer.Exit(launch.start_workers(size, why))


Jobs = Annotated[int | None, typer.Option("--jobs", help="runs at once (default: one per core on the CPU)")]
METHODS = option(str, "local,fedavg,fedavg+ft,fedper,fedmap,pfedvmp", "methods, comma separated", "--methods")
SEEDS = option(str, "0,1,2", "seeds, comma separated or a range (0-4)", "--seeds")


Together = Annotated[bool | None, typer.Option("--together/--apart", help="all seeds of a method at once, as more "
                                               "clients (default: on a GPU)")]  # fmt: skip


@app.command(help="Run several methods with several seeds on the same federations; finished runs are not repeated.")
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
    if not as_json:
        print_notes(folder)


@app.command(help="The main job on embedded data: six methods, three seeds, a table and a report.")
def demo(out: Annotated[Path | None, typer.Option(help="folder to write to")] = None, show: Show = "validated",
         quiet: Quiet = False, json: Json = False) -> None:  # fmt: skip
    config, methods, seeds = demo_plan()
    folder = out or new_folder("demo")
    _compare(config, methods, seeds, folder, show, quiet or json, None)
    conclude(folder, show, json)


def _compare(
    config: Config, names: list[str], seeds: list[int], folder: Path, show: str, quiet: bool, jobs: int | None,
    together: bool = False,
) -> None:  # fmt: skip
    check_rule(show)  # before the work, not after it
    at_once = jobs or (launch.count_cores() if config.device == "cpu" else 1)  # a process gains more than a thread
    watching = lambda title, rounds: progress(title, rounds, quiet)  # noqa: E731
    compare_runs(config, names, seeds, folder, watching, at_once, together)


@app.command(help="Go on with a run (or all runs of a comparison) that was stopped or killed.")
def resume(folder: Path, show: Show = "validated", quiet: Quiet = False, json: Json = False, jobs: Jobs = 1) -> None:
    if (size := launch.processes_before(folder)) > 1:
        raise typer.Exit(launch.start_workers(size))
    launch.check_runs(folder)
    resume_all(folder, lambda title, rounds: progress(title, rounds, quiet or json), jobs or 1)
    conclude(folder, show, json)


@app.command(help="Write the HTML page of a run, a comparison or a file of packed runs, and print its table.")
def report(folder: Path, out: Annotated[Path | None, typer.Option(help="file to write")] = None,
           show: Show = "validated", json: Json = False) -> None:  # fmt: skip
    page = write_report(folder, out, show)
    if json:
        print_json(folder, show, page)
        return
    print_table(folder, show)
    console.print(f"report: {page}", soft_wrap=True)


@app.command(
    help="Put finished runs into one small file: the raw metrics of a published table, for `posterity report`."
)
def pack(folder: Path, out: Annotated[Path, typer.Option(help="file to write (NAME.jsonl.gz)")]) -> None:
    path = pack_runs(folder, out)
    console.print(f"{path}: {path.stat().st_size:,} bytes; posterity report {path} shows it", soft_wrap=True)


@app.command(help="The methods, or one method with its hyper-parameters and where their defaults come from.")
def methods(
    name: Annotated[str | None, typer.Argument(help="a method, wrapper or package.module:Class")] = None,
) -> None:
    listing.print_methods(name)


@app.command(help="The datasets, their clients and what they need.")
def datasets() -> None:
    listing.print_datasets()


@app.command(help="Show how a federation is divided: samples and classes of every client.")
@with_flags({}, leave_out=("method", "model", "rounds", "local_epochs", "local_steps", "batch_size", "lr", "optimiser",
                           "participation", "engine", "convolution", "onednn", "device", "dtype", "evaluate_every",
                           "newcomer_epochs", "metrics", "store", "memory"))  # fmt: skip
def partition(**given: Any) -> None:
    listing.print_partition(load_federation(read_config(given)))


@new.command("method", help="Write a method's file and its test, ready to be run, checked and changed.")
def write_new_method(name: str, folder: Annotated[Path, typer.Option(help="where to write")] = Path()) -> None:
    made, test, path = new_method.write_method(name, folder)
    console.print(f"wrote {made} and {test}\nrun it:   posterity run --method {path}\ncheck it: posterity check {path}")


@app.command(help="Run the laws that every method must keep on a method of yours.")
def check(
    method: str,
    model: Annotated[str, typer.Option(help="network to check it with")] = "mlp",
    json: Json = False,
) -> None:
    from posterity.cli.check import print_verdicts

    if not print_verdicts(method, model, json):
        raise typer.Exit(1)


@app.command(help="The version.")
def version() -> None:
    print(__version__)


def main() -> None:
    """Run the command line; what users did wrong is told in a sentence, without a traceback."""
    launch.end_with_parent()
    sys.path.insert(0, os.getcwd())  # what you wrote yourself may lie in the current folder
    try:
        code = app(standalone_mode=False)  # what `typer.Exit` carried, or None
        if isinstance(code, int) and code:
            sys.exit(code)
    except (typer.Abort, KeyboardInterrupt):
        print("stopped; 'posterity resume FOLDER' goes on", file=sys.stderr)
        sys.exit(130)
    except ValueError as error:
        if os.environ.get("POSTERITY_DEBUG"):
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except Exception as error:
        if not hasattr(error, "exit_code"):  # a mistake in the flags; typer brings its own copy of click's classes
            if place_of(error) is None or os.environ.get("POSTERITY_DEBUG"):
                raise
            print(f"error: {told(error)} (POSTERITY_DEBUG=1 shows the traceback)", file=sys.stderr)
            sys.exit(2)
        error.show()  # type: ignore[attr-defined]
        sys.exit(error.exit_code)
