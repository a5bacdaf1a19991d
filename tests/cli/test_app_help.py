"""`--help`, `--version` and completion: at once (PyTorch is not imported), at 80 columns, typed and in panels."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import typer

from posterity import __version__
from posterity.cli import flags as completion
from posterity.cli.app import app
from posterity.cli.flags import config_flags
from posterity.data.partition import RULES
from posterity.settings.config import PARTITIONS

EVERY_HELP = """
import sys
import typer
from posterity.cli.app import app, main
from posterity.cli.flags import complete_dataset, complete_methods

def walk(command, words):
    yield words
    for name, inner in getattr(command, "commands", {}).items():
        yield from walk(inner, [*words, name])

for words in [[], *walk(typer.main.get_command(app), [])]:
    for last in (["--help"], ["--version"]) if not words else (["--help"],):
        sys.argv = ["posterity", *words, *last]
        try:
            main()
        except SystemExit as stop:
            assert not stop.code, (words, stop.code)
assert complete_methods("fedavg,fedp") and complete_dataset("dig")
print("imported:", [name for name in ("torch", "numpy", "jinja2", "posterity.papers") if name in sys.modules])
"""


def test_no_help_imports_pytorch():
    asked = subprocess.run([sys.executable, "-c", EVERY_HELP], capture_output=True, text=True, check=False,
                           env={**os.environ, "COLUMNS": "80"})  # fmt: skip
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.endswith("imported: []\n")
    assert f"\n{__version__}\n" in asked.stdout
    assert max(len(line) for line in asked.stdout.splitlines()) <= 80
    assert "…" not in asked.stdout.replace("NAME,…", "").replace("INTEGER,…", "")  # nothing is cut


def help_of(*words: str) -> str:
    from typer.testing import CliRunner

    return CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "80"}).output


def test_flags_are_typed_and_in_panels():
    text = help_of("compare")
    places = [text.index(f"─ {panel} ─") for panel in ("Data", "Training", "Running", "Machine", "Output")]
    assert places == sorted(places)
    lines = {line.split()[1]: line for line in text.splitlines() if line.startswith("│ --")}
    for flag, kind in {
        "--rounds": "INTEGER",
        "--lr": "FLOAT",
        "--store": "TEXT",
        "--set": "NAME=VALUE",
    }.items():
        assert kind in lines[flag]
    assert "default: 100" in text


def test_every_setting_has_a_flag_and_its_panel():
    panels = {annotation.__metadata__[0].rich_help_panel for annotation, _ in config_flags().values()}
    assert panels == {"Data", "Training", "Running", "Machine", "Output"}


def test_the_help_names_every_partition():
    assert [each.split(":")[0] for each in PARTITIONS.split(", ")] == [
        name for name in RULES if name not in ("major-literal", "natural")
    ]


@pytest.mark.parametrize(
    ("complete", "typed", "offered"),
    [
        (completion.complete_method, "fedpr", ["fedproto", "fedprox"]),
        (completion.complete_method, "fedavg+f", ["fedavg+ft"]),
        (completion.complete_method, "wrap", []),
        (completion.complete_methods, "local,fedavg+ft,fedm", ["local,fedavg+ft,fedmap"]),
        (completion.complete_dataset, "mnist+digi", ["mnist+digits", "mnist+digits5"]),
        (completion.starting(("auto", "loop", "package.module:engine")), "", ["auto", "loop"]),
    ],
)
def test_a_shell_completes(complete, typed, offered):
    assert complete(typed) == offered


def test_completion_reaches_the_flags():
    """As the shell asks: which words may follow `posterity run --method fedpr`."""
    command = typer.main.get_command(app).commands["run"]
    flag = next(parameter for parameter in command.params if parameter.name == "method")
    context = command.make_context("run", [], resilient_parsing=True)
    assert [item.value for item in flag.shell_complete(context, "fedpr")] == ["fedproto", "fedprox"]


def test_completion_as_bash_asks_for_it():
    asked = {"_POSTERITY_COMPLETE": "complete_bash", "COMP_WORDS": "posterity run --method fedpr", "COMP_CWORD": "3"}
    done = subprocess.run([sys.executable, "-m", "posterity"], capture_output=True, text=True, check=False,
                          env={**os.environ, **asked})  # fmt: skip
    assert done.stdout.split() == ["fedproto", "fedprox"], done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("report",), "folder of a run or a comparison, or a file of packed"),
        (("methods",), "a method, wrapper or package.module:Class"),
        (("new", "method"), "its name, as Python writes names"),
    ],
)
def test_an_argument_says_what_it_is(call, words, said):
    """With typer 0.20 and click 8.5, which has a `help` of its own, arguments said nothing."""
    code, out, _ = call(*words, "--help")
    assert code == 0
    assert said in out
