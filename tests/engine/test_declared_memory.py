"""What clients hold at once is at most what their passes declare: `--memory` divides clients by that.

Counted on a CPU, operator by operator, with clients of different sizes; libraries' own workspaces are not seen.
"""

from __future__ import annotations

import weakref

import pytest
import torch
from kinds import everything, fewer, needs, of_each_kind
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import posterity
from posterity import methods
from posterity.core.passes import holding
from posterity.engine.blocks import declared_bytes
from posterity.engine.stacked import Stacked
from posterity.laws import make_case
from posterity.methods.fedavg import FedAvg
from posterity.methods.fedpa import FedPA

SETTINGS = {"dataset": "digits", "clients": 4, "rounds": 2, "evaluate_every": 2, "subset": "4%", "batch_size": 4,
            "engine": "stacked", "memory": 2**36}  # fmt: skip
NETWORKS = {"mlp": {"model.hidden": 256}, "cnn": {"model.feature_dim": 64}}
WRAPPED = ("fedavg+metavd", "fedavg+drop", "maml+metavd", "perfedavg+metavd", "fedavg+snip", "fedavg+clip", "fedpa+ft",
           "fedavg+calibrated")  # fmt: skip
VALUES = [("fedpa", {"samples": 8}), ("fedpa", {"burn": 4}), ("fedep", {"precision": "laplace"}), ("pvi", {"draws": 4}),
          ("pfedvmp", {"mode": "printed"}), ("pfedvmp", {"mode": "count"}), ("fedbps", {"curvature": "hutchinson"}),
          ("qlsd", {"full": True}), ("fedavg+metavd", {"test_noise": "fit_embedding"})]  # fmt: skip


class Live(TorchDispatchMode):
    """Bytes of all tensors that were made inside and are still there, now and at most."""

    def __init__(self) -> None:
        super().__init__()
        self.known: set[int] = set()
        self.now = self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {id(t.untyped_storage()) for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor) and id(tensor.untyped_storage()) not in self.known | given:
                self._count(tensor.untyped_storage())
        return made

    def _count(self, storage) -> None:
        self.known.add(id(storage))
        self.now += storage.nbytes()
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._gone, id(storage), storage.nbytes())

    def _gone(self, place, size) -> None:
        self.known.discard(place)
        self.now -= size


def test_what_is_made_and_gone_is_counted():
    before = torch.ones(1000)
    with Live() as live:
        kept = before + 1
        before.add_(1).view(10, 100)  # nothing new
        kept = (before * 2) * 3 + kept  # three at once, with the one that is kept
        del kept
        torch.vmap(lambda x: x * 2)(torch.zeros(10, 100))
    assert live.most == 3 * 4000
    assert live.now == 0


def shares(monkeypatch, spec: str, network: str, values, start=posterity.run) -> list[float]:
    """What every visit and every prediction of a run held, as a share of what was declared for its clients."""
    found = []

    def counted(name):
        usual = getattr(Stacked, name)

        def call(self, sim, passes, *given):
            adapt, here = ((), given[0]) if name == "visit" else given[:2]
            with Live() as live:
                result = usual(self, sim, passes, *given)
            each = declared_bytes(sim, here.client.cpu(), (*passes, *adapt))
            found.append(live.most / (len(here.client) * each))
            return result

        monkeypatch.setattr(Stacked, name, call)

    counted("visit")
    counted("predict")
    start(method=spec, model=network, set={**NETWORKS[network], **fewer(spec), **values}, **SETTINGS, **needs(spec))
    return found


def three_seeds_at_once(method: str, **settings) -> None:
    posterity.compare([method], (0, 1, 2), together=True, **settings)


@pytest.mark.parametrize("network", ["mlp", pytest.param("cnn", marks=pytest.mark.everything)])
@pytest.mark.parametrize("spec", of_each_kind([*sorted(methods.available()), *WRAPPED]))
def test_clients_hold_what_their_passes_declare(spec, network, monkeypatch):
    found = shares(monkeypatch, spec, network, {})
    assert len(found) >= 3
    assert max(found) <= 1, found


@pytest.mark.parametrize(("spec", "values"), everything(*VALUES))
def test_also_with_values_that_hold_more(spec, values, monkeypatch):
    assert max(shares(monkeypatch, spec, "mlp", values)) <= 1


@pytest.mark.parametrize("spec", everything("fedpa", "fedep", "gpfl", "fedcp", "feddc", "pfedbayes", "fedavg+metavd"))
def test_also_with_several_seeds_at_once(spec, monkeypatch):
    found = shares(monkeypatch, spec, "mlp", {}, three_seeds_at_once)
    assert len(found) >= 3
    assert max(found) <= 1, found


def test_what_a_method_holds_besides_is_added():
    each = FedAvg().passes()[0]
    more = holding((each,), copies=3, leaves=lambda model: 10)[0]
    both = holding((more,), leaves=lambda model: 7)[0]
    assert (each.copies, more.copies, both.copies) == (8, 11, 11)
    assert more.scratch(5, None) == 11 * 10
    assert both.scratch(5, None) == 11 * (10 + 7)
    assert holding((each,), copies=1)[0].scratch is None


def test_a_prediction_alone_is_taken_for_what_training_declares():
    sim = make_case(FedPA()).sim()
    assert declared_bytes(sim, torch.arange(5), ()) == declared_bytes(sim, torch.arange(5), sim.passes())
    assert sim.passes()[0].copies == 8 + 4 + 5 * 5
