"""Questions of the server's: what a site reads of them, and what it refuses before anything is done."""

import json
from dataclasses import replace

import pytest

from posterity.flower.agreement import Agreement, SampleSpec
from posterity.flower.codec import CodecError, encode, read_facts
from posterity.flower.question import ClientQuestion, RoundQuestions
from posterity.flower.settings import RoundRules
from posterity.flower.site import answer

from .in_process import InProcess, configuration, node_of, sites

KIND = SampleSpec((4,), "classification", ("no", "yes"), columns=("a", "b", "c", "d"))
POINTS = (("received", 1, 0), ("adapted", 1, 2))
ASKED = ClientQuestion("visit", 2, 0, False, True, False, 1, POINTS, KIND, {"clients": 3, "samples": 90, "public": 0})


def travelled(question, **changes):
    """The facts as they arrive: through JSON."""
    return json.loads(json.dumps({**question.facts(), **changes}))


def test_a_question_arrives_as_it_was_asked():
    assert ClientQuestion.of(travelled(ASKED)) == ASKED
    leave = replace(ASKED, ask="leave", newcomer=True, train=False, score=(), counted=0)
    assert ClientQuestion.of(travelled(leave)) == leave


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ask": "obey"}, "the server asks for 'obey'; expected 'register', 'visit' or 'leave'"),
        ({"train": 1}, "the question's 'train' is 1; expected true or false"),
        ({"trial": None}, "the question's 'trial' is None"),
        ({"round": True}, "the question's 'round' is True; expected a whole number from 1 on"),
        ({"round": 0}, "the question's 'round' is 0"),
        ({"number": 2**63}, "the question's 'number' is 9223372036854775808"),
        ({"number": 0.0}, "the question's 'number' is 0.0"),
        ({"counted": 3}, "the question is of round 2 and counts on one of 3"),
        ({"score": "received"}, "the question wants scores at 'received'"),
        ({"score": [["received", 1]]}, r"expected a list of \[point, round, epochs\]"),
        ({"score": [["best", 1, 0]]}, "the question wants scores at"),
        ({"score": [["received", 1, -1]]}, "the question wants scores at"),
        ({"score": [["received", 0, 1]]}, "the question wants scores at"),
        ({"score": [["received", 1, 0]] * 65}, "the question wants scores at"),
        ({"samples": None}, "the question lacks what samples are like"),
        ({"samples": {**KIND.facts(), "shape": [0]}}, r"its samples have the shape \[0\]"),
        ({"samples": {**KIND.facts(), "classes": "ab"}}, "its classes are 'ab'"),
        ({"samples": {**KIND.facts(), "integers": 0}}, "integers is 0"),
        ({"federation": []}, "the question lacks what samples are like, or how many there are"),
        ({"federation": {"clients": 3, "samples": -9, "public": 0}}, "the question's 'samples' is -9"),
    ],
)
def test_what_does_not_belong_there_is_refused_by_name(change, words):
    with pytest.raises(CodecError, match=words):
        ClientQuestion.of(travelled(ASKED, **change))


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """A site, an honest question of round 1, and what was agreed."""
    from posterity.flower.experiment import open_server

    folder, config = tmp_path_factory.mktemp("asked"), configuration("fedavg")
    network = InProcess(sites(config, folder))
    (folder / "server").mkdir()
    server = open_server(config, network, folder / "server", 3, lambda line: None, wait=0, rules=RoundRules())
    client = server.roster.clients["client 0"]
    request = RoundQuestions(server.agreement, server.state, 1, ("client 0",), (("adapted", 1, 1),))
    return network.make[node_of(0)], request.question(client, 0, 0), server.agreement, request.offer(client, 0)


def test_epochs_beyond_the_configuration_are_refused(asked):
    """A server cannot keep a site busy for ever."""
    make, question, agreement, offer = asked
    facts = read_facts(question)
    assert read_facts(answer(make(), question))["round"] == 1
    facts["score"] = [["adapted", 1, 50]]
    with pytest.raises(CodecError, match=r"scores after 50 epochs, 'adapted'; expected at most \d+$"):
        answer(make(), encode(offer, agreement.fingerprint, facts, complete=True))


def test_a_federation_of_another_size_is_refused_before_anything_of_that_size_is_made(asked, monkeypatch):
    make, question, agreement, offer = asked
    facts = read_facts(question)
    monkeypatch.setattr(Agreement, "offer_like", lambda *given: pytest.fail("a state was made"))
    facts["federation"]["clients"] = 2**39
    with pytest.raises(CodecError, match="fingerprint"):
        answer(make(), encode(offer, agreement.fingerprint, facts, complete=True))
    facts["samples"]["shape"] = [2**20]
    with pytest.raises(ValueError, match="the server's samples are"):
        answer(make(), encode(offer, agreement.fingerprint, facts, complete=True))
