"""posterity against other simulators on the same work: Flower (Ray), pfl and fluke, and a plain PyTorch loop.

    python benchmarks/peers.py --setup [--only pfl,...]     # makes the peers' environments in build/peers, from PyPI
    python benchmarks/peers.py [--only NAME,...] [--rounds 5] [--networks mlp,cnn] [--json FILE]

FedAvg, 50 clients with 40 synthetic images 1x28x28 each, batch 10, one epoch, SGD 0.01, all clients in every round, two
cores; `peers/workload.py` says it in code. Every runner is a script of its own, `peers/on_NAME.py`, in a process and an
environment of its own, one after another. `posterity` is what `posterity run` would do; `recorded` is the same after
the engine has recorded its operators, which `posterity run` does once a run is long enough to repay it.

Seconds a round are the median without the first round. Start-up is from the start of the process to the first round.
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
from dataclasses import dataclass
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
LIMIT = 1800  # seconds that one script may take


@dataclass(frozen=True)
class Run:
    """What came of one script: its report, or why there is none."""

    name: str
    network: str
    report: dict[str, Any] | None
    trouble: str = ""

    @property
    def seconds(self) -> float:
        """Of a round: the median without the first, which warms up."""
        assert self.report is not None
        return float(statistics.median(self.report["rounds"][1:] or self.report["rounds"]))


def install(name: str) -> None:
    """The environment of a peer; torch first, so that nothing later brings another build of it."""
    home = ENVIRONMENTS / name
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    for wanted in (TORCH, (*TORCH, *PACKAGES[name])):
        subprocess.run([str(home / "bin" / "pip"), "install", "--quiet", *wanted], check=True)


def run_script(name: str, work: dict[str, Any]) -> Run:
    """One runner in a process of its own."""
    python = Path(sys.executable) if name in OURS else ENVIRONMENTS / name / "bin" / "python"
    if not python.exists():
        return Run(name, work["network"], None, f"no environment: python benchmarks/peers.py --setup --only {name}")
    with tempfile.TemporaryDirectory() as elsewhere:  # some leave files where they are started
        command = [str(python), str(FOLDER / f"on_{name}.py"), json.dumps(work), repr(time.time())]
        try:
            done = subprocess.run(command, cwd=elsewhere, capture_output=True, text=True, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return Run(name, work["network"], None, f"not done after {LIMIT} s")
    return read_run(name, work["network"], done.returncode, done.stdout, done.stderr)


def read_run(name: str, network: str, status: int, output: str, errors: str) -> Run:
    """The report is the last line that is one; a failure is told by its last line."""
    lines = [line for line in output.splitlines() if line.startswith('{"name": ')]
    if status == 0 and lines:
        return Run(name, network, json.loads(lines[-1]))
    words = [line.strip() for line in (errors or output).splitlines() if line.strip()]
    return Run(name, network, None, f"failed: {words[-1] if words else f'exit status {status}'}")


def check_same_work(runs: list[Run]) -> None:
    """Networks of the same size from the same first loss, or the times mean nothing."""
    told = [run.report for run in runs if run.report]
    for what in ("parameters", "first_loss"):
        found = {round(report[what], 4): report["name"] for report in told}
        if len(found) > 1:
            raise ValueError(f"the runners do not do the same work: {what} are {found}")


def format_table(runs: list[Run]) -> str:
    """Lines of one network, as Markdown."""
    own = next((run.seconds for run in runs if run.name == "posterity" and run.report), None)
    lines = ["| runner | s a round | against posterity | first round, s | start-up, s | whole run, s | last loss |",
             "|---|--:|--:|--:|--:|--:|--:|"]  # fmt: skip
    for run in runs:
        if run.report is None:
            lines.append(f"| {run.name} | {run.trouble} | | | | | |")
            continue
        first, started = run.report["rounds"][0], run.report["startup"]
        factor = f"{run.seconds / own:.2f}×" if own else ""
        lines.append(f"| {run.name} | {run.seconds:.4f} | {factor} | {first:.2f} | {started:.2f} "
                     f"| {started + sum(run.report['rounds']):.2f} | {run.report['last_loss']:.4f} |")  # fmt: skip
    return "\n".join(lines)


def measure(names: list[str], work: dict[str, Any]) -> list[Run]:
    """All runners on one network, with the table and what each says about itself."""
    runs = []
    for name in names:
        runs.append(run_script(name, work))
        print(f"  {name}: {runs[-1].trouble or 'done'}, load {os.getloadavg()[0]:.2f}", file=sys.stderr, flush=True)
    check_same_work(runs)
    reports = [run.report for run in runs if run.report]
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
        runs = measure(options.names, work)
        found += [run.report or {"name": run.name, "network": network, "trouble": run.trouble} for run in runs]
    print(f"\nload {os.getloadavg()[0]:.2f} after")
    if options.json:
        options.json.write_text(json.dumps({"load": load, "runs": found}, indent=1))


if __name__ == "__main__":
    main()
