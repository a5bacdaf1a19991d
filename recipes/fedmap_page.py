"""FedMAP's tables from raw numbers: what `fedmap_tables.py` measured, beside what the paper prints.

A file of raw numbers has a line for every source (commit, versions, machine, command; numbered) and one for every run:
data, network, epochs, skew, method, seed, the number of its source, and every client's balanced accuracy in % at the
rounds that are shown. Everything on the page is made from these lines.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from common import beside, spread, table

from posterity.evaluate.paired import LEVEL
from posterity.evaluate.student import quantile

METRIC = "balanced_accuracy"  # erratum A8: the paper's "accuracy"
SKEWS = {"label": "Table 1, label skew", "feature": "Table 3, feature skew", "quantity": "Table 4, quantity skew"}
METHODS = {
    "local": "Individual",
    "fedmap": "FedMAP",
    "fedmap@paper": "FedMAP, ω of eq. 8",
    "fedbn": "FedBN",
    "fedprox": "FedProx",
    "fedavg": "FedAvg",
}
# Per client, as printed. All columns of the paper's tables are here; there are no others.
PAPER: dict[str, dict[str, list[float]]] = {
    "label": {
        "local": [84.51, 86.44, 86.95, 87.84, 88.08, 59.37, 65.17, 60.73, 57.68, 62.12],
        "fedmap": [86.91, 87.15, 87.01, 89.94, 89.08, 66.80, 73.02, 76.08, 71.66, 76.32],
        "fedbn": [67.49, 67.43, 69.18, 72.88, 71.53, 55.60, 57.68, 56.73, 54.76, 57.31],
        "fedprox": [53.16, 56.70, 55.37, 57.09, 55.42, 52.00, 52.57, 51.81, 51.56, 51.50],
        "fedavg": [52.19, 55.61, 54.79, 56.17, 53.92, 51.34, 51.65, 50.98, 51.36, 51.22],
    },
    "feature": {
        "local": [82.25, 86.24, 80.76, 88.07, 83.03, 80.27, 83.48, 82.21, 85.92, 85.78],
        "fedmap": [85.26, 88.94, 83.70, 89.70, 84.97, 83.39, 86.55, 85.38, 87.45, 87.38],
        "fedbn": [62.77, 65.86, 66.99, 65.32, 66.46, 61.08, 68.39, 64.47, 66.16, 66.33],
        "fedprox": [58.44, 64.28, 65.99, 62.09, 64.78, 58.92, 67.34, 61.25, 63.14, 63.77],
        "fedavg": [57.85, 65.35, 66.06, 63.46, 64.74, 60.03, 66.65, 61.54, 63.55, 62.53],
    },
    "quantity": {
        "local": [83.37, 88.10, 87.48, 84.40, 78.47, 61.62, 64.07, 63.83, 67.32, 64.04],
        "fedmap": [84.47, 89.64, 88.88, 86.95, 80.23, 65.48, 72.97, 67.10, 74.92, 71.74],
        "fedbn": [67.69, 72.41, 73.74, 71.38, 66.96, 56.28, 54.96, 48.58, 62.26, 61.99],
        "fedprox": [64.33, 70.10, 72.56, 69.19, 63.93, 54.49, 56.05, 45.45, 60.37, 57.03],
        "fedavg": [66.45, 70.22, 71.08, 68.82, 62.76, 53.96, 55.02, 46.33, 61.03, 59.73],
    },
}


DATA = {"paper": "text's data", "code": "code's data"}
NETWORKS = {"mlp": "plain", "mlp_bn": "batch norm"}
PAIRS = (("fedmap", "local"), ("fedmap", "fedmap@paper"), ("fedmap", "fedavg"), ("fedbn", "fedavg"),
         ("fedprox", "fedavg"))  # fmt: skip

Line = dict[str, Any]
Column = Mapping[int, Sequence[float]]  # of one method: seed → every client's balanced accuracy in %


class Setting(NamedTuple):
    """What the tables of one section have in common."""

    preset: str
    model: str
    epochs: int
    round: int

    def __str__(self) -> str:
        epochs = f"{self.epochs} epoch{'s' * (self.epochs > 1)}"
        return f"{DATA[self.preset]}, {NETWORKS[self.model]}, {epochs}, {self.round} rounds"


Found = dict[Setting, dict[str, dict[str, Column]]]  # setting → skew → method → numbers


def found_in(lines: Iterable[Line]) -> Found:
    """The runs of a file by setting, skew and method."""
    found: dict[Setting, dict[str, dict[str, dict[int, Sequence[float]]]]] = {}
    for line in (line for line in lines if "skew" in line):
        for round, clients in line["clients"].items():
            setting = Setting(line["preset"], line["model"], line["epochs"], int(round))
            skews = found.setdefault(setting, {})
            skews.setdefault(line["skew"], {}).setdefault(line["method"], {})[line["seed"]] = clients
    return dict(sorted(found.items()))  # type: ignore[arg-type]  # a mapping of mappings of dicts


# --- numbers ----------------------------------------------------------------------------------------------------------


def means(column: Column) -> dict[int, float]:
    """Mean over clients for every seed."""
    return {seed: statistics.fmean(clients) for seed, clients in sorted(column.items())}


def difference(first: Column, second: Column) -> str:
    """First minus second over the seeds that both have: mean and 95 % interval of Student's t."""
    one, two = means(first), means(second)
    gaps = [one[seed] - two[seed] for seed in one.keys() & two.keys()]
    if not gaps:
        return "–"
    mean = statistics.fmean(gaps)
    if len(gaps) == 1:
        return f"{mean:+.1f}"
    half = quantile(LEVEL, len(gaps) - 1) * statistics.stdev(gaps) / math.sqrt(len(gaps))
    return f"{mean:+.1f} [{mean - half:+.1f}, {mean + half:+.1f}]"


def distance(skew: str, columns: Mapping[str, Column]) -> tuple[float, float] | None:
    """How far the paper is: root mean square over columns of their means; mean absolute gap of columns and clients."""
    shared = [m for m in PAPER[skew] if columns.get(m)]
    if len(shared) < len(PAPER[skew]):
        return None
    gaps = [statistics.fmean(means(columns[m]).values()) - statistics.fmean(PAPER[skew][m]) for m in shared]
    clients = [
        abs(statistics.fmean(row[k] for row in columns[m].values()) - PAPER[skew][m][k])
        for m in shared
        for k in range(10)
    ]
    return math.sqrt(statistics.fmean(g * g for g in gaps)), statistics.fmean(clients)


def check_fedbn(found: Found) -> int:
    """In a network without norm layers FedBN is FedAvg: equal numbers, or an error. The number of runs compared."""
    compared = 0
    for setting, skews in found.items():
        for skew, columns in skews.items() if setting.model == "mlp" else ():
            bn, avg = columns.get("fedbn", {}), columns.get("fedavg", {})
            for seed in bn.keys() & avg.keys():
                compared += 1
                if bn[seed] != avg[seed]:
                    raise ValueError(
                        f"without norm layers FedBN must be FedAvg, but at {skew} skew, {setting}, seed {seed}: "
                        f"{bn[seed]} and {avg[seed]}"
                    )
    return compared


# --- tables -----------------------------------------------------------------------------------------------------------


def average_cell(column: Column, skew: str, method: str) -> str:
    """Mean over clients; the paper's is that of its column, not the printed one (erratum A7)."""
    printed = PAPER[skew].get(method)
    ours = spread(list(means(column).values()), 1.0)
    return beside(ours, f"{statistics.fmean(printed):.2f}" if printed else None)


def client_table(skew: str, columns: Mapping[str, Column]) -> str:
    """One of the paper's tables: ours, mean ± sd over seeds, and the paper's number in brackets."""
    rows = []
    for k in range(10):
        cells = [
            beside(
                spread([clients[k] for clients in columns.get(m, {}).values()], 1.0),
                f"{PAPER[skew][m][k]:.2f}" if m in PAPER[skew] else None,
            )
            for m in METHODS
        ]
        rows.append([str(k + 1), *cells])
    rows.append(["mean", *(average_cell(columns.get(m, {}), skew, m) for m in METHODS)])
    return table(["client", *METHODS.values()], rows)


def order(averages: Mapping[str, float]) -> str:
    """Methods from the best to the worst."""
    ranked = sorted(averages, key=averages.__getitem__, reverse=True)
    signs = [" = " if averages[a] == averages[b] else " > " for a, b in pairwise(ranked)]
    return "".join(METHODS[m] + sign for m, sign in zip(ranked, [*signs, ""], strict=True))


def overview(found: Found, skew: str) -> str:
    """Every setting of one of the paper's tables: means over clients, and how far the paper is."""
    rows = []
    for setting, skews in found.items():
        columns = skews.get(skew, {})
        if not columns:
            continue
        away = distance(skew, columns)
        cells = [spread(list(means(columns.get(m, {})).values()), 1.0) for m in METHODS]
        rows.append(
            [str(setting), *cells, *(f"{a:.1f}" for a in away or ())] if away else [str(setting), *cells, "–", "–"]
        )
    paper = [f"{statistics.fmean(PAPER[skew][m]):.1f}" if m in PAPER[skew] else "–" for m in METHODS]
    head = ["", *METHODS.values(), "columns off by", "clients off by"]
    return table(head, [["*the paper*", *paper, "", ""], *rows])


def paired(found: Found, skew: str) -> str:
    """Differences over the same seeds for every setting."""
    rows = [
        [str(setting), *(difference(skews[skew].get(a, {}), skews[skew].get(b, {})) for a, b in PAIRS)]
        for setting, skews in found.items()
        if skew in skews
    ]
    mean = {m: statistics.fmean(v) for m, v in PAPER[skew].items()}
    paper = [f"{mean[a] - mean[b]:+.1f}" if {a, b} <= mean.keys() else "–" for a, b in PAIRS]
    return table(["", *(f"{METHODS[a]} − {METHODS[b]}" for a, b in PAIRS)], [["*the paper*", *paper], *rows])


def halves(found: Found, skew: str) -> str:
    """Means over clients 1 to 5 and 6 to 10, the skewed ones."""
    shown = ("local", "fedmap", "fedavg")
    cuts = {"1–5": slice(5), "6–10": slice(5, None)}
    rows = []
    for setting, skews in found.items():
        columns = skews.get(skew, {})
        each = [spread([statistics.fmean(v[cut]) for v in columns.get(m, {}).values()], 1.0)
                for m in shown for cut in cuts.values()]  # fmt: skip
        rows.append([str(setting), *each])
    paper = [f"{statistics.fmean(PAPER[skew][m][cut]):.1f}" for m in shown for cut in cuts.values()]
    head = [f"{METHODS[m]}, clients {name}" for m in shown for name in cuts]
    return table(["", *head], [["*the paper*", *paper], *rows])


def orders(setting: Setting, found: Found) -> str:
    """The order of the methods in our runs and in the paper."""
    rows = []
    for skew, title in SKEWS.items():
        columns = found[setting].get(skew, {})
        shared = [m for m in PAPER[skew] if columns.get(m)]
        if not shared:
            rows.append(f"- {title}: nothing finished")
            continue
        ours = {m: statistics.fmean(means(columns[m]).values()) for m in shared}
        paper = {m: statistics.fmean(PAPER[skew][m]) for m in shared}
        verdict = "the paper's" if order(ours) == order(paper) else f"paper: {order(paper)}"
        rows.append(f"- {title}: {order(ours)} ({verdict})")
    return "\n".join(rows) + "\n"


def sources(lines: Iterable[Line]) -> str:
    """Where the numbers come from."""
    rows = []
    for line in (line for line in lines if "command" in line):
        facts = ", ".join(f"{k} {v}" for k, v in line.items() if k not in ("source", "command", "note"))
        rows.append(f"{line['source']}. `{line['command']}`; {facts}{'; ' * ('note' in line)}{line.get('note', '')}")
    return "\n".join(rows) + "\n"


def page(lines: Sequence[Line]) -> str:
    """All tables with what is needed to repeat them."""
    found = found_in(lines)
    parts = [
        "# FedMAP, Tables 1, 3 and 4\n",
        sources(lines),
        "Balanced accuracy in %, mean ± sample sd over seeds (each moves data, initial model and batches). MLP "
        "30-32-16-1, Adam 1e-3, batch 64, 2,000 samples a client, 70/30. Rule of selection: none (the last round "
        "shown), on everything held out. Individual and FedMAP are scored after local training, the others as "
        "received. Differences: over the same seeds, mean and 95 % interval of Student's t.\n",
        f"Without norm layers FedBN = FedAvg, every client's number, in all {check_fedbn(found)} pairs compared.\n",
    ]
    for skew, title in SKEWS.items():
        parts += [f"## {title}\n", overview(found, skew), paired(found, skew), halves(found, skew)]
    for setting, skews in found.items():
        parts += [f"## {setting}\n", orders(setting, found)]
        for skew, columns in skews.items():
            parts += [f"### {SKEWS[skew]}\n", client_table(skew, columns)]
    return "\n".join(parts)
