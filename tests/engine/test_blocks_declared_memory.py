"""What clients hold at once is at most what their passes declare: `--memory` divides clients by that.

The law `memory` says so of every method on a small federation; here are whole runs, as a user starts them: counted on a
CPU, operator by operator, with clients of different sizes. Libraries' own workspaces are not seen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from kinds import everything, fewer, needs

import posterity
from posterity import methods
from posterity.core import SGD, Adam, Groups, RMSprop, Training, descend, fit, held_by, holding, sample
from posterity.engine.blocks import declared_bytes
from posterity.engine.engines import Stacked
from posterity.laws import make_case
from posterity.laws.memory import Live, law_memory
from posterity.methods.fedavg import FedAvg
from posterity.methods.fedpa import FedPA

SETTINGS = {"dataset": "digits", "clients": 4, "rounds": 2, "evaluate_every": 2, "subset": "4%", "batch_size": 4,
            "engine": "stacked", "memory": 2**36}  # fmt: skip
FEW = "fedpac"  # runs in `make test`: a record, a message and predictions of other sizes than the parameters
NETWORKS = {"mlp": {"model.hidden": 256}, "cnn": {"model.feature_dim": 64}}
WRAPPED = ("fedavg+metavd", "fedavg+drop", "maml+metavd", "perfedavg+metavd", "fedavg+snip", "fedavg+clip", "fedpa+ft",
           "fedavg+calibrated")  # fmt: skip
VALUES = [("fedpa", {"samples": 8}), ("fedpa", {"burn": 4}), ("fedep", {"precision": "laplace"}), ("pvi", {"draws": 4}),
          ("pfedvmp", {"mode": "printed"}), ("pfedvmp", {"mode": "count"}), ("fedbps", {"curvature": "hutchinson"}),
          ("qlsd", {"full": True}), ("fedavg+metavd", {"test_noise": "fit_embedding"})]  # fmt: skip


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


def shares(monkeypatch, spec: str, network: str, values, start=posterity.run, **more) -> list[float]:
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
    start(
        method=spec,
        model=network,
        set={**NETWORKS[network], **fewer(spec), **values},
        **{**SETTINGS, **needs(spec), **more},
    )
    return found


def three_seeds_at_once(method: str, **settings) -> None:
    posterity.compare([method], (0, 1, 2), together=True, **settings)


@pytest.mark.parametrize("network", ["mlp", pytest.param("cnn", marks=pytest.mark.everything)])
@pytest.mark.parametrize("spec", [FEW, *everything(*sorted(methods.available().keys() - {FEW}), *WRAPPED)])
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


@pytest.mark.parametrize("engine", ["stacked", "graph"])
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_clients_that_have_finished_hold_what_is_theirs_alone(engine, optimiser, monkeypatch):
    """Forty clients, hardly two of one size: a view of those who finish would keep all who were at work with them."""
    many = {"engine": engine, "clients": 40, "partition": "dirichlet:0.3", "subset": "100%"}
    assert max(shares(monkeypatch, "fedavg", "mlp", {"local.optimiser": optimiser}, **many)) <= 1


@pytest.mark.parametrize("values", [{"momentum": 0.9}, {"optimiser": "adam"}, {"optimiser": "rmsprop"}])
@pytest.mark.parametrize("spec", ["fedavg", *everything("apfl", "ditto", "pfedbayes", "pfedme", "fedrod", "gpfl")])
def test_what_the_optimiser_keeps_is_declared(spec, values):
    local = Training(lr=0.01, batch=6, weight_decay=0.1, clip=5.0, **values)
    law_memory(make_case(replace(methods.build(spec, fewer(spec)), local=local)))


def test_how_much_an_optimiser_keeps_is_asked_of_itself():
    assert [held_by(each) for each in (SGD(0.1), SGD(0.1, momentum=0.9), RMSprop(), Adam())] == [0, 5, 5, 10]
    assert held_by(Groups({"body": 0, "head": 1}.__getitem__, (SGD(0.1), Adam()))) == 10  # no other name is asked for
    assert descend(fit, Adam()).copies == 8 + 10
    assert descend(fit, Adam(), copies=12).copies == 12 + 10


@dataclass(frozen=True)
class Walker(FedAvg):
    def passes(self):
        return (sample(fit, self.local.make_optimiser(), 0, 12, **self.local.schedule()),)


def test_samples_of_iterates_are_declared():
    law_memory(make_case(Walker(Training(batch=6))))
    assert Walker().passes()[0].copies == 8 + 4 * 12


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
