"""A site leaves by its own wish: it says so when it is asked next, and the server goes on as if it had decided so."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from posterity.cli.app import app
from posterity.core.tree import tree_leaves
from posterity.flower.codec import read_facts
from posterity.flower.experiment import depart, open_server, release, run_experiment, save
from posterity.flower.question import RoundQuestions
from posterity.flower.samples import read_site_file
from posterity.flower.sent import SENT
from posterity.flower.settings import RoundRules
from posterity.flower.site import (
    LEFT,
    OFFER,
    WISH,
    ClientSite,
    answer,
    find_place,
    predict_rows,
    take_back,
    wish_to_leave,
)
from posterity.runs.files import read_lines

from .in_process import EXPERIMENT, InProcess, configuration, node_of, sites
from .test_samples_own_files import write_site
from .test_server_rounds import Spoiling, gone

AT_ONCE = RoundRules(pause=0)


def place_of(folder, client):
    return folder / "sites" / EXPERIMENT / f"client {client}"


def opened(config, folder, exchange=None):
    (folder / "server").mkdir(parents=True, exist_ok=True)
    lines: list = []
    exchange = exchange or InProcess(sites(config, folder))
    return open_server(
        config, exchange, folder / "server", len(exchange.make), lines.append, wait=0, rules=AT_ONCE
    ), lines


def long_run(spec, **changes):
    own = {"set": {"burn_rounds": "0"}} if spec == "fedep" else {}
    return configuration(spec, rounds=3, **{"evaluate_every": 4, "min_count": 5, **own, **changes})


def left_by_itself(config, folder):
    """Client 1 wishes to leave after round 1, and says so in round 2."""
    server, lines = opened(config, folder)
    server.step()
    wish_to_leave(place_of(folder, 1))
    for _ in range(2):
        server.step()
        release(server)
        save(server)
    return server, lines


def left_by_the_server(config, folder):
    """Client 1 does not answer in round 2, and the server takes it out before round 3."""

    def spoil(client, facts, reply):
        return gone(reply) if client == 1 and facts["ask"] == "visit" and facts["round"] == 2 else reply

    server, lines = opened(config, folder, Spoiling(sites(config, folder), spoil))
    server.step()
    server.step()
    depart(server, ["client 1"])
    server.step()
    return server, lines


def notes(lines):
    return [line["text"] for line in lines if line["kind"] == "note" and "has left" in line["text"]]


@pytest.mark.parametrize("spec", ["fednp", "fedep", "fedavg", pytest.param("pvi", marks=pytest.mark.everything)])
def test_the_end_is_the_one_where_the_server_decided_it(spec, tmp_path):
    config = long_run(spec)
    mine, lines = left_by_itself(config, tmp_path / "mine")
    other, told = left_by_the_server(config, tmp_path / "other")
    pairs = zip(tree_leaves(mine.state), tree_leaves(other.state), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert mine.counted == other.counted == {"client 0": 3, "client 2": 3}
    assert mine.roster.gone == other.roster.gone
    rounds = [line for line in lines if line["kind"] == "round"]
    assert [(line["cohort"], line["accepted"]) for line in rounds] == [(3, 3), (3, 2), (2, 2)]
    assert rounds[1]["refused"] == [{"client": "client 1", "reason": "it leaves, by its own wish"}]
    (mine_said,), (other_said,) = notes(lines), notes(told)
    what = "what it contributed stays: the method cannot tell what is its part of the state" * (spec == "fedavg")
    what = what or "its factor was taken out of the state"
    assert mine_said == f"'client 1' has left by its own wish after round 2; {what}"
    assert other_said == f"'client 1' has left before round 3; {what}"
    check_sent(tmp_path / "mine", mine.roster.clients["client 1"].train if spec != "fedavg" else None)


def check_sent(folder, count):
    """What went with it is written down, with the samples behind it; then nothing."""
    lines = read_lines(place_of(folder, 1) / SENT)
    last = [line for line in lines if line["round"] == 2]
    assert {line["leaf"] for line in last if line["checksum"] and not line["shape"]} >= {"client", "round", "leave"}
    factor = [line for line in last if line["leaf"] not in ("client", "round", "trial", "leave")]
    assert {line["count"] for line in factor} == ({count} if count else set())
    assert {line["round"] for line in lines} == {0, 1, 2}
    assert {line["round"] for line in read_lines(place_of(folder, 0) / SENT)} == {0, 1, 2, 3}


def test_it_is_gone_for_good_and_a_reply_that_was_lost_is_repeated(tmp_path):
    """The server dies before it saves; it asks again, is told again, and no restart brings the site back."""
    config = long_run("fednp")
    server, _ = opened(config, tmp_path)
    server.step()
    save(server)
    wish_to_leave(place_of(tmp_path, 1))
    server.step()
    again, lines = opened(config, tmp_path)
    again.step()
    release(again)
    save(again)
    assert notes(lines) == ["'client 1' has left by its own wish after round 2; its factor was taken out of the state"]
    asked = []
    spoil = {(node_of(1), n): lambda sent: asked.append(read_facts(sent)) or sent for n in range(99)}
    done = run_experiment(config, InProcess(sites(config, tmp_path), spoil), tmp_path / "server", 3, wait=0)
    assert [sorted(each)[:1] for each in asked] == [["classes"]]  # it said who it is, and was asked nothing
    assert done.roster.gone == {"client 1": ""}


def test_a_round_needs_only_those_who_stay(tmp_path):
    """With all replies needed, two who leave in one round do not stop the run, nor does a method that tries states."""
    config = long_run("scaffold")
    server, lines = opened(config, tmp_path)
    server.rules = RoundRules(minimum="100%", pause=0)
    server.step()
    for client in (0, 1):
        wish_to_leave(place_of(tmp_path, client))
    server.step()
    release(server)
    server.step()
    rounds = [(line["cohort"], line["accepted"]) for line in lines if line["kind"] == "round"]
    assert rounds == [(3, 3), (3, 1), (1, 1)]


def test_a_wish_can_be_taken_back_until_it_is_answered(tmp_path):
    config = long_run("fedavg")
    server, lines = opened(config, tmp_path)
    place = place_of(tmp_path, 1)
    wish_to_leave(place)
    take_back(place)
    server.step()
    assert [line["accepted"] for line in lines if line["kind"] == "round"] == [3]
    assert not (place / WISH).exists()
    assert not (place / LEFT).exists()
    wish_to_leave(place)
    server.step()
    for wrong in (take_back, wish_to_leave):
        with pytest.raises(ValueError, match="has left for good, in round 2"):
            wrong(place)


def test_a_trial_is_answered_in_spite_of_a_wish(tmp_path):
    """It asks whether the round before can be taken, of which the client's message is a part."""
    server, _ = opened(long_run("fedavg"), tmp_path)
    server.step()
    place, client = place_of(tmp_path, 1), server.roster.clients["client 1"]
    wish_to_leave(place)
    for trial, leaves in ((True, False), (False, True), (True, True)):  # once it has left, it has
        request = RoundQuestions(server.agreement, server.state, 2, ("client 1",), trial=trial)
        reply = answer(server.exchange.make[node_of(1)](), request.question(client, 1, 1))
        assert read_facts(reply).get("leave", False) is leaves


def test_a_client_that_left_still_predicts(tmp_path):
    """With the record that counted last: also where it was never scored, and where its last score is rounds ago."""
    config = replace(long_run("fedper"), dataset="unused", subset=None, partition=None, target="outcome")
    made = {name: read_site_file(config, name, write_site(tmp_path, name, 30, ("a", "b"))) for name in ("x", "y", "z")}
    make = {node: lambda name=name: ClientSite(config, EXPERIMENT, made[name][1], tmp_path / "sites")
            for node, name in enumerate(made)}  # fmt: skip
    server, _ = opened(config, tmp_path, InProcess(make))
    server.step()
    site, before = make[0](), sorted((tmp_path / "sites" / EXPERIMENT / "x").glob("round-*"))
    assert not (site.place / OFFER).exists()
    wish_to_leave(site.place)
    server.step()
    assert sorted(site.place.glob("round-*")) == before
    found = predict_rows(site, made["x"][0], torch.tensor([[-1.0, 0.0], [9.0, 0.0]]))
    assert (found.round, found.point) == (1, "received")
    assert found.note.startswith("no score of the run is of this model: the client left or was away")
    assert torch.allclose(found.outputs.sum(1), torch.ones(2, dtype=torch.float64))


def test_a_client_whose_run_stopped_in_a_scored_round_did_not_leave(tmp_path):
    """Round 2 was scored as trained; what clients receive after it has not come, so the model is that after round 1."""
    config = replace(
        long_run("fedper", evaluate_every=2), dataset="unused", subset=None, partition=None, target="outcome"
    )
    federation, samples = read_site_file(config, "x", write_site(tmp_path, "x", 30, ("a", "b")))
    site = ClientSite(config, EXPERIMENT, samples, tmp_path / "sites")
    server, _ = opened(config, tmp_path, InProcess({1: lambda: site}))
    server.step()
    server.step()
    found = predict_rows(site, federation, torch.tensor([[-1.0, 0.0]]))
    assert (found.round, found.point) == (1, "received")
    assert found.note.startswith("no score of the run is of this model: the client left or was away")
    server.step()
    found = predict_rows(site, federation, torch.tensor([[-1.0, 0.0]]))
    assert (found.round, found.note) == (2, "")


def test_a_site_predicts_between_two_scores(tmp_path):
    """The record that belongs to the last scored offer stays, however many rounds were trained since."""
    config = replace(
        long_run("fedper", evaluate_every=1), dataset="unused", subset=None, partition=None, target="outcome"
    )
    federation, samples = read_site_file(config, "x", write_site(tmp_path, "x", 30, ("a", "b")))
    site = ClientSite(config, EXPERIMENT, samples, tmp_path / "sites")
    server, _ = opened(config, tmp_path, InProcess({1: lambda: site}))
    server.step()
    server.step()
    server.due = lambda round: False
    rows, before = torch.tensor([[-1.0, 0.0], [9.0, 0.0]]), None
    for _ in range(3):
        found = predict_rows(site, federation, rows)
        assert before is None or torch.equal(found.outputs, before)
        before = found.outputs
        server.step()


# --- the command -------------------------------------------------------------------------------------------------
def told(*args):
    done = CliRunner().invoke(app, ["flower", "leave", *map(str, args)])
    return " ".join((done.output if done.exception is None else str(done.exception)).split())


def test_the_command_finds_the_one_client_there(tmp_path):
    for name in ("one/north", "two/north"):
        (tmp_path / name).mkdir(parents=True)
    assert "holds no sent.jsonl: no client has registered from there" in told(tmp_path)
    assert "holds no sent.jsonl" in told(tmp_path / "nowhere")
    (tmp_path / "one/north" / SENT).write_text("")
    assert find_place(tmp_path) == find_place(tmp_path / "one") == find_place(tmp_path / "one/north")
    assert "leaves when the server asks it next" in told(tmp_path)
    assert (tmp_path / "one/north" / WISH).exists()
    assert "takes part as before" in told(tmp_path, "--take-back")
    assert "holds no wish to leave that could be taken back" in told(tmp_path, "--take-back")
    (tmp_path / "two/north" / SENT).write_text("")
    assert "holds several clients: give the folder of one" in told(tmp_path)
