"""GPFL: valve, conditions and cosines in numbers, what decays, its reduction to FedPer, records and bytes."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from oracles.sims import DOUBLE, Run, each_engine, full_batch, mlp, points, q2, same_bits, scalar_model, worst

from posterity import models
from posterity.core.likelihood import pointwise
from posterity.core.passes import Training
from posterity.core.random import make_key
from posterity.core.tree import tree_map, tree_rows
from posterity.methods.fedper import FedPer
from posterity.methods.gpfl import ADDED, GPFL, TABLE, Shared, conditions, first_layers, unit, valve
from posterity.settings.hyperparameters import paper_values

TRAINING = Training(lr=0.05, batch=4, epochs=2)
LAYERS = ("gamma", "beta")


def rows(*values):
    return torch.tensor(values, dtype=DOUBLE)


def with_valve(params, weight, **shift):
    """`params` with layer norms of this scale, and these shifts by name."""
    changed = {f"{ADDED}{n}/2.weight": torch.full_like(params[f"{ADDED}{n}/2.weight"], weight) for n in LAYERS}
    shifts = {f"{ADDED}{n}/2.bias": torch.full_like(params[f"{ADDED}{n}/2.bias"], v) for n, v in shift.items()}
    return {**params, **changed, **shifts}


def small(size=3, classes=4):
    return first_layers(classes, size, make_key(1), rows(0.0))


def test_the_valve():
    """Layer norms of scale 0 leave their shift: γ = 1, β = −1 turn z into ReLU(2z − 1)."""
    params, z = with_valve(small(), 0.0, gamma=1.0, beta=-1.0), rows([0.0, 1.0, -2.0])
    assert valve(params, z, rows(0.3, 0.1, 0.2)).tolist() == [[0, 1, 0]]
    still = with_valve(params, 0.0, gamma=0.0, beta=0.0)
    assert valve(still, z, rows(0.3, 0.1, 0.2)).tolist() == [[0, 1, 0]]  # the identity on what is not negative
    assert torch.equal(valve(still, z.abs(), rows(0.3, 0.1, 0.2)), z.abs())


def test_the_valve_at_zero_knows_biases_only():
    """Linear, ReLU, layer norm, in this order."""
    params, z = small(), rows([1.0, 2.0, 3.0])
    bent = []
    for name in LAYERS:
        raised = params[f"{ADDED}{name}/0.bias"].clamp(min=0)
        scaled = (raised - raised.mean()) / (raised.var(unbiased=False) + 1e-5).sqrt()
        bent.append(scaled)
    expected = (z * (bent[0] + 1) + bent[1]).clamp(min=0)
    assert worst({"": valve(params, z, torch.zeros(3, dtype=DOUBLE))}, {"": expected}) < 1e-14
    assert worst({"": valve(params, z, torch.ones(3, dtype=DOUBLE))}, {"": expected}) > 1e-2


def test_conditions():
    """Table rows (1, 0), (3, 4), counts 3 and 1: u_G = (2, 2), u_k = (1.5, 1); nothing before it has begun."""
    table = rows([1.0, 0.0], [3.0, 4.0])

    def found(counts, begun=1.0, **personal):
        shared = Shared({TABLE: table}, rows(begun)[0])
        here = SimpleNamespace(kept={"labels": rows(*counts)}, shared=shared, personal=personal)
        return [u.tolist() for u in conditions(here)]

    assert found((3.0, 1.0)) == [[2, 2], [1.5, 1]]
    assert found((0.0, 0.0))[1] == [2, 2]  # who has no data
    assert found((3.0, 1.0), begun=0.0) == [[0, 0], [0, 0]]
    assert found((3.0, 1.0), **{TABLE: 2 * table}) == [[4, 4], [3, 2]]  # lagged: a table of its own


def test_cosines_are_not_scaled():
    """The features may be as long as they like: CE of cosines never falls below log(1 + (C − 1)e⁻²), 0.7966 for ten."""
    model, y = models.build("linear", (2,), 10), torch.tensor([0])
    table = torch.cat([rows([1.0, 0.0]), rows([-2.0, 0.0]).repeat(9, 1)])
    for length in (1.0, 100.0):
        least = float(pointwise(unit(rows([length, 0.0])) @ unit(table).T, y, model))
        assert least == pytest.approx(math.log(1 + 9 * math.exp(-2)), abs=1e-14)
    assert least == pytest.approx(0.7966, abs=5e-5)
    slope = torch.func.grad(lambda r: (unit(r) ** 2).sum() + unit(r).sum())(rows([0.0, 0.0]))
    assert slope.tolist() == [[0, 0]]


class Alone(GPFL):
    """Without the terms of everybody's view."""

    def general(self, params, seen, batch, here):
        return 0 * seen.sum()


@each_engine
def test_an_open_valve_and_no_general_view_are_fedper(engine):
    """One step: γ = β = 0 is the identity on the features, which are not negative. To rounding."""
    federation = points((9, 5))
    how = full_batch(1)
    runs = [Run(m, federation, mlp(federation), engine) for m in (Alone(how, 0.0, 0.0), FedPer(how))]
    runs[0].state = replace(runs[0].state, params=with_valve(runs[0].state.params, 0.0))
    for run in runs:
        run.rounds(1)
    shared = {n: p for n, p in runs[0].state.params.items() if not n.startswith(ADDED)}
    assert worst(shared, runs[1].state.params) < 1e-14
    assert worst(runs[0].store.rows, runs[1].store.rows) < 1e-14


def test_only_table_and_valve_decay():
    """One step of size η: µ takes η µ p off them and nothing off the network; the network's decay is of all."""
    federation = points((9, 5))

    def after(mu, decay=0.0):
        run = Run(GPFL(full_batch(1, weight_decay=decay), mu=mu), federation, mlp(federation))
        return run.state.params, run.rounds(1)

    (first, plain), (_, decayed), (_, both) = after(0.0), after(0.5), after(0.5, 0.25)
    base = [n for n in first if n in plain.sim.model.base_names]
    assert all(torch.equal(plain.state.params[n], decayed.state.params[n]) for n in base)
    assert same_bits(plain.store.rows, decayed.store.rows)
    for n in (n for n in first if n.startswith(ADDED)):
        gap = plain.state.params[n] - decayed.state.params[n]
        assert worst({"": gap}, {"": 0.1 * 0.5 * first[n]}) < 1e-14
        assert worst({"": plain.state.params[n] - both.state.params[n]}, {"": 0.1 * 0.75 * first[n]}) < 1e-14
    assert all(float((plain.state.params[n] - both.state.params[n]).abs().max()) > 1e-4 for n in base)


def test_conditions_come_with_the_first_aggregation():
    """Before it another table predicts the same; after one round it does not, whoever is asked."""
    federation = points((9, 5))
    run = Run(GPFL(TRAINING), federation, mlp(federation))

    def outputs(factor, point):
        state = run.state
        run.state = replace(state, params={**state.params, TABLE: factor * state.params[TABLE]})
        found = run.outputs(point)
        run.state = state
        return found

    before = zip(outputs(1.0, "received"), outputs(-2.0, "received"), strict=True)
    assert all(torch.equal(a, b) for a, b in before)
    run.rounds(1)
    for point in ("received", "adapted", "trained"):
        assert all(not torch.equal(a, b) for a, b in zip(outputs(1.0, point), outputs(-2.0, point), strict=True))


@each_engine
def test_lagged_conditions_are_of_the_table_the_client_trained(engine):
    """Alone it is the one that comes back; among others it is another one from the second round on."""

    def runs(sizes):
        federation = points(sizes)
        return [Run(GPFL(TRAINING, lagged=lagged), federation, mlp(federation), engine) for lagged in (False, True)]

    for sizes, same in (((9,), True), ((9, 5), False)):
        plain, lagged = (run.rounds(1) for run in runs(sizes))
        assert worst(plain.state.params, lagged.state.params) == 0  # u is 0 yet
        assert TABLE in lagged.store.rows
        assert TABLE not in plain.store.rows
        mean = lagged.store.rows[TABLE] * torch.tensor(sizes, dtype=DOUBLE)[:, None, None] / sum(sizes)
        assert worst({"": mean.sum(0)}, {"": lagged.state.params[TABLE]}) < 1e-14
        plain, lagged = plain.rounds(2), lagged.rounds(2)
        gap = worst(plain.state.params, lagged.state.params)
        assert gap < 1e-12 if same else gap > 1e-6
        assert plain.logs[-1].bytes_up == lagged.logs[-1].bytes_up  # it stays at home


def test_a_lagged_client_that_was_not_asked_has_the_received_table():
    """What it predicts follows the server's table; what another predicts that was asked follows its own."""
    federation = points((9, 5))
    run = Run(GPFL(TRAINING, lagged=True), federation, mlp(federation)).rounds(2, cohort=[0])
    before, state = run.outputs("received"), run.state
    run.state = replace(state, params={**state.params, TABLE: -2 * state.params[TABLE]})
    after = run.outputs("received")
    assert torch.equal(before[0], after[0])
    assert not torch.equal(before[1], after[1])


def test_first_values_follow_the_seed():
    one, same, other = (first_layers(3, 5, make_key(seed), rows(0.0)) for seed in (0, 0, 1))
    assert same_bits(one, same)
    drawn = [n for n in one if "/2." not in n]  # layer norms begin at 1 and 0
    assert all(not torch.equal(one[n], other[n]) for n in drawn)
    assert not torch.equal(one[f"{ADDED}gamma/0.weight"], one[f"{ADDED}beta/0.weight"])
    assert len(one) == 9


def test_an_absent_client_keeps_its_head():
    federation = points((9, 5, 4))
    run = Run(GPFL(TRAINING), federation, mlp(federation)).rounds(1)
    before = tree_map(torch.clone, tree_rows(run.store.rows, 1))
    run.rounds(2, cohort=[0, 2])
    assert same_bits(before, tree_rows(run.store.rows, 1))
    assert set(before) == run.sim.model.head_names


def test_bytes():
    """d_b + C·D + 2(D² + 3D) each way, and one number: whether it has begun, and a weight."""
    federation = points((5, 9, 4))
    log = Run(GPFL(), federation, mlp(federation), dtype=torch.float32).rounds(1).logs[0]
    d = 6 * 8 + 8 + 3 * 8 + 2 * (8 * 8 + 3 * 8)
    assert log.bytes_down == log.bytes_up == 3 * 4 * (d + 1)


def test_bad_hyper_parameters_tasks_and_heads():
    for name in ("lam", "mu"):
        with pytest.raises(ValueError, match=f"{name} must be at least 0; -1"):
            GPFL(**{name: -1.0})
    with pytest.raises(ValueError, match=r"this task is regression\. Use fedper"):
        Run(GPFL(), q2(), scalar_model())
    federation = points((5,))
    net = torch.nn.Sequential()
    net.add_module("fc", torch.nn.Linear(6, 4))
    net.add_module("end", torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3)))
    with pytest.raises(ValueError, match=r"has running statistics, and GPFL .* behind the last batch norm"):
        Run(GPFL(), federation, models.wrap(net, "end", 3, shape=(6,)))
    assert GPFL().remarks(mlp(federation)) == ()
    assert "is head" in GPFL().remarks(models.build("linear", (6,), 3))[0]


def test_the_values_of_the_paper():
    assert paper_values(GPFL) == {"local": Training(lr=0.005)}
