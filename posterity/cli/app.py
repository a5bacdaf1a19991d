"""`posterity demo | run | compare | tune | resume | report | pack | methods | datasets | models | partition | new | …`.

Each command is a function in `run_commands.py`, `look_commands.py`, `write_commands.py` or `flower.py`; flags come from
`flags.py`, `options.py` and `output.py`. PyTorch takes seconds to import and `--help` should not: whatever needs it is
imported inside the command that does.

What was typed wrong, and what is worth a remark, in a sentence.
"""

from __future__ import annotations

import os
import sys
import warnings
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TextIO

import typer
from typer.main import get_command

from posterity.cli import commands, interrupt
from posterity.cli.conclude import leave_it_to_the_end, paragraphs
from posterity.cli.flags import RUN, WRITE, Version, with_help_of_arguments
from posterity.cli.flower import flower
from posterity.engine.parent import end_with_parent
from posterity.settings.plugins import leave_folder_out

PACKAGE = str(Path(__file__).resolve().parents[1])


def told(error: Any) -> str:
    """What a mistake in the flags says, with the nearest command, once.

    Typer names it since 0.20, click by itself since 8.4, and we support older ones.
    """
    message = str(getattr(error, "message", error))
    context = getattr(error, "ctx", None)
    if "No such command" not in message:
        return message
    if getattr(error, "possibilities", None):  # click will name them
        return message.partition(" Did you mean")[0]
    if "Did you mean" in message or context is None:
        return message
    close = get_close_matches(message.split("'")[1], list(getattr(context.command, "commands", {})))
    return message + (f" Did you mean {' or '.join(map(repr, close))}?" if close else "")


def refuse_repeated(command: Any, words: list[str]) -> None:
    """Refuse a flag with one value that was given twice: the first value would be forgotten without a word."""
    while words and words[0] in getattr(command, "commands", {}):
        command, words = command.commands[words[0]], words[1:]
    words = words[: words.index("--")] if "--" in words else words
    for flag in command.params:
        if flag.param_type_name != "option" or flag.multiple or flag.is_flag:
            continue
        given = [i for i, word in enumerate(words) if word.partition("=")[0] in flag.opts]
        if len(given) > 1:
            lists = "; it takes several, with commas between them" if "…" in str(flag.metavar) else ""
            raise ValueError(f"{flag.opts[0]} was given {len(given)} times, and only the last would count: give it "
                             f"once{lists}.")  # fmt: skip


def sentence(error: Exception) -> str:
    """What an error says, which may name a column or a client as somebody's file does."""
    return paragraphs(str(error))


def tell_of_yours(error: Exception) -> None:
    """End with a sentence if the error comes from a file that the user wrote: with its line, without a traceback."""
    from posterity.settings.plugins import place_of, told

    if place_of(error) is not None and not os.environ.get("POSTERITY_DEBUG"):
        print(f"error: {paragraphs(told(error))} (POSTERITY_DEBUG=1 shows the traceback)", file=sys.stderr)
        sys.exit(2)


def say_remarks() -> None:
    """Print what the package warns of as one line: Python's own form adds a line of our code, which helps nobody."""
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None,
             line: str | None = None) -> None:  # fmt: skip
        if filename.startswith(PACKAGE) and issubclass(category, UserWarning):
            print(f"note: {paragraphs(str(message))}", file=sys.stderr)
        else:
            usual(message, category, filename, lineno, file, line)

    warnings.showwarning = show


app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich",
                  help="Personalised federated learning with honest uncertainty.")  # fmt: skip
app.add_typer(commands.app)  # without a name: each is a command of `posterity`
app.add_typer(commands.new, name="new", rich_help_panel=WRITE)
app.add_typer(flower, name="flower", rich_help_panel=RUN)


@app.callback()
def begin(version: Version = False) -> None:
    """Flags of all commands."""


@interrupt.stops
def main() -> None:
    """Run the command line; what users did wrong is told in a sentence, without a traceback."""
    end_with_parent()
    leave_it_to_the_end()
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
    except ValueError as error:
        if os.environ.get("POSTERITY_DEBUG"):
            raise
        print(f"error: {sentence(error)}", file=sys.stderr)
        sys.exit(2)
    except Exception as error:
        if not hasattr(error, "exit_code"):  # a mistake in the flags; typer brings its own copy of click's classes
            tell_of_yours(error)
            raise
        error.message = told(error)  # type: ignore[attr-defined]
        error.show()  # type: ignore[attr-defined]
        sys.exit(error.exit_code)
