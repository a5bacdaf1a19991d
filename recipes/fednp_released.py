"""FedNP's toy as its authors' programme does it, one switch at a time: where does the gap of Table 4 come from?

    python recipes/fednp_released.py --out DIR [--seeds 3] [--quick]

The released programme (repository CodePothunter/fednp) differs from the paper in ways that no federated method can
express, so this file is a simulation of its own and not a run of the library: it keeps

  - one RMSprop state, one f and one NPN, which go from client to client and are never averaged or started anew;
  - gradients that are never set to zero: every step follows the sum of all gradients so far, of all clients;
  - that sum clipped to the norm 1000 in the baselines, and not clipped in FedNP;
  - D_z = 1, f = tanh(MLP((ŷ − y)²)), the moments of errata N1 to N3, q(z) sent instead of the site, the weight 10,
    (θ − m)²/2s + s/2 for the divergence (18), 4 local epochs, steps that shrink by 0.9 a round.

The programme stops with an error, since the layers of its NPN do not fit (4 numbers into 2); here the second takes 4.
Facts were read from the programme; nothing was taken from it but its numbers.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from common import spread, table, versions, write
from torch import Tensor
from torch.func import grad

from posterity import data
from posterity.core.optim import RMSprop, clipped
from posterity.methods.fednp import log_power, npn_linear, npn_sigmoid

Leaves = dict[str, Tensor]
Normal = tuple[Tensor, Tensor]  # mean and variance of z
SHAPES = {"coef": (4,), "f.w1": (1, 1), "f.b1": (1,), "f.w2": (1, 1), "f.b2": (1,),
          "npn.w1": (1, 4), "npn.b1": (4,), "npn.w2": (4, 4), "npn.b2": (4,)}  # fmt: skip
START, RATE, SLOW, DECAY, EPOCHS, ROUNDS, BATCH = 0.05, 0.01, 0.0015, 0.9, 4, 10, 10
CODE = ((1.0, 0.0), (4 - 2 * 2**0.5, math.log(2**0.5 + 1)), (6 * (1 - 2**-1.5), math.log(2**1.5 - 1)))  # N2, N3
EPS = 1e-5


@dataclass(frozen=True)
class Switches:
    lam: float = 0.0  # weight of the auxiliary loss; 0 is FedAvg
    clip: float | None = None  # norm to which the gradient is clipped
    clear: bool = False  # whether gradients are set to zero before each step
    state: str = "shared"  # RMSprop's: shared by all clients, own of each, or new in every round
    silent: bool = False  # q(z) stays N(0, 1): nothing is learnt about z, nothing is sent


AVG, NP = Switches(clip=1000.0), Switches(lam=10.0)
ROWS = {
    "FedAvg as released": AVG,
    "FedNP as released": NP,
    "FedAvg without clipping (= FedNP with λ = 0)": replace(AVG, clip=None),
    "FedNP with the baselines' clipping": replace(NP, clip=1000.0),
    "FedNP, z silent": replace(NP, silent=True),
    "FedAvg, gradients cleared": replace(AVG, clear=True),
    "FedNP, gradients cleared": replace(NP, clear=True),
    "FedAvg, gradients cleared, no clipping": replace(AVG, clear=True, clip=None),
    "FedAvg, gradients cleared, no clipping, a state for each client": Switches(clear=True, state="own"),
    "FedNP, gradients cleared, a state for each client": replace(NP, clear=True, state="own"),
    "FedAvg, gradients cleared, no clipping, a new state each round": Switches(clear=True, state="new"),
    "FedNP, gradients cleared, a new state each round": replace(NP, clear=True, state="new"),
}


def powers(x: Tensor) -> Tensor:
    """x³, x², x, 1 (B, 4)."""
    return torch.stack((x**3, x**2, x, torch.ones_like(x)), 1)


def factor(p: Leaves, x: Tensor, y: Tensor) -> Tensor:
    """f of some samples."""
    residual = ((powers(x) @ p["coef"] - y) ** 2)[:, None]
    return torch.tanh(torch.relu(residual @ p["f.w1"] + p["f.b1"]) @ p["f.w2"] + p["f.b2"]).mean()


def tilted(cavity: Normal, f: Tensor) -> Normal:
    """Mean and variance of σ(f z) times the cavity, with the released constants and guards."""
    c, v = f * cavity[0], f * f * cavity[1]
    e1, e2, e3 = (torch.exp(log_power(c, v, a, b)) for a, b in CODE)
    first, mixed = (c + v) * e1 - v * e2, (c + 2 * v) * e2 - 2 * v * e3
    mean = first / (e1 * f + EPS)
    square = (v * e1 + (c + v) * first - v * mixed) / (e1 * f * f + EPS)
    return mean, torch.relu(square - mean**2) + EPS


def loss(p: Leaves, x: Tensor, y: Tensor, cavity: Normal, how: Switches) -> Tensor:
    value = ((powers(x) @ p["coef"] - y) ** 2).mean()
    if not how.lam:
        return value
    z_m, z_s = cavity if how.silent else tilted(cavity, factor(p, x, y))
    hidden = npn_sigmoid(*npn_linear(z_m, z_s, p["npn.w1"], p["npn.b1"]))
    mean, variance = npn_linear(*hidden, p["npn.w2"], p["npn.b2"])
    about = ((p["coef"] - mean) ** 2 / (2 * variance)).mean() + 0.5 * variance.mean()
    prior = 0.5 * (z_s + z_m**2 - 1 - torch.log(z_s)).mean()
    return value + how.lam * (about + prior)


def stepped(p: Leaves, slope: Leaves, state: Leaves, rate: float) -> tuple[Leaves, Leaves]:
    """One step of RMSprop: the coefficients at the full rate, f and the NPN at 0.15 of it."""
    new, after = {}, {}
    for name in p:
        optimiser = RMSprop(rate if name == "coef" else rate * SLOW / RATE)
        new[name], after[name] = optimiser.update(slope[name], state[name], p[name])
    return new, after


def others(sent: Sequence[Normal], k: int) -> Normal:
    """The product of what everybody but client k sent."""
    mean, variance = (torch.stack([q[i] for j, q in enumerate(sent) if j != k]) for i in (0, 1))
    weight = 1 / (variance + EPS)
    product = 1 / (weight.sum(0) + EPS)
    return product * (mean * weight).sum(0), product


def simulate(seed: int, how: Switches, rounds: int = ROUNDS) -> float:
    """Error of the averaged model on everybody's data after the last round."""
    options: dict[str, str | int | float] = {"noise": "sd", "intercept": 4.0, "spacing": "grid"}
    federation = data.load("polynomial", split="100/0", seed=seed, options=options)
    clients = [(federation.x[r, 0], federation.y[r]) for r in map(federation.train.client, range(3))]
    draw = torch.Generator().manual_seed(seed)
    p = {n: START * (2 * torch.rand(shape, generator=draw) - 1) for n, shape in SHAPES.items()}
    zero = {n: torch.zeros_like(leaf) for n, leaf in p.items()}
    states, slope, broadcast = [zero] * 3, zero, p["coef"]
    cavities = [(torch.zeros(1), torch.ones(1))] * 3
    slopes = grad(lambda p, x, y, cavity: loss(p, x, y, cavity, how))
    for t in range(rounds):
        sent, ends = [], []
        for k, (x, y) in enumerate(clients):
            p = {**p, "coef": broadcast}
            state = zero if how.state == "new" else states[k]
            for rows in (r for _ in range(EPOCHS) for r in torch.randperm(len(x), generator=draw).split(BATCH)):
                found = slopes(p, x[rows], y[rows], cavities[k])
                slope = found if how.clear else {n: slope[n] + found[n] for n in p}
                slope = clipped(slope, how.clip)
                p, state = stepped(p, slope, state, RATE * DECAY**t)
            states = [state] * 3 if how.state == "shared" else [state if j == k else s for j, s in enumerate(states)]
            sent.append(tilted(cavities[k], factor(p, x, y)))
            ends.append(len(x) * p["coef"])
        broadcast = torch.stack(ends).sum(0) / len(federation.x)
        cavities = cavities if how.silent else [others(sent, k) for k in range(3)]
    return float(((powers(federation.x[:, 0]) @ broadcast - federation.y) ** 2).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description="FedNP's released toy programme, one switch at a time.")
    parser.add_argument("--out", type=Path, required=True, help="folder for released.md and released.json")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one seed, one round: does it run?")
    asked = parser.parse_args()
    torch.set_num_threads(1)  # sums in other pieces round otherwise
    seeds, rounds = (1, 1) if asked.quick else (asked.seeds, ROUNDS)
    values = {name: [simulate(seed, how, rounds) for seed in range(seeds)] for name, how in ROWS.items()}
    head = ["programme", "MSE on everybody's data", "each seed"]
    cells = [[name, spread(v, 1.0), ", ".join(f"{e:.0f}" for e in v)] for name, v in values.items()]
    page = f"{table(head, cells)}\nSeeds 0 to {seeds - 1}, {rounds} rounds. {versions()}.\n"
    numbers = {name: {"mse": v, **asdict(ROWS[name])} for name, v in values.items()}
    write(asked.out, "released", page, {"rounds": rounds, "versions": versions(), "rows": numbers})
    print(page)


if __name__ == "__main__":
    main()
