"""Where different methods must meet: the two degeneracies that all five papers' methods share.

The others belong to single methods: pFedVMP with ξ₁ = 0 (its O1), FedNP with λ = 0 (O12), MetaVD without noise (O1, O3,
O8), FedMAP with σ² = ∞ or → 0 (O2, O3, O4, O7), FedBPS with p = 0 or 1 (O1, O2).
"""

import pytest
import torch

from posterity.core.messages import Bag, fold_stack
from posterity.core.passes import Training
from posterity.core.protocol import Now
from posterity.core.tree import tree_map
from posterity.engine import keys
from posterity.engine.blocks import receive_stack
from posterity.engine.engines import ORACLE
from posterity.methods.fedavg import FedAvg
from posterity.methods.fedbps import FedBPS
from posterity.methods.fedmap import WEIGHTINGS, FedMAP
from posterity.methods.fednp import FedNP
from posterity.methods.pfedvmp import PFedVMP
from posterity.methods.pfedvmp.precision import MODES
from posterity.methods.reptile import Reptile
from posterity.methods.wrappers.metavd import MetaVD

from .sims import Run, each_engine, mlp, points

LOCAL = Training(lr=0.1, batch=4, epochs=2)
SMALL = {"width": 5, "depth": 2}
METHODS = {
    **{f"pfedvmp-{mode}": PFedVMP(LOCAL, xi=1.0, mode=mode) for mode in MODES},
    **{f"fednp-{weighting}": FedNP(LOCAL, weighting=weighting) for weighting in ("num_examples", "uniform")},
    **{f"metavd-{form}": MetaVD(FedAvg(LOCAL), noise_param=form, **SMALL) for form in ("log_variance", "alpha")},
    "metavd-reptile": MetaVD(Reptile(LOCAL, server_lr=1.0, server_momentum=0.0), **SMALL),
    **{f"fedmap-{weighting}": FedMAP(LOCAL, weighting=weighting) for weighting in WEIGHTINGS},
    **{f"fedbps-{score}": FedBPS(LOCAL, score=score) for score in ("variance", "hessian")},
}
each_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


def visited(run):
    """Client 0 after its local work in the round to come, and the stack of one message that it sends."""
    here, _ = receive_stack(run.sim, ORACLE, run.state, run.store, torch.zeros(1, dtype=torch.int64), run.played + 1)
    carries = ORACLE.work(run.sim, run.sim.method.passes(), ORACLE.start(run.sim, here), here, keys.TRAIN)
    return carries[0].params, ORACLE.visit(run.sim, run.sim.method.passes(), here).message


def copies(sent, count):
    """The message of `count` clients that say the same."""
    stack = tree_map(lambda leaf: leaf.repeat(count, *[1] * (leaf.dim() - 1)), sent)
    return {n: Bag(torch.arange(count), p.value) if isinstance(p, Bag) else p for n, p in stack.items()}


def common(run, trained):
    """The leaves that the server averages: heads of pFedVMP stay with their client."""
    own = set(run.sim.model.head_names) if isinstance(run.sim.method, PFedVMP) else set()
    return [n for n in run.state.params if n in trained and n not in own]


@each_method
@each_engine
def test_one_client_is_centralised_training(method, engine):
    """What the server has after a round is what the only client has trained, on the method's own objective."""
    federation = points((17,))
    run = Run(method, federation, mlp(federation), engine)
    for _ in range(2):
        trained, _ = visited(run)
        run.rounds(1)
        names = common(run, trained)
        assert len(names) >= 2
        for name in names:
            assert torch.allclose(run.state.params[name], trained[name], rtol=1e-12, atol=1e-12), name


@each_method
def test_identical_clients_are_left_alone(method):
    """Three messages that say the same put the server where one of them would."""
    federation = points((9, 9, 9))
    run = Run(method, federation, mlp(federation)).rounds(1)
    trained, sent = visited(run)
    now = Now(1, 2, torch.zeros(2, dtype=torch.int64), 3)
    state = method.combine(run.state, fold_stack(copies(sent, 3)), now)
    for name in common(run, trained):
        assert torch.allclose(state.params[name], trained[name], rtol=1e-12, atol=1e-12), name
    if isinstance(method, PFedVMP):
        alone = method.combine(run.state, fold_stack(sent), now)
        assert torch.allclose(state.centroids, alone.centroids, rtol=1e-10, atol=1e-12)
    if isinstance(method, FedBPS):
        alone = method.combine(run.state, fold_stack(sent), now)
        assert all(torch.allclose(state.variance[n], v, rtol=1e-12) for n, v in alone.variance.items())
        assert torch.equal(state.mask, alone.mask)
