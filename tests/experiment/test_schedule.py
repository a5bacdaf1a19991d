"""Evaluation costs at most a fifth of a run, by a rule that no clock has a part in; many clients are sampled."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from oracles.sims import mlp, points

import posterity
from posterity import methods
from posterity.core.random import make_key
from posterity.data.federation import Federation, Part
from posterity.engine.simulation import Simulation
from posterity.experiment import schedule
from posterity.experiment.schedule import SHARE, START, Schedule, cost_of_evaluation, cost_of_round
from posterity.report import load_runs
from posterity.runs import lines as client_scores
from posterity.runs.lines import scores_of
from posterity.settings.config import Config

CONFIG = Config(method="fedavg", rounds=100)
QUICK = {"method": "fedper", "rounds": 3, "batch_size": 5, "lr": 0.1, "engine": "stacked", "evaluate_every": 1}


def sim_of(sizes=(23, 9, 17, 12), held=6, seed=0, local_epochs=1, **how) -> Simulation:
    federation = points(sizes, held=held, seed=seed)
    model = mlp(federation)
    method = methods.build("fedavg", {}, {"batch": 10, "epochs": local_epochs})
    return Simulation(method, model, federation, model.init(seed), make_key(seed), **how)


def many(clients: int, rows: int = 6) -> Federation:
    """Clients with two rows of each part."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(clients * rows, 4, generator=draw), torch.randint(0, 2, (clients * rows,), generator=draw)
    table, ends = torch.arange(clients * rows).reshape(clients, rows), torch.arange(clients + 1)
    parts = [Part(table[:, i : i + 2].reshape(-1), ends * 2) for i in (0, 2, 4)]
    return Federation("many", "classification", x, y, 2, *parts, clients, tuple(f"c{k}" for k in range(clients)))


@pytest.mark.parametrize("rounds", [1, 7, 25, 100, 1000])
@pytest.mark.parametrize("how", [{}, {"local_epochs": 20}, {"sizes": (400,) * 30, "held": 100}], ids=str)
def test_evaluation_costs_at_most_a_fifth_unless_only_the_last_round_is_left(how, rounds):
    config, sim = replace(CONFIG, rounds=rounds), sim_of(**how)
    found = Schedule.of(config, sim)
    evaluated = [r for r in range(1, rounds + 1) if found.due(r)]
    spent = len(evaluated) * cost_of_evaluation(config, sim, sim.federation.members)
    whole = START + rounds * cost_of_round(config, sim) + spent
    assert evaluated[-1] == rounds
    assert len(evaluated) <= max(20, -(-rounds // max(1, rounds // 20)))
    assert spent <= SHARE * whole or evaluated == [rounds]


def test_a_longer_round_is_evaluated_more_often():
    every = [Schedule.of(CONFIG, sim_of((200,) * 8, local_epochs=e)).every for e in (1, 4, 40)]
    assert every == sorted(every, reverse=True)
    assert every[0] > every[-1] == CONFIG.every


def test_seeds_of_a_comparison_are_evaluated_in_the_same_rounds():
    sizes = [(23, 9, 17, 12), (20, 12, 16, 13), (25, 8, 17, 11)]
    assert len({Schedule.of(CONFIG, sim_of(s, seed=i)).every for i, s in enumerate(sizes)}) == 1


def test_what_was_asked_for_stands_and_needs_no_remark():
    found = Schedule.of(replace(CONFIG, evaluate_every=1), sim_of())
    assert (found.every, found.remark) == (1, "")


def test_a_run_says_how_often_it_is_evaluated_and_a_resumed_one_keeps_to_it(tmp_path: Path, monkeypatch):
    settings = {
        "method": "fedavg",
        "dataset": "digits",
        "clients": 3,
        "subset": "5%",
        "engine": "stacked",
        "rounds": 20,
    }
    monkeypatch.setattr(schedule, "START", 2.0)
    result = posterity.run(out=tmp_path / "run", **settings)
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    every, first = facts["evaluate_every"], result.lines[0]
    assert 1 < every < 20
    assert f"every {every} rounds" in first.notes[0]
    assert "--evaluate-every" in first.notes[0]
    monkeypatch.setattr(schedule, "START", 1e9)  # the costs would allow more now
    assert posterity.load(tmp_path / "run").setup.schedule.every == every
    assert "evaluate_every" not in (tmp_path / "run" / "config.toml").read_text()
    assert any("--evaluate-every" in note for note in load_runs(tmp_path / "run")[0].federation.notes)


def test_of_many_clients_a_sample_is_evaluated_and_everybody_at_the_end(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(schedule, "SAMPLE", 40)
    monkeypatch.setattr(client_scores, "LISTED", 100)
    monkeypatch.setattr("posterity.experiment.scoring.LISTED", 100)
    result = posterity.run(out=tmp_path / "run", federation=many(120), **QUICK)
    lines = [x for x in scores_of(result.lines) if x.part == "test"]
    assert [x.sample for x in lines if x.point == "received"] == [{"clients": 40, "of": 120}] * 2 + [None]
    assert "40 of 120 clients" in result.lines[0].notes[0]
    early, last = (next(x for x in lines if x.round == r and x.point == "received") for r in (1, 3))
    assert sum(not math.isnan(v) for v in early.clients["accuracy"]) == 40
    assert len(early.clients["accuracy"]) == 120
    assert early.metrics["accuracy"]["clients"] == 40
    assert not any(math.isnan(v) for v in last.clients["accuracy"])
    again = next(x for x in lines if x.round == 2 and x.point == "received")
    assert [n > 0 for n in again.clients["n"]] == [n > 0 for n in early.clients["n"]]  # the same sample
    # rounds are chosen by the same clients, the last round too
    judged = [x for x in scores_of(result.lines) if x.part != "test" and x.point == "received"]
    assert [x.metrics["accuracy"]["clients"] for x in judged] == [40] * 6
    assert all([n > 0 for n in x.clients["n"]] == [n > 0 for n in early.clients["n"]] for x in judged)


def test_numbers_of_every_client_are_in_a_file_beyond_two_thousand_and_in_memory_no_more(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("posterity.experiment.scoring.LISTED", 50)
    kept = posterity.run(federation=many(60), **QUICK).clients("last")
    written = posterity.run(out=tmp_path / "run", federation=many(60), **QUICK)
    files = sorted(p.name for p in (tmp_path / "run" / "clients").iterdir())
    assert files == [f"round-00000{r}.safetensors" for r in (1, 2, 3)]
    assert max(map(len, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())) < 4000
    assert all(isinstance(x.clients, client_scores.StoredColumns) for x in scores_of(written.lines))
    loaded = posterity.load(tmp_path / "run", federation=many(60))
    for found in (written.clients("last"), loaded.clients("last")):
        assert found["name"] == [f"c{k}" for k in range(60)]
        assert found["n"] == kept["n"] == [2] * 60
        assert found["accuracy"] == kept["accuracy"]
    (run,) = load_runs(tmp_path / "run")
    assert run.scores[-1].by_client("accuracy") is not None
    assert len(run.scores[-1].by_client("accuracy")) == 60
    file = tmp_path / "run" / "clients" / files[-1]
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(ValueError, match="is not as it was written"):
        loaded.clients("last")


def test_a_line_may_name_no_file_outside_of_its_folder(tmp_path: Path):
    line = {"kind": "score", "round": 1, "group": "members", "point": "received", "epochs": 0, "part": "test",
            "clients": {}, "clients_file": "../clients/round-1.safetensors"}  # fmt: skip
    assert client_scores.from_json({**line, "metrics": {}}, tmp_path).clients == {}


@pytest.mark.parametrize("few", ["0", "-3", "some", "1.5"])
def test_no_number_of_clients_is_a_sentence(few):
    with pytest.raises(ValueError, match=r"evaluate_clients must be 'all' or a number"):
        Config(evaluate_clients=few)


@pytest.mark.parametrize(("few", "sampled"), [("all", 0), ("30", 30), ("100", 100), ("500", 0)])
def test_as_many_clients_as_asked_for(few, sampled):
    sim = replace(sim_of(), federation=many(120))
    found = Schedule.of(replace(CONFIG, evaluate_clients=few, evaluate_every=1), sim)
    assert (0 if found.sample is None else len(set(found.sample.tolist()))) == sampled
    assert found.who(CONFIG.rounds) is found.sample  # also at the end


@pytest.mark.parametrize(
    ("method", "members", "late"),
    [("fedavg", ("received", 0), ("received", 0)), ("reptile", ("adapted", 1), ("adapted", 1)),
     ("local", ("trained", 0), ("adapted", 4))],
)  # fmt: skip
def test_a_methods_own_point_alone_has_the_same_scores(method, members, late):
    """And the same rounds are chosen: questions leave no trace."""
    setting = {**QUICK, "method": method, "dataset": "digits", "subset": "20%", "clients": 5, "newcomers": "2"}
    every, own = (posterity.run(**setting, newcomer_epochs=4, evaluate_points=p) for p in ("all", "own"))
    kept = {"members": members, "newcomers": late}
    scored = scores_of(every.lines)
    expected = [line for line in scored if (line.point, line.epochs) == kept[line.group]]
    assert scores_of(own.lines) == expected
    assert 0 < len(expected) < len(scored)
    assert own.metric("accuracy") == every.metric("accuracy")


def test_what_is_not_asked_costs_nothing():
    """The others train all members: with own points alone rounds are evaluated more often."""
    sim = sim_of((60,) * 40, local_epochs=5)
    costs = [cost_of_evaluation(replace(CONFIG, evaluate_points=p), sim, 40) for p in ("all", "own")]
    assert costs[1] < costs[0] / 5
    config = replace(CONFIG, participation="2")
    every = [Schedule.of(replace(config, evaluate_points=p), sim).every for p in ("all", "own")]
    assert every[1] < every[0]


def test_points_that_are_unknown_are_refused():
    with pytest.raises(ValueError, match="evaluate_points = 'some' is unknown: possible: all, own"):
        Config(evaluate_points="some")
