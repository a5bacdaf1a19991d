"""The tables of docs/results/baselines.md from raw numbers: what every method reaches on digits, and what it costs.

    python recipes/baselines_page.py            # writes them between the marks of the page

The runs are packed (`posterity pack`) in docs/results/raw/baselines-*.jsonl.xz, the timings of `benchmarks/costs.py` in
costs-compiled-*.json beside them, a later file counts before an earlier one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from catalogue import everything
from common import table

from posterity.experiment.setup import load_federation
from posterity.report import Row, Run, complete, headline, load_runs
from posterity.settings.config import Config

ROOT = Path(__file__).parents[1]
PAGE, RAW = ROOT / "docs" / "results" / "baselines.md", ROOT / "docs" / "results" / "raw"
ALPHAS = ("0.1", "0.3")
SHOWN = ("accuracy", "worst10", "cov", "ece", "bytes")
HEADS = ("method", "accuracy, %", "lowest seed", "worst 10 %", "CoV", "ECE", "bytes a round", "rounds chosen")


def reached(rows: Sequence[Row]) -> str:
    """The table of a comparison."""
    lines = []
    for row in rows:
        cells = [row.cells[key].text for key in SHOWN]
        lowest = min(selected.value("accuracy", "pooled") or 0.0 for _, selected in row.picked)
        lines.append([row.label, cells[0], f"{100 * lowest:.1f}", *cells[1:], ", ".join(map(str, row.rounds))])
    return table(HEADS, lines)


def majority(alpha: str, seeds: Sequence[int] = range(5)) -> tuple[list[float], list[float]]:
    """Per seed the test accuracy of the most frequent label of all clients, and of each client's own."""
    common, own = [], []
    for seed in seeds:
        config = Config(dataset="digits", clients=20, partition=f"dirichlet:{alpha}", public="4%", seed=seed)
        federation = load_federation(config)
        train = [federation.y[federation.train.client(k)] for k in range(federation.clients)]
        test = [federation.y[federation.test.client(k)] for k in range(federation.clients)]
        rows = sum(map(len, test))
        most = [int(y.mode().values) if len(y) else 0 for y in train]
        everywhere = max(range(10), key=lambda c: sum(int((y == c).sum()) for y in train))
        common.append(sum(int((y == everywhere).sum()) for y in test) / rows)
        own.append(sum(int((y == c).sum()) for c, y in zip(most, test, strict=True)) / rows)
    return common, own


def milliseconds(runs: Sequence[Run]) -> float:
    """The median round of all these runs."""
    return 1000 * median(each.seconds for run in runs for each in run.rounds)


def measured_on_gpu() -> dict[str, dict[str, Any]]:
    """Every case of the benchmark: its row of the newest file that has it."""
    found: dict[str, dict[str, Any]] = {}
    for file in sorted(RAW.glob("costs-compiled-*.json")):
        for row in json.loads(file.read_text(encoding="utf-8"))["rows"]:
            if row["timing"] is not None and row["timing"]["rounds"]:
                found[row["case"]["name"]] = row
    return found


def as_run(timed: Mapping[str, dict[str, Any]], run: Run) -> dict[str, Any] | None:
    """The timing of a method with the settings of this run."""
    name, fields = run.config["method"], run.fields
    for case, each in timed.items():
        wanted = each["case"]["settings"]
        if case.partition(":")[0] == name and all(str(fields[key]) == value for key, value in wanted.items()):
            return each
    return None


def judged(gpu: Mapping[str, Any] | None) -> list[str]:
    """What it took, what was expected, and how these compare; empty where it was not timed."""
    return [f"{x:.2f}" for x in (gpu["ratio"], gpu["case"]["expected"], gpu["against"])] if gpu else ["", "", ""]


def costs(rows: Sequence[Row]) -> str:
    """What a round of each method costs, in rounds of FedAvg."""
    unit = next(row for row in rows if row.label == "FedAvg")
    timed, known = measured_on_gpu(), everything()["methods"]
    lines = []
    for row in sorted(rows, key=lambda row: str(row.arm.runs[0].config["method"])):
        name, gpu = str(row.arm.runs[0].config["method"]), as_run(timed, row.arm.runs[0])
        lines.append([
            row.label,
            "yes" if known[name]["plain_sum"] else "no",
            f"{row.cells['bytes'].mean / unit.cells['bytes'].mean:.2f}",
            f"{milliseconds(row.arm.runs) / milliseconds(unit.arm.runs):.1f}",
            *judged(gpu),
        ])  # fmt: skip
    return table(("method", "adds up", "bytes", "CPU", "GPU", "expected", "GPU ÷ expected"), lines)


def put(text: str, name: str, made: str) -> str:
    """`text` with `made` between the marks of this name."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    return re.sub(f"{re.escape(begin)}.*?{re.escape(end)}", f"{begin}\n{made}\n{end}", text, flags=re.DOTALL)


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for alpha in ALPHAS:
        rows = complete(headline(load_runs(RAW / f"baselines-{alpha}.jsonl.xz")))
        text = put(text, f"digits {alpha}", reached(rows))
        common, own = (", ".join(f"{100 * x:.1f}" for x in some) for some in majority(alpha))
        text = put(text, f"majority {alpha}", f"The most frequent class of all gives {common} % (seeds 0 to 4), "
                   f"each client's own most frequent class {own} %.")  # fmt: skip
        if alpha == ALPHAS[0]:
            text = put(text, "costs", costs(rows))
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
