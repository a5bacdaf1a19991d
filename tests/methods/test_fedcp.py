"""FedCP: gate, context and discrepancy in numbers, what both heads add up to, its reduction to FedPer, bytes."""

import math
from dataclasses import replace

import pytest
import torch
from oracles.sims import DOUBLE, ENGINES, Run, each_engine, full_batch, mlp, points, q2, same_bits, scalar_model, worst

from posterity import models
from posterity.core.passes import Training
from posterity.core.random import make_key
from posterity.core.tree import tree_map, tree_rows
from posterity.methods.fedcp import POLICY, FedCP, context, gate, kernel_mean, logistic, mmd, policy
from posterity.methods.fedper import FedPer
from posterity.settings.hyperparameters import paper_values

TRAINING = Training(lr=0.05, batch=4, epochs=2)


def rows(*values):
    return torch.tensor(values, dtype=DOUBLE)


def shut(params, first, second):
    """`params` whose policy says `first` and `second` to every feature, whatever it is given."""
    scale, shift = params[f"{POLICY}/1.weight"], params[f"{POLICY}/1.bias"]
    halves = torch.cat([torch.full_like(shift[::2], first), torch.full_like(shift[::2], second)])
    return {**params, f"{POLICY}/1.weight": 0 * scale, f"{POLICY}/1.bias": halves}


def shut_run(method, federation, model, first, second, engine=ENGINES[1]):
    run = Run(method, federation, model, engine)
    run.state = replace(run.state, params=shut(run.state.params, first, second))
    return run


def bare():
    """A network whose head has no bias."""
    net = torch.nn.Sequential()
    net.add_module("base", torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU()))
    net.add_module("head", torch.nn.Linear(8, 3, bias=False))
    return models.wrap(net, "head", 3, shape=(6,))


def test_the_discrepancy_of_four_points():
    """{(0,0), (1,0)} and {(0,1), (1,1)}: 0.2282275, and by the definition; nothing between equal sets."""
    x, y, both = rows([0.0, 0.0], [1.0, 0.0]), rows([0.0, 1.0], [1.0, 1.0]), rows(1.0, 1.0)
    assert float(mmd(x, y, both)) == pytest.approx(0.2282275, abs=1e-7)
    direct = sum(1 + math.exp(-0.5 / a) - math.exp(-0.5 / a) - math.exp(-1 / a) for a in (10, 15, 20, 50))
    assert float(mmd(x, y, both)) == pytest.approx(direct, abs=1e-13)
    assert float(mmd(x, x, both)) == 0.0


def test_padding_is_in_no_pair():
    x, y = rows([0.0, 2.0], [1.0, 0.0], [9.0, 9.0]), rows([3.0, 1.0], [1.0, 1.0], [-7.0, 4.0])
    mask = rows(1.0, 1.0, 0.0)
    assert float(mmd(x, y, mask)) == pytest.approx(float(mmd(x[:2], y[:2], mask[:2])), abs=1e-14)
    assert float(kernel_mean(x[:1], y[:1], mask[:1])) == pytest.approx(
        sum(math.exp(-10 / (2 * a)) for a in (10, 15, 20, 50)), abs=1e-14
    )
    assert float(mmd(x, y, 0 * mask)) == 0.0


def test_the_context_has_length_one():
    assert context(rows([1.0, 4.0], [2.0, 0.0])).tolist() == pytest.approx([0.6, 0.8], abs=1e-15)
    assert context(rows([1.0, 4.0], [-1.0, -4.0])).tolist() == [0, 0]


@each_engine
def test_the_context_is_that_of_the_clients_own_head(engine):
    """Plain SGD keeps the column sums of a head, whose gradients add up to 0 over classes; so a head is put in."""
    federation = points((9, 5))
    run = Run(FedCP(TRAINING), federation, mlp(federation), engine).rounds(1)
    trained, first = run.store.rows["head.weight"][0], run.sim.initial["head.weight"]
    assert worst({"": trained.sum(0)}, {"": first.sum(0)}) < 1e-13
    assert worst({"": trained}, {"": first}) > 1e-3
    run.store.rows = {
        n: v + torch.arange(v.numel(), dtype=DOUBLE).reshape(v.shape).cos() for n, v in run.store.rows.items()
    }
    mine, w = tree_rows(run.store.rows, 1), run.state.params
    z = run.sim.model.features(w, federation.x[federation.test.client(1)])[0]
    total = mine["head.weight"].sum(0)
    r = gate(w, z, total / total.pow(2).sum().sqrt())
    logits = (r * z) @ mine["head.weight"].T + ((1 - r) * z) @ w["head.weight"].T + mine["head.bias"] + w["head.bias"]
    assert worst({"": run.outputs("received")[1]}, {"": torch.log_softmax(logits, 1)}) < 1e-13


def test_the_gate_is_the_first_share_of_a_softmax():
    """Linear, layer norm, ReLU, in this order, of the features times the context; noise moves the difference."""
    params = policy(3).init(make_key(1), rows(0.0))
    z, condition = rows([1.0, -2.0, 3.0], [0.5, 0.1, -1.0]), rows(0.6, 0.0, 0.8)
    raw = (z * condition) @ params[f"{POLICY}/0.weight"].T + params[f"{POLICY}/0.bias"]
    centred = raw - raw.mean(1, keepdim=True)
    pair = (centred / (centred**2).mean(1, keepdim=True).add(1e-5).sqrt()).clamp(min=0).reshape(2, 2, 3)
    assert worst({"": gate(params, z, condition)}, {"": torch.softmax(pair, 1)[:, 0]}) < 1e-14
    gumbel = rows([0.3, -0.7, 2.0], [1.0, 0.2, -0.4])
    noise = torch.stack([gumbel, -gumbel], 1)
    expected = torch.softmax(pair + noise, 1)[:, 0]
    assert worst({"": gate(params, z, condition, noise[:, 0] - noise[:, 1])}, {"": expected}) < 1e-14


def test_the_noise_is_logistic():
    """Mean 0, variance π²/3 and P(ε < 1) = σ(1), each within five standard errors of 40000 draws."""
    drawn = logistic(make_key(2), torch.zeros(200, 200, dtype=DOUBLE)).flatten()
    spread = math.pi**2 / 3
    assert abs(float(drawn.mean())) < 5 * math.sqrt(spread / 40000)
    assert abs(float(drawn.var()) - spread) < 5 * spread * math.sqrt(3.2 / 40000)  # kurtosis 4.2
    below = 1 / (1 + math.exp(-1))
    assert abs(float((drawn < 1).double().mean()) - below) < 5 * math.sqrt(below * (1 - below) / 40000)
    single = logistic(make_key(2), torch.zeros(50, 8))
    assert bool(single.isfinite().all())


@each_engine
def test_half_open_gates_and_equal_heads_count_the_bias_twice(engine):
    """h(z/2) + h(z/2) = Wz + 2b."""
    federation = points((9, 5))
    run = shut_run(FedCP(TRAINING), federation, mlp(federation), 0.0, 0.0, engine)
    x, model = federation.x[federation.test.client(0)], run.sim.model
    logits = model.logits(run.sim.initial, x) + run.sim.initial["head.bias"]
    assert worst({"": run.outputs("received")[0]}, {"": torch.log_softmax(logits, 1)}) < 1e-14


def test_open_gates_leave_the_bias_of_the_common_head():
    federation = points((9, 5))
    run = shut_run(FedCP(TRAINING), federation, mlp(federation), 900.0, 0.0).rounds(1)
    own = {**run.state.params, **tree_rows(run.store.rows, 1)}
    x = federation.x[federation.test.client(1)]
    logits = run.sim.model.logits(own, x) + run.state.params["head.bias"]
    assert worst({"": run.outputs("received")[1]}, {"": torch.log_softmax(logits, 1)}) < 1e-14


@each_engine
def test_open_gates_without_discrepancy_are_fedper(engine):
    """r = 1, λ = 0 and a head without bias, three rounds; the noise does not move a gate that is open enough."""
    federation = points((9, 1, 5))
    left = shut_run(FedCP(TRAINING, 0.0), federation, bare(), 900.0, 0.0, engine).rounds(3)
    right = Run(FedPer(TRAINING), federation, bare(), engine).rounds(3)
    assert worst(left.store.rows, right.store.rows) < 1e-13
    names = [n for n in right.state.params if n.startswith("base")]
    assert worst(*({n: run.state.params[n] for n in names} for run in (left, right))) < 1e-13
    outputs = zip(left.outputs("received"), right.outputs("received"), strict=True)
    assert max(float((a - b).abs().max()) for a, b in outputs) < 1e-13


def test_half_of_each_head_is_sent():
    """Sizes 3 and 1: the next h_g is ½ h_g + ½ (3 h_1 + h_2) / 4."""
    federation = points((3, 1))
    run = Run(FedCP(TRAINING), federation, mlp(federation))
    before = run.state.params
    run.rounds(1)
    for n, both in run.store.rows.items():
        expected = 0.5 * before[n] + 0.5 * (3 * both[0] + both[1]) / 4
        assert worst({"": run.state.params[n]}, {"": expected}) < 1e-14


def test_predictions_draw_nothing_unless_they_are_told_to():
    """The same models asked under another key: the same answers, or with `noisy` others. Training draws in both."""
    federation = points((9, 5))
    for noisy in (False, True):
        run = Run(FedCP(TRAINING, noisy=noisy), federation, mlp(federation)).rounds(1)
        found = run.outputs("received")
        run.sim = replace(run.sim, root=make_key(9))
        pairs = list(zip(found, run.outputs("received"), strict=True))
        assert all(torch.equal(a, b) for a, b in pairs) != noisy
        assert (min(float((a - b).abs().max()) for a, b in pairs) > 1e-3) == noisy


def test_the_received_base_runs_in_evaluation_mode():
    """One step on all data: running statistics are those of one look at the batch, with and without the second base."""
    federation = points((9, 5))
    model = mlp(federation, norm=True)
    runs = [Run(FedCP(full_batch(1), lam), federation, model).rounds(1) for lam in (5.0, 0.0)]
    assert all(torch.equal(*(run.state.params[n] for run in runs)) for n in model.buffers)
    assert all(not torch.equal(runs[0].state.params[n], runs[0].sim.initial[n]) for n in model.buffers)
    later = [run.rounds(1) for run in runs]
    assert worst(later[0].state, later[1].state) > 1e-4


def test_a_newcomer_takes_the_common_head():
    """Both heads are h_g, with their biases: h_g(rz) + h_g((1 − r)z) = Wz + 2b, whatever the gates."""
    federation = points((9, 5))
    run = Run(FedCP(TRAINING), federation, mlp(federation)).rounds(2)
    x = federation.x[federation.test.client(0)]
    logits = run.sim.model.logits(run.state.params, x) + run.state.params["head.bias"]
    assert worst({"": run.outputs("received", newcomers=True)[0]}, {"": torch.log_softmax(logits, 1)}) < 1e-13


def test_an_absent_client_keeps_its_head():
    federation = points((9, 5, 4))
    run = Run(FedCP(TRAINING), federation, mlp(federation)).rounds(1)
    before = tree_map(torch.clone, tree_rows(run.store.rows, 1))
    run.rounds(2, cohort=[0, 2])
    assert same_bits(before, tree_rows(run.store.rows, 1))
    assert set(before) == run.sim.model.head_names


def test_bytes():
    """d and the policy's 2D² + 6D each way, and a weight up."""
    federation = points((5, 9, 4))
    log = Run(FedCP(), federation, mlp(federation), dtype=torch.float32).rounds(1).logs[0]
    d = 6 * 8 + 8 + 8 * 3 + 3 + 2 * 8 * 8 + 6 * 8
    assert log.bytes_down == 3 * 4 * d
    assert log.bytes_up == 3 * 4 * (d + 1)


def test_bad_hyper_parameters_tasks_and_heads():
    with pytest.raises(ValueError, match="lam must be at least 0; -1"):
        FedCP(lam=-1.0)
    with pytest.raises(ValueError, match=r"this task is regression\. Use fedper"):
        Run(FedCP(), q2(), scalar_model())
    federation = points((5,))
    net = torch.nn.Sequential()
    net.add_module("fc", torch.nn.Linear(6, 4))
    net.add_module("end", torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3)))
    with pytest.raises(ValueError, match=r"the head 'end' .* Name its last linear layer"):
        Run(FedCP(), federation, models.wrap(net, "end", 3, shape=(6,)))
    assert FedCP().remarks(mlp(federation)) == ()
    assert "is head" in FedCP().remarks(models.build("linear", (6,), 3))[0]


def test_the_values_of_the_paper():
    assert paper_values(FedCP) == {"local": Training(lr=0.005)}
