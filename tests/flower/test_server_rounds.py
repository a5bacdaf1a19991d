"""Rounds with too few replies, with replies that answer something else, and with one that spoils the state."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from posterity.core.messages import Sparse
from posterity.core.tree import tree_map
from posterity.engine.client import message_like, site_without_data
from posterity.engine.round import first_state
from posterity.experiment.setup import set_up
from posterity.flower.codec import CodecError, decode, encode, read_arrays, read_header
from posterity.flower.experiment import open_server, run_experiment
from posterity.flower.question import RoundQuestions
from posterity.flower.server import Server
from posterity.flower.settings import RoundRules
from posterity.flower.site import answer
from posterity.methods.wrappers.clip import broadcast
from posterity.runs.files import read_lines

from .in_process import InProcess, assert_same_end, configuration, federation_of, node_of, simulate, sites
from .test_codec import with_facts
from .test_experiment_faults import message_like_of

AT_ONCE = RoundRules(pause=0)


def gone(sent):
    return "the node is not available"


def begin(config, folder, spoil, rules=AT_ONCE):
    """A run whose replies are spoilt by (client, round, how often it was asked in it)."""
    lines: list = []
    exchange = Spoiling(sites(config, folder), spoil)
    server = run_experiment(config, exchange, folder / "server", 3, lines.append, wait=0, rules=rules)
    return server, lines


class Spoiling(InProcess):
    """`spoil` is asked for every reply: (client, question's facts, reply) -> what arrives."""

    def ask(self, questions):
        for node, data in questions:
            yield node, self.spoil((900 - node) // 7, read_header(data).facts, answer(self.make[node](), data))


def test_how_many_are_needed():
    assert [RoundRules("50%").needed(cohort) for cohort in (0, 1, 2, 3, 4, 5)] == [0, 1, 1, 2, 2, 3]
    assert [RoundRules("2").needed(cohort) for cohort in (0, 1, 2, 9)] == [0, 1, 2, 2]
    assert RoundRules("0").needed(4) == 1
    for wrong in ("half", "-1", "nan", "half%", "120%", ""):
        with pytest.raises(ValueError, match="give a number of clients"):
            RoundRules(wrong)
    with pytest.raises(ValueError, match="asked once at least"):
        RoundRules(tries=0)


def test_who_is_missing_is_asked_again_and_nobody_counts_twice(tmp_path, monkeypatch):
    """In round 2 only client 0 answers at first; the others' second answer counts, as if nothing had happened."""
    monkeypatch.setattr(Server, "due", lambda self, round: False)
    config, asked = configuration("scaffold"), []

    def spoil(client, facts, reply):
        if facts["ask"] == "visit" and facts["round"] == 2:
            asked.append(client)
            if client > 0 and asked.count(client) == 1:
                return gone(reply)
        return reply

    server, lines = begin(config, tmp_path, spoil)
    assert sorted(asked) == [0, 1, 1, 2, 2]
    (note,) = [line["text"] for line in lines if line["kind"] == "note" and "asked again" in line["text"]]
    assert note.startswith("round 2 has 1 of 3 usable replies after try 1 of 3 and needs 2 (")
    assert note.endswith("): the others are asked again")
    assert "client 1: the node is not available" in note
    assert [(line["accepted"], line["refused"]) for line in lines if line["kind"] == "round"] == [(3, []), (3, [])]
    assert_same_end(server, tmp_path, simulate(config))


def test_as_many_replies_as_are_needed_are_enough(tmp_path):
    def spoil(client, facts, reply):
        return gone(reply) if facts.get("round") == 2 and client == 2 else reply

    _, lines = begin(configuration("fedavg", evaluate_every=3), tmp_path, spoil)
    assert [line["accepted"] for line in lines if line["kind"] == "round"] == [3, 2]
    assert not [line for line in lines if line["kind"] == "note" and "asked again" in line["text"]]


def test_the_largest_clients_are_asked_first(tmp_path):
    """They take longest, and a simulation adds up in this order."""
    config = configuration("fedavg", clients=6, subset="20%")
    (tmp_path / "server").mkdir()
    server = open_server(config, InProcess(sites(config, tmp_path)), tmp_path / "server", 6, lambda line: None, wait=0)
    sizes = [server.roster.clients[name].train for name in server.cohort(1)]
    assert len(set(sizes)) > 2
    assert sizes == sorted(sizes, reverse=True)


def test_what_only_scores_need_travels_with_those_that_are_scored(tmp_path):
    """FedDyn's average, which no client trains from."""
    config = configuration("feddyn")
    (tmp_path / "server").mkdir()
    server = open_server(config, InProcess(sites(config, tmp_path)), tmp_path / "server", 3, lambda line: None, wait=0)
    client = server.roster.clients["client 0"]
    requests = [
        RoundQuestions(server.agreement, server.state, 1, ("client 0",), points)
        for points in ((), (("trained", 1, 0),))
    ]
    plain, scored = (read_arrays(request.question(client, 0, 0)).keys() for request in requests)
    assert plain < scored


def test_a_run_with_too_few_replies_stops_and_goes_on(tmp_path):
    config = configuration("scaffold", evaluate_every=3)

    def spoil(client, facts, reply):
        return gone(reply) if facts.get("round") == 2 and client != 1 else reply

    told = "round 2 has 1 of 3 usable replies after try 2 of 2 and needs 2 .*client 0: the node.*start the run again"
    with pytest.raises(ValueError, match=told):
        begin(config, tmp_path, spoil, RoundRules(tries=2, pause=0))
    server, _ = begin(config, tmp_path, lambda client, facts, reply: reply)
    assert_same_end(server, tmp_path, simulate(config))
    rounds = [line for line in read_lines(tmp_path / "server" / "metrics.jsonl") if line["kind"] == "round"]
    assert [(line["round"], line["accepted"]) for line in rounds] == [(1, 3), (2, 3)]


def enlarged(config, folder, reply, factor):
    """A message of FedAvg whose parameters are `factor` times as large: finite, and in the right form."""
    header = read_header(reply)
    message = decode(reply, message_like_of(config, folder), header.fingerprint)
    value = tree_map(lambda leaf: leaf * factor, message["params"].value)
    return encode({"params": replace(message["params"], value=value)}, header.fingerprint, header.facts)


def test_a_message_that_spoils_the_state_is_left_out_by_name(tmp_path):
    """As in the simulator: the state is tried, then the round is repeated without the client that stands out."""
    config, trials = configuration("fedavg", clients=3, evaluate_every=3), []

    def spoil(client, facts, reply):
        if facts.get("trial"):
            trials.append(client)
            assert (
                sorted(path.name for path in tmp_path.glob("sites/*/*/round-*")) == ["round-00000001.safetensors"] * 3
            )
        wrong = facts.get("round") == 1 and client == 2
        return enlarged(config, tmp_path, reply, 1e12) if wrong else reply

    server, lines = begin(config, tmp_path, spoil)
    assert sorted(trials) == [0, 1, 2]
    first = next(line for line in lines if line["kind"] == "round")
    assert (first["accepted"], [each["client"] for each in first["refused"]]) == (2, ["client 2"])
    assert "far beyond the others'" in first["refused"][0]["reason"]
    assert_same_end(server, tmp_path, simulate(config, [[0, 1], [0, 1, 2]]))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"trial": True}, "it answers a trial, not the round"),
        ({"scores": None}, "its scores are no list of tables"),
        ({"scores": [{"point": "entered", "round": 1, "epochs": 0}]}, "its scores are of [('entered', 1, 0)]"),
        ({"round": 2}, "it is of client 'client 1' and round 2"),
        ({"client": "client 0"}, "it is of client 'client 0' and round 1"),
    ],
)
def test_a_reply_to_something_else_is_named(change, told, tmp_path):
    config = configuration("fedavg", rounds=1)
    server, lines = begin(
        config,
        tmp_path,
        lambda k, facts, reply: with_facts(reply, **change) if k == 1 and facts.get("round") == 1 else reply,
    )
    (line,) = [line for line in lines if line["kind"] == "round"]
    assert [each["client"] for each in line["refused"]] == ["client 1"]
    assert told in line["refused"][0]["reason"]
    assert set(server.counted) == {"client 0", "client 2"}


def test_late_and_double_replies_are_not_heard(tmp_path):
    """What a node says after its reply was taken, or of a round before, does not count."""
    config, kept = configuration("fedavg", evaluate_every=3), {}

    class Echo(Spoiling):
        def ask(self, questions):
            for node, reply in super().ask(questions):
                yield node, reply
                yield node, reply
                if node in kept:
                    yield node, kept[node]
                kept[node] = reply

    exchange = Echo(sites(config, tmp_path), lambda client, facts, reply: reply)
    server = run_experiment(config, exchange, tmp_path / "server", 3, lambda line: None, wait=0, rules=AT_ONCE)
    assert_same_end(server, tmp_path, simulate(config))


@pytest.mark.parametrize("wrong", [{"factor": 1.5}, {"weight": 3.0}])
def test_a_site_that_does_not_clip_is_refused(wrong, tmp_path):
    """With +clip its own code cuts what a client sends; a site that runs other code is found out by the server."""
    config = configuration("fedavg+clip", rounds=1, evaluate_every=2, set={"bound": "0.01"})

    def spoil(client, facts, reply):
        return farther(config, reply, **wrong) if client == 2 and facts.get("round") == 1 else reply

    _, lines = begin(config, tmp_path, spoil)
    (line,) = [line for line in lines if line["kind"] == "round"]
    assert line["accepted"] == 2
    reason = "'params' is longer than +clip allows (0.01), or weighs more than its samples"
    assert line["refused"] == [{"client": "client 2", "reason": reason}]


def farther(config, reply, factor=1.0, weight=1.0):
    """A message of FedAvg with +clip in round 1 whose way from the first parameters, or weight, is so much larger."""
    header, sim = read_header(reply), set_up(config, federation_of(config)).sim
    site = site_without_data(sim, sim.visits, torch.tensor(0), sim.federation.shape, "classification")
    message = decode(reply, message_like(site, *sim.method.offer(first_state(sim), torch.tensor(0)), 1),
                     header.fingerprint)  # fmt: skip
    way = {n: sim.initial[n] + factor * (leaf - sim.initial[n]) for n, leaf in message["params"].value.items()}
    mean = replace(message["params"], value=way, weight=weight * message["params"].weight)
    sent = {**message, "params": mean}
    return encode(sent, header.fingerprint, header.facts)


@pytest.mark.parametrize("spec", ["fedavg+clip", "fedavg+clip+snip", "fedavg+snip+clip"])
def test_who_clips_is_looked_at_through_pruning_and_withheld_classes(spec, tmp_path):
    """After round 1, when weights are removed: honest messages pass, one that goes half as far again is refused."""
    config = configuration(spec, evaluate_every=3, min_count=5, set={"bound": "0.01"})
    (tmp_path / "server").mkdir()
    server = open_server(config, InProcess(sites(config, tmp_path)), tmp_path / "server", 3, lambda line: None, wait=0)
    server.step()
    request = RoundQuestions(server.agreement, server.state, 2, ("client 0",))
    client, site = server.roster.clients["client 0"], server.exchange.make[node_of(0)]()
    reply = answer(site, request.question(client, 0, 1))
    offer = request.offer(client, 0)
    like = message_like(request._nobody(0), offer.shared, offer.own, 2)
    message = decode(reply, like, request.agreement.fingerprint)
    assert request.read(client, 0, reply).part.accepted == 1
    pruned = isinstance(message["params"], Sparse)
    assert pruned is ("snip" in spec)
    mean = message["params"].part if pruned else message["params"]
    start = broadcast(request.offer(client, 0).shared)
    far = replace(mean, value={n: start[n] + 1.5 * (leaf - start[n]) for n, leaf in mean.value.items()})
    sent = {**message, "params": replace(message["params"], part=far) if pruned else far}
    header = read_header(reply)
    with pytest.raises(CodecError, match="'params' is longer than \\+clip allows"):
        request.read(client, 0, encode(sent, header.fingerprint, header.facts))
    assert not pruned or int(message["params"].unsent) > 0  # of which the codec sent nothing
