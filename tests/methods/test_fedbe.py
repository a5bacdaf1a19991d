"""FedBE: teachers and targets, distillation against a plain loop, its reduction to FedAvg, its bytes."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from oracles.sims import DOUBLE, Run, mlp, points, q2, same_bits, scalar_model, worst

from posterity import core
from posterity.core import Bag, Leaves, Now, Training, fold, make_key, permutation
from posterity.data.federation import Federation
from posterity.engine.cache import TraceCache, play
from posterity.methods import build
from posterity.methods.fedavg import FedAvg
from posterity.methods.fedbe import ORDER, SAMPLE, FedBE, gaussian_fit

TRAINING = Training(lr=0.1, batch=4)


def with_public(federation: Federation, rows: int = 10) -> Federation:
    """The first held-out rows once more, as the server's."""
    return replace(federation, public=federation.test.rows[:rows])


FEW = with_public(points((9, 5, 4)))


def some_models(count=3, seed=0):
    model = mlp(FEW)
    return model, [model.init(seed + k, DOUBLE) for k in range(count)]


def test_teachers_and_their_target():
    """The mean, the clients, the draws; the mean of their probabilities, sharpened by T."""
    model, (mean, one, two, drawn) = some_models(4)
    each = {n: torch.stack((one[n], two[n])) for n in mean}
    method = FedBE()
    teachers = method.teachers(mean, each, [drawn])
    assert [same_bits(a, b) for a, b in zip(teachers, (mean, one, two, drawn), strict=True)] == [True] * 4
    assert len(FedBE(clients_teach=False).teachers(mean, each, [drawn])) == 2
    x = FEW.x[FEW.public]
    plain = sum(torch.softmax(model(p, x)[0], -1) for p in (mean, one, two, drawn)) / 4
    assert float((method.target(teachers, x, model) - plain).abs().max()) < 1e-15
    sharp = plain**2 / (plain**2).sum(1, keepdim=True)
    assert float((FedBE(temperature=0.5).target(teachers, x, model) - sharp).abs().max()) < 1e-14
    logits = sum(model(p, x)[0] for p in (mean, one, two, drawn)) / 4
    for temperature in (1.0, 0.5):  # as MetaVD's release, which does not sharpen
        found = FedBE(mean_of="logits", temperature=temperature).target(teachers, x, model)
        assert float((found - torch.softmax(logits / temperature, -1)).abs().max()) < 1e-14
    assert float((torch.softmax(logits, -1) - plain).abs().max()) > 1e-3
    long = x.repeat(120, 1)  # more rows than are predicted at once
    assert float((method.target(teachers, long, model) - plain.repeat(120, 1)).abs().max()) < 1e-14


# --- the student ------------------------------------------------------------------------------------------------------
def test_an_epoch_is_ordered_once(monkeypatch):
    """On a GPU an order is as many launches as the rest of a step, or more; it was drawn at every step."""
    drawn = []
    monkeypatch.setattr(core, "permutation", lambda key, rows: drawn.append(rows) or permutation(key, rows))
    assert len(FedBE(server_batch=4, server_steps=7).batches(10, make_key(0))) == 7
    assert drawn == [10, 10, 10]


def test_batches_go_through_all_rows():
    method, key = FedBE(server_batch=4, server_steps=6), make_key(0)
    seen = method.batches(10, key)
    assert [len(rows) for rows in seen] == [4, 4, 2, 4, 4, 2]
    for epoch in (0, 3):
        assert torch.cat(seen[epoch : epoch + 3]).sort().values.tolist() == list(range(10))
    assert torch.cat(seen[:3]).tolist() != torch.cat(seen[3:]).tolist()
    assert torch.cat(seen[:3]).tolist() == permutation(fold(key, 0), 10).tolist()
    assert [len(rows) for rows in replace(method, server_steps=4).batches(10, key)] == [4, 4, 2, 4]


@pytest.mark.parametrize(
    ("steps", "start", "every", "chosen"),
    [
        (8, 0.75, 1, [6, 7]),
        (8, 0.5, 3, [4, 7]),
        (8, 1.0, 1, []),
        (72, 0.75, 3, [54, 57, 60, 63, 66, 69]),
        (3, 0, 2, [0, 2]),
    ],
)
def test_which_steps_are_averaged(steps, start, every, chosen):
    method = FedBE(server_steps=steps, swa_start=start, swa_every=every)
    assert [s for s in range(steps) if method.averages(s)] == chosen


@pytest.mark.parametrize("start", [0.5, 1.0])
def test_distillation_by_hand(start):
    """Against torch's own SGD and cross-entropy, with the same gradient; mean of the last two steps."""
    model, (mean, other) = some_models(2)
    x = FEW.x[FEW.public]
    target = torch.softmax(model(other, x)[0], -1)
    method = FedBE(server_steps=4, server_batch=4, server_lr=0.2, swa_start=start, swa_every=1)
    leaves = {n: p.clone().requires_grad_(n in model.trainable) for n, p in mean.items()}
    tool, kept = torch.optim.SGD(leaves.values(), 0.2, momentum=0.9, weight_decay=1e-5), []
    for rows in method.batches(len(x), make_key(7)):
        tool.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(leaves, x[rows])[0], target[rows])
        for leaf, slope in zip(leaves.values(), torch.autograd.grad(loss, list(leaves.values())), strict=True):
            leaf.grad = slope
        tool.step()
        kept.append({n: p.detach().clone() for n, p in leaves.items()})
    expected = {n: (kept[2][n] + kept[3][n]) / 2 if start == 0.5 else kept[3][n] for n in mean}
    found = method.distilled(mean, target, x, model, make_key(7))
    assert worst(found, expected) < 1e-14
    assert worst(found, mean) > 1e-3


def test_a_round_of_the_server():
    """`combine` is mean and variance, draws, target, student, in this order and with keys of their own."""
    model, (first, one, two) = some_models(3)
    x, key = FEW.x[FEW.public], make_key(9)
    each, size = {n: torch.stack((one[n], two[n])) for n in one}, torch.tensor([3.0, 1.0], dtype=DOUBLE)
    method = FedBE(samples=2, server_steps=3, server_lr=0.1)
    mean, variance = gaussian_fit(each, size)
    assert worst(mean, {n: 0.75 * one[n] + 0.25 * two[n] for n in one}) < 1e-15
    drawn = method.draws(mean, variance, list(mean), fold(key, SAMPLE))
    target = method.target([mean, one, two, *drawn], x, model)
    expected = method.distilled(mean, target, x, model, fold(key, ORDER))
    total = {"models": Bag(torch.tensor([0, 1]), {"n": size, "params": each})}
    state = method.combine(Leaves(first), total, Now(1, 5, key, 2, x, model))
    assert worst(state.params, expected) < 1e-15
    assert SAMPLE != ORDER


# --- reductions -------------------------------------------------------------------------------------------------------
def test_without_server_steps_it_is_fedavg():
    """Bit for bit: the same mean of the same messages."""
    model = mlp(FEW)
    silent = FedBE(TRAINING, samples=0, clients_teach=False, server_steps=0)
    runs = [Run(m, FEW, model).rounds(3) for m in (silent, FedAvg(TRAINING))]
    assert same_bits(runs[0].state.params, runs[1].state.params)
    assert same_bits(runs[0].outputs("received"), runs[1].outputs("received"))
    other = Run(FedBE(TRAINING, samples=1), FEW, model).rounds(1)
    assert worst(other.state.params, Run(FedAvg(TRAINING), FEW, model).rounds(1).state.params) > 1e-7


def test_a_lone_teacher_has_nothing_to_teach():
    """The mean alone is its own target: without weight decay the student stays."""
    model = mlp(FEW)
    alone = FedBE(TRAINING, samples=0, clients_teach=False, server_steps=4, server_weight_decay=0.0)
    runs = [Run(m, FEW, model).rounds(1) for m in (alone, FedAvg(TRAINING))]
    assert worst(runs[0].state.params, runs[1].state.params) < 1e-15


def test_identical_clients_teach_what_the_mean_knows():
    model, (one,) = some_models(1)
    each = {n: torch.stack((one[n], one[n])) for n in one}
    method = FedBE(server_weight_decay=0.0, floor=0.0, samples=2, server_steps=3)
    total = {"models": Bag(torch.tensor([0, 1]), {"n": torch.tensor([2.0, 7.0], dtype=DOUBLE), "params": each})}
    state = method.combine(Leaves(one), total, Now(1, 1, make_key(0), 2, FEW.x[FEW.public], model))
    assert worst(state.params, one) < 1e-15


def test_running_statistics_are_the_means():
    """Batch norm: drawn models and the student have the mean's statistics, clients keep their own as teachers."""
    model = mlp(FEW, norm=True)
    runs = [Run(m, FEW, model).rounds(1) for m in (FedBE(TRAINING, server_steps=2), FedAvg(TRAINING))]
    for name in model.buffers:
        assert torch.equal(runs[0].state.params[name], runs[1].state.params[name])
    assert any(not torch.equal(runs[0].state.params[n], runs[1].state.params[n]) for n in model.trainable)


def test_bytes_are_fedavgs():
    """d down, d and the number of samples up."""
    federation = FEW.to("cpu", torch.float32)
    logs = [
        Run(m, federation, mlp(federation), dtype=torch.float32).rounds(1).logs[0]
        for m in (FedBE(server_steps=1), FedAvg())
    ]
    d = 6 * 8 + 8 + 8 * 3 + 3
    assert logs[0].bytes_down == logs[1].bytes_down == 3 * 4 * d
    assert 0 <= logs[0].bytes_up - 3 * 4 * (d + 1) <= 3 * 8  # and who sent it


def test_bad_hyper_parameters():
    with pytest.raises(ValueError, match=r"there are none: give it some with --public 4%"):
        Run(FedBE(), points(), mlp(points()))
    with pytest.raises(ValueError, match=r"a regression was given: take fedavg"):
        Run(FedBE(), with_public(q2(), 1), scalar_model())
    for name in ("samples", "scale", "floor", "server_steps", "server_lr", "server_weight_decay", "swa_start"):
        with pytest.raises(ValueError, match=rf"{name} must be at least 0"):
            FedBE(**{name: -1})
    for name in ("server_batch", "swa_every"):
        with pytest.raises(ValueError, match=rf"{name} must be at least 1; 0 was given"):
            FedBE(**{name: 0})
    with pytest.raises(ValueError, match=r"swa_start must be at least 0 and at most 1; 1.5"):
        FedBE(swa_start=1.5)
    with pytest.raises(ValueError, match=r"temperature must be above 0; 0.0"):
        FedBE(temperature=0.0)
    with pytest.raises(ValueError, match=r"server_momentum must be at least 0 and below 1; 1.0"):
        FedBE(server_momentum=1.0)


def test_what_it_says_of_itself():
    assert "without labels" in FedBE().remarks(mlp(FEW))[0]
    paper = build("fedbe@paper")
    assert (paper.temperature, paper.server_steps, paper.server_batch, paper.swa_every) == (0.5, 1580, 128, 25)
    assert [s for s in range(1580) if paper.averages(s)][:2] == [500, 525]
    assert paper.local == Training(lr=0.01, epochs=20, momentum=0.9, weight_decay=1e-3)


def test_labels_of_public_rows_are_never_seen():
    """Other labels of the public rows change no bit."""
    y = FEW.y.clone()
    y[FEW.public] = 0
    runs = [Run(FedBE(TRAINING, server_steps=2), f, mlp(FEW)).rounds(1) for f in (FEW, replace(FEW, y=y))]
    assert same_bits(runs[0].state.params, runs[1].state.params)


def test_what_the_server_learns_can_be_recorded():
    """Recorded in the first round and replayed with the keys and models of later ones: the same bits as if called."""
    model, (first, *sent) = some_models(4)
    method = FedBE(samples=2, server_steps=5, server_batch=4, swa_start=0.4)
    plain, recorded = (Now(1, 3, make_key(1), 3, FEW.x[FEW.public], model, play=each) for each in
                       (Now.play, partial(play, TraceCache(patience=0), method)))  # fmt: skip
    ends = []
    for now in (plain, recorded):
        state = Leaves(first)
        for round in (1, 2, 3):
            models = {n: torch.stack([round * p[n] for p in sent]) for n in first}
            total = {"models": Bag(torch.arange(3), {"n": torch.tensor([4.0, 2.0, 1.0]).double(), "params": models})}
            state = method.combine(state, total, replace(now, round=round, key=fold(now.key, round)))
        ends.append(state.params)
    assert same_bits(*ends)
