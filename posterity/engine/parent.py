"""A process and those that it starts: workers end with their parent, and the parent can tell what became of them.

A worker's standard input is a pipe from its parent, which closes when the parent is gone, however it went. On Linux the
kernel is asked to kill the worker besides, so that one that is stopped or stuck does not stay either. Ctrl-C is the
parent's: it reaches all processes of a terminal, and workers ignore it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

WORKER = "POSTERITY_WORKER"  # environment: this process was started by another of ours
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def is_worker() -> bool:
    return bool(os.environ.get(WORKER))


def become_worker() -> None:
    """Leave Ctrl-C to the parent, and on Linux have the kernel end this process with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # see `interrupts_held`
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def end_with_parent() -> None:
    """In a worker whose parent tells it nothing more: stop at once when the parent is gone."""
    if is_worker():
        become_worker()
        threading.Thread(target=_await_parent, daemon=True).start()


def _await_parent() -> None:
    while os.read(0, 1):  # not through `sys.stdin`, whose lock the interpreter wants at its end
        pass
    os._exit(1)


@contextmanager
def interrupts_held() -> Iterator[None]:
    """For starting a worker: until it ignores Ctrl-C, it does not notice it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def tell_end(code: int) -> str:
    """How a process ended, from its return code: `was killed by SIGKILL (…)`, `ended with exit code 3`."""
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    why = " (by somebody, or by the system for want of memory)" if name == "SIGKILL" else ""
    return f"was killed by {name}{why}"
