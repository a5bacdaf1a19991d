"""What the server, the log and a stranger are told about a round: counts, bytes, losses and keys, each by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from predicted import score

from posterity.core.passes import Training
from posterity.core.tree import tree_bytes
from posterity.data.federation import Part
from posterity.engine.blocks import able
from posterity.engine.engines import ORACLE, STACKED
from posterity.engine.round import Question, first_state, train_round
from posterity.engine.seeds import MultiSeed, answers, train_rounds
from posterity.engine.store import Store
from posterity.laws import make_case
from posterity.laws.case import SIZES
from posterity.methods.fedavg import FedAvg
from posterity.methods.fedper import FedPer

COHORT, BROKEN = (0, 1, 2, 3, 8, 10), 8
STILL = Training(lr=1e-12)  # so small that a loss is that of the first leaves


def noting():
    """A method that writes down what the server is told."""
    seen = []

    @dataclass(frozen=True)
    class Noting(FedAvg):
        def init(self, model, params, facts):
            seen.append(facts)
            return super().init(model, params, facts)

        def combine(self, state, total, now):
            seen.append(now)
            return super().combine(state, total, now)

    return Noting(STILL), seen


def trained(sim, cohort=COHORT, round=1):
    return train_round(sim, STACKED, first_state(sim), Store(15), torch.tensor(cohort), round, 3)


def spoilt(sim, client=BROKEN):
    """The simulation in which a client's training diverges at once."""
    x = sim.federation.x.clone()
    x[sim.federation.train.client(client)[0]] = torch.inf
    return replace(sim, federation=replace(sim.federation, x=x))


def test_the_server_knows_the_members_and_their_samples_only():
    method, seen = noting()
    sim = make_case(method).sim()
    first_state(sim)
    assert (seen[0].clients, seen[0].samples, seen[0].classes) == (len(SIZES), sum(SIZES), 4)


def test_combine_is_told_how_many_messages_were_accepted():
    method, seen = noting()
    _, log = trained(spoilt(make_case(method).sim()))
    assert (log.cohort, log.accepted, seen[-1].cohort) == (6, 5, 5)
    assert [refusal.client for refusal in log.refused] == [BROKEN]


def test_combine_has_a_new_key_each_round():
    method, seen = noting()
    for round in (1, 2):
        trained(make_case(method).sim(), round=round)
    one, other = (now for now in seen if hasattr(now, "cohort"))
    assert (one.round, other.round, one.rounds) == (1, 2, 3)
    assert not torch.equal(one.key, other.key)


def expected_loss(sim, cohort):
    """Mean cross-entropy over the samples of a cohort, at the first leaves."""
    rows = torch.cat([sim.federation.train.client(k) for k in cohort])
    x, y = sim.federation.x[rows], sim.federation.y[rows]
    key = torch.zeros(2, dtype=torch.int64)
    outputs = sim.model(sim.initial, x, mask=x.new_ones(len(x)), train=False, key=key)[0]
    return float(F.cross_entropy(outputs, y))


@pytest.mark.parametrize("memory", [1, 2**30])
def test_the_loss_is_the_mean_over_samples_whatever_the_blocks(memory):
    sim = make_case(FedAvg(STILL)).sim(memory=memory)
    assert trained(sim)[1].loss == pytest.approx(expected_loss(sim, COHORT), rel=1e-9)


def test_the_loss_is_that_of_the_accepted():
    sim = make_case(FedAvg(STILL)).sim()
    others = [c for c in COHORT if c != BROKEN]
    assert trained(spoilt(sim))[1].loss == pytest.approx(expected_loss(sim, others), rel=1e-9)


@pytest.mark.parametrize("memory", [1, 2**30])
def test_bytes_are_those_of_every_client_whatever_the_blocks(memory):
    sim = make_case(FedAvg(STILL)).sim(memory=memory)
    logs = {count: trained(sim, COHORT[:count])[1] for count in (1, 6)}
    size = tree_bytes(sim.initial)
    assert logs[1].bytes_down == size
    assert size <= logs[1].bytes_up <= size + 16  # the leaves and their weight
    assert (logs[6].bytes_up, logs[6].bytes_down) == (6 * logs[1].bytes_up, 6 * logs[1].bytes_down)


def test_a_client_without_data_is_never_asked():
    sim = make_case(FedAvg(STILL)).sim()
    groups = [sim.federation.train.client(k) for k in range(15)]
    groups[4] = groups[4][:0]
    sim = replace(sim, federation=replace(sim.federation, train=Part.of(groups)))
    assert able(sim).tolist() == [k for k in range(13) if k != 4]


@dataclass(frozen=True)
class Named(FedAvg):
    """Predicts what the server sent to this client alone: its number, or -1 if it is a stranger."""

    def offer(self, state, client):
        return state, torch.tensor(-1) if client is None else client

    def predict(self, carry, x, here):
        return here.own.to(x.dtype) + torch.zeros(len(x), 4, dtype=x.dtype)


def asked(sim, engine, newcomers, clients=(3, 0)):
    test = [sim.federation.test]
    outputs = score(sim, engine, first_state(sim), Store(15), torch.tensor(clients), 1, test, "received",
                    newcomers=newcomers)  # fmt: skip
    return [float(output[0, 0]) for output in outputs[0]]


@pytest.mark.parametrize("engine", [ORACLE, STACKED], ids=["loop", "stacked"])
def test_a_stranger_is_offered_what_newcomers_are(engine):
    sim = make_case(Named(STILL)).sim()
    assert asked(sim, engine, newcomers=False) == [3, 0]
    assert asked(sim, engine, newcomers=True) == [-1, -1]


def test_strangers_of_several_seeds_at_once():
    sims = [make_case(Named(STILL)).sim(seed=seed) for seed in (0, 1)]
    states, stores = [first_state(w) for w in sims], [Store(15) for _ in sims]
    for newcomers, expected in ((True, [-1, -1]), (False, [3, 0])):
        questions = [Question(torch.tensor([3, 0]), (w.federation.test,), "received", None, newcomers) for w in sims]
        for (outputs,) in answers(MultiSeed.of(sims), STACKED, states, stores, questions, 1):
            assert [float(output[0, 0]) for output in outputs] == expected


@pytest.mark.parametrize("engine", [ORACLE, STACKED], ids=["loop", "stacked"])
def test_a_stranger_has_no_record_even_where_its_number_has(engine):
    sim, store = make_case(FedPer(Training(lr=0.5))).sim(), Store(15)
    state, _ = train_round(sim, engine, first_state(sim), store, torch.tensor(COHORT), 1, 3)
    one = torch.tensor([0])
    test = [sim.federation.test]

    def outputs(store, newcomers):
        return score(sim, engine, state, store, one, 2, test, "received", newcomers=newcomers)[0][0]

    assert torch.equal(outputs(store, True), outputs(Store(15), True))
    assert not torch.allclose(outputs(store, True), outputs(store, False))


@dataclass(frozen=True)
class Numbered(FedAvg):
    """Keeps the number that it is told to have."""

    def message(self, carry, here):
        return super().message(carry, here)[0], {"number": here.client.clone()}


def test_clients_of_several_seeds_have_the_numbers_that_they_have_alone():
    sims = [make_case(Numbered(STILL)).sim(seed=seed) for seed in (0, 1)]
    states, stores = [first_state(w) for w in sims], [Store(15) for _ in sims]
    train_rounds(MultiSeed.of(sims), STACKED, states, stores, [torch.tensor(COHORT)] * 2, 1, 3)
    for store in stores:
        assert store.rows["number"][list(COHORT)].tolist() == list(COHORT)


def test_only_clients_that_were_written_are_known():
    store = Store(4)
    assert not store.ready
    store.write(torch.tensor([2]), {"a": torch.tensor([[3.0]])})
    assert store.ready
    assert store.read(torch.tensor([2]))["a"].tolist() == [[3.0]]
    assert store.known.tolist() == [False, False, True, False]
