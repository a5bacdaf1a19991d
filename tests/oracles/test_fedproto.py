"""FedProto against plain loops over clients, samples and classes, with PyTorch's own optimiser."""

import pytest
import torch
import torch.nn.functional as F

from oracles.sims import DOUBLE, Run, each_engine, full_batch, mlp, points
from posterity.methods.fedproto import FedProto

SIZES, ROUNDS, CLASSES = (7, 3), 3, 4  # two clients of four classes, so that some are missing


def features(model, x):
    return torch.relu(x @ model["base.fc1.weight"].T + model["base.fc1.bias"])


def reference(federation, initial, lam, weighting, steps=3):
    """The prototypes after ROUNDS rounds as a dict by class, and the clients' networks."""
    networks, prototypes = [{n: p.clone() for n, p in initial.items()} for _ in SIZES], {}
    for _ in range(ROUNDS):
        sums = {c: [torch.zeros(8, dtype=DOUBLE), 0] for c in range(CLASSES)}
        for k in range(len(SIZES)):
            mine = federation.train.client(k)
            x, y = federation.x[mine], federation.y[mine]
            model = {n: p.clone().requires_grad_() for n, p in networks[k].items()}
            sgd = torch.optim.SGD(model.values(), 0.1, momentum=0.5)
            for _ in range(steps):
                sgd.zero_grad()
                z = features(model, x)
                target = torch.stack([prototypes.get(int(c), row.detach()) for c, row in zip(y, z, strict=True)])
                loss = F.cross_entropy(z @ model["head.weight"].T + model["head.bias"], y)
                (loss + lam * F.mse_loss(z, target)).backward()
                sgd.step()
            networks[k] = {n: p.detach() for n, p in model.items()}
            for c in y.unique().tolist():
                weight = int((y == c).sum()) if weighting == "counts" else 1
                sums[c][0] += weight * features(networks[k], x[y == c]).mean(0)
                sums[c][1] += weight
        prototypes |= {c: total / weight for c, (total, weight) in sums.items() if weight}
    return prototypes, networks


@each_engine
@pytest.mark.parametrize("weighting", ["uniform", "counts"])
def test_three_rounds(engine, weighting):
    """To 1e-11: the mean squared error of all samples and features, samples without prototype adding nothing."""
    federation = points(SIZES, classes=CLASSES)
    run = Run(FedProto(full_batch(3, momentum=0.5), 0.7, weighting), federation, mlp(federation), engine).rounds(ROUNDS)
    prototypes, networks = reference(federation, run.sim.initial, 0.7, weighting)
    assert [c for c in range(CLASSES) if run.state.known[c]] == sorted(prototypes)
    for c, p in prototypes.items():
        assert float((run.state.prototypes[c] - p).abs().max()) < 1e-11
    for k, network in enumerate(networks):
        for n, p in network.items():
            assert float((run.store.rows[n][k] - p).abs().max()) < 1e-11
