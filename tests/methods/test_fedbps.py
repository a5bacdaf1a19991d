"""FedBPS: a hand-worked round, its limits, its bytes. The specification's oracles are in tests/oracles."""

import math
from collections import OrderedDict

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
    quadratics,
    scalar_model,
    worst,
)
from torch import nn

from posterity import models
from posterity.core.passes import Training
from posterity.core.tree import tree_rows
from posterity.engine.blocks import receive_stack
from posterity.engine.engines import ORACLE
from posterity.engine.round import personal_model
from posterity.laws import check
from posterity.methods.fedavg import FedAvg
from posterity.methods.fedbps import FedBPS, personal_entries, unpacked_like
from posterity.methods.local import Local

TRAINING = Training(lr=0.1, batch=4, epochs=2)
TAU = 5e-4


@each_engine
def test_two_clients_by_hand(engine):
    """Sizes 1 and 3, one step of 0.1 from 1: w = (1.1, 1.8), w_g = (1.1 + 3·1.8)/4 = 1.625.

    Curvatures 1 and 2: v = 1/(1 + τ) and 1/(3 (2 + τ)); deviations 0.525 and 0.175.
    With P = 1, p = 0.7 makes the one parameter personal and p = 0.3 makes it common.
    """
    federation = quadratics([1.0, 2.0], [2.0, 5.0], [1, 3])
    within = (1 / (1 + TAU) + 3 / (3 * (2 + TAU))) / 4
    between = (0.525**2 + 3 * 0.175**2) / 4
    for p, second in ((0.7, (1.19, 2.44)), (0.3, (1.6625, 2.3))):
        run = Run(FedBPS(full_batch(1), p=p), federation, scalar_model(), engine, at(1.0)).rounds(1)
        assert run.personal() == pytest.approx([1.1, 1.8], abs=1e-14)
        assert run.scalar() == pytest.approx(1.625, abs=1e-14)
        assert float(run.state.variance["head.weight"]) == pytest.approx(within + between, abs=1e-14)
        share = run.logs[0].report["disagreement_share"]
        assert share == pytest.approx(between / (within + between), abs=1e-12)
        assert run.rounds(1).personal() == pytest.approx(second, abs=1e-13)  # from (1.1, 1.8), or both from 1.625


def plane():
    """Two clients, two inputs that never meet in a row: the first is seen in all rows but one, the second once."""
    x = torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 0.5]], dtype=DOUBLE)
    train = [(x, x @ torch.tensor(c, dtype=DOUBLE)) for c in ([1.0, 1.0], [1.2, -1.0])]
    net = nn.Sequential(OrderedDict(head=nn.Linear(2, 1, bias=False)))
    return federate(train), models.wrap(net, "head", 1, "regression", shape=(2,))


@each_engine
@pytest.mark.parametrize(("score", "personal"), [("variance", (False, True)), ("hessian", (True, False))])
def test_the_uncertain_parameter_becomes_personal(engine, score, personal):
    """h = (8/3, 1/12): the second weight is the less determined and the more disputed one."""
    federation, model = plane()
    run = Run(FedBPS(full_batch(2), p=0.5, score=score), federation, model, engine).rounds(1)
    mask = unpacked_like(run.state.mask, run.state.variance)["head.weight"][0]
    assert mask.tolist() == list(personal)
    for client in range(2):
        mixed = personal_model(run.sim, run.state, run.store, client, 1, "received")[0].params["head.weight"][0]
        own, common = run.store.rows["head.weight"][client, 0], run.state.params["head.weight"][0]
        assert torch.equal(mixed, torch.where(mask, own, common))
        assert not torch.equal(own, common)


@each_engine
def test_partial_cohorts(engine):
    """An absent client keeps its entries; one that is met late starts at w_g."""
    federation = points((9, 5, 7))
    run = Run(FedBPS(TRAINING), federation, mlp(federation), engine).rounds(1, [0, 1])
    before = {n: rows[0].clone() for n, rows in run.store.rows.items()}
    here, _ = receive_stack(run.sim, ORACLE, run.state, run.store, torch.tensor([2]), 1)
    late = ORACLE.start(run.sim, here)[0].params
    assert worst(late, run.state.params) == 0
    run.rounds(1, [1, 2])
    assert all(torch.equal(rows[0], before[n]) for n, rows in run.store.rows.items())


@each_engine
def test_adaptation_keeps_personal_entries_only(engine):
    """A newcomer trains from w_g and takes the common entries back."""
    federation = points((9, 5, 7))
    run = Run(FedBPS(TRAINING), federation, mlp(federation), engine).rounds(2, [0, 1])
    carry, _ = personal_model(run.sim, run.state, run.store, 2, 2, "adapted")
    mask = unpacked_like(run.state.mask, run.state.variance)
    moved = torch.cat([(carry.params[n] != p).flatten() for n, p in run.state.params.items()])
    inside = torch.cat([m.flatten() for m in mask.values()])
    assert not (moved & ~inside).any()
    assert (moved & inside).any()
    still = Run(FedBPS(TRAINING, p=0.0), federation, mlp(federation), engine).rounds(1)
    received, adapted = (still.outputs(point) for point in ("received", "adapted"))
    assert all(torch.equal(a, b) for a, b in zip(received, adapted, strict=True))


@pytest.mark.parametrize("p", [0.0, 0.7])
def test_one_client_is_centralised_training(p):
    """K = 1: w_g is the client's w, so that mixing changes nothing and every entry may as well be personal."""
    federation = points((17,))
    runs = [
        Run(m, federation, mlp(federation), dtype=torch.float32).rounds(3)
        for m in (FedBPS(TRAINING, p=p), Local(TRAINING))
    ]
    assert worst(runs[0].store.rows, runs[1].store.rows) == 0
    assert worst(runs[0].state.params, tree_rows(runs[1].store.rows, 0)) == 0


@pytest.mark.parametrize("curvature", ["ggn", "mc_fisher", "empirical_fisher", "hutchinson"])
def test_engines_agree(curvature):
    federation = points((9, 5, 1, 13))
    method = FedBPS(TRAINING, curvature=curvature, scope="per_tensor")
    runs = [Run(method, federation, mlp(federation), e).rounds(2) for e in ENGINES]
    assert worst(runs[0].state, runs[1].state) < 1e-9
    assert worst(runs[0].store.rows, runs[1].store.rows) < 1e-9


def test_equal_logits_of_a_binary_head_do_not_depend_on_rounding():
    """v of the two rows is the same but for rounding, which engines may do otherwise; the mask is one for every p."""
    near = 0
    for seed in range(4):
        federation = points((9, 5, 1, 13), classes=2, seed=seed)
        ends = [Run(FedBPS(TRAINING, p=0.0), federation, mlp(federation), e).rounds(2).state for e in ENGINES]
        size = mlp(federation).size
        for count in range(size + 1):
            masks = [personal_entries(end.variance, count / size, "global") for end in ends]
            assert torch.equal(*masks)
        rows = ends[0].variance["head.weight"]
        near += int(torch.isclose(rows[0], rows[1], rtol=1e-13).sum())
    assert near == 4 * rows.shape[1]


@pytest.mark.everything
@pytest.mark.parametrize("curvature", ["mc_fisher", "hutchinson"])
def test_laws_hold_for_the_drawn_estimators(curvature):
    method = FedBPS(Training(lr=0.05, batch=4), curvature=curvature)
    broken = [v.detail for v in check(method, "mlp", ("engines", "company", "mask", "draws")) if not v.held]
    assert broken == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bytes(dtype):
    """Up: twice the parameters, the weight and the within-share. Down: FedAvg's and a bit per parameter."""
    federation = points((5, 9, 2))
    model = mlp(federation)
    logs = [Run(m, federation, model, dtype=dtype).rounds(1).logs[0] for m in (FedBPS(), FedAvg())]
    assert logs[0].bytes_up == 3 * (2 * model.size + 2) * dtype.itemsize
    assert logs[0].bytes_down == logs[1].bytes_down + 3 * math.ceil(model.size / 8)


def test_running_statistics_are_common():
    federation = points((8, 8))
    run = Run(FedBPS(full_batch(1), p=1.0), federation, mlp(federation, norm=True)).rounds(1)
    plain = Run(FedAvg(full_batch(1)), federation, mlp(federation, norm=True)).rounds(1)
    buffers = sorted(run.sim.model.buffers)
    assert buffers
    assert not set(buffers) & set(run.store.rows)
    assert worst({n: run.state.params[n] for n in buffers}, {n: plain.state.params[n] for n in buffers}) == 0


def test_dead_units_have_the_prior_variance():
    """Inputs that are 0 have no curvature: v_i = 1/(n τ), the largest there is."""
    federation, model = plane()
    blind = federation.x.clone()
    blind[:, 1] = 0
    run = Run(FedBPS(full_batch(1)), type(federation)(**{**federation.__dict__, "x": blind}), model).rounds(1)
    assert float(run.state.variance["head.weight"][0, 1]) == pytest.approx(1 / (3 * TAU), rel=1e-12)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"p": -0.1}, "p must be at least 0"),
        ({"p": 1.1}, "p must be at least 0 and at most 1"),
        ({"p": math.nan}, "p must be a finite number; nan"),
        ({"curvature": "gnn"}, "did you mean 'ggn'"),
        ({"prior": 0.0}, "prior must be above 0"),
        ({"prior": math.nan}, "prior must be a finite number; nan"),
        ({"probes": 0}, "probes must be at least 1"),
        ({"score": "printed"}, "score = 'printed' is unknown"),
        ({"loss_scale": "per_batch"}, "loss_scale = 'per_batch' is unknown"),
        ({"scope": "layer"}, "scope = 'layer' is unknown"),
        ({"within_scale": -1.0}, "within_scale must be at least 0"),
    ],
)
def test_bad_hyper_parameters(given, message):
    with pytest.raises(ValueError, match=message):
        FedBPS(**given)
