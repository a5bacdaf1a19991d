"""What a column shows of a run is what the run wrote: of whom, by which metric, at which point and round."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from posterity.papers.page import entries, markdown
from posterity.papers.recipe import read
from posterity.papers.runs import RunRequest, gather, read_places, run_cells
from posterity.papers.shown import Shown, read_samples, read_value

PEOPLE = """
id = "X-T2"
paper = "Somebody"
title = "Table 2"
open = ["everything"]

[settings]
dataset = "digits"
clients = 6
newcomers = "2"
partition = "dirichlet:1"
subset = "15%"
rounds = 3
evaluate_every = 1
newcomer_epochs = 2
engine = "stacked"

[[cell]]
name = "Test"

[[cell]]
name = "OOD"
shows = "newcomers"

[[cell]]
name = "Gap"
shows = "gap"

[[cell]]
name = "MCE"
shows = "newcomers"
metric = "mce_flat"
percent = true

[[cell]]
name = "Sparsity"
metric = "sparsity"

[[cell]]
name = "One"
client = "client 3"

[[line]]
name = "Reptile"
method = "reptile"

[[line]]
name = "SNIP"
method = "fedavg+snip[sparsity=0.5]"
paper = { "Gap" = "-1.2" }
"""
TOY = """
id = "X-T3"
paper = "Somebody"
title = "Table 3"
shows = "common"
metric = "mse"
open = ["everything"]

[settings]
dataset = "polynomial"
split = "100/0"
model = "cubic"
rounds = 4
evaluate_every = 1
optimiser = "rmsprop"
lr = 0.01

[[cell]]
name = "toy"

[[line]]
name = "FedAvg"
method = "fedavg"
"""


def made_from(text, out):
    recipe = read(text, "x.toml")
    run_cells(recipe, out, RunRequest([0]))
    return recipe, gather(recipe, read_places([out])), out


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    return made_from(PEOPLE, tmp_path_factory.mktemp("people"))


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return made_from(TOY, tmp_path_factory.mktemp("toy"))


def written(out, method, **wanted):
    """The one line of a log that has these fields."""
    lines = map(json.loads, (out / "Test" / method / "seed-0" / "metrics.jsonl").read_text().splitlines())
    (found,) = [line for line in lines if wanted.items() <= line.items()]
    return found


def shown(people, column, line):
    recipe, found, _ = people
    cell = next(each for each in recipe.cells if each.name == column)
    return next(each for each in entries(recipe, cell, found) if each.line.name == line)


@pytest.mark.parametrize(
    ("line", "folder", "point", "epochs"),
    [("Reptile", "reptile", "adapted", 1), ("SNIP", "fedavg+snip-sparsity=0.5", "received", 0)],
)
def test_newcomers_are_scored_where_members_are(people, line, folder, point, epochs):
    kind = {"kind": "score", "round": 3, "part": "test", "point": point, "epochs": epochs}
    members, late = (
        written(people[2], folder, group=group, **kind)["metrics"]["accuracy"]["pooled"]
        for group in ("members", "newcomers")
    )
    assert shown(people, "Test", line).ours["last"] == f"{100 * members:.1f}"
    assert shown(people, "OOD", line).ours["last"] == f"{100 * late:.1f}"
    gap = 100 * (late - members)
    assert float(shown(people, "Gap", line).ours["last"]) == pytest.approx(gap, abs=0.051)
    assert shown(people, "Gap", line).ours["last"].startswith("+") == (gap > 0)
    mce = written(people[2], folder, group="newcomers", **kind)["metrics"]["mce_flat"]["pooled"]
    assert shown(people, "MCE", line).ours["last"] == f"{100 * mce:.2f}"


@pytest.mark.parametrize(("value", "gap"), [(0.012, "+1.2"), (-0.012, "-1.2"), (0.0, "0.0")])
def test_a_gap_has_its_sign(people, monkeypatch, value, gap):
    monkeypatch.setattr("posterity.papers.page.read_value", lambda run, rule, shown: value)
    assert shown(people, "Gap", "Reptile").ours["last"] == gap
    assert shown(people, "Test", "Reptile").ours["last"] == gap.removeprefix("+")


def test_one_client(people):
    _, found, out = people
    line = written(out, "reptile", kind="score", round=3, part="test", point="adapted", group="members")
    (members,) = found.runs["Test", "Reptile"]
    place = members.federation.names.index("client 3")
    assert shown(people, "One", "Reptile").ours["last"] == f"{100 * line['clients']['accuracy'][place]:.1f}"
    with pytest.raises(ValueError, match="has no client 'client 33': did you mean"):
        read_value(members, "last", Shown(client="client 33"))


def test_sparsity_is_what_a_method_reports(people):
    assert shown(people, "Sparsity", "SNIP").ours["last"] == "50.00"
    assert shown(people, "Sparsity", "Reptile").ours["last"] == "0.00"


def test_sparsity_is_that_of_the_round_that_is_shown(people):
    (run,) = people[1].runs["Test", "SNIP"]
    rounds = tuple(replace(line, report={"removed": line.round / 10}) for line in run.rounds)
    assert read_value(replace(run, rounds=rounds), "last", Shown(metric="sparsity")) == 0.3


def test_every_client_has_its_own_number(people):
    (run,) = people[1].runs["Test", "Reptile"]
    scores = tuple(replace(score, clients={"accuracy": [0.1, 0.2, 0.3, 0.4]}) for score in run.scores)
    members = run.federation.names[:4]
    values = [read_value(replace(run, scores=scores), "last", Shown(client=name)) for name in members]
    assert values == [0.1, 0.2, 0.3, 0.4]


def test_weights_and_points(people):
    (reptile,) = people[1].runs["Test", "Reptile"]
    line = written(people[2], "reptile", kind="score", round=3, part="test", point="received", group="members")
    value = line["metrics"]["balanced_accuracy"]["mean"]
    assert read_value(reptile, "last", Shown(metric="balanced_accuracy", weight="mean", point="received")) == value


def test_pairs_know_the_clients_where_the_number_is_a_mean_over_their_rows(people):
    (reptile,) = people[1].runs["Test", "Reptile"]
    for group, count in (("members", 4), ("newcomers", 2)):
        (sample,) = read_samples([reptile], "last", Shown(group)).values()
        assert len(sample.clients.values) == count
    (sample,) = read_samples([reptile], "last", Shown("gap")).values()
    assert sample.clients is None


def test_the_common_test_set_has_a_best_and_a_last_round(toy):
    recipe, found, out = toy
    lines = map(json.loads, (out / "toy" / "fedavg" / "seed-0" / "metrics.jsonl").read_text().splitlines())
    errors = {line["round"]: line["metrics"]["mse"]["pooled"] for line in lines if line.get("group") == "common"}
    (entry,) = entries(recipe, recipe.cells[0], found)
    assert entry.ours == {"validated": "", "paper": f"{min(errors.values()):.3f}", "last": f"{errors[4]:.3f}"}
    assert "| FedAvg |  |  | " in markdown(recipe, found)
    assert "*validated*" not in markdown(recipe, found)


def test_the_best_round_of_a_common_test_set_need_not_be_the_last(toy):
    (run,) = toy[1].runs["toy", "FedAvg"]
    errors = {1: 3.0, 2: 1.0, 3: 2.0, 4: 5.0}
    scores = tuple(replace(score, metrics={"mse": {"pooled": errors[score.round]}}) for score in run.scores)
    values = [read_value(replace(run, scores=scores), rule, Shown("common", "mse")) for rule in ("paper", "last")]
    assert values == [1.0, 5.0]
