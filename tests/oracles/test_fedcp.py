"""FedCP against its modules written in PyTorch, with softmax gates, loops over pairs and autograd, round by round."""

import torch
import torch.nn.functional as F

from oracles.sims import Run, each_engine, full_batch, mlp, points
from posterity.methods import fedcp
from posterity.methods.fedcp import POLICY, FedCP

SIZES, ROUNDS, STEPS, LAM, NOISE = (5, 3), 3, 2, 0.8, 0.4


def discrepancy(x, y):
    """The mean over all pairs, one by one."""

    def mean(a, b):
        pairs = [torch.exp(-((p - q) ** 2).sum() / (2 * s)) for p in a for q in b for s in (10, 15, 20, 50)]
        return torch.stack(pairs).sum() / (len(a) * len(b))

    return mean(x, x) + mean(y, y) - 2 * mean(x, y)


def forward(p, fixed, z, v, noise):
    """Logits by both heads; one of each pair of gates is moved by the noise."""
    hidden = F.layer_norm((z * v) @ p[f"{POLICY}/0.weight"].T + p[f"{POLICY}/0.bias"], (16,),
                          p[f"{POLICY}/1.weight"], p[f"{POLICY}/1.bias"])  # fmt: skip
    first, second = F.relu(hidden).split(8, 1)
    r, rest = torch.softmax(torch.stack([first + noise, second]), 0)
    return (r * z) @ p["head.weight"].T + p["head.bias"] + (rest * z) @ fixed["head.weight"].T + fixed["head.bias"]


def base(p, x):
    return F.relu(x @ p["base.fc1.weight"].T + p["base.fc1.bias"])


def train(w, head, x, y):
    fixed, p = w, {n: leaf.clone().requires_grad_() for n, leaf in {**w, **head}.items()}
    v = F.normalize(head["head.weight"].sum(0), dim=0)
    sgd = torch.optim.SGD(p.values(), 0.1)
    for _ in range(STEPS):
        z = base(p, x)
        loss = F.cross_entropy(forward(p, fixed, z, v, NOISE), y) + LAM * discrepancy(z, base(fixed, x))
        sgd.zero_grad()
        loss.backward()
        sgd.step()
    after = {n: leaf.detach() for n, leaf in p.items()}
    mixed = {n: (after[n] + fixed[n]) / 2 for n in head}
    return {**after, **mixed}, {n: after[n] for n in head}


@each_engine
def test_three_rounds(engine, monkeypatch):
    """To 1e-11, with a constant in place of the noise: it moves the gates of training and not those of predictions."""
    monkeypatch.setattr(fedcp, "logistic", lambda key, like: torch.full_like(like, NOISE))
    federation = points(SIZES)
    run = Run(FedCP(full_batch(STEPS), LAM), federation, mlp(federation), engine)
    w = {n: leaf.clone() for n, leaf in run.state.params.items()}
    heads = [{n: leaf for n, leaf in w.items() if n.startswith("head")} for _ in SIZES]
    run.rounds(ROUNDS)
    for _ in range(ROUNDS):
        sent = []
        for k in range(2):
            mine = federation.train.client(k)
            told, heads[k] = train(w, heads[k], federation.x[mine], federation.y[mine])
            sent.append(told)
        w = {n: sum(s * p[n] for s, p in zip(SIZES, sent, strict=True)) / sum(SIZES) for n in w}
    for n, leaf in w.items():
        assert float((run.state.params[n] - leaf).abs().max()) < 1e-11
    for k, head in enumerate(heads):
        for n, leaf in head.items():
            assert float((run.store.rows[n][k] - leaf).abs().max()) < 1e-11
        z = base(w, federation.x[federation.test.client(k)])
        v = F.normalize(head["head.weight"].sum(0), dim=0)
        expected = torch.log_softmax(forward({**w, **head}, w, z, v, 0.0), 1)
        assert float((run.outputs("received")[k] - expected).abs().max()) < 1e-11
