"""Ready-made passes: gather, sample, meta, deal, and which leaves move; through the engines, with Q2's numbers."""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch
from oracles.sims import (
    DOUBLE,
    ENGINES,
    WEIGHT,
    Run,
    at,
    federate,
    full_batch,
    mlp,
    points,
    q2,
    quadratics,
    scalar_model,
)
from torch.func import vmap

from posterity import models
from posterity.core.optim import SGD
from posterity.core.passes import (
    Training,
    base,
    deal,
    descend,
    everything,
    fit,
    fit_head,
    gather,
    head,
    meta,
    sample,
    trainable,
    watched,
)
from posterity.core.protocol import Batch, Carry, Here, tuned
from posterity.core.random import make_key
from posterity.core.tree import tree_map, tree_rows
from posterity.engine import keys
from posterity.engine.blocks import receive_stack
from posterity.engine.engines import ORACLE, STACKED
from posterity.methods.fedavg import FedAvg

each_engine = pytest.mark.parametrize("engine", ENGINES, ids=lambda e: e.name)


@dataclass(frozen=True)
class Walking(FedAvg):
    """FedAvg with other passes."""

    work: tuple = ()

    def passes(self):
        return self.work


def kept(federation, engine, *passes, model=None, initial=None):
    """What the passes leave behind, and the parameters, for each client."""
    model = scalar_model() if model is None else model
    run = Run(Walking(work=passes), federation, model, engine, initial)
    clients = torch.arange(federation.clients)
    here, _ = receive_stack(run.sim, engine, run.state, run.store, clients, 1)
    carry = engine.work(run.sim, passes, engine.start(run.sim, here), here, keys.TRAIN)
    if isinstance(carry, list):
        return [(c.kept, c.params) for c in carry]
    return [(tree_rows(carry.kept, k), tree_rows(carry.params, k)) for k in clients.tolist()]


# --- meta ------------------------------------------------------------------------------------------------------------
FIRST_ROUND = {"exact": 0.216, "hessian_free": 0.216, "first": 0.36}
FIXED = {"exact": 1.92, "hessian_free": 1.92, "first": 2.1818181818}


@each_engine
@pytest.mark.parametrize("order", FIRST_ROUND)
def test_meta_on_q2(engine, order):
    """Three copies of each sample: support, query and, for a difference, the third part; α = β = 0.1, one step.

    Gradient of f(θ − α∇f(θ)): A(1 − αA)²(θ − m); without second derivatives A(1 − αA)(θ − m). From 0: client 2 gives
    −4·0.36·3 = −4.32 or −4·0.6·3 = −7.2, so the mean moves by 0.1·4.32/2 = 0.216 or 0.36.
    """
    step = meta(fit, fit, 0.1, SGD(0.1), order=order, batch=None)
    method = Walking(work=(step,))
    assert Run(method, q2(3), scalar_model(), engine, at(0.0)).rounds(1).scalar() == pytest.approx(
        FIRST_ROUND[order], abs=1e-10
    )
    there = Run(method, q2(3), scalar_model(), engine, at(FIXED[order])).rounds(1)
    assert there.scalar() == pytest.approx(FIXED[order], abs=1e-9)


@each_engine
@pytest.mark.parametrize("order", FIRST_ROUND)
@pytest.mark.parametrize("inner", [2, 3])
def test_meta_with_several_inner_steps_on_q2(engine, order, inner):
    """k steps contract by (1 − αA)^k, and their derivative is that again: A(1 − αA)^2k (θ − m), or ^k at first order.

    Fixed point for c = A(1 − αA)^power of the two clients (A = 1, 4; m = 0, 3): 3 c₂ / (c₁ + c₂).
    """
    power = inner if order == "first" else 2 * inner
    c1, c2 = 0.9**power, 4 * 0.6**power
    method = Walking(work=(meta(fit, fit, 0.1, SGD(0.1), order=order, inner=inner, batch=None),))
    once = Run(method, q2(3), scalar_model(), engine, at(0.0)).rounds(1).scalar()
    assert once == pytest.approx(0.1 * c2 * 3 / 2, abs=1e-9)
    there = Run(method, q2(3), scalar_model(), engine, at(3 * c2 / (c1 + c2))).rounds(1).scalar()
    assert there == pytest.approx(3 * c2 / (c1 + c2), abs=1e-9)


@pytest.mark.parametrize("how", [{"fast": 0.0}, {"fast": 0.1, "inner": 0}], ids=["no size", "no step"])
@pytest.mark.parametrize("order", FIRST_ROUND)
def test_meta_without_a_fast_step_descends_on_the_query(order, how):
    """α = 0 or no inner step: plain descent on the query; with equal rows, FedAvg."""
    step = meta(fit, fit, optimiser=SGD(0.1), order=order, batch=None, **how)
    run = Run(Walking(work=(step,)), q2(3), scalar_model(), initial=at(0.0)).rounds(1)
    assert run.scalar() == pytest.approx(0.6, abs=1e-12)


def test_meta_of_an_unknown_order():
    with pytest.raises(ValueError, match="order 'second' is unknown; possible: exact, first, hessian_free"):
        meta(fit, fit, 0.1, SGD(0.1), order="second")


@pytest.mark.parametrize(("order", "queries", "rows"), [("exact", 1, 2), ("first", 2, 3), ("hessian_free", 1, 3)])
def test_meta_leaves_no_sample_idle(order, queries, rows):
    """Every row of the smallest batch that can be dealt has a say in the step."""
    federation = points((rows,))
    model = mlp(federation, hidden=(32,))  # wide: no sample meets dead units only
    work = meta(fit, fit, 0.3, SGD(0.5), order=order, queries=queries, batch=None, shuffle=False)
    ((_, before),) = kept(federation, ENGINES[0], work, model=model)
    for row in range(rows):
        changed = points((rows,))
        changed.x[changed.train.rows[row]] += 1
        ((_, after),) = kept(changed, ENGINES[0], work, model=model)
        assert any(not torch.equal(before[n], after[n]) for n in before)


@pytest.mark.parametrize("delta", [1e-4, 1e-2, 1.0])
def test_hessian_free_is_exact_on_quadratics(delta):
    step = meta(fit, fit, 0.1, SGD(0.1), order="hessian_free", delta=delta, batch=None)
    run = Run(Walking(work=(step,)), q2(3), scalar_model(), initial=at(1.0))
    exact = Run(Walking(work=(meta(fit, fit, 0.1, SGD(0.1), batch=None),)), q2(3), scalar_model(), initial=at(1.0))
    assert run.rounds(1).scalar() == pytest.approx(exact.rounds(1).scalar(), abs=1e-9)


@pytest.mark.parametrize(("inner", "queries"), [(1, 1), (3, 1), (2, 2)])
def test_exact_meta_gradient_against_differences(inner, queries):
    """One step of size 1 moves by the gradient of f_query(θ − α∇f_support(θ)), here on a small network."""
    federation = points((9,))
    model = mlp(federation, hidden=(4,))
    initial = model.init(3, DOUBLE)
    rows = federation.train.client(0)
    step = meta(fit, fit, 0.3, SGD(1.0), batch=None, shuffle=False, inner=inner, queries=queries)
    ((_, moved),) = kept(federation, ENGINES[0], step, model=model, initial=initial)
    x, y = federation.x[rows], federation.y[rows]

    def ahead(params):
        def loss(p, part):
            return torch.nn.functional.cross_entropy(model(p, x[part])[0], y[part])

        turn = torch.arange(9) % (1 + queries)
        for _ in range(inner):
            live = {n: p.clone().requires_grad_() for n, p in params.items()}
            slopes = torch.autograd.grad(loss(live, turn == 0), list(live.values()))
            params = {n: p - 0.3 * g for (n, p), g in zip(params.items(), slopes, strict=True)}
        return float(loss(params, turn > 0))

    name, tiny = "base.fc1.weight", 1e-6
    for place in ((0, 0), (2, 3)):
        shifted = []
        for sign in (1, -1):
            params = {n: p.clone() for n, p in initial.items()}
            params[name][place] += sign * tiny
            shifted.append(ahead(params))
        slope = (shifted[0] - shifted[1]) / (2 * tiny)
        assert float(initial[name][place] - moved[name][place]) == pytest.approx(slope, abs=1e-7)


# --- deal ------------------------------------------------------------------------------------------------------------
def test_deal_splits_evenly_and_disjointly():
    batch = Batch(torch.arange(8.0)[:, None], torch.arange(8), torch.tensor([1.0] * 7 + [0.0]))
    parts = deal(batch, 1, 1, 1)
    assert [p.y.tolist() for p in parts] == [[0, 3, 6], [1, 4, 7], [2, 5]]
    assert [p.mask.tolist() for p in parts] == [[1, 1, 1], [1, 1, 0], [1, 1]]


@pytest.mark.parametrize("shares", [(1, 1), (1, 2), (2, 1), (1, 2, 1)])
def test_deal_gives_every_row_once_and_padding_moves_nobody(shares):
    for rows in range(sum(shares), 14):
        batch = Batch(torch.zeros(rows, 1), torch.arange(rows), torch.ones(rows))
        parts = deal(batch, *shares)
        assert sorted(y for p in parts for y in p.y.tolist()) == list(range(rows))
        longer = Batch(torch.zeros(rows + 5, 1), torch.arange(rows + 5), torch.ones(rows + 5))
        for part, wide in zip(parts, deal(longer, *shares), strict=True):
            assert wide.y[: len(part.y)].tolist() == part.y.tolist()
    assert [p.y.tolist() for p in deal(Batch(torch.zeros(7, 1), torch.arange(7), torch.ones(7)), 1, 2)] == [
        [0, 3, 6],
        [1, 2, 4, 5],
    ]


def test_a_batch_without_padding_has_no_mask_for_layers():
    """What is made of its rows is an ordinary batch again, and a stack of such batches keeps what it is."""
    batch = Batch(torch.zeros(4, 1), torch.arange(4), torch.ones(4))
    assert batch.layer_mask is batch.mask
    known = replace(batch, padded=False)
    assert known.layer_mask is None
    assert all(part.padded for part in deal(known, 1, 1))
    seen = []
    vmap(lambda b: seen.append(b.layer_mask) or b.mask)(tree_map(lambda leaf: leaf[None], known))
    assert seen == [None]


def test_deal_of_a_tiny_batch_masks_what_is_not_there():
    parts = deal(Batch(torch.ones(1, 1), torch.zeros(1), torch.ones(1)), 1, 1, 1)
    assert [float(p.mask.sum()) for p in parts] == [1, 0, 0]
    assert all(len(p.x) == 1 for p in parts)


# --- gather ----------------------------------------------------------------------------------------------------------
@each_engine
@pytest.mark.parametrize("batch", [None, 1, 4, 100])
def test_gather_adds_up_over_any_batches(engine, batch):
    """Σ y and n of every client, whatever the batch; padding counts nothing."""
    federation = quadratics([1.0, 4.0, 2.0], [1.0, 2.0, 3.0], [5, 1, 7])

    def summary(params, batch, here):
        return {"sum": (batch.y * batch.mask).sum(), "n": batch.mask.sum()}

    found = kept(federation, engine, gather("facts", summary, batch=batch), initial=at(0.0))
    expected = [float(federation.y[federation.train.client(k)].sum()) for k in range(3)]
    assert [float(k["facts"]["sum"]) for k, _ in found] == pytest.approx(expected, abs=1e-12)
    assert [float(k["facts"]["n"]) for k, _ in found] == [5, 1, 7]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"epochs": 0}, "epochs of 1 or more; 0 was given: leave out a pass"),
        ({"epochs": None}, "epochs of 1 or more; None was given"),
        ({"max_steps": 0}, "max_steps of 1 or more; 0 was given"),
        ({"batch": -1}, "batch of 1 or more; -1 was given"),
        ({"on": "test"}, "on 'train' or 'validation', .*; 'test' was given"),
    ],
)
def test_a_pass_without_a_step_is_refused(how, message):
    """It took its one step on whatever row is first in the pool, which is another client's."""
    with pytest.raises(ValueError, match=message):
        replace(descend(fit, SGD()), **how)


def test_gather_does_not_learn():
    step, look = descend(fit, SGD(0.1), epochs=5, max_steps=3), gather("it", lambda p, b, h: b.mask.sum())
    assert not look.learns
    assert tuned((step, look), 0) == ()
    cut = tuned((look, step, look), 2)
    assert [(p.learns, p.epochs, p.max_steps) for p in cut] == [(False, 1, None), (True, 2, None)]


# --- sample ----------------------------------------------------------------------------------------------------------
@each_engine
def test_sample_keeps_the_means_of_blocks(engine):
    """f = ½(θ − 0)², η = 0.5, from 1: iterates ½, ¼, ⅛, … After 2 burnt steps: ⅛, 1/16 | 1/32, 1/64."""
    federation = quadratics([1.0, 1.0], [0.0, 0.0])
    work = sample(fit, SGD(0.5), burn=2, blocks=2, epochs=6, batch=None)
    for left, params in kept(federation, engine, work, initial=at(1.0)):
        assert left["samples"][WEIGHT].flatten().tolist() == pytest.approx([3 / 32, 3 / 128], abs=1e-15)
        assert left["filled"].tolist() == [1, 1]
        assert float(params[WEIGHT]) == 2.0**-6


@each_engine
def test_sample_leaves_blocks_empty_where_steps_are_missing(engine):
    """Clients of 1 and 3 samples, batch 1, one epoch, no burn-in, 3 blocks; and burn-in longer than the steps."""
    federation = quadratics([1.0, 1.0], [0.0, 0.0], [1, 3])
    found = kept(federation, engine, sample(fit, SGD(0.5), burn=0, blocks=3, batch=1), initial=at(1.0))
    assert [left["filled"].tolist() for left, _ in found] == [[1, 0, 0], [1, 1, 1]]
    assert found[0][0]["samples"][WEIGHT].flatten().tolist() == [0.5, 0, 0]
    assert found[1][0]["samples"][WEIGHT].flatten().tolist() == [0.5, 0.25, 0.125]
    none = kept(federation, engine, sample(fit, SGD(0.5), burn=5, blocks=2, batch=1), initial=at(1.0))
    assert [left["filled"].tolist() for left, _ in none] == [[0, 0], [0, 0]]
    assert not none[1][0]["samples"][WEIGHT].any()


# --- what moves ------------------------------------------------------------------------------------------------------
def test_partitions():
    federation = points((4,))
    model = mlp(federation, norm=True)
    names = [*model.leaves, "rho"]
    assert set(everything(names, model)) == {*model.trainable, "rho"}
    assert set(trainable(names, model)) == model.trainable
    assert set(head(names, model)) == {"head.weight", "head.bias"}
    assert set(base(names, model)) | set(head(names, model)) == model.trainable


@each_engine
@pytest.mark.parametrize("trains", [base, head])
def test_only_the_partition_moves(engine, trains):
    federation = points((5, 3))
    model = mlp(federation, norm=True)
    initial = model.init(0, DOUBLE)
    for _, params in kept(federation, engine, descend(fit, SGD(0.1), trains), model=model, initial=initial):
        moved = {n for n in params if not torch.equal(params[n], initial[n])}
        moved -= model.buffers
        assert moved  # (a bias before batch norm has no gradient, so not every leaf need move)
        assert moved <= set(trains(model.leaves, model))
        assert list(params) == list(initial)


@each_engine
def test_descend_records_the_mean_loss(engine):
    """Σ loss·samples and samples: client 1 sees ½·9·… at θ = 0 before its only step."""
    federation = quadratics([4.0], [3.0], [3])
    ((left, _),) = kept(federation, engine, descend(fit, SGD(0.1), batch=None), initial=at(0.0))
    assert left["loss"].tolist() == pytest.approx([3 * 18.0, 3.0])


def somebody_and_nobody():
    """A client with one sample and a client without any: a newcomer, say, that has test samples only."""
    one = torch.ones(1, 1, dtype=DOUBLE)
    return federate([(one, one[0]), (None, None)])


def test_weight_decay_does_not_move_a_client_without_data():
    (_, _), (_, params) = kept(
        somebody_and_nobody(), ORACLE, Training(lr=0.5, weight_decay=0.1).descend(), initial=at(1.0)
    )
    assert float(params[WEIGHT]) == 1.0


@pytest.mark.parametrize("engine", [ORACLE, STACKED], ids=lambda e: e.name)
def test_a_client_without_data_is_not_moved(engine):
    (_, _), (_, params) = kept(somebody_and_nobody(), engine, full_batch(3).descend(), initial=at(2.0))
    assert float(params[WEIGHT]) == 2.0


@pytest.mark.parametrize("engine", [ORACLE, STACKED], ids=lambda e: e.name)
def test_newcomers_without_training_data_are_scored_as_received(engine):
    one = torch.ones(1, 1, dtype=DOUBLE)
    federation = federate([(one, one[0]), (None, None)], test=[(one, one[0])] * 2)
    run = Run(FedAvg(full_batch(1)), federation, scalar_model(), engine, at(2.0))
    assert [float(out[0, 0]) for out in run.outputs("adapted", newcomers=True)] == pytest.approx([1.9, 2.0])


@pytest.mark.parametrize("inner", [1, 3])
def test_the_hessian_free_step_shifts_only_what_adapted(inner):
    """A leaf of the method's own that the inner step leaves alone: the difference still approaches the exact step."""
    model = SimpleNamespace(trainable={"w"}, leaves=("w",))
    here = Here((), (), (), {}, *[torch.tensor(9.0, dtype=DOUBLE)] * 5, make_key(0), {}, model)
    ones = torch.ones(9, dtype=DOUBLE)
    same = Batch(ones, 2 * ones, ones)  # all three parts of the batch are equal

    def loss(params, batch, here):
        error = torch.tanh(params["w"] * params["own"] * batch.x) - batch.y
        return (error**2 * batch.mask).sum() / batch.mask.sum(), {}

    moved = {}
    for order in ("exact", "hessian_free", "first"):
        work = meta(loss, loss, 0.3, SGD(0.1), order=order, delta=1e-4, inner=inner)
        start = Carry({"w": torch.tensor(0.4, dtype=DOUBLE), "own": torch.tensor(0.7, dtype=DOUBLE)}, {}, ())
        moved[order] = work.step(work.open(start, here), same, here).params
    for name in ("w", "own"):
        assert float(moved["hessian_free"][name]) == pytest.approx(float(moved["exact"][name]), abs=1e-8)
        assert abs(float(moved["first"][name] - moved["exact"][name])) > 1e-3


# --- watched, gather anew, fit_head ----------------------------------------------------------------------------------
@each_engine
def test_what_is_watched_adds_up_over_the_steps(engine):
    """Gradients add up to (θ₀ − θ₂)/lr, leaves to θ₀ + θ₁: what is seen is before the step. A = 4, m = 3, lr = 0.1."""
    how = {"batch": None, "epochs": 2}
    seen = watched("seen", lambda slope, params, batch, here: {"g": slope, "at": params}, fit, SGD(0.1), **how)
    plain = kept(q2(), engine, descend(fit, SGD(0.1), **how), initial=at(1.0))
    for (left, params), (_, expected) in zip(kept(q2(), engine, seen, initial=at(1.0)), plain, strict=True):
        assert torch.equal(params[WEIGHT], expected[WEIGHT])
        assert float(left["seen"]["g"][WEIGHT]) == pytest.approx((1 - float(params[WEIGHT])) / 0.1, abs=1e-12)
    first = 1 - 0.1 * 4 * (1 - 3)
    assert float(left["seen"]["at"][WEIGHT]) == pytest.approx(1 + first, abs=1e-12)


@each_engine
@pytest.mark.parametrize(("anew", "expected"), [(False, 2), (True, 1)])
def test_a_gather_may_start_anew(engine, anew, expected):
    def rows(params, batch, here):
        return batch.mask.sum()

    passes = gather("rows", rows), gather("other", rows), gather("rows", rows, anew=anew)
    federation = points((9, 5, 1))
    found = kept(federation, engine, *passes, model=mlp(federation))
    for (left, _), size in zip(found, (9, 5, 1), strict=True):
        assert float(left["rows"]) == expected * size
        assert float(left["other"]) == size


@each_engine
def test_fit_head_moves_nothing_before_the_head(engine):
    federation = points((9, 5))
    model = models.build("mlp_bn", federation.shape, 3, hidden=(4,))
    first = model.init(0, DOUBLE)
    for _, params in kept(federation, engine, descend(fit_head, SGD(0.1), head, batch=4), model=model):
        for name, leaf in params.items():
            assert torch.equal(leaf, first[name]) == (name not in model.head_names)
    batch = Batch(federation.x.double()[:4], federation.y[:4], torch.tensor([1.0, 1, 1, 0], dtype=DOUBLE))
    value, buffers = fit_head(first, batch, SimpleNamespace(model=model, key=make_key(0)))
    loss = torch.nn.functional.cross_entropy(model(first, batch.x)[0][:3], batch.y[:3])
    assert buffers == {}
    assert float(value) == pytest.approx(float(loss), abs=1e-12)
