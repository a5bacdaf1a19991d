"""The loop replays steps that it has taken often: the same bits, and only where operators are always the same ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from kinds import everything

from posterity import methods
from posterity.core.passes import Training
from posterity.core.tree import tree_leaves, tree_map
from posterity.engine.cache import TraceCache
from posterity.engine.process_settings import with_threads
from posterity.fast import _trace as in_place
from posterity.fast import loop
from posterity.laws import make_case
from posterity.laws.case import run
from posterity.methods.fedavg import FedAvg

NEVER = 2**60
CASES = [("fedavg", "mlp"), ("fedavg", "mlp_dropout"), ("fedavg", "cnn"), ("pfedvmp", "mlp"),
         pytest.param("fedavg", "mlp_bn", marks=pytest.mark.everything),
         pytest.param("perfedavg", "mlp_bn", marks=pytest.mark.everything),
         pytest.param("fedavg+metavd", "mlp", marks=pytest.mark.everything)]  # fmt: skip


def end(made, patience):
    """Everything that some rounds sent and left behind, and what became of the recordings of steps."""
    sim = replace(made.sim(), traces=TraceCache(patience=patience))
    leaves = [t for r in run(sim, "loop").rounds for t in tree_leaves((r.sent, r.rows, r.state))]
    return leaves, [entry.value for key, entry in sim.traces.found.items() if "loop" in key]


def equal(left, right):
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.fixture
def reused(monkeypatch):
    """Leaves of any size are written in place; how often operators do so."""
    found = []
    monkeypatch.setattr(in_place, "LEAST", 1)
    old = in_place._Ground.may_write
    monkeypatch.setattr(
        in_place._Ground, "may_write", lambda ground, node: found.append(old(ground, node)) or found[-1]
    )
    return found


@pytest.mark.parametrize(("method", "network"), CASES)
def test_replayed_steps_have_the_same_bits(method, network, reused):
    made = make_case(methods.build(method, {}), network, torch.float32)
    (called, none), (replayed, entries) = end(made, NEVER), end(made, 1)
    assert not any(none)
    assert any(entries)
    assert equal(called, replayed)
    assert any(reused)


@pytest.mark.parametrize("settings", [{"momentum": 0.9}, {"optimiser": "adam"}, {"optimiser": "rmsprop"}, {"clip": 0.1},
                                      {"weight_decay": 0.1}], ids=str)  # fmt: skip
def test_optimisers_that_write_in_place_have_the_same_bits(settings, reused):
    made = make_case(FedAvg(Training(lr=0.1, epochs=3, **settings)), "mlp", torch.float32)
    (called, _), (replayed, _) = end(made, NEVER), end(made, 1)
    assert equal(called, replayed)
    assert any(reused)


SHARING = {
    "twice": lambda p, x: [p - x, p - x],  # both leaves are one tensor, whose memory must not be written to
    "kept": lambda p, x: [p - x, p],  # the leaf before is handed on
    "viewed": lambda p, x: [p - x, (p - x).view(-1).view(4, 4)],
    "later": lambda p, x: [(q := p - x), p * q],  # looked at again after it was replaced
    "crossed": lambda p, x: [p * x, p.t() - x],
    "both": lambda p, x: [p + p, x * 1.5],
}


@pytest.mark.parametrize("update", SHARING.values(), ids=SHARING)
def test_leaves_that_others_look_at_are_not_written_to(update, reused):
    numbers = torch.Generator().manual_seed(0)
    x, *leaves = torch.randn(3, 4, 4, generator=numbers)

    def step(x, leaves):
        return update(leaves[0], x + leaves[1] * 0.01)

    expected = leaves
    for _ in range(5):
        expected = step(x, expected)
    before = [leaf.clone() for leaf in leaves]
    found = in_place.record_steps(step, x, leaves).take([x], [()] * 5, leaves)
    assert equal(found, expected)
    assert equal(leaves, before)  # what it was given is never written to


@dataclass(frozen=True)
class Peeping(FedAvg):
    """Its steps are scaled by a number that they look at, which only a loop allows."""

    look: Callable = int

    def passes(self):
        one = self.local.descend()

        def step(carry, batch, here):
            after = one.step(carry, batch, here)
            return replace(after, params=tree_map(lambda p: p * (1 + 0.1 * self.look(here.client)), after.params))

        return (replace(one, step=step),)


LOOKS = {"int": int, "numpy": lambda number: float(number.numpy())}  # the second is no operator: a recording misses it


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_a_step_that_looks_at_numbers_is_never_recorded(look):
    made = make_case(Peeping(look=look))
    (called, _), (again, entries) = end(made, NEVER), end(made, 0)
    assert entries
    assert not any(entries)
    assert equal(called, again)


@pytest.mark.parametrize("threads", [2, *everything(1, 3)])
@pytest.mark.parametrize(("method", "network"), [("fedavg", "cnn"), ("pfedvmp", "mlp"), ("fedavg", "mlp_bn")])
def test_clients_side_by_side_have_the_bits_of_clients_by_themselves(method, network, threads, monkeypatch):
    made, company = make_case(methods.build(method, {}), network, torch.float32), []
    inner = loop.take_side_by_side

    def spy(take, clients, side):
        done = inner(take, clients, side)
        company.append(len(done))
        return done

    monkeypatch.setattr(loop, "take_side_by_side", spy)
    monkeypatch.setattr(loop, "BRIEF", 0.0)
    with with_threads(threads):
        (called, _), (replayed, _) = end(made, NEVER), end(made, 0)
        assert torch.get_num_threads() == threads
    assert equal(called, replayed)
    assert (max(company) > 1) == (threads > 1)


@pytest.mark.parametrize(("method", "expected"), [(FedAvg(), 1), (Peeping(), 2)], ids=["recordable", "not"])
def test_steps_that_cannot_be_recorded_have_all_threads(method, expected):
    seen = []

    def watched(each):
        def step(carry, batch, here):
            seen.append(torch.get_num_threads())
            return each.step(carry, batch, here)

        return replace(each, step=step)

    @dataclass(frozen=True)
    class Watched(type(method)):
        def passes(self):
            return tuple(watched(each) for each in super().passes())

    with with_threads(2):
        end(make_case(Watched()), NEVER)
    assert set(seen[1:]) == {expected}  # the first call is a question


def test_brief_steps_are_not_taken_side_by_side(monkeypatch):
    company, inner = [], loop.take_side_by_side
    monkeypatch.setattr(loop, "take_side_by_side", lambda *given: company.append(len(given[1])) or inner(*given))
    monkeypatch.setattr(loop, "BRIEF", 3600.0)
    with with_threads(2):
        end(make_case(FedAvg()), 0)
    assert company
    assert not any(company)


def test_a_client_with_an_unrecorded_step_is_visited_again():
    seen = []

    def visit(i):
        seen.append(i)
        if i == 1:
            return None
        return f"carry {i}"

    assert loop.take_side_by_side(visit, [0, 1, 2], 2) == {0: "carry 0", 2: "carry 2"}
    assert sorted(seen) == [0, 1, 2]
    assert loop.take_side_by_side(visit, [2], 2) == {}  # one alone needs no company


def test_what_goes_wrong_side_by_side_is_told():
    def visit(i):
        raise ValueError(f"client {i} is odd")

    with pytest.raises(ValueError, match="client 0 is odd"):
        loop.take_side_by_side(visit, [0, 1], 2)
