"""`posterity demo | run | compare | tune | resume | report | pack | methods | datasets | models | partition | new | …`.

Each command is a function in `run_commands.py`, `look_commands.py`, `write_commands.py` or `flower.py`; flags come from
`flags.py`, `options.py` and `output.py`. PyTorch takes seconds to import and `--help` should not: whatever needs it is
imported inside the command that does.
"""

from __future__ import annotations

import os
import sys

import typer
from typer.main import get_command

from posterity.cli import interrupt, look_commands, run_commands, write_commands
from posterity.cli.diverged import leave_it_to_the_end
from posterity.cli.flower import flower
from posterity.cli.mistakes import refuse_repeated, say_remarks, sentence, tell_of_yours, told
from posterity.cli.options import RUN, WRITE, Version, with_help_of_arguments
from posterity.engine.parent import end_with_parent
from posterity.search_path import leave_folder_out

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich",
                  help="Personalised federated learning with honest uncertainty.")  # fmt: skip
for commands in (run_commands, look_commands, write_commands):
    app.add_typer(commands.app)  # without a name: each is a command of `posterity`
app.add_typer(write_commands.new, name="new", rich_help_panel=WRITE)
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
    leave_folder_out()  # what you wrote yourself is found there by its name (core/outside.py)
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
