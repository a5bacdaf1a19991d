"""FedNP's toy regression as a picture: three clients see three pieces of a parabola.

    python examples/fednp_toy.py --out DIR [--seed 0] [--quick]

Both panels show the truth, the data, each client's model after its local training and the average of all, on the left
for FedAvg and on the right for FedNP. The band is FedNP's own: each client's NPN turns q(z) into a Gaussian over the
polynomial's coefficients, hence over curves; the three are taken as one mixture with weights n_k, and the band is its
mean ± 3 standard deviations. DIR gets fednp_toy.png.
Needs matplotlib, which no extra of the package brings: pip install matplotlib
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, cast

import matplotlib as mpl
import torch
from torch import Tensor

import posterity
from posterity.core.tree import tree_rows
from posterity.engine.store import Store
from posterity.experiment.result import Result
from posterity.methods.fednp import spoken_of

mpl.use("Agg")
import matplotlib.pyplot as plt

COLOURS = ("tab:red", "tab:green", "tab:blue")
SETTING: dict[str, Any] = {"dataset": "polynomial", "split": "100/0", "model": "cubic", "local_epochs": 1,
                           "batch_size": 10, "optimiser": "rmsprop", "lr": 1.0}  # fmt: skip
FEDNP = {"lam": 0.01, "biases": True}  # the band needs a variance for the intercept too


def train(method: str, rounds: int, seed: int, **own: Any) -> Result:
    chosen = {"model.scale": 8.0, **own}  # inputs within ±1: one step size serves all powers
    return posterity.run(method=method, rounds=rounds, evaluate_every=rounds, seed=seed, set=chosen, **SETTING)


def band(result: Result, x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation at x (B,) of the mixture of curves that the clients' NPNs predict."""
    sim, z = result.setup.sim, result.state.totals
    params, h = result.state.params, sim.model.features(result.state.params, x)[0]
    names = spoken_of(params, sim.model, biases=True)
    columns = torch.cat([h if params[n].dim() > 1 else torch.ones_like(h[:, :1]) for n in names], 1)  # (B, 4)
    counts, records = sim.federation.train.counts.to(h), cast(Store, result.store).rows
    curves = []
    for k in range(sim.federation.members):
        mean, variance = result.method.classifier(tree_rows(records["npn"], k), z.mean(), z.covariance())
        curves.append(torch.stack((columns @ mean, columns**2 @ variance)))
    means, variances = torch.stack(curves, 1)  # (clients, B) each
    share = (counts / counts.sum())[:, None]
    centre = (share * means).sum(0)
    return centre, (share * (variances + (means - centre) ** 2)).sum(0).sqrt()


def error(result: Result) -> float:
    """Mean squared error of the average model on everybody's data."""
    federation = result.federation
    return float(((result.predict_proba(0, federation.x, show="last")[:, 0] - federation.y) ** 2).mean())


def draw(axes: Any, result: Result, x: Tensor) -> None:
    federation, flat = result.federation, x[:, 0]
    axes.plot(flat, -(flat**2) + 2 * flat + 5, "k--", lw=1, label="truth")
    for k, colour in enumerate(COLOURS):
        rows = federation.train.client(k)
        axes.plot(federation.x[rows, 0], federation.y[rows], "x", ms=4, color=colour)
        name = f"client {k + 1}"
        axes.plot(flat, result.predict_proba(k, x, "trained", "last")[:, 0], lw=1, color=colour, label=name)
    axes.plot(flat, result.predict_proba(0, x, show="last")[:, 0], "k", lw=2, label="average")
    if result.config.method == "fednp":
        mean, sd = band(result, x)
        axes.fill_between(flat, mean - 3 * sd, mean + 3 * sd, color="0.6", alpha=0.4, lw=0, label="NPN, ± 3 sd")
    axes.set(title=f"{result.method.label}: MSE {error(result):.0f}", xlabel="x", ylim=(-90, 40))
    axes.legend(fontsize=7, loc="lower center", ncols=2)


def main() -> None:
    parser = argparse.ArgumentParser(description="A picture of FedNP's toy regression.")
    parser.add_argument("--out", type=Path, required=True, help="folder for fednp_toy.png")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="one round: does it run?")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rounds = 1 if asked.quick else 10
    results = [train("fedavg", rounds, asked.seed), train("fednp", rounds, asked.seed, **FEDNP)]
    x = torch.linspace(-7.5, 8.5, 161)[:, None]
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for axes, result in zip(panels, results, strict=True):
        draw(axes, result, x)
        print(f"{result.method.label}: MSE on everybody's data {error(result):.1f}")
    asked.out.mkdir(parents=True, exist_ok=True)
    figure.savefig(asked.out / "fednp_toy.png", dpi=100)
    print(asked.out / "fednp_toy.png")


if __name__ == "__main__":
    main()
