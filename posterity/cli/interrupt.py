"""Ctrl-C and SIGTERM: the command stops within two seconds, nothing of it is left, and it says how to go on.

`Stopped` is no KeyboardInterrupt, which typer would turn into a silent exit. Runs may be killed at any instant
(`runs/folder.py`), so a command that does not come to an end by itself is ended: one long operator of
PyTorch cannot be interrupted from within.
"""

import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

GRACE = 1.0  # seconds that a command has to end by itself
SIGNALS = (signal.SIGINT, signal.SIGTERM)
MARKS = ("config.toml", "comparison.json")  # a folder with one of these can be gone on with
TUNING = "tuning.json"  # a search, which goes on when it is asked for again
_written: list[Path] = []  # the folder of the command
_told: list[int] = []  # the signal of which it was said that it stopped the command


class Stopped(BaseException):
    """The number of the signal that asked the command to stop."""


def writes_to(folder: Path) -> None:
    _written[:] = [folder]


def how_to_go_on() -> str:
    if not _written:
        return ""
    folder = _written[0]
    if any((folder / mark).exists() for mark in MARKS):
        from posterity.experiment.resume import needs_trust  # imports PyTorch

        size = os.environ.get("WORLD_SIZE", "1")
        start = "posterity" if size == "1" else f"torchrun --standalone --nproc-per-node {size} -m posterity"
        return f"go on with: {start} resume {shlex.quote(str(folder))}{' --trust' * needs_trust(folder)}"
    if (folder / TUNING).exists() or any(folder.rglob("comparison.json")):  # a column of a table has one, too
        return f"give the same command again with --out {shlex.quote(str(folder))}: what is finished is not repeated"
    return "nothing was written yet: give the same command again"


@contextmanager
def stoppable() -> Iterator[None]:
    """The first Ctrl-C or SIGTERM ends what is done, with the sentence and code of `tell`."""
    _written.clear()
    _told.clear()
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return
    hold = [(number, signal.getsignal(number)) for number in SIGNALS]
    caught = [(number, before) for number, before in hold if before is not signal.SIG_IGN]  # `nohup`, `&` in a script
    listening, speaking = os.pipe()
    os.set_blocking(speaking, False)
    woken = signal.set_wakeup_fd(speaking, warn_on_full_buffer=False)
    over, stopped = threading.Event(), False
    threading.Thread(target=_end_at_last, args=(listening, over, GRACE), daemon=True).start()
    try:
        for number, _ in caught:
            signal.signal(number, _stop)
        yield
    except Stopped as stop:
        stopped = True
        sys.exit(tell(stop.args[0]))
    finally:
        for number, before in caught:
            signal.signal(number, before)
        signal.set_wakeup_fd(woken)
        if not stopped:  # else the thread waits for the end of the interpreter, too
            over.set()
            os.close(speaking)  # ends the thread


def _stop(number: int, frame: FrameType | None) -> None:
    for each in SIGNALS:  # once is enough, and tidying up is not to be interrupted
        signal.signal(each, signal.SIG_IGN)
    raise Stopped(number)


def _end_at_last(listening: int, over: threading.Event, grace: float) -> None:
    """End the process if it was asked to stop and is still at work: Python may be waiting for an operator."""
    while told := os.read(listening, 1):
        if told[0] in SIGNALS and not over.wait(grace):
            os._exit(tell(told[0]))
    os.close(listening)


def tell(number: int = signal.SIGINT) -> int:
    """Say that the command was stopped and how to go on; the exit code that shells expect."""
    if not _told and os.environ.get("RANK", "0") == "0":  # of several processes the first speaks
        _told.append(number)
        print("; ".join(text for text in ("stopped", how_to_go_on()) if text), file=sys.stderr, flush=True)
    return 128 + number
