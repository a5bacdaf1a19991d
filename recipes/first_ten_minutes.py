"""The first ten minutes of a newcomer in a fresh virtual environment: every command is run, and its transcript kept.

    python recipes/first_ten_minutes.py --out docs/first_ten_minutes.md

The wheel is built and installed; then the demo, a table of one's own, a typo, a network and a method of one's own, a
mistake in it, a comparison that is interrupted, and predictions for new patients. A step that ends otherwise than it
should (its exit code, a text that must be there) ends the recipe: the page is written only if all did.
"""

from __future__ import annotations

import argparse
import datetime
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from posterity.experiment.facts import source_commit

ROOT = Path(__file__).parents[1]
MOST = 45  # lines of output that the page shows of a step
NET = """from torch import nn


class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(shape[0], 16), nn.Tanh())
        self.head = nn.Linear(16, classes)

    def forward(self, x):
        return self.head(self.body(x))
"""
HOW = """Written by `python recipes/first_ten_minutes.py --out docs/first_ten_minutes.md`: every command was run in a
fresh virtual environment with the wheel and nothing else ({installed}),
on {date} at commit {commit}."""
OWN = "--dataset hospitals.csv --target outcome --client-column hospital --rounds 20"


@dataclass(frozen=True)
class Step:
    """One command of the newcomer, and how it should end."""

    say: str
    command: str
    code: int = 0
    shows: tuple[str, ...] = ()
    interrupt: bool = False  # Ctrl-C as soon as runs have begun
    change: tuple[str, str, str] | None = None  # first replace in a file: its name, old, new


STEPS = (
    Step("What is there?", "posterity --version", shows=("0.",)),
    Step("The main job on data that come with the package.", "posterity demo --quiet --out demo",
         shows=("pFedVMP", "report:")),
    Step("A table of your own: rows of patients, a column that says whose they are.",
         "posterity run --method fedavg+ft --out mine " + OWN, shows=("FedAvg-FT", "accuracy", "report:")),
    Step("A typo in a column's name.", "posterity run --dataset hospitals.csv --target outcom --client-column hospital",
         2, ("outcome",)),
    Step("A typo in a method's name.", "posterity run --method fedavgg " + OWN, 2, ("fedavg",)),
    Step("A network of your own, a plain `nn.Module` in net.py.",
         "posterity run --method fedavg+ft --model net:Net --out net-run " + OWN, shows=("report:",)),
    Step("A method of your own: a file that works and is to be changed.", "posterity new method fedmine",
         shows=("fedmine.py",)),
    Step("The laws that every method must keep.", "posterity check fedmine:Fedmine", shows=("hold",)),
    Step("A mistake in it (`here.shared.parms`).", "posterity check fedmine:Fedmine", 1, ("fedmine.py", "parms"),
         change=("fedmine.py", "return here.shared.params\n", "return here.shared.parms\n")),
    Step("A comparison, interrupted by Ctrl-C.",
         "posterity compare --methods local,fedavg,fedavg+ft,fedprox[mu=0.1],fedprox[mu=1] --seeds 0-2 --out several "
         + OWN,
         130, ("posterity resume several",), interrupt=True),
    Step("It goes on.", "posterity resume several --quiet", shows=("FedProx", "report:")),
    Step("Predictions for patients who were never seen.", "posterity predict mine new.csv",
         shows=("row,client,predicted,p_alive,p_dead", "Cork")),
)  # fmt: skip


def write_patients(path: Path, rows: int, labels: bool, seed: int) -> None:
    """Patients of five hospitals in raw units: age, blood pressure, creatinine; the outcome depends on them."""
    draw = random.Random(seed)
    head = ["hospital", "age", "pressure", "creatinine", *(["outcome"] if labels else [])]
    lines = [",".join(head)]
    for i in range(rows):
        site = i % 5
        age, pressure, creatinine = draw.gauss(60 + 3 * site, 12), draw.gauss(130, 18), draw.lognormvariate(0.1, 0.35)
        risk = 0.06 * (age - 65) + 0.03 * (pressure - 130) * (1 if site % 2 else -1) + 1.2 * (creatinine - 1.2)
        label = "dead" if risk + draw.gauss(0, 0.8) > 0 else "alive"
        line = [
            ("Aachen", "Bonn", "Cork", "Delft", "Essen")[site],
            f"{age:.0f}",
            f"{pressure:.0f}",
            f"{creatinine:.2f}",
        ]
        lines.append(",".join([*line, *([label] if labels else [])]))
    path.write_text("\n".join(lines) + "\n")


def take(step: Step, place: Path, own: dict[str, str]) -> str:
    """The step's output, checked."""
    if step.change:
        name, old, new = step.change
        text = (place / name).read_text()
        if old not in text:
            raise SystemExit(f"{name} no longer holds {old!r}: mend the recipe")
        (place / name).write_text(text.replace(old, new))
    started = subprocess.Popen(f"exec {step.command}", shell=True, cwd=place, env=own, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip
    if step.interrupt:
        wait_for_runs(place / "several", started)
        os.killpg(started.pid, signal.SIGINT)
    output, _ = started.communicate(timeout=900)
    missing = [text for text in step.shows if text not in output]
    if started.returncode != step.code or missing:
        raise SystemExit(
            f"$ {step.command}\n{output}\nexit {started.returncode}, expected {step.code}; missing: {missing}"
        )
    return output


def wait_for_runs(folder: Path, started: subprocess.Popen[str]) -> None:
    """Until a run of the comparison has been finished and others have not."""
    while started.poll() is None and not any(folder.glob("*/seed-*/checkpoint.safetensors")):
        time.sleep(0.2)


def page(done: list[tuple[Step, str]], installed: str) -> str:
    """The transcript as Markdown."""
    how = HOW.format(installed=installed, date=datetime.date.today(), commit=source_commit())
    text = ["# The first ten minutes", "", how, ""]
    for step, output in done:
        lines = [
            line.rstrip() for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output).replace("\r", "\n").splitlines()
        ]
        if len(lines) > MOST:
            lines = [*lines[: MOST // 3], f"… {len(lines) - MOST} lines …", *lines[-2 * MOST // 3 :]]
        ends = f"\n(exit {step.code})" if step.code else ""
        text += [step.say, "", "```console", f"$ {step.command}", *lines, "```" if not ends else f"```{ends}", ""]
    return "\n".join(text).rstrip() + "\n"


def install(place: Path) -> Path:
    """A virtual environment with the wheel."""
    wheels, made = place / "wheels", place / "venv"
    subprocess.run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", wheels, ROOT], check=True)
    subprocess.run([sys.executable, "-m", "venv", made], check=True)
    pip = [made / "bin" / "pip", "install", "--quiet", "-c", ROOT / "constraints.txt"]
    subprocess.run([*pip, "torch==2.13.0"], check=True)
    subprocess.run([*pip, *wheels.glob("posterity-*.whl")], check=True)
    return made


def active(made: Path) -> tuple[dict[str, str], str]:
    """The variables of a shell in which an environment is active, and what is in it."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("POSTERITY", "PYTHON", "VIRTUAL"))}
    own |= {"PATH": f"{(made / 'bin').absolute()}{os.pathsep}{own['PATH']}", "COLUMNS": "80"}
    shown = subprocess.run([made / "bin" / "pip", "list", "--format", "freeze"], capture_output=True, text=True)
    names = ("torch", "numpy", "posterity")
    found = [line.replace("==", " ") for line in shown.stdout.splitlines() if line.startswith(names)]
    return own, ", ".join([f"Python {sys.version.split()[0]}", *found])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="page to write")
    parser.add_argument("--environment", type=Path, help="a virtual environment that has the wheel already")
    given = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background would ignore it
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        own, installed = active(given.environment or install(place))
        write_patients(place / "hospitals.csv", 735, True, seed=0)
        write_patients(place / "new.csv", 10, False, seed=1)
        (place / "net.py").write_text(NET)
        done = []
        for step in STEPS:
            print(f"$ {step.command}", flush=True)
            done.append((step, take(step, place, own)))
    given.out.write_text(page(done, installed))


if __name__ == "__main__":
    main()
