"""FedNP's toy regression: Table 4 of its paper, and runs that change one thing at a time.

    python recipes/fednp_table4.py --out DIR [--seeds 3] [--quick] [--findings [WORD]] [--no-table]
    python recipes/fednp_table4.py --from docs/results/raw/fednp.jsonl [--seeds 3]

Every method of the table exists here: FedAvg, FedProx, SCAFFOLD, FedPA and FedNP (MOON is in the authors' programme but
not in the table; it is not here). Local training and FedNP with quadrature (the paper's Quad-FedNP) are added.

The table is measured in two settings: `printed` is appendix D.2 read literally; in `scaled` the inputs are divided by 8
and the step size is 1, which brings FedAvg near the paper's number. `--findings` also does the runs that change one
thing (docs/results/fednp.md), or those of them whose setting or change has a word in it. DIR gets table4.md, and
table4.jsonl with a line a cell as soon as it is measured: every seed's errors, the command and the commit. `--from`
makes the tables of such a file again, with all of its seeds or the first few.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from common import spread, table, versions
from torch import Tensor

import posterity
from posterity.experiment.result import Result
from posterity.runs import files

Line = dict[str, Any]  # a cell: setting, method, what was changed, and each seed's errors

PRINTED: dict[str, Any] = {
    "dataset": "polynomial",
    "split": "100/0",
    "model": "cubic",
    "rounds": 10,
    "local_epochs": 1,
    "batch_size": 10,
    "optimiser": "rmsprop",
    "lr": 0.01,
}
SETTINGS = {"printed": PRINTED, "scaled": {**PRINTED, "lr": 1.0, "set": {"model.scale": 8.0}}}
FEDPA = {"burn_rounds": 0, "server_lr": 1.0, "server_momentum": 0.0}  # from the first round, without a server's step


@dataclass(frozen=True)
class Row:
    title: str
    method: str
    set: Mapping[str, Any] = field(default_factory=dict)  # settings of the method
    paper: str = "–"


TABLE = (
    Row("Local", "local"),
    Row("FedAvg", "fedavg", {}, "116.48 ± 2.54"),
    Row("FedProx, µ = 0.01", "fedprox", {"mu": 0.01}, "117.11 ± 2.96"),
    Row("SCAFFOLD, option I", "scaffold", {"variate": "I"}, "100.48 ± 3.24"),
    Row("FedPA, ρ = 0.01", "fedpa", FEDPA, "97.85 ± 3.44"),
    Row("FedNP, λ = 0.01", "fednp", {"moments": "closed", "lam": 0.01}, "72.42 ± 2.39"),
    Row("FedNP, λ = 10", "fednp", {"moments": "closed", "lam": 10.0}, "72.42 ± 2.39"),
    Row("Quad-FedNP, λ = 0.01", "fednp", {"lam": 0.01}),
    Row("Quad-FedNP, λ = 10", "fednp", {"lam": 10.0}),
)
HOST, WEAK, STRONG = Row("FedAvg", "fedavg"), TABLE[7], TABLE[8]
FIXED_F = Row("FedNP, λ = 0.01, detach_f = True", "fednp", {"moments": "closed", "lam": 0.01, "detach_f": True})


@dataclass(frozen=True)
class Finding:
    """One change of a setting, and the methods that it is measured for."""

    what: str
    setting: str
    flags: Mapping[str, Any] = field(default_factory=dict)
    set: Mapping[str, Any] = field(default_factory=dict)
    rows: tuple[Row, ...] = (HOST, WEAK, STRONG)


def prox(mu: float) -> Row:
    return Row(f"FedProx, µ = {mu:g}", "fedprox", {"mu": mu})


def quad(lam: float, **more: Any) -> Row:
    words = ", ".join([f"λ = {lam:g}", *(f"{name} = {value}" for name, value in more.items())])
    return Row(f"Quad-FedNP, {words}", "fednp", {"lam": lam, **more})


FINDINGS = (
    Finding("nothing", "printed"),
    Finding("first coefficients within ±0.05", "printed", set={"model.start": 0.05}),
    Finding("noise of sd 5", "printed", set={"data.noise": "sd"}),
    Finding("intercept 4", "printed", set={"data.intercept": 4.0}),
    Finding("equally spaced x", "printed", set={"data.spacing": "grid"}),
    Finding("4 local epochs", "printed", {"local_epochs": 4}),
    Finding("100 rounds", "printed", {"rounds": 100}),
    Finding("λ", "printed", rows=tuple(map(quad, (0.001, 0.1, 1.0, 100.0)))),
    Finding("ε", "printed", rows=(quad(0.01, eps=1e-4), quad(0.01, eps=1e-5))),
    Finding("the NPN also predicts the intercept", "printed", rows=(quad(0.01, biases=True), quad(10, biases=True))),
    Finding("one f for each of z", "printed", rows=(quad(0.01, f_output="vector"), quad(10, f_output="vector"))),
    Finding("f is not trained", "printed", rows=(quad(0.01, detach_f=True), quad(10, detach_f=True))),
    Finding("z is silent (τ₀ = 10⁶)", "printed", rows=(quad(10, tau0=1e6),)),
    Finding("FedProx with FedNP's pull λ/3ε", "printed", rows=(prox(1 / 3), prox(1000 / 3))),
    Finding("inputs divided by 8", "printed", set={"model.scale": 8.0}),
    Finding("inputs divided by 8, step 0.1", "printed", {"lr": 0.1}, {"model.scale": 8.0}),
    Finding("inputs divided by 8, step 0.3", "printed", {"lr": 0.3}, {"model.scale": 8.0}),
    Finding("inputs divided by 8, step 1 (the setting `scaled`)", "scaled"),
    Finding("inputs divided by 8, step 3", "printed", {"lr": 3.0}, {"model.scale": 8.0}),
    Finding("λ", "scaled", rows=tuple(map(quad, (0.001, 0.003, 0.03, 0.1, 1.0)))),
    Finding("the NPN also predicts the intercept", "scaled", rows=(quad(0.01, biases=True),)),
    Finding("f is not trained", "scaled", rows=(FIXED_F, quad(0.01, detach_f=True))),
    Finding("z is silent (τ₀ = 10⁶)", "scaled", rows=(quad(0.01, tau0=1e6),)),
    Finding("FedProx", "scaled", rows=tuple(map(prox, (0.01, 0.03, 0.1, 1 / 3, 1.0)))),
    Finding("FedNP on FedProx", "scaled", rows=(quad(0.01, mu=0.1),)),
    Finding("noise of sd 5", "scaled", set={"data.noise": "sd"}, rows=(HOST, WEAK)),
    Finding("4 local epochs", "scaled", {"local_epochs": 4}, rows=(HOST, WEAK)),
    Finding("20 rounds", "scaled", {"rounds": 20}, rows=(HOST, WEAK)),
    Finding("50 rounds", "scaled", {"rounds": 50}, rows=(HOST, WEAK)),
)


def settings(row: Row, setting: str, flags: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    base = SETTINGS[setting]
    return {**base, **flags, "method": row.method, "set": {**base.get("set", {}), **more, **row.set}}


def flags_of(finding: Finding, row: Row) -> str:
    """What to add to the setting's command line for this run."""
    changes = [f"--{name.replace('_', '-')} {value}" for name, value in finding.flags.items()]
    return " ".join(
        ["--method", row.method, *changes, *(f"--set {n}={v}" for n, v in {**finding.set, **row.set}.items())]
    )


def errors(result: Result) -> dict[str, float]:
    """Mean squared errors of the last models: on everybody's data, and as a mean over clients.

    Without a global model (Local), each client's model is tried on everybody's data and the mean over clients is taken.
    """
    federation, x = result.federation, result.federation.x
    pieces = [federation.train.client(k) for k in range(federation.members)]

    def gaps(client: int) -> Tensor:
        return torch.square(result.predict_proba(client, x)[:, 0] - federation.y)

    if result.config.method == "local":
        every = [gaps(k) for k in range(federation.members)]
        own = [float(every[k][rows].mean()) for k, rows in enumerate(pieces)]
        return {"pooled": float(torch.stack(every).mean()), "clientwise": sum(own) / len(own)}
    each = gaps(0)
    return {"pooled": float(each.mean()), "clientwise": sum(float(each[rows].mean()) for rows in pieces) / len(pieces)}


def measure(asked: Mapping[str, Any], seeds: int, quick: bool) -> dict[str, list[float]]:
    """Both errors for every seed."""
    short = {"rounds": 1} if quick else {}
    rounds = {**asked, **short}["rounds"]
    found = [errors(posterity.run(**{**asked, **short, "evaluate_every": rounds, "seed": s})) for s in range(seeds)]
    return {name: [each[name] for each in found] for name in found[0]}


def table_lines(seeds: int, quick: bool) -> Iterator[Line]:
    """The cells of the table."""
    for row in TABLE:
        for setting in SETTINGS:
            values = measure(settings(row, setting, {}, {}), seeds, quick)
            yield {"table": 4, "setting": setting, "method": row.title, "paper": row.paper, **values}


def finding_lines(word: str, seeds: int, quick: bool) -> Iterator[Line]:
    """The runs that change one thing, or those whose setting or change has `word` in it."""
    wanted = [f for f in FINDINGS if word in f"{f.setting}: {f.what}"]
    for finding in wanted[: 1 if quick else None]:
        for row in finding.rows:
            values = measure(settings(row, finding.setting, finding.flags, finding.set), seeds, quick)
            about = {"setting": finding.setting, "changed": finding.what, "method": row.title}
            yield {**about, "flags": flags_of(finding, row), **values}


def page(lines: Sequence[Line], seeds: int | None = None) -> str:
    """The table and the findings, of all seeds or the first `seeds`."""
    cells = {(line["method"], line["setting"]): line for line in lines if line.get("table") == 4}
    rows = []
    for row in TABLE:
        found = [cells.get((row.title, setting), {}) for setting in SETTINGS]
        values = [spread(each.get(name, [])[:seeds], 1.0) for each in found for name in ("pooled", "clientwise")]
        rows.append([row.title, row.paper, *values])
    names = [f"{setting}: {which}" for setting in SETTINGS for which in ("on everybody's data", "mean over clients")]
    parts = [table(["method", "paper", *names], rows)] if cells else []
    more = [
        [
            line["setting"],
            line["changed"],
            line["method"],
            str(len(line["pooled"][:seeds])),
            spread(line["pooled"][:seeds], 1.0),
            ", ".join(f"{v:.0f}" for v in line["pooled"][:seeds]),
            f"`{line['flags']}`",
        ]
        for line in lines
        if "changed" in line
    ]
    if more:
        parts.append(table(["setting", "changed", "method", "seeds", "MSE", "each seed", "flags"], more, 3))
    made = {f"`{line['command']}`, {line['versions']}" for line in lines}
    return "\n".join([*parts, "Mean ± sample sd over seeds 0, 1, … " + "; ".join(sorted(made)) + ".\n"])


def collect(asked: argparse.Namespace) -> list[Line]:
    """Measure, and write each cell as soon as it is there."""
    seeds = 1 if asked.quick else asked.seeds
    words = [word for word in sys.argv[1:] if word not in ("--out", str(asked.out))]
    facts = {"command": " ".join(["python", "recipes/fednp_table4.py", *words]), "versions": versions()}
    asked.out.mkdir(parents=True, exist_ok=True)
    found: list[Line] = []
    todo = [] if asked.no_table else [table_lines(seeds, asked.quick)]
    if asked.findings is not None:
        todo.append(finding_lines(asked.findings, seeds, asked.quick))
    with (asked.out / "table4.jsonl").open("w", encoding="utf-8") as file:
        for line in (line for lines in todo for line in lines):
            found.append({**line, **facts})
            file.write(json.dumps(found[-1], ensure_ascii=False) + "\n")
            file.flush()
            print(line["setting"], line.get("changed", ""), line["method"], spread(line["pooled"], 1.0), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="FedNP's toy regression: Table 4 of its paper.")
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--out", type=Path, help="folder for table4.md and table4.jsonl")
    place.add_argument("--from", type=Path, dest="file", help="print the tables of such a table4.jsonl")
    parser.add_argument("--seeds", type=int, help="how many: 3, or all that the file has")
    parser.add_argument("--quick", action="store_true", help="one seed, one round: does it run?")
    parser.add_argument("--findings", nargs="?", const="", metavar="WORD", help="also runs that change one thing")
    parser.add_argument("--no-table", action="store_true", help="only the findings")
    asked = parser.parse_args()
    torch.set_num_threads(1)  # sums in other pieces round otherwise, and RMSprop's first steps magnify that
    if asked.file is not None:
        print(page(files.read_lines(asked.file), asked.seeds))
        return
    asked.seeds = asked.seeds or 3
    text = page(collect(asked))
    (asked.out / "table4.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
