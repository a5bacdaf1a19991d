"""posterity against other simulators on the same work: Flower (Ray), pfl and fluke, and a plain PyTorch loop.

    python benchmarks/peers.py --setup [--only pfl,...]     # makes the peers' environments in build/peers, from PyPI
    python benchmarks/peers.py [--only NAME,...] [--rounds 5] [--repeats 1] [--quiet SECONDS] [--json FILE]

FedAvg, 50 clients with 40 synthetic images 1x28x28 each, batch 10, one epoch, SGD 0.01, all clients in every round, two
cores; `peers/workload.py` says it in code. Every runner is a script of its own, `peers/on_NAME.py`, in a process and an
environment of its own, one after another. `posterity` is what `posterity run` would do; `recorded` is the same after
the engine has recorded its operators, which `posterity run` does once a run is long enough to repay it.

Seconds a round are the median over all rounds but the first of each repeat. Two threads that wait for each other suffer
out of proportion from a third process, hence the fastest round beside the median, and --quiet, which waits up to so
many seconds before each script until the machine is idle. Start-up is from the start of the process to the first round.
All start from the same weights and differ in the order of samples, so their last losses are nearly equal; with
--images 10 a client has one batch, order does not matter, and they are equal up to rounding.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "peers"
ENVIRONMENTS = FOLDER.parents[1] / "build" / "peers"
TORCH = ("torch==2.13.0", "numpy==2.4.6")  # pinned as in the Makefile: a range would fetch a CUDA build
PACKAGES = {
    "flower": ("flwr[simulation]==1.41.0", "ray==2.55.1"),
    "pfl": ("pfl==0.6.0",),
    "fluke": ("fluke-fl==0.8.1", "torchvision==0.28.0"),
}
OURS = ("posterity", "recorded", "plain")  # run in the environment of this script
IDLE = 0.1  # share of the cores' time that an idle machine may be at work
LIMIT = 1800  # seconds that one script may take


@dataclass(frozen=True)
class Run:
    """What came of a runner on one network: a report for each repeat, or why there is none."""

    name: str
    network: str
    reports: tuple[dict[str, Any], ...] = ()
    trouble: str = ""

    @property
    def rounds(self) -> list[float]:
        """Seconds of the rounds that count: the first of each repeat warms up."""
        return [seconds for report in self.reports for seconds in report["rounds"][1:] or report["rounds"]]

    @property
    def seconds(self) -> float:
        return statistics.median(self.rounds)

    def usual(self, figure: Callable[[dict[str, Any]], float]) -> float:
        """The median over repeats."""
        return statistics.median(figure(report) for report in self.reports)


def install(name: str) -> None:
    """The environment of a peer; torch first, so that nothing later brings another build of it."""
    home = ENVIRONMENTS / name
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    for wanted in (TORCH, (*TORCH, *PACKAGES[name])):
        subprocess.run([str(home / "bin" / "pip"), "install", "--quiet", *wanted], check=True)


def await_quiet(limit: float) -> None:
    """Wait until other processes leave the machine alone, at most `limit` seconds."""
    end = time.monotonic() + limit
    while time.monotonic() < end and _share_at_work(3.0) > IDLE:
        pass


def _share_at_work(interval: float) -> float:
    """Share of all cores' time that was not idle."""

    def look() -> tuple[int, int]:
        times = [int(word) for word in Path("/proc/stat").read_text().split(maxsplit=9)[1:9]]
        return sum(times), times[3] + times[4]

    before, idle_before = look()
    time.sleep(interval)
    after, idle_after = look()
    return 1 - (idle_after - idle_before) / max(1, after - before)


def run_script(name: str, work: dict[str, Any]) -> Run:
    """One runner once, in a process of its own."""
    python = Path(sys.executable) if name in OURS else ENVIRONMENTS / name / "bin" / "python"
    if not python.exists():
        return Run(name, work["network"], (), f"no environment: python benchmarks/peers.py --setup --only {name}")
    with tempfile.TemporaryDirectory() as elsewhere:  # some leave files where they are started
        command = [str(python), str(FOLDER / f"on_{name}.py"), json.dumps(work), repr(time.time())]
        try:
            done = subprocess.run(command, cwd=elsewhere, capture_output=True, text=True, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return Run(name, work["network"], (), f"not done after {LIMIT} s")
    return read_run(name, work["network"], done.returncode, done.stdout, done.stderr)


def read_run(name: str, network: str, status: int, output: str, errors: str) -> Run:
    """The report is the last line that is one; a failure is told by its last line."""
    lines = [line for line in output.splitlines() if line.startswith('{"name": ')]
    if status == 0 and lines:
        return Run(name, network, (json.loads(lines[-1]),))
    words = [line.strip() for line in (errors or output).splitlines() if line.strip()]
    return Run(name, network, (), f"failed: {words[-1] if words else f'exit status {status}'}")


def join_repeats(runs: list[Run]) -> Run:
    """Repeats of one runner as one; a failure in any of them is a failure."""
    trouble = next((run.trouble for run in runs if run.trouble), "")
    reports = () if trouble else tuple(report for run in runs for report in run.reports)
    return Run(runs[0].name, runs[0].network, reports, trouble)


def check_same_work(runs: list[Run]) -> None:
    """Networks of the same size from the same first loss, or the times mean nothing."""
    for what in ("parameters", "first_loss"):
        found = {round(report[what], 4): run.name for run in runs for report in run.reports}
        if len(found) > 1:
            raise ValueError(f"the runners do not do the same work: {what} are {found}")


def format_table(runs: list[Run]) -> str:
    """Lines of one network, as Markdown."""
    own = next((run.seconds for run in runs if run.name == "posterity" and run.reports), None)
    titles = ("runner", "s a round", "against posterity", "fastest round", "first round, s", "start-up, s",
              "whole run, s", "last loss")  # fmt: skip
    lines = [f"| {' | '.join(titles)} |", "|---" + "|--:" * (len(titles) - 1) + "|"]
    for run in runs:
        if not run.reports:
            lines.append(f"| {run.name} | {run.trouble} |" + " |" * (len(titles) - 2))
            continue
        first, start = run.usual(lambda report: report["rounds"][0]), run.usual(lambda report: report["startup"])
        whole = run.usual(lambda report: report["startup"] + sum(report["rounds"]))
        loss = run.usual(lambda report: report["last_loss"])
        cells = (run.name, f"{run.seconds:.4f}", f"{run.seconds / own:.2f}×" if own else "", f"{min(run.rounds):.4f}",
                 f"{first:.2f}", f"{start:.2f}", f"{whole:.2f}", f"{loss:.4f}")  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def measure(names: list[str], work: dict[str, Any], repeats: int, quiet: float) -> list[Run]:
    """All runners in turn, so often, with the table and what each says about itself."""
    each: dict[str, list[Run]] = {name: [] for name in names}
    for _ in range(repeats):
        for name in names:
            await_quiet(quiet)
            each[name].append(run_script(name, work))
            told = f"{name}: {each[name][-1].trouble or 'done'}, load {os.getloadavg()[0]:.2f}"
            print(f"  {work['network']}, {told}", file=sys.stderr, flush=True)
    runs = [join_repeats(found) for found in each.values()]
    check_same_work(runs)
    reports = [run.reports[0] for run in runs if run.reports]
    size = f", {reports[0]['parameters']:,} parameters, first loss {reports[0]['first_loss']:.4f}" if reports else ""
    print(f"\n{work['network']}{size}\n\n{format_table(runs)}\n", flush=True)
    for report in reports:
        versions = ", ".join(f"{package} {version}" for package, version in report["versions"].items())
        print(f"  {report['name']}: {versions}" + (f"; {report['remark']}" if report["remark"] else ""))
    return runs


def parse() -> argparse.Namespace:
    everybody = [*OURS, *PACKAGES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setup", action="store_true", help="make the environments and stop")
    parser.add_argument("--only", default=",".join(everybody), help=f"some of {', '.join(everybody)}")
    parser.add_argument("--networks", default="mlp,cnn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--images", type=int, default=40, help="of each client")
    parser.add_argument("--repeats", type=int, default=1, help="starts of each runner, in turn")
    parser.add_argument("--quiet", type=float, default=0, help="wait up to so many seconds for an idle machine")
    parser.add_argument("--json", type=Path, help="also write the reports to this file")
    options = parser.parse_args()
    options.names = options.only.split(",")
    if unknown := set(options.names) - set(everybody):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; possible: {', '.join(everybody)}")
    return options


def main() -> None:
    options = parse()
    if options.setup:
        for name in options.names:
            if name in PACKAGES:
                print(f"{name}: {', '.join(PACKAGES[name])}", flush=True)
                install(name)
        return
    load = os.getloadavg()
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {load[0]:.2f} before, {options.rounds} rounds, seed 0")
    found = []
    for network in options.networks.split(","):
        work = {"network": network, "clients": options.clients, "images": options.images, "rounds": options.rounds}
        runs = measure(options.names, work, options.repeats, options.quiet)
        found += [asdict(run) for run in runs]
    print(f"\nload {os.getloadavg()[0]:.2f} after")
    if options.json:
        options.json.write_text(json.dumps({"load": load, "runs": found}, indent=1))


if __name__ == "__main__":
    main()
