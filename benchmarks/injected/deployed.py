"""Faults of a real deployment on this machine: processes of Flower that are killed in the middle of a round."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from flower.in_process import InProcess, sites

from injected.messages import Outcome, judged, setting
from posterity.flower.experiment import open_server
from posterity.runs.files import read_lines
from posterity.runs.folder import METRICS
from posterity.settings.config import Config

CLIENTS, ROUNDS = 3, 3
LONGEST = 400  # seconds of a run
LINK = "link.log"


@contextmanager
def deployed(folder: Path) -> Iterator[Any]:
    """A SuperLink and three SuperNodes, whose processes can be killed and started again."""
    from flower.test_app_deployment import Deployment  # needs Flower

    class Killable(Deployment):  # type: ignore[misc]
        def __init__(self, *given: Any):
            self.processes: dict[str, tuple[subprocess.Popen[bytes], tuple[str, ...]]] = {}
            super().__init__(*given)

        def start(self, *command: str, log: str) -> subprocess.Popen[bytes]:
            made: subprocess.Popen[bytes] = super().start(*command, log=log)
            self.processes[log] = (made, command)
            return made

        def kill(self, log: str) -> None:
            os.killpg(self.processes[log][0].pid, signal.SIGKILL)
            self.processes[log][0].wait()

        def again(self, log: str) -> None:
            self.start(*self.processes[log][1], log=log)

    folder.mkdir(parents=True)
    with ExitStack() as stack:
        made = Killable(folder / "place", stack)
        for k in range(CLIENTS):
            made.node(f"client {k}", folder / "sites")
        made.wait_for(CLIENTS)
        yield made


def app(config: Config, folder: Path) -> Path:
    """The app of a configuration, in which all must answer."""
    from flower.test_app_deployment import app_of

    made: Path = app_of(config, "test", folder)
    path = made / "pyproject.toml"
    path.write_text(path.read_text().replace('minimum = "50%"', 'minimum = "100%"'))
    return made


def begun(place: Any, made: Path) -> subprocess.Popen[bytes]:
    """A run on its way."""
    with open(place.folder / f"run-{time.monotonic():.0f}.log", "wb") as log:
        command = ["flwr", "run", str(made), "here", "--stream"]
        return subprocess.Popen(command, env=place.environment, cwd=place.folder, stdout=log, stderr=log)


def wait_for(what: Callable[[], bool], seconds: float = LONGEST) -> None:
    last = time.monotonic() + seconds
    while not what():
        if time.monotonic() > last:
            raise TimeoutError(f"nothing within {seconds:.0f} seconds")
        time.sleep(0.2)


def rounds(folder: Path) -> int:
    """Rounds whose line is written."""
    path = folder / "server" / METRICS
    return len([line for line in read_lines(path) if line["kind"] == "round"]) if path.exists() else 0


def undisturbed(fault: str, folder: Path, config: Config) -> Outcome:
    """The end of a run that must not be seen to have been disturbed."""
    exchange = InProcess(sites(config, folder))
    server = open_server(config, exchange, folder / "server", CLIENTS, lambda line: None, wait=0)
    outcome = judged(fault, folder, (server, read_lines(folder / "server" / METRICS)), config, "undisturbed")
    return replace(outcome, kept=outcome.kept and server.finished)


def _node(folder: Path) -> Outcome:
    """SIGKILL to a SuperNode and its client while round 2 is trained; it is started again at once."""
    config = setting("scaffold", None, CLIENTS, ROUNDS)
    with deployed(folder) as place:
        run = begun(place, app(config, folder))
        wait_for(lambda: rounds(folder) == 1)
        time.sleep(2)
        place.kill("client 1.log")
        place.again("client 1.log")
        run.wait(LONGEST)
    return undisturbed("SIGKILL of a SuperNode in round 2, started again; minimum 100%", folder, config)


def _link(folder: Path) -> Outcome:
    """SIGKILL to the SuperLink, and so to the server, while round 2 is trained; both are started again."""
    config = setting("scaffold", None, CLIENTS, ROUNDS)
    with deployed(folder) as place:
        made = app(config, folder)
        run = begun(place, made)
        wait_for(lambda: rounds(folder) == 1)
        time.sleep(2)
        place.kill(LINK)
        run.wait(LONGEST)
        place.again(LINK)
        place.wait_for(CLIENTS)
        begun(place, made).wait(LONGEST)
    return undisturbed("SIGKILL of the SuperLink with its server in round 2, the run started again", folder, config)


FAULTS: dict[str, Callable[[Path], Outcome]] = {"supernode": _node, "superlink": _link}

__all__ = ["FAULTS"]
