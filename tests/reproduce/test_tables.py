"""A table from its first run to its page, as a user would make it."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from posterity.experiment import run
from posterity.reproduce import recipe as recipe_files
from posterity.reproduce.beside import entries, markdown, order
from posterity.reproduce.cells import run_cells
from posterity.reproduce.gather import gather, read_places
from posterity.reproduce.recipe import read

from .test_recipes import SMALL

TINY = {"rounds": 2, "engine": "stacked", "evaluate_every": 1}


def quiet(title, rounds):
    return nullcontext(run.silent)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The small table with two seeds."""
    recipe, out = read(SMALL, "x.toml"), tmp_path_factory.mktemp("table")
    run_cells(recipe, out, recipe.seeds, 0.01, TINY, quiet)
    return recipe, out


def test_every_cell_has_its_runs_and_nothing_is_run_twice(made):
    recipe, out = made
    found = sorted(str(path.parent.relative_to(out)) for path in out.rglob("metrics.jsonl"))
    assert len(found) == 8
    assert found[0] == "Dirichlet-0.3/fedavg+ft/seed-0"
    before = {path: path.stat().st_mtime_ns for path in out.rglob("metrics.jsonl")}
    run_cells(recipe, out, recipe.seeds, 0.01, TINY, quiet)
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("metrics.jsonl")}


def test_the_papers_numbers_stand_beside_ours(made):
    recipe, out = made
    theirs, ours = entries(recipe, recipe.cells[0], gather(recipe, read_places([out])))
    assert (theirs.paper, ours.paper) == ("90.1", "91.0")
    assert theirs.point == "adapted, 1 epoch"
    assert theirs.seeds == ours.seeds == 2
    assert all("±" in each.ours[rule] for each in (theirs, ours) for rule in ("validated", "paper", "last"))
    assert ours.pair is None
    assert theirs.pair.seeds == 2
    assert theirs.pair.interval is not None


def test_what_was_not_run_is_empty(made):
    recipe, _ = made
    found = entries(recipe, recipe.cells[0], gather(recipe, []))
    assert [each.ours["validated"] for each in found] == ["", ""]
    assert order(found) == ""


def test_results_of_two_machines_are_one_table(made, tmp_path):
    recipe, out = made
    other = tmp_path / "other"
    run_cells(recipe.chosen([], ["Ours"]), other, [2], 0.01, TINY, quiet)
    _, ours = entries(recipe, recipe.cells[1], gather(recipe, read_places([out, other])))
    assert ours.seeds == 3


def test_the_page(made):
    recipe, out = made
    page = markdown(recipe, gather(recipe, read_places([out])))
    assert page.startswith("## X-T1: Somebody, Table 1\n")
    assert "- everything\n" in page
    assert "### iid, half" in page
    line = next(line for line in page.splitlines() if line.startswith("| Theirs | 80.2 ± 0.3 |"))
    assert line.count("|") == 9
    assert "of 1 pairs of methods are in the paper's order." in page


def test_another_size_is_another_run(made):
    recipe, out = made
    with pytest.raises(ValueError, match="rounds"):
        run_cells(recipe, out, [0], 0.01, {**TINY, "rounds": 3}, quiet)


def test_the_page_says_that_it_is_smaller(made):
    recipe, out = made
    told = "rounds 2 instead of 40 and clients 5 instead of 8 and subset 62.5% instead of all."
    assert f"Not at the paper's size: {told}" in markdown(recipe, gather(recipe, read_places([out])))


def test_the_command_goes_on_where_it_was(call, monkeypatch, tmp_path):
    """Twice into the same folder, the second time with one seed more; then among somebody else's files."""
    monkeypatch.setattr(recipe_files, "recipes", lambda: {"X-T1": read(SMALL, "x.toml")})
    words = ["reproduce", "x-t1", "--scale", "0.01", "--engine", "stacked", "--evaluate-every", "1", "--jobs", "1",
             "--quiet", "--methods", "Ours"]  # fmt: skip
    for seeds, count in (("0", 2), ("0,1", 4)):
        code, said, _ = call(*words, "--seeds", seeds, "--out", str(tmp_path / "t"))
        assert code == 0
        assert "Not at the paper's size" in said
        assert len(list((tmp_path / "t").rglob("metrics.jsonl"))) == count
    (tmp_path / "t" / "thesis.tex").touch()
    code, _, complained = call(*words, "--seeds", "0", "--out", str(tmp_path / "t"))
    assert code == 2
    assert "holds other files (thesis.tex) than runs of X-T1" in complained
