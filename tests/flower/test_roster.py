"""Who is who: names and numbers, classes that some sites lack, sites with files of their own."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import count
from types import SimpleNamespace

import pytest
import torch

from posterity.flower import roster as roster_module
from posterity.flower.agreement import SampleSpec, agree
from posterity.flower.codec import encode
from posterity.flower.experiment import run_experiment
from posterity.flower.roster import Roster, label_remarks
from posterity.flower.samples import find_client, read_samples
from posterity.flower.site import ClientSite
from posterity.runs.files import read_json, read_lines

from .in_process import InProcess, configuration, node_of, sites


class Registering:
    """Nodes that say who they are, whatever they say."""

    def __init__(self, told):
        self.told = told

    def nodes(self):
        return list(self.told)

    def ask(self, questions):
        for node, _ in questions:
            said = self.told[node]
            yield node, said if isinstance(said, (bytes, str)) else encode({}, facts=said)


def said(name, newcomer=False, **changes):
    facts = {"client": name, "newcomer": newcomer, "train": 5, "shape": [3], "task": "classification",
             "classes": ["no", "yes"], "integers": False}  # fmt: skip
    return {**facts, **changes}


def roster_of(told):
    roster = Roster()
    roster.wait(Registering(told), 1, 0)
    roster.number()
    return roster


def test_numbers_follow_names_and_newcomers_come_last():
    roster = roster_of({7: said("site 10"), 3: said("site 9"), 5: said("a late one", True), 1: said("site 2")})
    assert roster.numbers == {"site 2": 0, "site 9": 1, "site 10": 2, "a late one": 3}
    assert roster.node["site 2"] == 1
    assert [client.name for client in roster.members] == ["site 2", "site 9", "site 10"]


def test_a_node_that_comes_back_under_another_number_is_the_same_client():
    roster = roster_of({1: said("a"), 2: said("b")})
    roster.look(Registering({8: said("a"), 2: said("b"), 9: said("c")}))
    assert roster.numbers == {"a": 0, "b": 1}
    assert roster.node == {"a": 8, "b": 2, "c": 9}
    assert [client.name for client in roster.known] == ["a", "b"]  # c came after the first round


def test_two_nodes_cannot_be_the_same_client():
    """A killed node is listed for a minute beside the one that came back: the one that answers is the client."""
    nodes = Registering({1: said("a"), 2: said("b")})
    roster = roster_of(nodes.told)
    nodes.told[3] = said("a")
    for _ in range(2):
        roster.look(nodes)
        assert roster.node == {"a": 3, "b": 2}
    assert roster.remarks == ["two nodes say that they are 'a': the one that said it last is taken"]


@pytest.mark.parametrize(
    ("told", "text"),
    [
        ("the node is gone", "the node is gone"),
        (b"nonsense", "are no message|is no message"),
        (said("a", train="5"), "its 'train' is '5'; expected a int"),
        (said("a", train=-1), "has -1 training samples"),
        (said("a", train=10**30), "has 1000000000"),
        (said("a", shape=["x"]), "its samples have the shape"),
        (said("a", shape=[2**30, 2**30]), "its samples have the shape"),
        (said("a", task="sorting"), "its task is 'sorting'"),
        (said("a", classes=[1]), "its classes are"),
        (said("", train=1), "training samples"),
    ],
)
def test_a_registration_that_is_not_understood_is_named(told, text):
    roster = Roster()
    with pytest.raises(ValueError, match=text):
        roster.wait(Registering({4: told}), 1, -1)


def test_a_site_that_is_refused_is_told_once_while_others_are_waited_for(monkeypatch):
    """It is asked at every look; the last error repeats its sentence once."""
    clock = SimpleNamespace(monotonic=count().__next__, sleep=lambda seconds: None)  # a second more at every look
    monkeypatch.setattr(roster_module, "time", clock)
    roster, shown = Roster(), []
    with pytest.raises(ValueError, match="1 of 2 sites registered") as told:
        roster.wait(Registering({1: said("a"), 4: "the site says: no column 'x'"}), 2, 3, show=shown.append)
    assert len(roster.remarks) > 2
    assert shown == ["node 4 was not understood when it registered: the site says: no column 'x'"]
    assert str(told.value).count("no column 'x'") == 1


def test_what_was_shown_while_waiting_is_written_once_and_not_shown_again(tmp_path, monkeypatch):
    monkeypatch.setattr(roster_module, "PAUSE", 0)
    config, lines = configuration("fedavg", rounds=1), []
    exchange = InProcess(sites(config, tmp_path), {(node_of(1), 2): lambda sent: "the site says: not yet"})
    run_experiment(config, exchange, tmp_path / "server", 3, lines.append, wait=9)
    for some in (lines, read_lines(tmp_path / "server" / "metrics.jsonl")):
        assert [line["kind"] for line in some if "not yet" in line.get("text", "")] == ["note"]
    assert any("not yet" in note for note in read_json(tmp_path / "server" / "run.json")["notes"])


def test_what_was_agreed_stays():
    roster = roster_of({1: said("a")})
    roster.look(Registering({2: said("a", train=500)}))
    assert roster.node == {"a": 2}
    assert roster.clients["a"].train == 5


def test_who_comes_late_may_have_its_columns_in_another_order():
    columns = ["age", "hb", "crea"]
    nodes = Registering({1: said("a", columns=columns)})
    roster = roster_of(nodes.told)
    nodes.told |= {2: said("b", columns=columns[::-1]), 3: said("c", columns=["age", "hb", "sex"])}
    roster.look(nodes)
    roster.admit(roster.kind(), grows=True)
    assert roster.numbers == {"a": 0, "b": 1}
    assert roster.kind().columns == tuple(columns)
    assert roster.remarks[0] == "'b' came late: it takes part from now on"
    assert roster.remarks[1].startswith("'c' came late and cannot take part")


def test_classes_that_some_lack_are_put_together():
    roster = roster_of({1: said("a", classes=["10", "2"]), 2: said("b", classes=["2", "3"])})
    assert roster.kind().classes == ("2", "3", "10")
    with pytest.raises(ValueError, match="must have the same columns"):
        roster_of({1: said("a"), 2: said("b", shape=[4])}).kind()


def remarks_on(*labels):
    roster = roster_of({node: said(f"site {node}", classes=list(each)) for node, each in enumerate(labels)})
    return label_remarks(roster.known, roster.kind().classes)


def test_labels_that_sites_write_in_different_ways_are_noted():
    assert remarks_on(("ill", "well"), ("ill", "well"), ("well",), ()) == []
    assert remarks_on(("a", "b"), ("c", "d"), ("b", "c")) == []  # the third site joins them
    assert remarks_on(("ill", "well"), ("ILL", "well")) == [
        "the classes 'ILL' and 'ill' differ only in capitals, spaces, zeros or how a character is stored: write "
        "them alike if they are one"
    ]
    assert remarks_on(("ill", "well"), ("0", "1"), ("well",)) == [
        "'site 1' has the classes 0, 1, which nobody has who has ill, well: write the labels alike if they mean the "
        "same, for all are classes of the network"
    ]


def test_clients_are_found_by_name_or_number():
    assert find_client(["north", "south"], "south") == find_client(["north", "south"], "1") == 1
    with pytest.raises(ValueError, match="there is no client 'east' in this federation of 2"):
        find_client(["north", "south"], "east")


def test_sites_with_files_of_their_own(tmp_path):
    """Three tables; the last lacks a class, which the server's network has all the same."""
    draw = torch.Generator().manual_seed(0)
    make = {}
    config = configuration("fedper", dataset="unused", clients=3, subset=None, partition=None, target="label",
                           evaluate_every=2)  # fmt: skip
    for k, labels in enumerate((["sick", "well", "unsure"], ["sick", "well", "unsure"], ["well", "unsure"])):
        rows = [f"{labels[i % len(labels)]},{torch.randn((), generator=draw):.4f},{i}" for i in range(30)]
        path = tmp_path / f"site{k}.csv"
        path.write_text("\n".join(["label,a,b", *rows]) + "\n")
        samples = read_samples(config, f"hospital {k}", path)
        make[50 - k] = partial(ClientSite, config, "csv", samples, tmp_path / "records")
    lines: list = []
    server = run_experiment(config, InProcess(make), tmp_path / "server", 3, lines.append, wait=0)
    assert server.agreement.kind == SampleSpec((2,), "classification", ("sick", "unsure", "well"), columns=("a", "b"))
    assert [line["accepted"] for line in lines if line["kind"] == "round"] == [3, 3]
    scores = [line["clients"]["n"] for line in lines if line["kind"] == "score"]
    assert scores
    assert all(min(each) > 0 and len(each) == 3 for each in scores)
    last = make[48]().samples.as_kind(server.agreement.kind)
    assert set(last.y.tolist()) == {1, 2}


@pytest.mark.parametrize(
    ("given", "told"),
    [({"device": "cuda"}, "device 'cuda' was given"), ({"augment": "flip"}, "it needs everybody's pictures")],
)
def test_what_sites_cannot_do_is_refused(given, told):
    with pytest.raises(ValueError, match=told):
        agree(replace(configuration("fedavg"), **given), SampleSpec((1, 8, 8), "classification", ("a", "b")), 3, 90)
