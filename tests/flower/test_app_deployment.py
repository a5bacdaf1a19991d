"""A real deployment on this machine: a SuperLink, a SuperNode for each client, and `flwr run` on a folder of ours.

Ports are free ones, everything lives in a folder of the test, and what was started is ended, whatever happens.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import posterity
from posterity.flower.experiment import open_server
from posterity.flower.new_app import write_app
from posterity.runs.files import read_lines
from posterity.settings.config import from_table

from .in_process import EXPERIMENT, InProcess, assert_same_end, configuration, simulate, sites

pytest.importorskip("flwr", reason="Flower is not installed (pip install 'posterity[flower]')")
pytestmark = pytest.mark.everything

PATIENCE = 120  # seconds until nodes must be online
LONGEST = 500  # seconds of a run


def free_port():
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        return some.getsockname()[1]


@contextmanager
def started(command, log, environment):
    """A process and its children, until the block ends."""
    with open(log, "w") as file:
        process = subprocess.Popen(
            command, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True, cwd=log.parent
        )
    try:
        yield process
    finally:
        for number, patience in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
            try:
                os.killpg(process.pid, number)
                process.wait(patience)
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                continue


class Deployment:
    """A SuperLink and its SuperNodes."""

    def __init__(self, folder: Path, stack: ExitStack, database: str = "link.db"):
        self.folder, self.stack, self.port = folder, stack, free_port()
        home, programs = folder / "flower", Path(sys.executable).parent
        home.mkdir(parents=True)
        connection = (
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        (home / "config.toml").write_text(connection)
        self.environment = {
            **os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "OMP_NUM_THREADS": "1", "NO_COLOR": "1",
            "PYTHONPATH": str(Path(posterity.__file__).parents[1]),
        }  # fmt: skip
        kept = ["--database", str(folder / database)] if database else []
        self.start("flower-superlink", "--insecure", "--disable-runtime-dependency-installation", "--port",
                   str(self.port), *kept, log="link.log")  # fmt: skip

    def start(self, *command, log):
        return self.stack.enter_context(started(command, self.folder / log, self.environment))

    def node(self, client, records):
        settings = f'client="{client}" records="{records}"'
        return self.start("flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{self.port}", "--port",
                          str(free_port()), "--node-config", settings, log=f"{client}.log")  # fmt: skip

    def flwr(self, *command, seconds=60):
        return subprocess.run(["flwr", *command], env=self.environment, cwd=self.folder, capture_output=True, text=True,
                              timeout=seconds, check=False)  # fmt: skip

    def wait_for(self, nodes):
        last, told = time.monotonic() + PATIENCE, ""
        while told.count('"online"') < nodes:
            assert time.monotonic() < last, f"{told}\n{(self.folder / 'link.log').read_text()[-2000:]}"
            time.sleep(1)
            told = self.flwr("supernode", "list", "here", "--format", "json").stdout

    def run(self, app):
        """A run's log; it must have ended well."""
        done = self.flwr("run", str(app), "here", "--stream", seconds=LONGEST)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
        listed = self.flwr("list", "here", "--format", "json").stdout
        assert json.loads(listed)["runs"][0]["status"] == "finished:completed", (
            done.stdout[-3000:] + done.stderr[-2000:]
        )
        return done.stdout


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    """Three nodes, started in another order than that of their clients, for all tests."""
    folder = tmp_path_factory.mktemp("deployment")
    with ExitStack() as stack:
        made = Deployment(folder / "place", stack)
        for k in (2, 0, 1):
            made.node(f"client {k}", folder / "sites")
        made.wait_for(3)
        yield made


def app_of(config, name, folder):
    """The app of a configuration whose server writes into `folder`."""
    names = ("method", "dataset", "clients", "rounds", "subset", "lr", "partition", "batch_size", "evaluate_every",
             "min_count")  # fmt: skip
    settings = {each: getattr(config, each) for each in names}
    write_app(folder / name, from_table({**settings, "engine": "oracle", "set": dict(config.set)}), sites=3)
    path = folder / name / "pyproject.toml"
    path.write_text(path.read_text().replace(f'"runs/{name}"', f'"{folder / "server"}"'))
    return folder / name


def ended(deployment, config, name, folder):
    """The server of a run that is over, opened where it stands, with its sites' records in `folder`."""
    (folder / "sites").mkdir()
    (folder / "sites" / EXPERIMENT).symlink_to(deployment.folder.parent / "sites" / name)
    return open_server(config, InProcess(sites(config, folder)), folder / "server", 3, lambda line: None, wait=0)


@pytest.mark.parametrize("spec", ["pfedvmp", "fedmap", "fedavg+metavd"])
def test_a_real_deployment_ends_where_the_simulator_ends(spec, deployment, tmp_path):
    """MetaVD's hyper-network gives every client a noise of its own: nodes must be who they say."""
    config, name = configuration(spec), f"trial-{spec.replace('+', '-')}"
    log = deployment.run(app_of(config, name, tmp_path))
    assert "round 2: 3 of 3 clients" in log
    server = ended(deployment, config, name, tmp_path)
    assert server.finished
    assert_same_end(server, tmp_path, simulate(config))
    lines = read_lines(tmp_path / "server" / "metrics.jsonl")
    assert [line["accepted"] for line in lines if line["kind"] == "round"] == [3, 3]
    assert len([line for line in lines if line["kind"] == "score"]) == 9
