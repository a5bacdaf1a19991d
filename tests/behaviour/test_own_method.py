"""A method of yours at the command line: what is wrong with it is told in a sentence, and progress is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import posterity
from posterity.core import Training
from posterity.experiment.tune import search_space
from posterity.laws import LAWS

SMALL = ["--dataset", "digits", "--clients", "3", "--rounds", "1", "--subset", "90", "--quiet"]


def spoil(old, new):
    text = Path("fedfoo.py").read_text()
    assert old in text
    Path("fedfoo.py").write_text(text.replace(old, new, 1))


def test_check_stops_at_a_typo_and_says_where(call):
    call("new", "method", "fedfoo")
    spoil("weighted(carry", "wieghted(carry")
    code, out, _ = call("check", "fedfoo:Fedfoo")
    assert code == 1
    assert "fedfoo.py, line 39, in message: `return core.wieghted(carry.params, here), ()` raised AttributeError" in out
    assert f"{len(LAWS) - 1} not tried: mend 'runs' first" in out
    assert len(out.splitlines()) < 10


@pytest.mark.parametrize("engine", ["auto", "oracle"])
def test_run_says_where_too_without_a_traceback(call, engine):
    call("new", "method", "fedfoo")
    spoil("weighted(carry", "wieghted(carry")
    code, _, complaint = call("run", "--method", "fedfoo:Fedfoo", "--engine", engine, *SMALL)
    assert code == 2
    assert complaint.startswith(
        "error: fedfoo.py, line 39, in message: `return core.wieghted(carry.params, here), ()` raised"
    )
    assert len(complaint.splitlines()) == 1


def test_a_method_that_needs_public_rows_says_how_to_give_them(call):
    Path("distil.py").write_text(
        "from posterity.methods.fedavg import FedAvg\n\n\nclass Distil(FedAvg):\n"
        "    def init(self, model, params, facts):\n"
        "        if not facts.public:\n"
        "            raise ValueError('Distil trains on public rows, and the server has none: use --public 4%')\n"
        "        return super().init(model, params, facts)\n\n"
        "    def combine(self, state, total, now):\n"
        "        now.model(state.params, now.public)\n"
        "        return super().combine(state, total, now)\n"
    )
    code, _, complaint = call("run", "--method", "distil:Distil", *SMALL)
    assert code == 2
    assert complaint.splitlines() == ["error: Distil trains on public rows, and the server has none: use --public 4%"]
    assert call("run", "--method", "distil:Distil", "--public", "10%", "--out", "run", *SMALL)[0] == 0
    assert call("resume", "run", "--trust")[0] == 0  # it is finished, and loaded without its data


def test_a_class_that_is_no_method_is_told_what_it_lacks(call):
    Path("fedbare.py").write_text("class Bare:\n    def init(self): ...\n")
    code, _, complaint = call("check", "fedbare:Bare")
    assert code == 2
    assert "is not a method (a frozen dataclass with passes, message, combine)" in complaint


def test_a_network_of_a_package_by_its_name(call):
    Path("my_nets").mkdir()
    Path("my_nets/__init__.py").write_text("from my_nets.small import Net\n")
    Path("my_nets/small.py").write_text(
        "from torch import nn\n\n\ndef Net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n\n\n"
        "def wrong():\n    return nn.Sequential(nn.Flatten(), nn.Linear(65, 10))\n\n\nready = Net()\n"
        "\n\nclass Seq(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.rnn, self.fc = nn.GRU(8, 4, batch_first=True), nn.Linear(4, 10)\n\n"
        "    def forward(self, x):\n        return self.fc(self.rnn(x[:, 0])[0][:, -1])\n"
    )
    code, out, complaint = call("run", "--method", "fedbn", "--model", "my_nets:Net", *SMALL, "--out", "one")
    assert code == 0, complaint
    assert "FedBN is FedAvg here" in out.replace("\n", " ")
    facts = json.loads(Path("one/run.json").read_text())
    assert any("FedBN is FedAvg here" in note for note in facts["notes"])
    assert "FedBN is FedAvg here" in next(Path("one").glob("*.html")).read_text()
    code, out, complaint = call("run", "--method", "fedavg", "--model", "my_nets.small:Seq", *SMALL, "--out", "two")
    assert code == 0, complaint
    assert "one client after another (loop): rnn: GRU" in out.replace("\n", " ")
    code, _, complaint = call("run", "--model", "my_nets.small:ready", *SMALL, "--out", "three")
    assert code == 0, complaint
    assert "the seed does not move them" in json.loads(Path("three/run.json").read_text())["notes"][0]
    code, _, complaint = call("run", "--model", "my_nets.small:wrong", *SMALL)
    assert code == 2
    assert complaint.startswith("error: the network 'wrong' does not run on inputs of shape (1, 8, 8)")
    assert len(complaint.splitlines()) == 1


TWICE = '''
from dataclasses import dataclass

from posterity.core import Training, hyper
from posterity.methods.fedavg import FedAvg


@dataclass(frozen=True)
class Twice(FedAvg):
    """FedAvg whose clients train a second time."""

    local: Training = hyper(Training(optimiser="adam"), "how the clients train")
    second: Training = hyper(Training(lr=0.02), "how they train again", "my notes")

    def passes(self):
        return (self.local.descend(), self.second.descend())
'''


def test_a_second_training_is_set_like_the_first(call):
    Path("twice.py").write_text(TWICE)
    assert call("run", "--method", "twice:Twice", "--set", "second.lr=0.5", "--out", "run", *SMALL)[0] == 0
    told = json.loads(Path("run/run.json").read_text())["method"]["fields"]
    assert (told["local.lr"], told["second.lr"]) == (0.01, 0.5)
    for wrong, sentence in {
        "second=0.5": "error: twice:Twice has no setting 'second': did you mean",
        "second.rate=0.5": "error: twice:Twice has no setting 'second.rate': did you mean",
        "secnd.lr=0.5": "error: twice:Twice has no setting 'secnd.lr': did you mean 'second.lr'",
    }.items():
        code, _, complaint = call("run", "--method", "twice:Twice", "--set", wrong, *SMALL)
        assert (code, complaint.startswith(sentence)) == (2, True), complaint
    whole = {"second": Training(lr=0.3, epochs=2), "local": Training(steps=3)}
    found = posterity.run("twice:Twice", set=whole, rounds=1, clients=3, subset="90", out="whole")
    assert (found.setup.sim.method.second, found.setup.sim.method.local) == (whole["second"], whole["local"])
    assert posterity.load("whole", trust=True).setup.sim.method.second == whole["second"]
    assert {"local.lr", "second.lr"} <= {each.name for each in search_space("twice:Twice")}


def test_the_listing_says_what_the_author_says(call):
    Path("twice.py").write_text(TWICE)
    code, out, _ = call("methods", "twice:Twice")
    assert code == 0
    assert out.startswith("FedAvg whose clients train a second time.")
    rows = {cells[1].strip(): cells[-2].strip() for line in out.splitlines() if len(cells := line.split("│")) > 4}
    assert rows["local.lr"] == "pFedVMP §5.1"  # the default of Training
    assert rows["local.optimiser"] == ""
    assert rows["second.lr"] == "my notes"
