"""pFedGP with points of every class: whose rows they are, and that the numbers without any are the run's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from posterity import data

ROOT = Path(__file__).parents[2]


@pytest.fixture
def recipe(script):
    return script("pfedgp_points")


@pytest.fixture
def told():
    return data.load("digits", clients=6, newcomers="2", partition="iid", public="30%")


def test_everybody_gets_the_same_rows_which_nobody_trains_on_or_is_scored_with(recipe, told):
    more = recipe.with_points(told, 3)
    for k in range(told.clients):
        own, given = more.train.client(k).split([int(told.train.sizes[k]), 30])
        assert torch.equal(own, told.train.client(k))
        assert torch.equal(given, more.train.client(0)[-30:])
        assert torch.bincount(told.y[given]).tolist() == [3] * 10
    apart = torch.cat([told.train.rows, told.validation.rows, told.test.rows])
    assert not torch.isin(more.train.client(0)[-30:], apart).any()
    assert (more.validation, more.test) == (told.validation, told.test)


def test_more_points_than_there_are_rows_are_refused(recipe, told):
    with pytest.raises(ValueError, match="500 points of every class are asked for, and of one there are"):
        recipe.with_points(told, 500)


@pytest.mark.parametrize("method", ["pfedgp", pytest.param("fedavg+ft", marks=pytest.mark.everything)])
def test_without_points_numbers_are_the_runs_own(recipe, method, tmp_path):
    path, config = tmp_path / "seed-0", recipe.config_of(0.5, method, 0, quick=True)
    recipe.perform([recipe.Task(method, ((path, config),))])
    result = recipe.load(path)
    bare, given = (recipe.measure(result, 0.5, method, points) for points in (0, 5))
    assert bare.accuracy == pytest.approx(result.metric("accuracy"), abs=1e-9)
    late = result.history("accuracy", group="newcomers", epochs=1 if method == "fedavg+ft" else 0)
    (newcomers,) = [each["test"] for each in late if each["round"] == bare.round]
    assert bare.newcomers == pytest.approx(newcomers, abs=1e-9)
    assert given.ece != bare.ece


def test_the_page_has_the_table_of_the_stored_numbers(recipe):
    stored = json.loads((ROOT / "docs" / "results" / "raw" / "pfedgp-points.json").read_text(encoding="utf-8"))
    found = [recipe.Scored(**each) for each in stored["scored"]]
    assert len(found) == 2 * 6 * 3
    assert recipe.page(found).strip() in (ROOT / "docs" / "results" / "metavd.md").read_text(encoding="utf-8")


@pytest.mark.everything
def test_all_of_it_on_next_to_nothing(recipe, tmp_path, capsys):
    recipe.main(["--out", str(tmp_path), "--seeds", "1", "--quick"])
    assert (tmp_path / "pfedgp_points.md").read_text().strip() in capsys.readouterr().out
    assert len(json.loads((tmp_path / "pfedgp_points.json").read_text())["scored"]) == 12
