"""Real commands, real signals: whatever is stopped or killed leaves nothing running and goes on to the same end."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from experiment.kills import remains

from posterity.runs import files

pytestmark = [pytest.mark.everything, pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")]
LONG = ["--dataset", "digits", "--clients", "5", "--rounds", "400", "--evaluate-every", "200", "--subset", "20%",
        "--dtype", "float64", "--set", "model.hidden=8", "--quiet"]  # fmt: skip
BOUND = 10.0  # seconds of work behind a signal, of all processes together; two by the clock are promised
COMMANDS = {
    "run": ["run", "--method", "fedavg", *LONG, "--engine", "loop"],
    "compare": ["compare", "--methods", "fedavg,fedper,local", "--seeds", "0,1", "--jobs", "2", *LONG],
    "one after the other": ["compare", "--methods", "fedavg,local", "--seeds", "0", "--jobs", "1", *LONG],
    "demo": ["demo", "--quiet"],
}
SENDERS = {
    "group": lambda process: os.killpg(process.pid, signal.SIGINT),  # Ctrl-C
    "parent": lambda process: process.send_signal(signal.SIGINT),
    "term": lambda process: process.send_signal(signal.SIGTERM),
}


def start(words: list[str], out: Path) -> subprocess.Popen[str]:
    """A command in a process group of its own, as a shell starts it."""
    target = [str(out)] if words[0] == "resume" else ["--out", str(out)]
    return subprocess.Popen([sys.executable, "-m", "posterity", *words, *target], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, start_new_session=True)  # fmt: skip


def begun(out: Path, rounds: int = 3, runs: int = 1) -> bool:
    """Whether so many runs below have trained for a while."""
    long = [path for path in out.rglob("metrics.jsonl") if len(path.read_text().splitlines()) > rounds]
    return len(long) >= runs


def wait_for(condition) -> None:
    end = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < end, "nothing happened for four minutes"
        time.sleep(0.05)


def members(group: int) -> list[int]:
    """The processes of a group that are alive."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its = path.read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(its) == group and state != "Z":
            found.append(int(path.parent.name))
    return found


def work_of(group: int) -> float:
    """Seconds for which the processes of a group were at work; how busy the machine is does not count."""
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in members(group)]
    return sum(sum(map(int, fields[11:15])) for fields in stats) / os.sysconf("SC_CLK_TCK")


def work_done() -> float:
    """The same of processes that have ended."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


@pytest.mark.parametrize("sender", SENDERS)
@pytest.mark.parametrize("command", [*COMMANDS, "resume"])
def test_one_signal_stops_everything_and_tells_how_to_go_on(command, sender, tmp_path):
    out, before = tmp_path / "the runs", work_done()
    process = start(COMMANDS["compare" if command == "resume" else command], out)
    wait_for(lambda: begun(out))
    if command == "resume":
        SENDERS["parent"](process)
        process.communicate(timeout=120)
        before = work_done()
        process = start(["resume", "--quiet", "--jobs", "2"], out)
        wait_for(lambda: len(members(process.pid)) > 1)
    then, done = time.monotonic(), work_of(process.pid)
    SENDERS[sender](process)
    _, said = process.communicate(timeout=600)
    print(f"{command}, {sender}: {time.monotonic() - then:.2f} s")
    assert work_done() - before - done < BOUND
    assert said == f"stopped; go on with: posterity resume '{out}'\n"
    assert process.returncode == (143 if sender == "term" else 130)
    assert members(process.pid) == []


def test_a_stopped_comparison_goes_on_to_the_same_end(tmp_path):
    words = ["100" if word == "400" else word for word in COMMANDS["compare"]]
    assert start(words, tmp_path / "whole").wait(timeout=600) == 0
    process = start(words, tmp_path / "cut")
    for sender in ("group", "term"):
        wait_for(lambda: begun(tmp_path / "cut"))
        SENDERS[sender](process)
        process.communicate(timeout=120)
        process = start(["resume", "--quiet", "--jobs", "2"], tmp_path / "cut")
    assert process.wait(timeout=600) == 0
    places = sorted(path.parent.relative_to(tmp_path / "whole") for path in (tmp_path / "whole").rglob("config.toml"))
    assert len(places) == 6
    for place in places:
        assert remains(tmp_path / "cut" / place) == remains(tmp_path / "whole" / place)


@pytest.mark.parametrize("command", ["compare", "demo"])
def test_a_killed_command_leaves_nothing(command, tmp_path):
    process = start(COMMANDS[command], tmp_path / "out")
    wait_for(lambda: begun(tmp_path / "out"))
    assert len(members(process.pid)) > 1
    process.kill()
    process.communicate(timeout=120)
    wait_for(lambda: members(process.pid) == [])


def test_a_killed_worker_is_named_and_the_others_go_on(tmp_path):
    process = start(COMMANDS["compare"], tmp_path / "out")
    wait_for(lambda: begun(tmp_path / "out", runs=2))  # both processes: whoever is killed has begun a run
    victim = next(pid for pid in members(process.pid) if pid != process.pid)
    os.kill(victim, signal.SIGKILL)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 2
    assert re.search(r"error: \w+ seed \d: its process was killed by SIGKILL .*; go on with: posterity resume", said)
    states = [files.read_json(path)["status"] for path in (tmp_path / "out").rglob("run.json")]
    assert sorted(states) == ["finished"] * 5 + ["running"]


def listening(pids: list[int]) -> list[str]:
    """The addresses that processes listen on, as the kernel writes them."""
    held = {os.readlink(fd) for pid in pids for fd in Path(f"/proc/{pid}/fd").iterdir() if fd.is_symlink()}
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in held:
                found.append(words[1].partition(":")[0])
    return found


def test_workers_listen_nowhere(tmp_path):
    process = start(COMMANDS["compare"], tmp_path / "out")
    try:
        wait_for(lambda: begun(tmp_path / "out"))
        found = listening(members(process.pid))
    finally:
        process.kill()
        process.communicate(timeout=120)
    assert found == []
