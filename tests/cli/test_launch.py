"""Processes that share the clients of a run: what is said when one of them fails, dies or stops."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import ExitStack

import pytest
import torch.distributed as dist

from posterity.cli import interrupt, launch
from posterity.engine import parent
from posterity.engine.processes import LOST, PeerLost, Processes

WAIT = "import time; time.sleep(600)"


@pytest.fixture
def end(monkeypatch, capsys):
    """The exit code and the complaint of a command whose processes do these things."""
    monkeypatch.setattr(launch, "how_to_go_on", lambda: "go on")

    def go(*codes: str) -> tuple[int, str]:
        patience = 0.2 if WAIT in codes else 60  # whoever ends by itself may take its time
        monkeypatch.setattr(launch, "GRACE", patience)
        with ExitStack() as stack:
            complaints = [stack.enter_context(tempfile.TemporaryFile()) for _ in codes]
            workers: list[subprocess.Popen[bytes]] = []
            stack.callback(launch._end, workers)
            for code, told in zip(codes, complaints, strict=True):
                command = [sys.executable, "-S", "-c", code]
                workers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stderr=told))
            found = launch._await(workers, complaints)
        assert all(worker.returncode is not None for worker in workers)
        return found, capsys.readouterr().err

    return go


def test_all_end_well(end):
    assert end("", "") == (0, "")


def test_a_process_that_was_killed_is_named(end):
    lost, die = f"import os; os._exit({LOST})", "import os; os.kill(os.getpid(), 9)"
    for codes in ((WAIT, die), (lost, die), (die, lost)):
        code, said = end(*codes)
        assert code == 1
        assert f"error: process {codes.index(die)} of the 2 that shared the clients was killed by SIGKILL" in said
        assert said.endswith("; go on\n")


def test_what_only_another_complains_about_is_shown(end):
    assert end(f"import os; os._exit({LOST})", "import sys; sys.exit('odd')") == (1, "odd\n")
    assert end("import os; os._exit(2)", "import sys; sys.exit('odd')") == (2, "")  # the first has said it


def test_a_broken_exchange_is_a_sentence(monkeypatch, capsys):
    def broken(*given):
        raise RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer\nmore")

    monkeypatch.setattr(dist, "all_gather", broken)
    with pytest.raises(
        PeerLost, match=r"another of the processes .*posterity resume.*Connection closed by peer\)$"
    ) as lost:
        Processes(0, 2).all_gather(1.0)
    lost.value.show()
    assert capsys.readouterr().err.startswith("error: another of the processes")
    monkeypatch.setenv(parent.WORKER, "1")
    lost.value.show()
    assert capsys.readouterr().err == ""  # whoever started it knows more


def test_ends_in_words():
    assert parent.tell_end(3) == "ended with exit code 3"
    assert parent.tell_end(-15) == "was killed by SIGTERM"
    assert "memory" in parent.tell_end(-9)
    assert parent.tell_end(-1000) == "was killed by signal 1000"


def test_only_what_was_begun_can_go_on(tmp_path):
    with interrupt.stoppable():
        assert interrupt.how_to_go_on() == ""
        interrupt.writes_to(tmp_path)
        assert "same command" in interrupt.how_to_go_on()
