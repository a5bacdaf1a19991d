"""The command line as a user would start it, in this process."""

from __future__ import annotations

import sys

import pytest

from posterity.cli.app import main


@pytest.fixture
def call(monkeypatch, tmp_path, capsys):
    """Run the command line in an empty folder: exit code, what it printed, what it complained."""

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["posterity", *words])
        monkeypatch.setattr(sys, "path", list(sys.path))
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    monkeypatch.chdir(tmp_path)
    return run
