"""Clients that come after the first round, and clients that leave for good and take their factor along."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from posterity import methods
from posterity.core.tree import tree_map
from posterity.flower.agreement import SampleSpec, agree
from posterity.flower.codec import read_facts
from posterity.flower.experiment import depart, open_server, run_experiment, save
from posterity.flower.question import RoundQuestions
from posterity.flower.records import RecordFiles
from posterity.flower.settings import RoundRules
from posterity.laws.case import largest_gap
from posterity.methods.fedep import common
from posterity.methods.pvi import factors
from posterity.report import write_report
from posterity.runs.files import read_json

from .in_process import EXPERIMENT, InProcess, assert_same_end, configuration, node_of, simulate, sites

# their state is a function of how many clients or samples there are
FIXED = {"fedep", "feddc", "feddyn", "fedpac", "pvi", "qlsd", "scaffold", "fedavg+metavd", "fedavg+dp"}


class Late(InProcess):
    """The nodes of `late` clients are there after so many questions."""

    late = (3,)
    after = 6  # three register, three train

    def nodes(self):
        hidden = {node_of(k) for k in self.late} if self.asked < self.after else set()
        return [node for node in super().nodes() if node not in hidden]


def run_late(config, folder, change=lambda exchange: None):
    lines: list = []
    exchange = Late(sites(config, folder))
    change(exchange)
    server = run_experiment(
        config, exchange, folder / "server", 3, lines.append, wait=0, rules=RoundRules(pause=0)
    )  # fmt: skip
    return server, lines


@pytest.mark.parametrize(
    "spec", ["fedavg", *(pytest.param(each, marks=pytest.mark.everything) for each in ("fednp", "fedper"))]
)
def test_who_comes_late_trains_from_the_next_round_on(spec, tmp_path):
    config = configuration(spec, clients=4, evaluate_every=1)
    server, lines = run_late(config, tmp_path)
    assert server.roster.numbers["client 3"] == 3
    assert {len(line["clients"]["n"]) for line in lines if line["kind"] == "score"} == {3, 4}
    assert [line["cohort"] for line in lines if line["kind"] == "round"] == [3, 4]
    assert [line["text"] for line in lines if line["kind"] == "note"][-1] == (
        "'client 3' came late: it takes part from now on"
    )
    assert_same_end(server, tmp_path, simulate(config, [[0, 1, 2], [0, 1, 2, 3]]))
    again = open_server(config, server.exchange, tmp_path / "server", 3, lambda line: None, wait=0)
    assert again.roster.numbers == server.roster.numbers
    assert "client 3" in write_report(tmp_path / "server").read_text()


def test_a_state_that_cannot_grow_serves_the_late_one_as_a_newcomer(tmp_path):
    config = configuration("scaffold", clients=4)
    server, lines = run_late(config, tmp_path)
    assert [line["cohort"] for line in lines if line["kind"] == "round"] == [3, 3]
    scored = {line["point"] for line in lines if line["kind"] == "score" and line["group"] == "newcomers"}
    assert read_json(tmp_path / "server" / "run.json")["federation"]["newcomers"] == 1
    assert scored == {"received", "adapted"}
    assert "client 3" not in server.counted
    assert any("it is scored and adapts, as a newcomer" in line.get("text", "") for line in lines)


@pytest.mark.parametrize("spec", sorted({*methods.available(), "fedavg+metavd", "fedavg+dp", "fedavg+clip"}))
def test_which_states_can_grow(spec):
    config = configuration(spec)
    agreement = agree(config, SampleSpec((1, 8, 8), "classification", tuple("0123456789")), 3, 90, 20)
    assert agreement.grows is (spec not in FIXED)


def test_who_comes_late_with_other_samples_is_named(tmp_path):
    config = configuration("fedavg", clients=4, evaluate_every=3)

    def strange(exchange):
        make = exchange.make[node_of(3)]
        kind = replace(make().samples.kind, classes=("something else",))
        exchange.make[node_of(3)] = lambda: replace(make(), samples=replace(make().samples, kind=kind))

    server, lines = run_late(config, tmp_path, strange)
    assert [line["cohort"] for line in lines if line["kind"] == "round"] == [3, 3]
    notes = [line["text"] for line in lines if line["kind"] == "note" and "came late" in line["text"]]
    assert len(notes) == 1
    assert notes[0].startswith("'client 3' came late and cannot take part: its samples are of")
    assert "client 3" not in server.roster.numbers


# --- leaving -----------------------------------------------------------------------------------------------------
def after_two_rounds(spec, folder, **changes):
    """A server that has saved two rounds of three, and the lines that it tells."""
    config = configuration(spec, rounds=3, evaluate_every=4, dtype="float64", **changes)
    (folder / "server").mkdir()
    server, lines = reopened(config, folder, InProcess(sites(config, folder)))
    for _ in range(2):
        server.step()
    save(server)
    return server, lines


def reopened(config, folder, exchange):
    lines: list = []
    return open_server(config, exchange, folder / "server", 3, lines.append, wait=0), lines


def record_of(server, folder, name):
    here = server.roster.numbers[name]
    request = RoundQuestions(server.agreement, server.state, 3, ())
    offer = request.offer(server.roster.clients[name], here)
    like = request._nobody(here).receive(offer.shared, offer.own, None, 3).personal
    return RecordFiles(folder / "sites", EXPERIMENT, name, server.agreement.fingerprint).read(like, 2)


def natural(spec, state):
    """What is the product of a prior and everybody's factors, in natural parameters."""
    if spec == "fednp":
        return state.totals
    return factors(state.params, state.precision) if spec == "pvi" else common(state)


@pytest.mark.parametrize("spec", ["fednp", "pvi", "fedep"])
def test_what_stays_is_the_sum_of_the_others_factors(spec, tmp_path):
    """The prior, and the factors on the disks of those who stay; without the one who left and its momentum."""
    own = {"set": {"burn_rounds": "0"}} if spec == "fedep" else {}
    server, lines = after_two_rounds(spec, tmp_path, **own)
    prior, full = natural(spec, server.agreement.first_state()), natural(spec, server.state)
    kept = {name: record_of(server, tmp_path, name) for name in server.counted}
    parts = {name: server.agreement.method.factor(record) for name, record in kept.items()}
    depart(server, ["client 1"])
    rest = [parts[name].factors if spec == "fedep" else parts[name] for name in ("client 0", "client 2")]
    base = tree_map(torch.zeros_like, prior) if spec == "fedep" else prior  # FedEP's first q is shared out to all
    expected = tree_map(lambda a, b, c: a + b + c, base, *rest)
    scale = largest_gap(full, tree_map(torch.zeros_like, full))[0]
    assert largest_gap(natural(spec, server.state), expected)[0] < 1e-9 * scale
    assert largest_gap(full, expected)[0] > 1e-6 * scale
    assert lines[-1]["text"] == "'client 1' has left before round 3; its factor was taken out of the state"


def test_it_goes_on_without_who_left(tmp_path):
    server, _ = after_two_rounds("fednp", tmp_path)
    config, lines, asked = server.config, [], []
    exchange = InProcess(sites(config, tmp_path), {(node_of(1), n): lambda sent: asked.append(read_facts(sent)) or sent
                                                   for n in range(99)})  # fmt: skip
    done = run_experiment(config, exchange, tmp_path / "server", 3, lines.append, wait=0, leave=("client 1",))
    assert [line["cohort"] for line in lines if line["kind"] == "round"] == [2]
    assert done.roster.gone == {"client 1": ""}
    assert [sorted(each)[:1] for each in asked] == [["classes"], ["client"]]  # it registered, and left
    totals = done.state.totals
    again, _ = reopened(config, tmp_path, exchange)
    depart(again, ["client 1"])  # the same run config once more
    assert largest_gap(again.state.totals, totals)[0] == 0.0


def test_a_number_of_participants_that_is_not_left_takes_all_who_are(tmp_path):
    """The round goes on, and the report shows its note."""
    server, lines = after_two_rounds("fedavg", tmp_path, participation="3")
    depart(server, ["client 2"])
    server.step()
    save(server)
    rounds = [line for line in lines if line["kind"] == "round"]
    assert [(line["cohort"], line.get("notes", [])) for line in rounds] == [
        (3, []),
        (3, []),
        (2, ["participation = 3 was asked for, and 2 clients can train: all of them are asked"]),
    ]
    assert "participation = 3 was asked for" in write_report(tmp_path / "server").read_text()


def test_a_method_that_cannot_forget_says_so(tmp_path):
    server, lines = after_two_rounds("fedavg", tmp_path)
    before = server.state
    depart(server, ["client 2"])
    assert server.state is before
    assert "what it contributed stays: the method cannot tell what is its part" in lines[-1]["text"]
    assert [client.name for client in server.roster.members] == ["client 0", "client 1"]
    with pytest.raises(ValueError, match="leave names 'nobody', who is no client here"):
        depart(server, ["nobody"])


def test_a_factor_that_is_not_to_be_had_may_be_asked_for_again(tmp_path):
    server, lines = after_two_rounds("pvi", tmp_path)
    node, before = server.roster.node.pop("client 0"), server.state
    depart(server, ["client 0"])
    assert server.state is before
    assert "its site is not there" in lines[-1]["text"]
    save(server)
    again, told = reopened(server.config, tmp_path, server.exchange)
    assert again.roster.node["client 0"] == node
    depart(again, ["client 0"])
    assert "its factor was taken out" in told[-1]["text"]
