"""FedRep: a head on a frozen base, then the base under a frozen head."""

import pytest
import torch
from oracles.sims import DOUBLE, Run, each_engine, federate, mlp, points, same_bits, worst

from posterity import methods, models
from posterity.core.passes import Training, base, descend
from posterity.core.tree import tree_rows
from posterity.methods.fedavg import FedAvg
from posterity.methods.fedrep import FedRep

TRAINING = Training(lr=0.1, batch=4, epochs=2)
ONE = torch.ones(1, 1, dtype=DOUBLE)
BILINEAR = {"base.weight": ONE, "head.weight": ONE}


def bilinear(parts=("base", "head")):
    """f(x) = h·b·x."""
    net = torch.nn.Sequential()
    for part in parts:
        net.add_module(part, torch.nn.Linear(1, 1, bias=False))
    return models.wrap(net, "head", 1, "regression", shape=(1,))


def pair(y=(2.0, 0.0), sizes=(1, 3)):
    """Two clients at x = 1 with a target each."""
    data = [(ONE.repeat(n, 1), torch.full((n,), t, dtype=DOUBLE)) for t, n in zip(y, sizes, strict=True)]
    return federate(data, test=[(ONE, ONE[0])] * 2)


def reference(head_epochs, base_epochs, rounds, lr=0.1, momentum=0.0):
    """Algorithm 1 on `pair()` in plain numbers: the base, and both heads, after some rounds."""
    b, heads, target, share = 1.0, [1.0, 1.0], (2.0, 0.0), (0.25, 0.75)
    for _ in range(rounds):
        mean = 0.0
        for k in (0, 1):
            h, own, speed = heads[k], b, 0.0
            for _ in range(head_epochs):
                speed = momentum * speed + own * (h * own - target[k])
                h -= lr * speed
            speed = 0.0
            for _ in range(base_epochs):
                speed = momentum * speed + h * (h * own - target[k])
                own -= lr * speed
            heads[k], mean = h, mean + share[k] * own
        b = mean
    return b, heads


@each_engine
def test_two_clients_by_hand(engine):
    """b = h = 1; samples (1, 2) and (1, 0), sizes 1 and 3; one step of 0.1 for the head and one for the base.

    Client 1: error −1, so h_1 = 1.1; then error 1.1 − 2 = −0.9 with slope h_1: b_1 = 1 + 0.1·1.1·0.9 = 1.099.
    Client 2: error 1, so h_2 = 0.9; then error 0.9: b_2 = 1 − 0.1·0.9·0.9 = 0.919.
    Base (1.099 + 3·0.919) / 4 = 0.964; client 1 predicts 1.1·0.964 when it has received the base.
    """
    run = Run(FedRep(Training(lr=0.1)), pair(), bilinear(), engine, BILINEAR).rounds(1)
    assert float(run.state.params["base.weight"]) == pytest.approx(0.964, abs=1e-14)
    assert run.store.rows["head.weight"].flatten().tolist() == pytest.approx([1.1, 0.9], abs=1e-14)
    assert [float(o[0, 0]) for o in run.outputs("received")] == pytest.approx([1.0604, 0.8676], abs=1e-14)
    assert float(run.state.params["head.weight"]) == 1.0


@pytest.mark.parametrize(("head_epochs", "base_epochs"), [(0, 1), (1, 1), (1, 2), (2, 1), (3, 2)])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_phases_count_their_own_epochs(head_epochs, base_epochs, momentum):
    """Three rounds in plain numbers, an optimiser for each phase: momentum of the head does not push the base."""
    method = FedRep(Training(lr=0.1, epochs=base_epochs, momentum=momentum), head_epochs=head_epochs)
    run = Run(method, pair(), bilinear(), initial=BILINEAR).rounds(3)
    b, heads = reference(head_epochs, base_epochs, 3, momentum=momentum)
    assert float(run.state.params["base.weight"]) == pytest.approx(b, abs=1e-13)
    assert run.store.rows["head.weight"].flatten().tolist() == pytest.approx(heads, abs=1e-13)


def test_steps_are_of_the_base_phase():
    """One step of the base, and three whole epochs of the head."""
    run = Run(FedRep(Training(lr=0.1, steps=1), head_epochs=3), pair(), bilinear(), initial=BILINEAR).rounds(1)
    b, heads = reference(3, 1, 1)
    assert float(run.state.params["base.weight"]) == pytest.approx(b, abs=1e-14)
    assert run.store.rows["head.weight"].flatten().tolist() == pytest.approx(heads, abs=1e-14)


def test_a_long_head_phase_is_least_squares():
    """h = ⟨bx, y⟩ / ⟨bx, bx⟩ with x = (1, 2), y = (1, 5), b = 1: 11 / 5; contraction 0.5 a step, so 2⁻⁴⁸ is left."""
    x, y = torch.tensor([[1.0], [2.0]], dtype=DOUBLE), torch.tensor([1.0, 5.0], dtype=DOUBLE)
    method = FedRep(Training(lr=0.2, batch=2), head_epochs=48)
    run = Run(method, federate([(x, y)]), bilinear(), initial=BILINEAR).rounds(1)
    assert float(run.store.rows["head.weight"]) == pytest.approx(2.2, abs=1e-12)
    assert float(run.state.params["base.weight"]) == pytest.approx(1.0, abs=1e-12)  # the slope of b is h/b times 0


@each_engine
@pytest.mark.parametrize("norm", [False, True])
def test_the_head_phase_does_not_touch_the_base(engine, norm):
    """What one client sends after that phase alone is the base as received; statistics of batch norm stay too."""

    class First(FedRep):
        def passes(self):
            return self.head_phase(self.head_epochs)

    federation = points((9, 5, 1))
    model = mlp(federation, norm=norm)
    run = Run(First(TRAINING, head_epochs=3), federation, model, engine).rounds(1, cohort=[0])
    assert same_bits(run.state.params, run.sim.initial)
    assert all(not torch.equal(run.store.rows[n][0], run.sim.initial[n]) for n in model.head_names)


def test_the_base_phase_does_not_touch_the_head():
    """Without a head phase every head stays the first one, and the base is FedAvg's under that head, bit for bit."""

    class Still(FedAvg):
        def passes(self):
            return (descend(self.loss, self.local.make_optimiser(), base, **self.local.schedule()),)

    federation = points((9, 5, 1))
    model = mlp(federation, norm=True)
    runs = [Run(m, federation, model).rounds(3) for m in (FedRep(TRAINING, head_epochs=0), Still(TRAINING))]
    assert same_bits(runs[0].state.params, runs[1].state.params)
    for name in model.head_names:
        assert torch.equal(
            runs[0].store.rows[name], runs[0].sim.initial[name].expand(3, *[-1] * (2 - name.endswith("bias")))
        )


def test_adaptation_trains_the_head_alone():
    """A newcomer at b = 1, h = 1 with the target 2: two epochs of its head are 1.1 and 1.19; none leaves it."""
    run = Run(FedRep(Training(lr=0.1)), pair(), bilinear(), initial=BILINEAR)
    tuned = [float(o[0, 0]) for o in run.outputs("adapted", epochs=2, newcomers=True)]
    assert tuned == pytest.approx([1.19, 0.81], abs=1e-14)
    assert [float(o[0, 0]) for o in run.outputs("adapted", epochs=0, newcomers=True)] == [1.0, 1.0]


@pytest.mark.parametrize("norm", [False, True])
def test_bytes_are_the_base_both_ways(norm):
    """d_b numbers (batch-norm buffers of the base included) down, d_b and the weight up."""
    federation = points((5, 9, 4))
    log = Run(FedRep(), federation, mlp(federation, norm=norm), dtype=torch.float32).rounds(1).logs[0]
    d_b = 6 * 8 + 8 + (4 * 8 if norm else 0)
    assert log.bytes_down == 3 * 4 * d_b
    assert log.bytes_up == 3 * 4 * (d_b + 1)


def test_an_absent_client_keeps_its_head():
    federation = points((9, 5, 4))
    run = Run(FedRep(TRAINING), federation, mlp(federation)).rounds(1)
    before = {n: v.clone() for n, v in tree_rows(run.store.rows, 1).items()}
    run.rounds(2, cohort=[0, 2])
    assert same_bits(before, tree_rows(run.store.rows, 1))
    assert worst({n: run.store.rows[n][0] for n in before}, before) > 1e-3


def test_the_values_of_the_paper():
    paper = methods.build("fedrep@paper")
    assert paper.head_epochs == 10
    assert paper.local == Training(lr=0.01, epochs=1, batch=10, momentum=0.5, weight_decay=1e-4)
    assert FedRep() == FedRep(Training(), head_epochs=1)


def test_what_predicts_for_nobodys_data():
    assert FedRep().outside == "the server's base with the initial head"


def test_bad_hyper_parameters():
    with pytest.raises(ValueError, match="head_epochs must be at least 0; -1"):
        FedRep(head_epochs=-1)
    with pytest.raises(ValueError, match="head_epochs takes a whole number"):
        FedRep(head_epochs=1.5)
    with pytest.raises(ValueError, match="has no base that could be trained; take a network with both, or fedper"):
        Run(FedRep(), pair(), bilinear(("head",)))
