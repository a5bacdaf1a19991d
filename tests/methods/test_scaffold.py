"""SCAFFOLD: the closed-form test bed, the invariant of its variates, its reductions, its bytes."""

import pytest
import torch
from oracles.sims import (
    DOUBLE,
    ENGINES,
    WEIGHT,
    Run,
    at,
    each_engine,
    full_batch,
    leaves,
    mlp,
    points,
    q2,
    quadratics,
    same_bits,
    scalar_model,
    worst,
)

from posterity.core.passes import Training
from posterity.core.tree import tree_map, tree_rows
from posterity.laws import check
from posterity.methods.fedavg import FedAvg
from posterity.methods.scaffold import SCAFFOLD

each_variate = pytest.mark.parametrize("variate", ["I", "II", "fednp"])
TRAINING = Training(lr=0.1, batch=4, epochs=2)
Q2 = {
    "II": ([1.38336, 2.093127432, 2.3559162263], [-2.76672, -1.419534864, -0.5255775885]),
    "I": ([1.38336, 2.38242516, 2.5305736026], [-6.0, -2.5416, -0.0439371]),
}


def reference(variate: str, rounds: int, steps: int = 5, lr: float = 0.1):
    """Algorithm 1 on Q2 in plain numbers: w and c after each round."""
    curvature, centre, own, w, c, ws, cs = (1.0, 4.0), (0.0, 3.0), [0.0, 0.0], 0.0, 0.0, [], []
    for _ in range(rounds):
        moved, change = 0.0, 0.0
        for k in (0, 1):
            theta = w
            for _ in range(steps):
                theta -= lr * (curvature[k] * (theta - centre[k]) - own[k] + c)
            new = own[k] - c + (w - theta) / (steps * lr)
            if variate != "II":
                new = curvature[k] * ((w if variate == "I" else theta) - centre[k])
            moved, change, own[k] = moved + (theta - w) / 2, change + (new - own[k]) / 2, new
        w, c = w + moved, c + change
        ws.append(w)
        cs.append(c)
    return ws, cs


@each_engine
@pytest.mark.parametrize("variate", ["I", "II"])
def test_q2(engine, variate):
    """The printed numbers to their last digit, and plain arithmetic to 1e-9."""
    run, ws, cs = Run(SCAFFOLD(full_batch(5), variate=variate), q2(), scalar_model(), engine, at(0.0)), [], []
    for _ in range(3):
        ws.append(run.rounds(1).scalar())
        cs.append(float(run.state.control[WEIGHT]))
    assert ws == pytest.approx(Q2[variate][0], abs=1e-9)
    assert cs == pytest.approx(Q2[variate][1], abs=1e-9)
    exact = reference(variate, 3)
    assert ws == pytest.approx(exact[0], abs=1e-12)
    assert cs == pytest.approx(exact[1], abs=1e-12)


@pytest.mark.parametrize(("variate", "steps"), [("I", 5), ("II", 12)])
def test_q2_limit_is_the_optimum_of_the_sum(variate, steps):
    """2.4 whatever the number of local steps, where FedAvg stops at 2.0775."""
    run = Run(SCAFFOLD(full_batch(steps), variate=variate), q2(), scalar_model(), initial=at(0.0)).rounds(60)
    assert run.scalar() == pytest.approx(2.4, abs=1e-6)
    slopes = [2.4, 4 * (2.4 - 3)]  # the gradients of the two clients there
    assert run.store.rows[WEIGHT].flatten().tolist() == pytest.approx(slopes, abs=1e-5)


@each_engine
def test_two_clients_by_hand(engine):
    """Sizes 3 and 1, one step of 0.1 from 1: slopes −1 and −8, so θ = (1.1, 1.8).

    Plain means: w = 1.45 and half of the way for η_g = ½: 1.225. One step, so all options find c_k = slope: c = −4.5.
    """
    federation = quadratics([1.0, 2.0], [2.0, 5.0], [3, 1])
    for variate in ("I", "II"):
        for rate, expected in ((1.0, 1.45), (0.5, 1.225)):
            method = SCAFFOLD(full_batch(1), server_lr=rate, variate=variate)
            run = Run(method, federation, scalar_model(), engine, at(1.0)).rounds(1)
            assert run.scalar() == pytest.approx(expected, abs=1e-12)
            assert run.store.rows[WEIGHT].flatten().tolist() == pytest.approx([-1, -8], abs=1e-12)
            assert float(run.state.control[WEIGHT]) == pytest.approx(-4.5, abs=1e-12)


@each_engine
def test_the_variate_of_fednp_is_the_slope_around_the_trained_point(engine):
    """One more epoch is here one step without correction, so its mean gradient is ∇f_k(θ_k); θ_k itself is sent."""
    run, ws, cs = Run(SCAFFOLD(full_batch(5), variate="fednp"), q2(), scalar_model(), engine, at(0.0)), [], []
    for _ in range(3):
        ws.append(run.rounds(1).scalar())
        cs.append(float(run.state.control[WEIGHT]))
    exact = reference("fednp", 3)
    assert ws == pytest.approx(exact[0], abs=1e-12)
    assert cs == pytest.approx(exact[1], abs=1e-12)


def test_the_reported_loss_is_the_clients_own():
    """The correction has a gradient but no value: client 2 alone, one step from w, reports f_2(w)."""
    run = Run(SCAFFOLD(full_batch(1)), q2(), scalar_model(), initial=at(1.0)).rounds(1)
    w = run.scalar()
    assert run.rounds(1, cohort=[1]).logs[1].loss == pytest.approx(2 * (w - 3) ** 2, abs=1e-12)


@each_engine
@each_variate
def test_c_is_the_mean_of_all_variates(engine, variate):
    """Under partial participation too: absent clients count with the variate that they have (0 before they came)."""
    federation = points((23, 9, 17, 1, 12, 5, 2))
    run = Run(SCAFFOLD(TRAINING, variate=variate), federation, mlp(federation, norm=True, eps=1e-2), engine)
    for cohort in ([0, 2, 3, 6], [1, 2], [0, 1, 4, 6], [3]):
        run.rounds(1, cohort)
        known = run.store.known.to(DOUBLE)
        mean = {n: torch.tensordot(known, v, dims=1) / 7 for n, v in leaves(run.store.rows).items()}
        assert worst(mean, run.state.control) < 1e-15 * max(1.0, max(float(m.abs().max()) for m in mean.values()))
    assert max(float(v.abs().max()) for v in run.state.control.values()) > 1e-3
    assert not bool(run.store.known[5])


def test_variates_leave_buffers_out():
    federation = points((9, 5))
    model = mlp(federation, norm=True)
    run = Run(SCAFFOLD(TRAINING, server_lr=3.0), federation, model).rounds(1)
    assert set(run.state.control) == model.trainable
    alike = Run(SCAFFOLD(TRAINING), federation, model).rounds(1)
    for name in model.buffers:  # averaged, and no step of the server's size: a variance stays one
        assert torch.equal(run.state.params[name], alike.state.params[name])
        assert not torch.equal(run.state.params[name], run.sim.initial[name])


@each_variate
def test_one_client_is_fedavg(variate):
    """K = 1: c = c_k for ever, so the correction is nothing, however c_k is renewed."""
    federation = points((19,))
    for engine in ENGINES:
        runs = [Run(m, federation, mlp(federation), engine).rounds(4)
                for m in (SCAFFOLD(TRAINING, variate=variate), FedAvg(TRAINING))]  # fmt: skip
        assert worst(runs[0].state.params, runs[1].state.params) < 1e-13
        assert worst(runs[0].state.control, tree_rows(runs[0].store.rows, 0)) < 1e-15


@each_variate
def test_first_round_is_fedavg_of_equal_clients(variate):
    federation = points((8, 8, 8))
    first = [
        Run(m, federation, mlp(federation)).rounds(1) for m in (SCAFFOLD(TRAINING, variate=variate), FedAvg(TRAINING))
    ]
    assert worst(first[0].state.params, first[1].state.params) < 1e-14
    assert first[0].logs[0].loss == first[1].logs[0].loss  # the correction has no value
    later = [run.rounds(1) for run in first]
    assert worst(later[0].state.params, later[1].state.params) > 1e-4


def test_option_one_is_the_gradient_at_the_broadcast():
    """The mean of batches of four of 9 samples is the gradient of the mean loss of all 9."""
    federation = points((9, 6))
    model = mlp(federation)
    run = Run(SCAFFOLD(TRAINING, variate="I"), federation, model).rounds(1)
    rows = federation.train.client(0)

    def mean_loss(params):
        return torch.nn.functional.cross_entropy(model.logits(params, federation.x[rows]), federation.y[rows])

    expected = torch.func.grad(mean_loss)(run.sim.initial)
    assert worst(tree_rows(run.store.rows, 0), expected) < 1e-14


def test_bytes_are_twice_the_model_both_ways():
    """w and c down; Δ, Δc and a weight up. Buffers of batch norm travel once."""
    federation = points((5, 9, 4))
    for norm in (False, True):
        log = Run(SCAFFOLD(), federation, mlp(federation, norm=norm), dtype=torch.float32).rounds(1).logs[0]
        d, buffers = 6 * 8 + 8 + 8 * 3 + 3 + (16 if norm else 0), 16 if norm else 0
        assert log.bytes_down == 3 * 4 * (2 * d + buffers)
        assert log.bytes_up == 3 * 4 * (2 * d + buffers + 1)


def test_an_absent_client_keeps_its_variate_and_its_share():
    federation = points((9, 5, 4))
    run = Run(SCAFFOLD(TRAINING), federation, mlp(federation)).rounds(1)
    before = tree_map(torch.clone, tree_rows(run.store.rows, 1))
    run.rounds(2, cohort=[0, 2])
    assert same_bits(before, tree_rows(run.store.rows, 1))
    share = {n: 3 * run.state.control[n] - run.store.rows[n][0] - run.store.rows[n][2] for n in before}
    assert worst(share, before) < 1e-14


def test_fine_tuning_looks_for_the_clients_own_minimum():
    run = Run(SCAFFOLD(full_batch(5)), q2(), scalar_model(), initial=at(0.0)).rounds(40)
    tuned = [float(o[0, 0]) for o in run.outputs("adapted", epochs=400)]
    assert tuned == pytest.approx([0.0, 3.0], abs=1e-9)


@pytest.mark.everything
def test_laws():
    """With option I; the default stands under the laws by its file alone."""
    broken = [v for v in check(SCAFFOLD(Training(lr=0.05, batch=4), variate="I"), "mlp_bn") if not v.held]
    assert not broken, "\n".join(f"{v.law}: {v.detail}" for v in broken)


def test_bad_hyper_parameters():
    with pytest.raises(ValueError, match=r"server_lr must be at least 0; -1"):
        SCAFFOLD(server_lr=-1.0)
    with pytest.raises(ValueError, match=r"variate = 'III' is unknown"):
        SCAFFOLD(variate="III")
    for local in (Training(momentum=0.9), Training(optimiser="adam"), Training(lr=0.0), Training(clip=5.0)):
        for variate in ("II", "fednp"):
            with pytest.raises(ValueError, match=r"plain SGD .* variate 'I'"):
                SCAFFOLD(local, variate=variate)
        SCAFFOLD(local, variate="I")


def test_a_clip_is_named():
    """It would make variates of −1 out of the slopes −2 and −4: a step of 0.1 from 1 is no longer than 0.1."""
    with pytest.raises(ValueError, match=r"momentum 0\.0, clip 1\.0, lr 0\.1.* without momentum and clip"):
        SCAFFOLD(full_batch(1, clip=1.0))
    method = SCAFFOLD(full_batch(1, clip=1.0), variate="I")
    run = Run(method, quadratics([1.0, 2.0], [3.0, 3.0]), scalar_model(), initial=at(1.0)).rounds(1)
    assert run.scalar() == pytest.approx(1.1, abs=1e-6)
    assert run.store.rows[WEIGHT].flatten().tolist() == pytest.approx([-2, -4], abs=1e-12)


DECAYED = [(0.1, 1, 0.5), (0.1, 5, 0.5), (0.05, 3, 0.01), (0.2, 2, 1.0), (0.01, 9, 2.0), (0.1, 4, 0.0), (0.15, 7, 0.3)]


@pytest.mark.parametrize(("lr", "steps", "decay"), DECAYED)
def test_weight_decay_is_a_part_of_the_loss(lr, steps, decay):
    """Option II with decay λ is option II on the losses f_k + ½λθ²: curvature a + λ, centre ac/(a + λ)."""
    curvature, centre = [1.0, 4.0], [0.0, 3.0]
    tighter = [a + decay for a in curvature]
    centres = [a * c / (a + decay) for a, c in zip(curvature, centre, strict=True)]
    local = full_batch(steps, lr, weight_decay=decay), full_batch(steps, lr)
    federations = quadratics(curvature, centre), quadratics(tighter, centres)
    runs = [Run(SCAFFOLD(how), some, scalar_model(), initial=at(1.0)).rounds(3)
            for how, some in zip(local, federations, strict=True)]  # fmt: skip
    assert runs[0].scalar() == pytest.approx(runs[1].scalar(), abs=1e-12)
    assert worst(runs[0].store.rows, runs[1].store.rows) < 1e-11
    own, w, c = [0.0, 0.0], 1.0, 0.0  # and in plain numbers
    for _ in range(3):
        ends = []
        for k in (0, 1):
            theta = w
            for _ in range(steps):
                theta -= lr * (curvature[k] * (theta - centre[k]) + decay * theta - own[k] + c)
            ends.append(theta)
        new = [own[k] - c + (w - ends[k]) / (steps * lr) for k in (0, 1)]
        w, c, own = sum(ends) / 2, c + sum(new[k] - own[k] for k in (0, 1)) / 2, new
    assert runs[0].scalar() == pytest.approx(w, abs=1e-12)
