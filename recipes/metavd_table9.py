"""MetaVD, Table 9: how many classes the clients of its CIFAR partitions have.

    python recipes/metavd_table9.py --out DIR [--seeds 3] [--draws 100] [--quick]

Each class of the 50,000 training pictures is divided among 130 clients by its own Dirichlet draw, at least one picture
a client. The paper prints mean ± sd over the clients of one draw. We show the same for every seed and, since one draw
is luck, how much the mean varies over `--draws` draws: z is the paper's distance from their mean in their deviations.
The paper's sd over clients is larger at small α̂ because of its last client, which has what flooring takes from the
others (`tests/recipes/test_metavd.py`); here no client is favoured by its number.

A partition looks at labels only, and the training sets have equally many pictures of every class (5,000 of 10, 500 of
100): labels of these counts take the place of the data. Where POSTERITY_DATA holds the stored halves of the data, their
label vectors are divided too; the paper has no number beside them. Writes DIR/metavd_table9.md and .json.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import beside, table, versions, write
from torch import Tensor

from posterity.data import parse_partition
from posterity.data.archives import read_npz
from posterity.data.official import VARIABLE

CLIENTS, ROWS = 130, 50_000
ALPHAS = (5.0, 0.5, 0.1)
CLASSES = {"CIFAR-100": 100, "CIFAR-10": 10}
# Mean and sd over the clients, as printed. All columns of the paper's table are here; there are no others.
PAPER: dict[str, dict[float, tuple[float, float]]] = {
    "CIFAR-100": {5.0: (99.78, 0.5), 0.5: (73.18, 5.2), 0.1: (33.78, 7.33)},
    "CIFAR-10": {5.0: (10.0, 0.0), 0.5: (9.10, 0.94), 0.1: (4.65, 1.49)},
}


@dataclass(frozen=True)
class Cell:
    """Classes per client in every draw."""

    means: list[float]
    deviations: list[float]  # over the clients, sample sd

    def shown(self, seeds: int) -> str:
        """Mean and sd over the clients, both averaged over the first draws, and how much the mean varies over them."""
        mean, deviation = statistics.fmean(self.means[:seeds]), statistics.fmean(self.deviations[:seeds])
        between = f", seeds ± {statistics.stdev(self.means[:seeds]):.2f}" if seeds > 1 else ""
        return f"{mean:.2f} ± {deviation:.2f}{between}"

    def distance(self, paper: float) -> float | None:
        """z of the paper's mean among the draws; None if they do not vary."""
        spread = statistics.stdev(self.means) if len(self.means) > 1 else 0.0
        return (paper - statistics.fmean(self.means)) / spread if spread else None


def published(classes: int) -> Tensor:
    """Labels with the class counts of the training set."""
    return torch.arange(classes).repeat_interleave(ROWS // classes)


def stored() -> dict[str, Tensor]:
    """Training labels of the stored halves, where the data folder has them."""
    found, folder = {}, os.environ.get(VARIABLE)
    for name, file in (("CIFAR-100", "cifar100/cifar100_half.npz"), ("CIFAR-10", "cifar10/cifar10_half_a.npz")):
        if not folder or not (Path(folder) / file).is_file():
            continue
        arrays = read_npz(Path(folder) / file)
        train = ~arrays["is_test"].astype(bool) if "is_test" in arrays else arrays["index"] < ROWS
        labels = arrays["fine" if "fine" in arrays else "labels"]
        found[name] = torch.from_numpy(labels[train].astype(np.int64))
    return found


def count_classes(labels: Tensor, alpha: float, seed: int) -> Tensor:
    """Classes of each client (130,)."""
    rows = parse_partition(f"dirichlet:{alpha}:1").divide(labels, CLIENTS, np.random.default_rng(seed))
    return torch.tensor([len(labels[own].unique()) for own in rows], dtype=torch.float64)


def measure(labels: Tensor, alpha: float, draws: int) -> Cell:
    each = [count_classes(labels, alpha, seed) for seed in range(draws)]
    return Cell([float(c.mean()) for c in each], [float(c.std()) for c in each])


def page(cells: dict[str, dict[float, Cell]], halves: dict[str, dict[float, Cell]], seeds: int) -> str:
    """The table with the paper beside ours, the distances, and the stored halves."""
    draws = len(next(iter(cells["CIFAR-10"].values())).means)
    head = ["classes per client: ours (paper)", *(f"α̂ = {a:g}" for a in ALPHAS)]
    rows = [[name, *(beside(cells[name][a].shown(seeds), "{:g} ± {:g}".format(*PAPER[name][a])) for a in ALPHAS)]
            for name in cells]  # fmt: skip
    text = table(head, rows)
    text += f"\nSeeds 0 … {seeds - 1}: mean ± sd over the 130 clients, and the sd of the mean over seeds.\n\n"
    head = [f"mean of {draws} draws, its sd, z of the paper", *head[1:]]
    text += table(head, [[name, *(_luck(cells[name][a], PAPER[name][a][0]) for a in ALPHAS)] for name in cells])
    if halves:
        head = ["stored half of the training set", *head[1:]]
        text += "\n" + table(head, [[n, *(c.shown(seeds) for c in row.values())] for n, row in halves.items()])
    return f"{text}\n{versions()}\n"


def _luck(cell: Cell, paper: float) -> str:
    z = cell.distance(paper)
    mean = f"{statistics.fmean(cell.means):.2f}"
    return f"{mean} ± 0" if z is None else f"{mean} ± {statistics.stdev(cell.means):.2f}, z = {z:+.1f}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the page and its numbers")
    parser.add_argument("--seeds", type=int, default=3, help="draws that the table shows")
    parser.add_argument("--draws", type=int, default=100, help="draws that say how much one varies")
    parser.add_argument("--quick", action="store_true", help="no more draws than seeds")
    asked = parser.parse_args(arguments)
    if asked.seeds < 1:
        parser.error("--seeds takes a number of at least 1")
    draws = asked.seeds if asked.quick else max(asked.draws, asked.seeds)
    cells = {name: {a: measure(published(kinds), a, draws) for a in ALPHAS} for name, kinds in CLASSES.items()}
    halves = {name: {a: measure(y, a, asked.seeds) for a in ALPHAS} for name, y in stored().items()}
    numbers: dict[str, Any] = {
        name: {f"{a:g}": {"means": c.means, "deviations": c.deviations, "paper": PAPER[name][a]}
               for a, c in row.items()} for name, row in cells.items()}  # fmt: skip
    text = page(cells, halves, asked.seeds)
    write(asked.out, "metavd_table9", text, numbers)
    print(text)


if __name__ == "__main__":
    main()
