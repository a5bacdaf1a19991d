"""What a lost reply, a dead server and a wrong folder do: nothing is counted twice, and no record is lost."""

from __future__ import annotations

import shutil
import weakref
from dataclasses import replace

import pytest
import torch

from posterity.core.tree import tree_leaves
from posterity.engine.client import message_like, site_without_data
from posterity.engine.round import first_state
from posterity.experiment.setup import set_up
from posterity.flower import question as request_module
from posterity.flower.codec import decode, encode, read_facts, read_header
from posterity.flower.experiment import run_experiment
from posterity.flower.records import RecordFiles
from posterity.flower.site import answer
from posterity.runs import files as run_files
from posterity.runs import folder as run_folder

from .in_process import InProcess, assert_same_end, configuration, deploy, federation_of, node_of, simulate, sites
from .test_codec import with_facts, with_header

LOST = {
    "error": lambda sent: "the node is not available",
    "garbage": lambda sent: b"\x00" * 40,
    "cut": lambda sent: sent[:-5],
    "another round": lambda sent: with_facts(sent, round=1),
    "another experiment": lambda sent: with_header(sent, lambda h: {**h, "fingerprint": f"0{h['fingerprint']}"}),
    "infinite": lambda sent: sent[:-4] + b"\x00\x00\x80\x7f",
}


QUICK = ("error", "another round")


def question_of(config, client, round):
    """The number of the question that a client gets in a round: three register, then the cohort by falling size."""
    sizes = federation_of(config).train.counts.tolist()
    order = sorted(range(3), key=lambda k: -sizes[k])
    return 3 * round + order.index(client) + 1


@pytest.mark.parametrize("case", [pytest.param(c, marks=() if c in QUICK else pytest.mark.everything) for c in LOST])
def test_a_reply_that_is_lost_leaves_no_trace(case, tmp_path):
    """Client 1 trained in round 2 and wrote its record, but its message did not count: round 3 begins at round 1's."""
    config = configuration("scaffold", rounds=3, evaluate_every=4)
    lines: list = []
    spoil = {(node_of(1), question_of(config, 1, 2)): LOST[case]}
    server = deploy(config, tmp_path, lines.append, spoil)
    refused = [line["refused"] for line in lines if line["kind"] == "round"]
    assert [len(each) for each in refused] == [0, 1, 0]
    assert refused[1][0]["client"] == "client 1"
    assert_same_end(server, tmp_path, simulate(config, [[0, 1, 2], [0, 2], [0, 1, 2]]))


class Killed(Exception):
    pass


def killed_at(round, kind):
    """A watcher that ends the server when it says something of a round."""

    def watch(line):
        if line["kind"] == kind and line["round"] == round:
            raise Killed

    return watch


@pytest.mark.parametrize("kind", ["score", pytest.param("round", marks=pytest.mark.everything)])
def test_a_server_that_dies_goes_on(kind, tmp_path):
    """Before the state of round 2 is saved, when sites have trained it; the round is asked for again."""
    config = configuration("scaffold", rounds=3, evaluate_every=2)
    undisturbed = deploy(config, tmp_path / "one")
    with pytest.raises(Killed):
        deploy(config, tmp_path / "two", killed_at(2, kind))
    server = deploy(config, tmp_path / "two")
    assert_same_end(server, tmp_path / "two", simulate(config))
    files = [tmp_path / each / "server" / run_folder.CHECKPOINT for each in ("one", "two")]
    (leaves, facts), (again, same) = map(run_folder.read_saved, files)
    assert facts == same
    assert leaves.keys() == again.keys()
    assert all(torch.equal(leaf, again[name]) for name, leaf in leaves.items())
    metrics = [run_files.read_lines(path.parent / run_folder.METRICS) for path in files]
    assert metrics[0] == metrics[1]
    assert undisturbed.counted == server.counted == {f"client {k}": 3 for k in range(3)}


def test_a_folder_of_another_experiment_is_refused(tmp_path):
    deploy(configuration("fedavg", rounds=1), tmp_path)
    with pytest.raises(ValueError, match="holds another experiment"):
        deploy(configuration("fedavg", rounds=1, lr=0.01), tmp_path)


def test_a_record_that_is_gone_is_named(tmp_path):
    config = configuration("fedper", rounds=2, evaluate_every=3)
    lines: list = []

    def watch(line):
        lines.append(line)
        if line["kind"] == "round" and line["round"] == 1:
            shutil.rmtree(next((tmp_path / "sites").glob("test/client 2")))

    with pytest.raises(ValueError, match="'client 2' has no record of round 1 in"):
        deploy(config, tmp_path, watch)


def test_a_record_of_another_experiment_is_named(tmp_path):
    record = {"head": torch.arange(3.0)}
    files = RecordFiles(tmp_path, "test", "client 0", "one")
    files.write(record, 4, ())
    assert torch.equal(files.read(record, 4)["head"], record["head"])
    with pytest.raises(ValueError, match="is of another experiment than this 'test'"):
        replace(files, fingerprint="two").read(record, 4)


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "/etc", "../../up", "north ward"])
def test_a_name_is_one_folder_whatever_it_is(name, tmp_path):
    place = RecordFiles(tmp_path, name, name, "").place
    assert place.resolve().parent.parent == tmp_path.resolve()


def test_a_record_never_leaves_its_site(tmp_path):
    """FedPer keeps its head: none of its numbers is in a reply, and it is on the site's disk."""
    config = configuration("fedper", rounds=2)
    replies: list = []
    spoil = {(node_of(0), n): lambda sent: replies.append(sent) or sent for n in range(20)}
    server = deploy(config, tmp_path, spoil=spoil)
    head = next((tmp_path / "sites" / "test" / "client 0").glob("round-00000002.safetensors")).read_bytes()
    kept = simulate(config)[1].rows["head.weight"][0].numpy().tobytes()
    assert kept in head
    assert len(replies) == 4
    assert not any(kept[i : i + 16] in reply for reply in replies for i in range(0, len(kept), 16))
    assert server.round == 2


def test_the_server_holds_one_message_beside_the_sum(tmp_path, monkeypatch):
    held: list = []
    most = 0

    def counted(*args, **how):
        nonlocal most
        message = decode(*args, **how)
        held.append(weakref.ref(tree_leaves(message)[-1]))
        most = max(most, sum(ref() is not None for ref in held))
        return message

    monkeypatch.setattr(request_module, "decode", counted)
    deploy(configuration("fedavg", clients=4, rounds=1, evaluate_every=2), tmp_path)
    assert len(held) == 4
    assert most <= 2  # one that is read while the last is being let go


def test_a_client_that_is_not_finite_sends_nothing_and_keeps_its_record(tmp_path):
    config = configuration("fedper", rounds=1)
    make = sites(config, tmp_path)
    first = make[node_of(0)]

    def broken():
        site = first()
        return replace(site, samples=replace(site.samples, x=torch.full_like(site.samples.x, torch.nan)))

    lines: list = []
    run_experiment(config, InProcess({**make, node_of(0): broken}), tmp_path / "server", 3, lines.append, wait=0)
    (line,) = [line for line in lines if line["kind"] == "round"]
    assert line["accepted"] == 2
    assert line["refused"] == [{"client": "client 0", "reason": "the site did not send it: not finite"}]
    assert list((tmp_path / "sites" / "test" / "client 0").glob("*.safetensors")) == []


def test_messages_that_all_weigh_nothing_leave_the_state_as_it_was(tmp_path):
    config = configuration("fedavg", rounds=1, evaluate_every=2)
    lines: list = []

    def weightless(sent):
        like = message_like_of(config, tmp_path)
        facts = read_header(sent)
        message = decode(sent, like, facts.fingerprint)
        empty = {"params": replace(message["params"], weight=torch.zeros(()))}
        return encode(empty, facts.fingerprint, facts.facts)

    spoil = {(node_of(k), n): weightless for k in range(3) for n in (4, 5, 6)}
    server = deploy(config, tmp_path, lines.append, spoil)
    (line,) = [line for line in lines if line["kind"] == "round"]
    assert line["accepted"] == 0
    assert "the mean of nothing" in line["rolled_back"]
    assert server.counted == {}


def message_like_of(config, folder):
    """The structure of FedAvg's message, from its simulator."""
    sim = set_up(config, federation_of(config)).sim
    site = site_without_data(sim, sim.visits, torch.tensor(0), sim.federation.shape, "classification")
    return message_like(site, *sim.method.offer(first_state(sim), torch.tensor(0)), 1)


def test_a_site_answers_only_what_it_knows(tmp_path):
    config = configuration("fedavg")
    site = sites(config, tmp_path)[node_of(0)]()
    with pytest.raises(ValueError, match="the server asks for 'forget'"):
        answer(site, encode({}, facts={"ask": "forget"}))
    told = read_facts(answer(site, encode({}, facts={"ask": "register"})))
    assert told["client"] == "client 0"
    assert set(told) == {"client", "newcomer", "train", "shape", "task", "classes", "columns", "integers"}
