"""Documentation that runs: Python blocks are executed, commands are parsed, links lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from posterity.cli.app import app

ROOT = Path(__file__).parents[2]
FOLDERS = (ROOT / "docs", ROOT / "docs" / "design", ROOT / "docs" / "results")
PAGES = [ROOT / "README.md", *(page for folder in FOLDERS for page in sorted(folder.glob("*.md")))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {"__name__": "docs"}
    for block in blocks(page, "python"):  # later blocks of a page may use what earlier ones made
        exec(compile(block, page.name, "exec"), space)


def commands() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        text = page.read_text()
        lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
        lines += re.findall(r"`(posterity [^`]*)`", text)
        found += [(page.name, line.split("#")[0].strip()) for line in lines if line.strip().startswith("posterity ")]
    return sorted(set(found))


@pytest.mark.parametrize(("page", "line"), commands())
def test_commands_parse(page, line):
    words = shlex.split(line)[1:]
    command = typer.main.get_command(app)
    while words and hasattr(command, "commands"):
        assert words[0] in command.commands, f"{page}: there is no command {words[0]!r}"
        command = command.commands[words.pop(0)]
    if not hasattr(command, "commands"):
        command.make_context("posterity", words)  # raises on an unknown flag


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target
