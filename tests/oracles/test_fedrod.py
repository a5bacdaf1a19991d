"""FedROD against its two losses minimised one after the other, by two `torch.optim` optimisers in plain loops."""

import pytest
import torch
import torch.nn.functional as F

from oracles.sims import DOUBLE, Run, each_engine, full_batch, mlp, points
from posterity.methods.fedrod import BIAS, WEIGHT, FedROD

SIZES, ROUNDS = (7, 3), 3
HOW = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "clip": {"clip": 0.05, "momentum": 0.5},
    "decay": {"weight_decay": 0.1},
}


def clipped(parameters, limit):
    if limit:
        torch.nn.utils.clip_grad_norm_(parameters, limit)


def reference(federation, initial, how, gamma, steps=3):
    """The generic model after ROUNDS rounds and every client's head, and its personal log-probabilities there."""
    w = {n: p.clone() for n, p in initial.items()}
    heads = [(torch.zeros(3, 8, dtype=DOUBLE), torch.zeros(3, dtype=DOUBLE)) for _ in SIZES]
    sgd = {n: v for n, v in how.items() if n != "clip"}
    for _ in range(ROUNDS):
        sent = []
        for k in range(len(SIZES)):
            rows = federation.train.client(k)
            x, y = federation.x[rows], federation.y[rows]
            counts = torch.bincount(y, minlength=3).clamp(min=1).double()
            model = {n: p.clone().requires_grad_() for n, p in w.items()}
            head = [p.clone().requires_grad_() for p in heads[k]]
            one, two = (torch.optim.SGD(p, 0.1, **sgd) for p in (list(model.values()), head))
            for _ in range(steps):
                z = torch.relu(x @ model["base.fc1.weight"].T + model["base.fc1.bias"])
                logits = z @ model["head.weight"].T + model["head.bias"]
                kept, seen = logits.detach().clone(), z.detach().clone()
                one.zero_grad()
                F.nll_loss(torch.log_softmax(logits + gamma * counts.log(), 1), y).backward()
                clipped(model.values(), how.get("clip"))
                one.step()
                two.zero_grad()
                F.cross_entropy(kept + seen @ head[0].T + head[1], y).backward()
                clipped(head, how.get("clip"))
                two.step()
            heads[k] = tuple(p.detach() for p in head)
            sent.append({n: p.detach() for n, p in model.items()})
        w = {n: sum(size * p[n] for size, p in zip(SIZES, sent, strict=True)) / sum(SIZES) for n in w}
    return w, heads


@each_engine
@pytest.mark.parametrize("name", HOW)
def test_two_optimisers_on_two_losses(engine, name):
    """To 1e-12, with momentum, clip and decay: neither optimiser sees the other's gradient."""
    federation = points(SIZES)
    method = FedROD(full_batch(3, **HOW[name]), gamma=0.5 if name == "plain" else 1.0)
    run = Run(method, federation, mlp(federation), engine).rounds(ROUNDS)
    w, heads = reference(federation, run.sim.initial, HOW[name], method.gamma)
    for n, p in w.items():
        assert float((run.state.params[n] - p).abs().max()) < 1e-12
    for k, (weight, bias) in enumerate(heads):
        assert float((run.store.rows[WEIGHT][k] - weight).abs().max()) < 1e-12
        assert float((run.store.rows[BIAS][k] - bias).abs().max()) < 1e-12
        x = federation.x[federation.test.client(k)]
        z = torch.relu(x @ w["base.fc1.weight"].T + w["base.fc1.bias"])
        logits = z @ w["head.weight"].T + w["head.bias"] + z @ weight.T + bias
        assert float((run.outputs("received")[k] - torch.log_softmax(logits, 1)).abs().max()) < 1e-11
