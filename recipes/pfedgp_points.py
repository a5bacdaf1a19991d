"""MetaVD, Tables 8 and 12: pFedGP where a client is given points of every class while it is scored.

    python recipes/pfedgp_points.py --out DIR [--seeds 3] [--quick]

MetaVD's authors gave every client of pFedGP 40 or 50 labelled points of each class at evaluation, since a Gaussian
process knows no label that it has not seen. Here such points are rows that members gave to a public set (`--public`):
the same for everybody, and nobody trains on them in a round. Whoever is scored with points has them beside the own
training rows. FedAvg-FT, which then fine-tunes on the same points, is the control. Digits, test labels drawn
independently of a client's own (MetaVD's erratum M10), round chosen on validation without points, shown on test.
Writes DIR/pfedgp_points.md and .json; the runs lie in DIR and are not repeated.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from common import perform, spread, table, versions, write
from torch import Tensor

import posterity
from posterity import Federation, Result
from posterity.data import Part
from posterity.evaluate import METRICS, Statistics, score
from posterity.experiment.compare import Task
from posterity.experiment.setup import load_federation
from posterity.runs.folder import CONFIG
from posterity.settings.config import Config, from_table, read_toml

ALPHAS = (0.1, 0.5)
METHODS = {"fedavg": "FedAvg", "fedavg+ft": "FedAvg-FT", "pfedgp": "pFedGP"}
POINTS = {"fedavg": (0,), "fedavg+ft": (0, 25), "pfedgp": (0, 5, 25)}  # of every class
SETTING = {
    "dataset": "digits", "public": "40%", "clients": 30, "newcomers": "6", "test_partition": "independent",
    "participation": "5", "model": "metavd_cnn", "rounds": 150, "local_epochs": 5, "batch_size": 16, "lr": 0.02,
    "evaluate_every": 15, "evaluate_points": "own",
}  # fmt: skip
FIELDS = {"model.width": "16", "model.hidden": "64,32", "local.clip": "5"}
OWN = {"pfedgp": {"inference": "vb"}}


@dataclass(frozen=True)
class Scored:
    """A run's numbers with so many points of every class."""

    alpha: float
    method: str
    points: int
    seed: int
    round: int
    accuracy: float
    newcomers: float  # their accuracy
    ece: float  # the newcomers', over all class probabilities


def config_of(alpha: float, method: str, seed: int, quick: bool = False) -> Config:
    small = {"rounds": 2, "evaluate_every": 1} if quick else {}
    own = {**FIELDS, **OWN.get(method, {})}
    return from_table({**SETTING, **small, "partition": f"dirichlet:{alpha:g}:1", "method": method, "seed": seed,
                       "set": own})  # fmt: skip


def with_points(told: Federation, each: int) -> Federation:
    """The clients with `each` rows of every class beside their own training rows: the first public ones."""
    public = torch.zeros(0, dtype=torch.int64) if told.public is None else told.public
    found = [public[told.y[public] == c][:each] for c in range(told.classes)]
    if (least := min(map(len, found))) < each:
        raise ValueError(f"{each} points of every class are asked for, and of one there are {least} public rows: raise "
                         "'public', or ask for fewer")  # fmt: skip
    groups = [torch.cat((told.train.client(k), *found)) for k in range(told.clients)]
    return replace(told, train=Part.of(groups))


def outputs(result: Result, each: int) -> list[Tensor]:
    """What every client's model of the chosen round says about its test rows (n, classes)."""
    sim, delivery = result.setup.sim, result.delivered("validated")
    told = with_points(sim.federation, each)
    # without a folder, which has classifiers that were made of the clients' own rows
    given = replace(delivery, folder=None, setup=replace(result.setup, sim=replace(sim, federation=told)))
    with result.setup.settings.applied():
        return [given.predict(k, told.x[told.test.client(k)], given.point) for k in range(told.clients)]


def measure(result: Result, alpha: float, method: str, each: int) -> Scored:
    told, said = result.setup.sim.federation, outputs(result, each)
    members, late = range(told.members), range(told.members, told.clients)
    pooled = [_pooled(told, said, some) for some in (members, late)]
    values = {m.name: [float(m.compute(some)[0]) for some in pooled] for m in METRICS if m.name in
              ("accuracy", "ece_flat")}  # fmt: skip
    return Scored(alpha, method, each, result.config.seed, result.delivered("validated").round, *values["accuracy"],
                  values["ece_flat"][1])  # fmt: skip


def _pooled(told: Federation, said: Sequence[Tensor], clients: range) -> Statistics:
    """All test rows of some clients, as if they were one's."""
    rows = torch.cat([told.test.client(k) for k in clients])
    together = torch.cat([said[k] for k in clients])
    return Statistics(score(together, told.y[rows], torch.tensor([0, len(rows)]), told.classes, told.task))


def load(path: Path) -> Result:
    """A finished run with its clients' data, of which classifiers are made anew."""
    return posterity.load(path, federation=load_federation(from_table(read_toml(path / CONFIG))))


def page(found: Sequence[Scored]) -> str:
    """A table of all rows, the columns of the finding."""
    rows = []
    for alpha in ALPHAS:
        host = {each.seed: each.accuracy for each in _some(found, alpha, "fedavg", 0)}
        for method, counts in POINTS.items():
            for points in counts:
                mine = _some(found, alpha, method, points)
                gaps = ", ".join(f"{100 * (each.accuracy - host[each.seed]):+.1f}".replace("-", "−") for each in mine)
                rows.append([_name(alpha, method, points), spread([each.accuracy for each in mine]),
                             gaps if method != "fedavg" else "", spread([each.newcomers for each in mine]),
                             spread([each.ece for each in mine], digits=2)])  # fmt: skip
    return table(
        ["digits: points while scored", "accuracy, %", "minus FedAvg, by seed", "newcomers", "their ECE"], rows
    )


def _some(found: Sequence[Scored], alpha: float, method: str, points: int) -> list[Scored]:
    return [each for each in found if (each.alpha, each.method, each.points) == (alpha, method, points)]


def _name(alpha: float, method: str, points: int) -> str:
    given = f", {points} points of every class" if points else ""
    return f"{METHODS[method]}{given}, Dirichlet({alpha:g})"


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0 to this less one")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument("--quick", action="store_true", help="two rounds: shows that it runs")
    asked = parser.parse_args(given)
    places = {(alpha, method, seed): asked.out / f"{method}-{alpha:g}" / f"seed-{seed}"
              for alpha in ALPHAS for method in METHODS for seed in range(asked.seeds)}  # fmt: skip
    perform([Task(f"{m}, {a:g}, seed {s}", ((path, config_of(a, m, s, asked.quick)),))
             for (a, m, s), path in places.items()], asked.jobs)  # fmt: skip
    found = [measure(load(path), alpha, method, points) for (alpha, method, _), path in places.items()
             for points in POINTS[method]]  # fmt: skip
    write(asked.out, "pfedgp_points", page(found), {"versions": versions(), "scored": [asdict(each) for each in found]})
    print(page(found))


if __name__ == "__main__":
    main()

__all__ = ["Scored", "config_of", "load", "main", "measure", "outputs", "page", "with_points"]
