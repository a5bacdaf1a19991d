"""A site that is away when the final model is sent: it is named, and gets the model when the run is started again."""

from __future__ import annotations

from dataclasses import dataclass, field

from typer.testing import CliRunner

from posterity.cli.app import app
from posterity.flower.codec import read_facts
from posterity.flower.experiment import run_experiment
from posterity.flower.settings import RoundRules
from posterity.flower.site import OFFER
from posterity.report import write_report
from posterity.runs.files import read_json, read_lines

from .in_process import EXPERIMENT, InProcess, configuration, node_of, sites


@dataclass
class Away(InProcess):
    """Client 1 is away while `away`; `visited` are the nodes that were asked for more than who they are."""

    away: bool = False
    visited: list = field(default_factory=list)

    def nodes(self):
        return [node for node in super().nodes() if not (self.away and node == node_of(1))]

    def ask(self, questions):
        for node, data in questions:
            if read_facts(data)["ask"] != "register":
                self.visited.append(node)
            yield from super().ask([(node, data)])


def run_once(config, folder, exchange, lines, ends_at=0):
    def watch(line):
        lines.append(line)
        exchange.away |= line["kind"] == "round" and line["round"] == ends_at

    return run_experiment(
        config, exchange, folder / "server", 3, watch, wait=0, rules=RoundRules(pause=0)
    )  # fmt: skip


def last_scores(folder):
    """The lines that count: of two about the same thing the later one."""
    scores = [line for line in read_lines(folder / "server" / "metrics.jsonl") if line["kind"] == "score"]
    return {(line["round"], line["point"], line["part"]): line for line in scores}


def test_who_was_away_at_the_end_gets_the_final_model_later(tmp_path):
    config = configuration("fedper", rounds=2, evaluate_every=1)
    whole = []
    run_once(config, tmp_path / "whole", Away(sites(config, tmp_path / "whole")), whole)
    exchange, lines = Away(sites(config, tmp_path)), []
    server = run_once(config, tmp_path, exchange, lines, ends_at=2)
    lost = {"kind": "lost", "client": "client 1", "round": 2, "reason": "its site is not there"}
    assert [line for line in lines if line["kind"] == "lost"] == [lost]
    assert "'client 1' did not answer to the final model: start the run again" in lines[-1]["text"]
    facts = read_json(tmp_path / "server" / "run.json")
    assert (facts["status"], facts["without_final_model"]) == ("finished", ["client 1"])
    uneven = "rounds were not scored on all clients"
    assert uneven in write_report(tmp_path / "server").read_text()
    shown = CliRunner().invoke(app, ["report", str(tmp_path / "server")]).output
    assert uneven in " ".join(shown.split())

    again: list = []
    run_once(config, tmp_path, exchange, again)  # it is still away
    assert [line["kind"] for line in again] == ["lost", "note"]
    assert read_json(tmp_path / "server" / "run.json")["without_final_model"] == ["client 1"]

    exchange.away, exchange.visited = False, []
    server = run_once(config, tmp_path, exchange, again)
    assert exchange.visited == [node_of(1)]
    assert (server.finished, server.lacking) == (True, [])
    assert again[-1]["text"] == "'client 1': the final model has arrived"
    assert last_scores(tmp_path) == last_scores(tmp_path / "whole")
    assert "without_final_model" not in read_json(tmp_path / "server" / "run.json")
    assert uneven not in write_report(tmp_path / "server").read_text()
    offers = [read_facts((folder / "sites" / EXPERIMENT / "client 1" / OFFER).read_bytes())["round"]
              for folder in (tmp_path, tmp_path / "whole")]  # fmt: skip
    assert offers == [3, 3]
    exchange.visited = []
    run_once(config, tmp_path, exchange, again)
    assert exchange.visited == []


def test_who_is_away_for_good_may_be_taken_out(tmp_path):
    config = configuration("fedper", rounds=1, min_count=5)
    exchange, lines = Away(sites(config, tmp_path)), []
    run_once(config, tmp_path, exchange, lines, ends_at=1)
    server = run_experiment(config, exchange, tmp_path / "server", 3, lines.append, wait=0, leave=("client 1",))
    assert server.lacking == []
    assert server.roster.gone.keys() == {"client 1"}


def test_a_run_that_has_ended_says_so_and_asks_nobody(tmp_path):
    config, again = configuration("fedavg", rounds=1), []
    exchange = Away(sites(config, tmp_path))
    run_once(config, tmp_path, exchange, [])
    asked, before = len(exchange.visited), {path: path.read_bytes() for path in (tmp_path / "server").iterdir()}
    run_once(config, tmp_path, exchange, again)
    (note,) = again
    assert note["text"].endswith("holds all of this run, which has ended: nobody is asked again")
    assert len(exchange.visited) == asked
    assert {path: path.read_bytes() for path in (tmp_path / "server").iterdir()} == before
