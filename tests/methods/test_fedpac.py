"""FedPAC: its pull, the heads that clients get back, its reductions. Its statistics and programme: tests/oracles."""

from dataclasses import replace

import pytest
import torch
from oracles.sims import (
    DOUBLE,
    ENGINES,
    Run,
    at,
    each_engine,
    federate,
    full_batch,
    mlp,
    points,
    q2,
    same_bits,
    scalar_model,
    worst,
)

from posterity import models
from posterity.core.common import count_labels
from posterity.core.passes import Training, base, descend, fit, fit_head, gather, head
from posterity.core.tree import tree_map, tree_rows
from posterity.methods import build
from posterity.methods.fedpac import FedPAC
from posterity.methods.fedper import FedPer, split

TRAINING = Training(lr=0.1, batch=4, epochs=2)


def numbers(*values) -> torch.Tensor:
    return torch.tensor(values, dtype=DOUBLE)


# --- a round ------------------------------------------------------------------------------------------------------
def two_layers(slope: float = 0.5):
    """z = b x, logits (h z, 0): one number of base and two of head."""
    net = torch.nn.Sequential()
    net.add_module("base", torch.nn.Linear(1, 1, bias=False))
    net.add_module("head", torch.nn.Linear(1, 2, bias=False))
    model = models.wrap(net, "head", 2, shape=(1,))
    return model, {"base.weight": numbers([1.0]), "head.weight": numbers([slope], [0.0])}


def pair():
    """Client 1: x = 1 of class 0; client 2: x = 2 and 4 of class 0 and −1 of class 1."""
    data = [(numbers([1.0]), torch.tensor([0])), (numbers([2.0], [4.0], [-1.0]), torch.tensor([0, 0, 1]))]
    return federate(data, 2, test=[(numbers([1.0]), torch.tensor([0]))] * 2)


def by_hand(rounds: int, lam: float, lr: float, head_lr: float):
    """Two clients in plain numbers, one full-batch step for the head and one for the base; α by a fine grid."""
    data = [([1.0], [0]), ([2.0, 4.0, -1.0], [0, 0, 1])]
    b, heads, prototypes = 1.0, [[0.5, 0.0], [0.5, 0.0]], {}
    for number in range(1, rounds + 1):
        sent, said, means = [], [], {}
        for k, (xs, ys) in enumerate(data):
            n, h = len(xs), list(heads[k])
            z = [b * x for x in xs]
            rows = [sum(zi for zi, y in zip(z, ys, strict=True) if y == c) / n for c in (0, 1)]
            said.append((rows, (sum(zi * zi for zi in z) / n - sum(r * r for r in rows)) / n))
            counts = [ys.count(c) for c in (0, 1)]
            before = [rows[c] * n / max(counts[c], 1) for c in (0, 1)]

            def chances(point, weights):
                e = [torch.exp(torch.tensor(w * point, dtype=DOUBLE)).item() for w in weights]
                return [v / sum(e) for v in e]

            slope = [0.0, 0.0]
            for zi, y in zip(z, ys, strict=True):
                p = chances(zi, h)
                slope = [slope[c] + (p[c] - (y == c)) * zi / n for c in (0, 1)]
            h = [h[c] - head_lr * slope[c] for c in (0, 1)]
            step = 0.0
            for x, zi, y in zip(xs, z, ys, strict=True):
                p = chances(zi, h)
                step += sum((p[c] - (y == c)) * h[c] for c in (0, 1)) * x / n
                if number > 1:
                    step += lam * 2 * (zi - prototypes.get(y, before[y])) * x / n
            mine = b - lr * step
            sent.append((n, mine, h))
            for x, y in zip(xs, ys, strict=True):
                means.setdefault(y, []).append(mine * x)
        b = sum(n * mine for n, mine, _ in sent) / sum(n for n, _, _ in sent)
        prototypes |= {c: sum(v) / len(v) for c, v in means.items()}
        new = []
        for i in (0, 1):
            gap = sum((p - q) ** 2 for p, q in zip(said[0][0], said[1][0], strict=True))
            v, w = said[i][1] + 1e-8, said[1 - i][1] + 1e-8 + gap  # weights a of its own and 1 − a
            a = w / (v + w) if v / (v + w) > 1e-3 else 1.0  # client 1 has one sample, so no variance
            new.append([a * p + (1 - a) * q for p, q in zip(sent[i][2], sent[1 - i][2], strict=True)])
        heads = new
    return b, heads, prototypes


@each_engine
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_two_clients_by_hand(engine, rounds):
    model, initial = two_layers()
    method = FedPAC(full_batch(1, 0.3), lam=0.7, head_lr=0.2)
    run = Run(method, pair(), model, engine, initial).rounds(rounds)
    b, heads, prototypes = by_hand(rounds, 0.7, 0.3, 0.2)
    assert float(run.state.params["base.weight"]) == pytest.approx(b, abs=1e-12)
    assert run.state.heads["head.weight"][:, :, 0].tolist() == [pytest.approx(h, abs=1e-9) for h in heads]
    assert run.state.prototypes[:, 0].tolist() == pytest.approx([prototypes[0], prototypes[1]], abs=1e-12)


def test_the_pull_begins_with_round_two():
    """Rounds count from 1: whatever λ, the first round ends alike, and the second does not."""
    model, initial = two_layers()
    runs = [Run(FedPAC(full_batch(1, 0.3), lam=lam), pair(), model, initial=initial).rounds(1) for lam in (0.0, 0.7)]
    assert worst(runs[0].state, runs[1].state) < 1e-15
    b = [float(run.rounds(1).state.params["base.weight"]) for run in runs]
    assert abs(b[0] - b[1]) > 1e-3
    for run, lam in zip(runs, (0.0, 0.7), strict=True):
        assert float(run.state.params["base.weight"]) == pytest.approx(by_hand(2, lam, 0.3, 0.1)[0], abs=1e-12)


def test_a_class_without_prototype_pulls_to_the_clients_mean():
    """Client 1 alone in round 1, so class 1 is unknown when client 2 comes in round 2."""
    model, initial = two_layers()
    method = FedPAC(full_batch(1, 0.1), lam=2.0, head_lr=0.0)
    run = Run(method, pair(), model, initial=initial).rounds(1, [0])
    assert run.state.known.tolist() == [1, 0]
    b, prototype = float(run.state.params["base.weight"]), float(run.state.prototypes[0, 0])
    run.rounds(1, [1])
    h = 0.5  # logit of class 0; the head does not move

    def slope(x, y):
        p = 1 / (1 + float(torch.exp(numbers(-h * b * x))))
        return (p - (y == 0)) * h * x

    pulled = sum(2.0 * 2 * (x * b - prototype) * x for x in (2.0, 4.0))  # the sample of class 1 is its mean: no pull
    expected = b - 0.1 * (slope(2.0, 0) + slope(4.0, 0) + slope(-1.0, 1) + pulled) / 3
    assert float(run.state.params["base.weight"]) == pytest.approx(expected, abs=1e-12)
    assert run.state.known.tolist() == [1, 1]


def test_the_pull_is_a_mean_over_features():
    """λ (1/D) ‖z − P_y‖², a mean over the batch: against autograd, on a trained server."""
    federation = points((9, 5))
    model = mlp(federation)
    method = FedPAC(full_batch(1, 0.1), lam=3.0, head_lr=0.0)
    run = Run(method, federation, model).rounds(1)
    before, prototypes = run.state.params, run.state.prototypes
    own = tree_rows(run.state.heads, 0)
    x, y = (part[federation.train.client(0)] for part in (federation.x, federation.y))

    def loss(below):
        params = {**before, **own, **below}
        z, _ = model.features(params, x)
        pull = sum(((z[i] - prototypes[y[i]]) ** 2).sum() / z.shape[1] for i in range(9)) / 9
        return torch.nn.functional.cross_entropy(model.logits(params, x), y) + 3.0 * pull

    below = split(before, model.head_names)[0]
    slope = torch.func.grad(loss)(below)
    run.rounds(1, [0])
    expected = {n: below[n] - 0.1 * slope[n] for n in below}
    assert worst(split(run.state.params, model.head_names)[0], expected) < 1e-13


class Rep(FedPer):
    """FedRep by hand: an epoch for the head with the base in evaluation mode, then the base.

    It walks over its data once before, as FedPAC does for its statistics: the order of samples knows which pass it is.
    """

    def passes(self):
        first = descend(fit_head, replace(self.local, lr=0.2).make_optimiser(), head, batch=4, epochs=1)
        return gather("count", count_labels), first, self.local.descend(fit, base)


@pytest.mark.parametrize(("engine", "norm"), [(ENGINES[0], False), (ENGINES[1], True)], ids=["oracle", "stacked"])
def test_without_pull_and_collaboration_it_is_fedrep(engine, norm):
    """Bit for bit."""
    federation = points((9, 5, 1))
    local = replace(TRAINING, momentum=0.5)
    methods = FedPAC(local, lam=0.0, head_lr=0.2, collaboration=False), Rep(local)
    pac, rep = (Run(m, federation, mlp(federation, norm=norm), engine).rounds(2) for m in methods)
    known = split(pac.state.params, pac.state.head)[0]
    assert same_bits(known, split(rep.state.params, rep.state.head)[0])
    assert same_bits(pac.state.heads, dict(rep.store.rows))
    assert [torch.equal(a, b) for a, b in zip(pac.outputs("received"), rep.outputs("received"), strict=True)] == [
        True] * 3  # fmt: skip


def test_one_client_collaborates_with_nobody():
    federation = points((7,))
    runs = [Run(FedPAC(TRAINING, collaboration=c), federation, mlp(federation)).rounds(2) for c in (True, False)]
    assert same_bits(runs[0].state, runs[1].state)


def test_the_base_rests_while_the_head_trains():
    federation = points((9, 5))
    run = Run(FedPAC(replace(TRAINING, lr=0.0), lam=0.0), federation, mlp(federation)).rounds(1)
    below, first = (split(params, run.state.head)[0] for params in (run.state.params, run.sim.initial))
    assert worst(below, first) < 1e-15
    assert worst(run.state.heads["head.weight"][0], run.sim.initial["head.weight"]) > 1e-3
    assert worst(run.outputs("received"), run.outputs("adapted", epochs=1)) > 1e-4


# --- who gets which head ------------------------------------------------------------------------------------------
def test_newcomers_and_clients_not_met_get_the_mean_head():
    federation = points((9, 5, 4))
    model = mlp(federation)
    method = FedPAC(TRAINING)
    run = Run(method, federation, model).rounds(2, [0, 1])
    one = Run(replace(method, collaboration=False), federation, model).rounds(1, [0, 1])
    for each in (run, one):
        _, mean = method.offer(each.state, None)
        _, unmet = method.offer(each.state, torch.tensor(2))
        _, met = method.offer(each.state, torch.tensor(0))
        assert same_bits(mean, unmet)
        assert worst(mean, met) > 1e-4
    rows = tree_rows(one.state.heads, [0, 1])
    assert worst(method.offer(one.state, None)[1], tree_map(lambda h: (9 * h[0] + 5 * h[1]) / 14, rows)) < 1e-15


def test_an_absent_client_keeps_its_head():
    federation = points((9, 5, 4))
    run = Run(FedPAC(TRAINING), federation, mlp(federation)).rounds(1)
    before = tree_map(torch.clone, tree_rows(run.state.heads, 1))
    others = tree_map(torch.clone, tree_rows(run.state.heads, 0))
    run.rounds(2, cohort=[0, 2])
    assert same_bits(before, tree_rows(run.state.heads, 1))
    assert worst(others, tree_rows(run.state.heads, 0)) > 1e-3


def test_a_class_that_no_member_of_the_cohort_has_keeps_its_prototype():
    model, initial = two_layers()
    run = Run(FedPAC(full_batch(1, 0.3)), pair(), model, initial=initial).rounds(1)
    before = run.state.prototypes.clone()
    run.rounds(1, [0])  # has class 0 only
    assert torch.equal(run.state.prototypes[1], before[1])
    assert run.state.known.tolist() == [1, 1]
    assert not torch.equal(run.state.prototypes[0], before[0])


def test_bytes():
    """Down: base, head, prototypes and which are known. Up: base, head, H, class means with counts, V, n twice, id."""
    federation = points((5, 9, 4))
    log = Run(FedPAC(), federation, mlp(federation), dtype=torch.float32).rounds(1).logs[0]
    below, top, classes = 6 * 8 + 8, 8 * 3 + 3, 3
    assert log.bytes_down == 3 * 4 * (below + top + classes * 8 + classes)
    assert log.bytes_up == 3 * (4 * (below + top + 2 * classes * 8 + 1 + classes + 2) + 8)


def test_refusals():
    with pytest.raises(ValueError, match="FedPAC speaks about classes; this task is regression"):
        Run(FedPAC(), q2(), scalar_model(), initial=at(0.0))
    federation = points((9, 5))
    with pytest.raises(ValueError, match="the network 'linear' has no base that could be trained"):
        Run(FedPAC(), federation, models.build("linear", federation.shape, 3))


def test_the_papers_values():
    local = Training(lr=0.01, epochs=5, batch=50, momentum=0.5, weight_decay=5e-4)
    assert build("fedpac@paper") == FedPAC(local, lam=1.0, head_lr=0.1, head_epochs=1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lam": -1.0}, "lam must be at least 0"),
        ({"lam": float("nan")}, "lam must be a finite number; nan"),
        ({"head_lr": -0.1}, "head_lr must be at least 0"),
        ({"head_epochs": 0}, "head_epochs must be at least 1"),
        ({"collaboration": "sometimes"}, "collaboration takes true or false"),
    ],
)
def test_bad_hyper_parameters(given, message):
    with pytest.raises(ValueError, match=message):
        FedPAC(**given)
