"""GPFL against its modules written in PyTorch, with three optimisers and autograd, round by round."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from oracles.sims import DOUBLE, Run, each_engine, full_batch, mlp, points
from posterity.methods.gpfl import ADDED, GPFL, TABLE

SIZES, ROUNDS, STEPS, LAM, MU = (7, 4), 3, 2, 0.3, 0.2


class Client(nn.Module):
    """Base, head, table and valve of one client."""

    def __init__(self):
        super().__init__()
        self.base, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        self.table = nn.Embedding(3, 8)
        self.gamma, self.beta = (nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.LayerNorm(8)) for _ in range(2))
        self.double()

    def bent(self, x, u):
        return F.relu(F.relu(self.base(x)) * (self.gamma(u) + 1) + self.beta(u))

    def load(self, params):
        """Takes over leaves under the names of the package."""
        places = {"base.fc1": self.base, "head": self.head, f"{ADDED}gamma": self.gamma, f"{ADDED}beta": self.beta}
        with torch.no_grad():
            self.table.weight.copy_(params[TABLE])
            for name, module in places.items():
                for n, p in module.named_parameters():
                    p.copy_(params[name + ("/" if name.startswith(ADDED) else ".") + n])

    def leaves(self):
        found = {f"base.fc1.{n}": p for n, p in self.base.named_parameters()}
        found |= {f"head.{n}": p for n, p in self.head.named_parameters()}
        found |= {f"{ADDED}{k}/{n}": p for k in ("gamma", "beta") for n, p in getattr(self, k).named_parameters()}
        return {n: p.detach().clone() for n, p in {**found, TABLE: self.table.weight}.items()}


def train(client, x, y, condition):
    received = client.table.weight.detach().clone()
    frequency = torch.bincount(y, minlength=3).to(DOUBLE) / len(y)
    common, personal = condition.mean(0), frequency @ condition
    groups = [[*client.base.parameters(), *client.head.parameters()], [client.table.weight]]
    groups.append([*client.gamma.parameters(), *client.beta.parameters()])
    optimisers = [torch.optim.SGD(g, 0.1, weight_decay=mu) for g, mu in zip(groups, (0.0, MU, MU), strict=True)]
    for _ in range(STEPS):
        seen = client.bent(x, common)
        loss = F.cross_entropy(client.head(client.bent(x, personal)), y)
        loss = loss + F.cross_entropy(F.linear(F.normalize(seen), F.normalize(client.table.weight)), y)
        loss = loss + LAM * torch.linalg.matrix_norm(seen - received[y])
        for each in optimisers:
            each.zero_grad()
        loss.backward()
        for each in optimisers:
            each.step()
    return client.leaves()


@each_engine
@pytest.mark.parametrize("lagged", [False, True])
def test_three_rounds(engine, lagged):
    """To 1e-11: leaves of the server, heads, and what predicts from the last table: received, or its own (`lagged`)."""
    federation = points(SIZES)
    run = Run(GPFL(full_batch(STEPS), LAM, MU, lagged), federation, mlp(federation), engine)
    w = {n: p.clone() for n, p in run.state.params.items()}
    heads = [{n: p for n, p in w.items() if n.startswith("head")} for _ in SIZES]
    tables = [torch.zeros_like(w[TABLE]) for _ in SIZES]
    run.rounds(ROUNDS)
    for _ in range(ROUNDS):
        sent = []
        for k in range(2):
            mine, client = federation.train.client(k), Client()
            client.load({**w, **heads[k]})
            sent.append(train(client, federation.x[mine], federation.y[mine], tables[k]))
            heads[k] = {n: p for n, p in sent[k].items() if n.startswith("head")}
        w = {n: sum(s * p[n] for s, p in zip(SIZES, sent, strict=True)) / sum(SIZES) for n in w}
        tables = [each[TABLE] if lagged else w[TABLE] for each in sent]
    for n, p in w.items():
        if not n.startswith("head"):
            assert float((run.state.params[n] - p).abs().max()) < 1e-11
    for k, head in enumerate(heads):
        for n, p in head.items():
            assert float((run.store.rows[n][k] - p).abs().max()) < 1e-11
        client, x = Client(), federation.x[federation.test.client(k)]
        client.load({**w, **head})
        frequency = torch.bincount(federation.y[federation.train.client(k)], minlength=3).to(DOUBLE) / SIZES[k]
        expected = torch.log_softmax(client.head(client.bent(x, frequency @ tables[k])), 1)
        assert float((run.outputs("received")[k] - expected).abs().max()) < 1e-11
