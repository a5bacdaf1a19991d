"""Ctrl-C and SIGTERM: everything stops, nothing is left, and the last sentence says how to go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from posterity.cli import interrupt

SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """What is stopped here is a test's command, and not the process."""
    monkeypatch.setattr(interrupt, "GRACE", 1e6)


def stopped_by(number: int, folder: Path | None = None) -> int:
    """The exit code of a command that writes to `folder` and gets a signal."""

    @interrupt.stoppable()
    def command() -> None:
        if folder is not None:
            interrupt.writes_to(folder)
        os.kill(os.getpid(), number)
        pytest.fail("the signal was ignored")

    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(SystemExit) as stop:
        command()
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before
    return stop.value.code


@pytest.mark.parametrize(("number", "code"), SIGNALS)
@pytest.mark.parametrize("mark", ["config.toml", "comparison.json"])
def test_the_sentence_names_the_folder(number, code, mark, tmp_path, capsys):
    folder = tmp_path / "my runs"
    folder.mkdir()
    (folder / mark).touch()
    assert stopped_by(number, folder) == code
    assert capsys.readouterr().err == f"stopped; go on with: posterity resume '{folder}'\n"


def test_code_of_your_own_must_be_trusted_again(tmp_path, capsys):
    (tmp_path / "config.toml").write_text('method = "my_method:Mine+ft"\n')
    assert stopped_by(signal.SIGINT, tmp_path) == 130
    assert capsys.readouterr().err == f"stopped; go on with: posterity resume {tmp_path} --trust\n"


def test_what_has_not_begun_cannot_go_on(tmp_path, capsys):
    assert stopped_by(signal.SIGINT, tmp_path) == 130
    assert capsys.readouterr().err == "stopped; nothing was written yet: give the same command again\n"
    assert stopped_by(signal.SIGINT) == 130  # of a command that writes nothing
    assert capsys.readouterr().err == "stopped\n"


@pytest.mark.parametrize("column", ["short", "tables/V-T1a/short"])
def test_a_table_or_figure_goes_on_with_the_same_command(column, tmp_path, capsys):
    (tmp_path / column).mkdir(parents=True)
    (tmp_path / column / "comparison.json").touch()
    assert stopped_by(signal.SIGINT, tmp_path) == 130
    assert capsys.readouterr().err == (f"stopped; give the same command again with --out {tmp_path}: what is finished "
                                       "is not repeated\n")  # fmt: skip


def test_what_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as `nohup` does
    try:
        with interrupt.stoppable():
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


BUSY = """
import atexit, hashlib, time
from posterity.cli import interrupt
@interrupt.stoppable()
def command():
    print("busy", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"a", b"b", 2**31 - 1)  # Python cannot interrupt it
command()
"""


SLOW_END = BUSY.replace("    hashlib", "    atexit.register(time.sleep, 600)\n    time.sleep(600)  #")


@pytest.mark.parametrize("code", [BUSY, SLOW_END])
def test_an_operator_that_cannot_be_interrupted_is_ended(code):
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "busy\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=120)[1] == "stopped\n"
    assert process.returncode == 130


def test_only_what_was_begun_can_go_on(tmp_path, monkeypatch):
    with interrupt.stoppable():
        assert interrupt.how_to_go_on() == ""
        interrupt.writes_to(tmp_path)
        assert "same command" in interrupt.how_to_go_on()
        (tmp_path / "config.toml").touch()
        assert interrupt.how_to_go_on() == f"go on with: posterity resume {tmp_path}"
        monkeypatch.setenv("WORLD_SIZE", "2")
        assert "torchrun --standalone --nproc-per-node 2 -m posterity resume" in interrupt.how_to_go_on()
