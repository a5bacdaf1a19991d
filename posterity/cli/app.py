"""`posterity demo | run | compare | tune | resume | report | pack | methods | datasets | models | partition | new | …`.

Each command is a function in `commands.py` or `flower.py`; flags come from `flags.py`. PyTorch takes seconds to import
and `--help` should not: whatever needs it is imported inside the command that does. What was typed wrong, what fails in
a file of yours and what is worth a remark is said in a sentence.
"""

import os
import sys
import warnings
from pathlib import Path
from typing import Any, TextIO

import typer
from typer.main import get_command

from posterity.cli import commands, interrupt
from posterity.cli.flags import RUN, WRITE, Version, with_help_of_arguments
from posterity.cli.flower import flower
from posterity.settings.plugins import describe_error, leave_folder_out, place_of
from posterity.settings.text import paragraphs

PACKAGE = str(Path(__file__).resolve().parents[1])
DEBUG = "POSTERITY_DEBUG"  # environment: show tracebacks


def refuse_repeated(command: Any, words: list[str]) -> None:
    """Refuse a flag with one value that was given twice."""
    while words and words[0] in getattr(command, "commands", {}):
        command, words = command.commands[words[0]], words[1:]
    words = words[: words.index("--")] if "--" in words else words
    for flag in command.params:
        if flag.param_type_name != "option" or flag.multiple or flag.is_flag:
            continue
        given = [i for i, word in enumerate(words) if word.partition("=")[0] in flag.opts]
        if len(given) > 1:
            raise ValueError(
                f"{flag.opts[0]} was given {len(given)} times, and only the last would count: give it once"
            )


def say_remarks() -> None:
    """Print what the package warns of as one line, without a line of our code."""
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None,
             line: str | None = None) -> None:  # fmt: skip
        if filename.startswith(PACKAGE) and issubclass(category, UserWarning):
            print(f"note: {paragraphs(message)}", file=sys.stderr)
        else:
            usual(message, category, filename, lineno, file, line)

    warnings.filterwarnings("ignore", message=".*the run (came to nothing|has exploded)")  # said once, at the end
    warnings.showwarning = show


app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich",
                  help="Personalised federated learning with honest uncertainty.")  # fmt: skip
app.add_typer(commands.app)  # without a name: each is a command of `posterity`
app.add_typer(commands.new, name="new", rich_help_panel=WRITE)
app.add_typer(flower, name="flower", rich_help_panel=RUN)


@app.callback()
def begin(version: Version = False) -> None:
    """Flags of all commands."""


@interrupt.stoppable()
def main() -> None:
    """Run the command line; what users did wrong is told in a sentence, without a traceback."""
    say_remarks()
    leave_folder_out()  # what you wrote yourself is found there by its name (settings/plugins.py)
    try:
        command = with_help_of_arguments(get_command(app))
        refuse_repeated(command, sys.argv[1:])
        code = command(prog_name="posterity", standalone_mode=False)  # what `typer.Exit` carried, or None
        if isinstance(code, int) and code:
            sys.exit(code)
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(interrupt.tell())
    except Exception as error:
        if hasattr(error, "exit_code"):  # a mistake in the flags: click's, or typer's copy
            if getattr(error, "possibilities", None):  # click will name them, and so has typer
                error.message = str(error.message).partition(" Did you mean")[0]  # type: ignore[attr-defined]
            error.show()  # type: ignore[attr-defined]
            sys.exit(error.exit_code)
        yours = place_of(error) is not None  # in a file that the user wrote: its line
        if os.environ.get(DEBUG) or not (yours or isinstance(error, ValueError)):
            raise
        hint = "" if isinstance(error, ValueError) else f" ({DEBUG}=1 shows the traceback)"
        print(f"error: {paragraphs(error if not hint else describe_error(error))}{hint}", file=sys.stderr)
        sys.exit(2)
