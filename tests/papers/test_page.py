"""A table from its first run to its page, as a user would make it."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest
import torch

import posterity
from posterity.evaluate.paired import Sample
from posterity.papers import recipe as recipe_files
from posterity.papers.page import (
    RULES,
    Entry,
    entries,
    held_against,
    markdown,
    order,
    origins,
    with_numbers,
    without_numbers,
)
from posterity.papers.recipe import Line, read
from posterity.papers.runs import RunRequest, gather, read_places, run_cells
from posterity.papers.shown import Shown, read_value

from .test_recipe import SMALL

TINY = {"rounds": 2, "engine": "stacked", "evaluate_every": 1}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The small table with two seeds."""
    recipe, out = read(SMALL, "x.toml"), tmp_path_factory.mktemp("table")
    run_cells(recipe, out, RunRequest(None, 0.01, TINY))
    return recipe, out


def test_every_cell_has_its_runs_and_nothing_is_run_twice(made):
    recipe, out = made
    found = sorted(str(path.parent.relative_to(out)) for path in out.rglob("metrics.jsonl"))
    assert len(found) == 8
    assert found[0] == "Dirichlet-0.3/fedavg+ft/seed-0"
    before = {path: path.stat().st_mtime_ns for path in out.rglob("metrics.jsonl")}
    run_cells(recipe, out, RunRequest(None, 0.01, TINY))
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
    ahead = statistics.fmean(ours.samples[seed].value - theirs.samples[seed].value for seed in (0, 1))
    assert ahead != 0
    assert theirs.pair.difference == pytest.approx(ahead)  # as the column's head says


def test_what_was_not_run_is_empty(made):
    recipe, _ = made
    found = entries(recipe, recipe.cells[0], gather(recipe, []))
    assert [each.ours["validated"] for each in found] == ["", ""]
    assert order(found) == ""


def test_where_the_papers_own_method_was_not_run_rows_are_held_against_the_last_that_was(made):
    recipe, out = made
    found, cell = gather(recipe, read_places([out])), recipe.cells[0]
    unrun = {place: runs for place, runs in found.runs.items() if place != (cell.folder, "Ours")}
    longer = replace(recipe, lines=(Line("First", "local"), *recipe.lines))
    some = replace(found, runs={**unrun, (cell.folder, "First"): found.runs[cell.folder, "Ours"]})
    first, theirs, ours = entries(longer, cell, some)
    assert held_against([first, theirs, ours]) is theirs
    assert (theirs.pair, ours.pair) == (None, None)
    assert first.pair.difference == -entries(recipe, cell, found)[0].pair.difference
    assert "| Theirs − it (95 %) |" in markdown(longer, some)
    assert held_against(entries(recipe, cell, found)).name == "Ours"


def test_results_of_two_machines_are_one_table(made, tmp_path):
    recipe, out = made
    other = tmp_path / "other"
    run_cells(recipe.chosen([], ["Ours"]), other, RunRequest([2], 0.01, TINY))
    _, ours = entries(recipe, recipe.cells[1], gather(recipe, read_places([out, other])))
    assert ours.seeds == 3


def test_the_page(made):
    recipe, out = made
    page = markdown(recipe, gather(recipe, read_places([out])))
    assert page.count("*best round*: the best round on the whole held-out part") == 1
    assert page.startswith("## X-T1: Somebody, Table 1\n")
    assert "- everything\n" in page
    assert "### iid, half" in page
    line = next(line for line in page.splitlines() if line.startswith("| Theirs | 80.2 ± 0.3 |"))
    assert line.count("|") == 9
    assert "of 1 pairs of methods are in the paper's order." in page


@pytest.mark.parametrize(("rule", "head"), [("paper", "best round"), ("last", "last")])
def test_the_order_is_told_at_the_round_that_the_paper_reports(made, rule, head):
    """The sentence is of that rule's numbers, and stands once below the column that has two numbers of the paper."""
    recipe, out = made
    found, cell = gather(recipe, read_places([out])), recipe.cells[0]
    by_rule = replace(recipe, reported=rule, differs=("fine-tuned for longer",))
    page = markdown(by_rule, found)
    assert page.count(f"\nBy *{head}*, which the paper reports: ") == 1
    assert "Differs from the paper:\n\n- fine-tuned for longer\n" in page
    mine = entries(recipe, cell, found, rule)[1].samples
    shown = [read_value(run, rule, cell.shown) for run in found.runs[cell.folder, "Ours"]]
    assert [sample.value for sample in mine.values()] == shown
    assert "which the paper reports" not in markdown(recipe, found)
    assert "Differs from the paper" not in markdown(recipe, found)


def test_the_page_says_which_code_made_which_rows(made):
    recipe, out = made
    found, cell = gather(recipe, read_places([out])), recipe.cells[0]
    key = (cell.folder, "Ours")
    first, second = found.runs[key]
    machine = f"Run on cpu, PyTorch {torch.__version__}, ieee, by"

    def told(**facts):
        changed = replace(first, facts={**first.facts, **facts})
        return origins(recipe, cell, replace(found, runs={**found.runs, key: (changed, second)}))

    commit = f"commit {second.facts['commit']}" if second.facts["commit"] else f"version {posterity.__version__}"
    assert f"{machine} {commit}." in markdown(recipe, found)
    assert told(commit="0123456") == f"{machine} {commit} (Theirs; Ours), commit 0123456 (Ours)."
    assert told(commit=None, posterity="0.0.9") == f"{machine} {commit} (Theirs; Ours), version 0.0.9 (Ours)."
    elsewhere = machine.replace("cpu", "NVIDIA H200", 1)
    assert told(device="NVIDIA H200") == f"{machine} {commit} (Theirs; Ours). {elsewhere} {commit} (Ours)."
    assert origins(recipe, cell, gather(recipe, [])) == ""


def test_rows_without_any_number_are_named_below_the_table():
    a, b, c = row("A", "80", [0.7]), row("B", "", [0.8]), row("C", "78", [0.6])
    bare, theirs = (replace(row(name, paper, [0.5]), seeds=0) for name, paper in (("D", ""), ("E", "77")))
    assert with_numbers([a, bare, b, theirs, c]) == [a, b, theirs, c]
    assert without_numbers([a, bare, b, theirs, c]) == "Rows that the paper does not have, not yet run: D."
    assert with_numbers([a, bare]) == [a, bare]  # the paper's own method, which the others are held against
    assert without_numbers([a, theirs]) == ""


def row(name, paper, values):
    """A row whose numbers by seed are these."""
    column = Shown().column
    ours = dict.fromkeys(RULES, str(100 * sum(values) / len(values)))
    samples = {seed: Sample(value) for seed, value in enumerate(values)}
    return Entry(Line(name, "local"), paper, ours, len(values), "received", None, column, samples)


def test_the_order_names_pairs_that_our_seeds_tell_apart():
    a, b, c = row("A", "80", [0.70, 0.71]), row("B", "79", [0.80, 0.81001]), row("C", "78", [0.60, 0.90])
    assert order([a, row("D", "60.5", [0.5, 0.51])]) == "1 of 1 pairs of methods are in the paper's order."
    said = order([a, b, c])
    assert said.startswith("1 of 3 pairs of methods are in the paper's order. Of the others our seeds tell apart: B ")
    assert "B above A by 10.0 percentage points (+10.0 to +10.0)." in said  # and not C above A, by 4.5 ± 180
    assert order([a, row("E", "81", [0.70, 0.71])]).startswith("0 of 1 pairs")  # level here, and not in the paper
    assert order([a, c]).endswith("Of the others our seeds tell none apart.")


def test_the_order_is_that_of_means_not_of_their_print():
    near = [replace(row(name, paper, values), ours=dict.fromkeys(RULES, printed)) for name, paper, values, printed in (
        ("A", "80", [0.7602, 0.7600], "76.0 ± 0.1"), ("B", "79", [0.7601, 0.7599], "76.0 ± 0.1"))]  # fmt: skip
    assert order(near) == order(near[::-1]) == "1 of 1 pairs of methods are in the paper's order."
    large = [replace(each, ours=dict.fromkeys(RULES, text), samples={})
             for each, text in zip(near, ("51.2 ± 0.1", "1.2e+06 ± 0.1"), strict=True)]  # fmt: skip
    assert order(large).startswith("0 of 1 pairs")


def test_a_row_of_which_runs_exploded_is_marked_and_compared_with_nothing(made):
    recipe, out = made
    found = gather(recipe, read_places([out]))
    exploded = replace(found, runs={key: tuple(
        replace(run, facts={**run.facts, "diverged": "NLL 1e9"}) if key[1] == "Theirs" and run.seed == 0 else run
        for run in some) for key, some in found.runs.items()})  # fmt: skip
    theirs, ours = entries(recipe, recipe.cells[0], exploded)
    assert (theirs.mark, theirs.pair, ours.mark) == ("1 of 2 seeds diverged", None, "")
    before = entries(recipe, recipe.cells[0], found)
    assert [each.pair is None for each in before] == [False, True]
    assert theirs.ours == before[0].ours  # its numbers are still told
    page = markdown(recipe, exploded)
    assert "| Theirs (1 of 2 seeds diverged) | 80.2 ± 0.3 |" in page
    assert "in the paper's order" not in page.partition("### iid, half")[0]


def test_the_page_lists_what_is_missing_and_times_rounds_where_asked(made):
    recipe, out = made
    found = gather(recipe, [run for run in read_places([out]) if "Dirichlet-0.3" in run.folder.parts])
    page = markdown(replace(recipe, timed=True), found)
    assert page.endswith("Not yet run:\n\n- iid, half\n")
    assert "### iid, half" not in page
    lines = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")]
    assert lines[0][-1] == "s a round |"
    assert all(float(line[-1].removesuffix(" |")) > 0 for line in lines[2:])
    assert "*s a round*: the seconds of the median round of one seed." in page
    assert "s a round" not in markdown(recipe, found)


def test_seconds_of_a_round_are_not_those_of_a_halt(made):
    recipe, out = made
    found = gather(recipe, read_places([out]))
    timed, cell = replace(recipe, timed=True), recipe.cells[0]

    def slower(run, seconds):  # three rounds, of which the first was recorded, or the program halted in it
        lines = [replace(run.rounds[0], seconds=each) for each in seconds]
        return replace(run, rounds=tuple(lines), seconds=sum(seconds))

    runs = {key: [slower(run, (900.0, 0.25, 0.26)) for run in some] for key, some in found.runs.items()}
    assert {each.seconds for each in entries(timed, cell, replace(found, runs=runs))} == {"0.260"}


def test_another_size_is_another_run(made):
    recipe, out = made
    with pytest.raises(ValueError, match="rounds"):
        run_cells(recipe, out, RunRequest([0], 0.01, {**TINY, "rounds": 3}))


def test_the_page_says_that_it_is_smaller(made):
    recipe, out = made
    told = "clients 5 instead of 8 and subset 62.5% instead of all and rounds 2 instead of 40."
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
