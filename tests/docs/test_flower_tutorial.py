"""docs/flower.md as it stands, from certificates to predictions: TLS, four sites; nodes without a key are refused.

Only ports are others than the page's. What was started is ended, whatever happens.
"""

from __future__ import annotations

import contextlib
import csv
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import posterity
from posterity.flower.sent import SENT
from posterity.runs.files import read_lines

pytest.importorskip("flwr", reason="Flower is not installed (pip install 'posterity[flower]')")
MISSING = [name for name in ("bash", "openssl", "ssh-keygen") if shutil.which(name) is None]
pytestmark = [
    pytest.mark.everything,
    pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} is not installed: the tutorial makes certificates"),
]

PAGE = Path(__file__).parents[2] / "docs" / "flower.md"
SITES = ("north", "south", "east", "west")
LONGEST = 900  # seconds
REFUSED = """
ssh-keygen -q -t ecdsa -b 384 -N "" -C "" -f keys/unknown
for key in "" "--auth-supernode-private-key keys/unknown"; do
  code=0
  timeout 60 flower-supernode --superlink localhost:8000 --root-certificates keys/ca.crt $key --port 9105 \\
    --node-config 'client="north"' >> unknown.log 2>&1 || code=$?
  echo "ended with $code" >> refused.txt
done
ssh-keygen -q -t ecdsa -b 384 -N "" -C "" -f keys/careful
ssh-keygen -q -t ed25519 -N "" -C "" -f keys/publisher
printf "fpk_11111111-2222-3333-4444-555555555555: '%s'\\n" "$(cat keys/publisher.pub)" > trusted.yaml
flwr supernode register keys/careful.pub tutorial
flower-supernode --superlink localhost:8000 --root-certificates keys/ca.crt --port 9106 \\
  --auth-supernode-private-key keys/careful --trusted-entities trusted.yaml \\
  --node-config 'client="careful" data="north.csv" records="records/careful"' > careful.log 2>&1 &
echo $! >> pids
for try in $(seq 120); do
  test "$(flwr supernode list tutorial --format json | grep -c '"online"')" = 5 && break; sleep 1
done
"""


def free_ports(count: int) -> int:
    """The first of so many ports in a row that are free."""
    for first in range(21000, 40000, 50):
        held = [socket.socket() for _ in range(count)]
        try:
            for place, each in enumerate(held):
                each.bind(("127.0.0.1", first + place))
            return first
        except OSError:
            continue
        finally:
            for each in held:
                each.close()
    raise RuntimeError("no free ports")


def script() -> str:
    """The page's commands; before the run, nodes that nobody registered try to come in."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.S)
    (place,) = [i for i, block in enumerate(blocks) if block.startswith("posterity flower new")]
    text = "\n".join([*blocks[:place], REFUSED, *blocks[place:]])
    first = free_ports(7)
    text = re.sub(r"\b910([156])\b", lambda found: str(first + int(found[1])), text)
    return "set -eu\n" + re.sub(r"\b8000\b", str(first), text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The tutorial's folder after all of its commands."""
    base = tmp_path_factory.mktemp("tutorial")
    programs = base / "bin"
    programs.mkdir()
    command = programs / "posterity"  # as an installed package has it
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m posterity "$@"\n')
    command.chmod(0o755)
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "NO_COLOR": "1", "PYTHONPATH": str(Path(posterity.__file__).parents[1])}
    with open(base / "output.log", "w") as output:
        process = subprocess.Popen(["bash", "-c", script()], cwd=base, env=environment, stdout=output,
                                   stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip
        try:
            code = process.wait(LONGEST)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    logs = {path.name: path.read_text()[-1500:] for path in base.rglob("*.log")}
    assert code == 0, logs
    return base / "flower-tutorial"


def test_the_run_ends_and_each_site_predicts(folder):
    assert "round 3: 4 of 4 clients" in (folder.parent / "output.log").read_text()
    for site in SITES:
        rows = list(csv.DictReader((folder / f"{site}-predictions.csv").open()))
        assert [row["client"] for row in rows] == [site, site]
        assert {"predicted", "p_ill", "p_well"} <= set(rows[0])
        if site != "west":  # its three rows are not much to learn from
            assert [row["predicted"] for row in rows] == ["well", "ill"]


def test_a_node_without_a_registered_key_is_refused(folder):
    codes = (folder / "refused.txt").read_text().split("\n")[:-1]
    assert len(codes) == 2
    assert not {"ended with 0", "ended with 124"} & set(codes)  # 124: it was still there after a minute
    assert "Failed to activate SuperNode" in (folder / "unknown.log").read_text()


def test_a_node_that_wants_signatures_refuses_a_folder_without(folder):
    """The run goes on with the others; the server was told why."""
    assert "The FAB could not be verified" in (folder / "careful.log").read_text()
    assert not (folder / "records" / "careful").exists()
    notes = [line["text"] for line in read_lines(folder / "runs" / "ward" / "metrics.jsonl") if line["kind"] == "note"]
    assert [text for text in notes if "was not understood when it registered: the node failed" in text]


def test_little_leaves_the_small_site(folder):
    lines = read_lines(folder / "records" / "west" / "ward" / "west" / SENT)
    assert {line["count"] for line in lines if line["leaf"].startswith("classes/")} == {0}
    assert {line["bytes"] for line in lines if line["leaf"] == "classes"} == {len("[]")}
    told = read_lines(folder / "records" / "north" / "ward" / "north" / SENT)
    assert min(line["count"] for line in told if line["count"]) >= 5


def test_no_secret_is_in_a_log(folder):
    secrets = [path for path in (folder / "keys").iterdir() if "PRIVATE KEY" in path.read_text()]
    assert len(secrets) == 2 + len(SITES) + 3  # of nodes that were refused, and of a publisher
    bodies = [line for path in secrets for line in path.read_text().splitlines() if len(line) > 40]
    assert bodies
    for log in [*folder.glob("*.log"), folder.parent / "output.log"]:
        text = log.read_text()
        assert not [line for line in bodies if line in text], log
    for path in secrets:
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path
