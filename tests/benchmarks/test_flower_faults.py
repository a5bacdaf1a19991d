"""The benchmark of faults across machines: some of its faults, and that an end which is not the promised one fails."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest


@pytest.fixture
def script(monkeypatch):
    for folder in ("benchmarks", "tests"):  # the benchmarks have an engine.py, too
        monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / folder))
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # the benchmark sets them, and here they are put back
    yield importlib.import_module("flower_faults")
    for name in [name for name in sys.modules if name.partition(".")[0] in ("injected", "flower_faults")]:
        del sys.modules[name]


def test_the_table(script, tmp_path, capsys):
    assert script.main(["--only", "large", "--out", str(tmp_path / "page.md")]) == 0
    text = (tmp_path / "page.md").read_text()
    assert "far beyond the others' (accepted: 4, 3, 4, 4) | as without that message, bit for bit | yes |" in text
    assert text.strip() in capsys.readouterr().out


def test_another_end_than_the_promised_one_fails(script, monkeypatch, tmp_path):
    messages = importlib.import_module("injected.messages")
    done = messages.forged(replace(messages.FORGED["cut"], promise="undisturbed"), tmp_path)
    assert not done.kept
    assert done.end == "as without that message, bit for bit"


def test_a_run_without_an_end_is_a_row_that_was_not_kept(script, monkeypatch, capsys):
    def stuck(folder):
        raise subprocess.TimeoutExpired("flwr run", 400)

    monkeypatch.setattr(importlib.import_module("injected.messages"), "FAULTS", {"deaf": stuck})
    assert script.main([]) == 1
    assert "| deaf | the run had no end | none within 400 s | **no** |" in capsys.readouterr().out


@pytest.mark.parametrize("count", [100, pytest.param(10_000, marks=pytest.mark.everything)])
def test_a_server_stands_damaged_messages(count, script, capsys):
    assert script.main(["--fuzz", str(count)]) == 0
    rows = dict(line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[2:])
    assert rows.pop("crashes in all") == "0"
    assert sum(int(times.replace(",", "")) for times in rows.values()) == count
    assert len([text for text in rows if text.startswith("refused")]) > 5


@pytest.mark.parametrize("count", [60, pytest.param(10_000, marks=pytest.mark.everything)])
def test_a_site_stands_damaged_questions(count, script, capsys):
    """And whatever it refuses has changed nothing on its disk."""
    assert script.main(["--questions", str(count)]) == 0
    rows = dict(line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[2:])
    assert rows.pop("crashes, and refusals that wrote something") == "0"
    assert sum(int(times.replace(",", "")) for times in rows.values()) == count
    assert len([text for text in rows if text.startswith("refused")]) > 3


def test_a_crash_of_a_site_is_counted(script, monkeypatch, capsys):
    monkeypatch.setattr(importlib.import_module("injected.fuzzed_questions"), "lied", lambda data, draw: 5)
    assert script.main(["--questions", "10"]) == 1
    assert "**the site crashed**: TypeError | 5 |" in capsys.readouterr().out


def test_a_crash_is_counted(script, monkeypatch, capsys):
    monkeypatch.setattr(importlib.import_module("injected.fuzzed"), "lied", lambda data, draw: 5)  # are no bytes
    assert script.main(["--fuzz", "20"]) == 1
    assert "**the server crashed**: TypeError | 10 |" in capsys.readouterr().out


@pytest.mark.everything
def test_a_forged_message_on_a_real_deployment(script, capsys):
    pytest.importorskip("flwr", reason="Flower is not installed (pip install 'posterity[flower]')")
    assert script.main(["--deployment", "--only", "nan"]) == 0
    assert "not finite (accepted: 3, 2, 3) | as without that message, bit for bit | yes |" in capsys.readouterr().out


@pytest.mark.everything
def test_every_fault(script):
    assert script.main([]) == 0
