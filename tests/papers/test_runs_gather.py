"""One table of runs in several places: each counts once, and what does not fit is named."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest

from posterity.cli import terminal as show
from posterity.evaluate.paired import Sample
from posterity.papers import recipe as recipe_files
from posterity.papers.figures import catalogue
from posterity.papers.page import Entry, entries, order
from posterity.papers.recipe import Line, read
from posterity.papers.runs import Gathered, RunRequest, gather, other_size, read_places, run_cells
from posterity.papers.shown import Shown
from posterity.report import pack_runs

TWO = """
id = "X-T4"
paper = "Somebody"
title = "Table 4"
seeds = [0, 1]
open = ["everything"]
settings = { dataset = "digits", clients = 5, subset = "10%", engine = "stacked", evaluate_every = 1 }

[[cell]]
name = "short"
rounds = 2

[[cell]]
name = "long"
rounds = 400

[[line]]
name = "Theirs"
method = "fedavg"

[[line]]
name = "Ours"
method = "fedprox[mu=0.1]"
"""
RECIPE = read(TWO, "x.toml")
SHORT = RECIPE.chosen(["short"], [])


@pytest.fixture(autouse=True)
def _figures():
    """The figures' tables are kept when they are first asked for: not while a test's recipe stands in for all."""
    assert "V-T1a" in catalogue.known_tables()


def do(recipe, out, seeds, **more):
    run_cells(recipe, out, RunRequest(seeds, more=more))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("made")
    do(SHORT, out, [0, 1])
    return out


@pytest.fixture
def copy(made, tmp_path):
    return shutil.copytree(made, tmp_path / "copy")


def change(place, **values):
    facts = json.loads(place.read_text())
    place.write_text(json.dumps({**facts, **values}))


def count(found: Gathered) -> int:
    return sum(map(len, found.runs.values()))


def test_a_run_that_is_there_twice_counts_once(made, copy, tmp_path):
    packed = pack_runs(made, tmp_path / "made.jsonl.xz")
    once, thrice = (gather(RECIPE, read_places(places)) for places in ([made], [packed, made, copy]))
    assert count(once) == count(thrice) == 4
    assert thrice.remarks == ()
    for each, other in zip(*(entries(RECIPE, RECIPE.cells[0], found) for found in (once, thrice)), strict=True):
        assert each.ours == other.ours
        assert other.seeds == 2


def test_where_a_run_lies_does_not_matter(made, tmp_path):
    """Seeds of two machines, one of them under other names."""
    shutil.copytree(made / "short" / "fedavg" / "seed-0", tmp_path / "a" / "somewhere")
    pack_runs(made / "short" / "fedavg" / "seed-1", tmp_path / "b.jsonl.xz")
    found = gather(RECIPE, read_places([tmp_path / "a", tmp_path / "b.jsonl.xz"]))
    assert [run.seed for run in found.runs["short", "Theirs"]] == [0, 1]


def test_different_results_of_one_seed_are_named(made, copy):
    log = copy / "short" / "fedavg" / "seed-1" / "metrics.jsonl"
    log.write_text(log.read_text().replace('"accuracy": {"pooled": 0.', '"accuracy": {"pooled": 0.0'))
    found = gather(RECIPE, read_places([made, copy]))
    (remark,) = found.remarks
    assert remark.startswith("FedAvg, seed 1 was run twice with different results at the last round (")
    assert remark.endswith("): the first counts")
    assert found.runs["short", "Theirs"][1].folder.is_relative_to(made)


def test_a_run_that_is_not_finished_is_named(copy):
    change(copy / "short" / "fedavg" / "seed-0" / "run.json", status="running")
    found = gather(RECIPE, read_places([copy]))
    assert count(found) == 3
    assert found.remarks[0].endswith("is left out: running, round 2 of 2")


def test_sizes_are_not_averaged(made, tmp_path):
    """One seed of three rounds among those of two: told apart, whichever comes first."""
    do(SHORT.chosen([], ["Theirs"]), tmp_path / "more", [1, 2], rounds=3)
    for places in ([made, tmp_path / "more"], [tmp_path / "more", made]):
        found = gather(SHORT, read_places(places))
        assert [(run.seed, run.planned) for run in found.runs["short", "Theirs"]] == [(0, 2), (1, 2)]
        assert any("FedAvg, seed 1 is there in two sizes" in remark for remark in found.remarks)
        assert any("because it has another size" in remark and "rounds 3 instead of 2" in remark
                   for remark in found.remarks)  # fmt: skip


def test_of_two_sizes_the_papers_counts_whichever_seed_has_it(made, tmp_path):
    do(SHORT.chosen([], ["Theirs"]), tmp_path / "more", [0], rounds=3)
    found = gather(SHORT, read_places([tmp_path / "more", made / "short" / "fedavg" / "seed-1"]))
    assert [(run.seed, run.planned) for run in found.runs["short", "Theirs"]] == [(1, 2)]


def test_columns_that_differ_in_size_are_told_apart(call, made, monkeypatch, tmp_path):
    """A run of the paper's size belongs to its column; a smaller one to that which its folder names, or to none."""
    assert {folder for folder, _ in gather(RECIPE, read_places([made])).runs} == {"short"}
    do(RECIPE.chosen(["long"], ["Theirs"]), tmp_path / "long", [0], rounds=3)
    assert {folder for folder, _ in gather(RECIPE, read_places([tmp_path / "long"])).runs} == {"long"}
    packed = pack_runs(tmp_path / "long", tmp_path / "long.jsonl.xz")
    found = gather(RECIPE, read_places([packed]))
    assert not found.runs
    assert "may belong to short or long and is in none" in found.remarks[0]
    monkeypatch.setattr(recipe_files, "recipes", lambda: {"X-T4": RECIPE})
    place = str(tmp_path / "long")
    code, _, said = call("reproduce", "X-T4", "--from", place, "--cells", "short", "--out", str(tmp_path / "t"))
    assert code == 2  # the runs of `long` are not its own
    assert "no run of X-T4 that was asked for is there, so nothing was written" in " ".join(said.split())
    assert not (tmp_path / "t").exists()


def test_runs_of_something_else_are_left_alone(made):
    other = read(TWO.replace('dataset = "digits"', 'dataset = "digits", batch_size = 7'), "x.toml")
    assert not gather(other, read_places([made])).runs


def test_a_part_of_a_data_set_is_told(made):
    found = gather(SHORT, read_places([made]))
    assert other_size(SHORT, SHORT.cells[0], found) == ""
    (first, *_) = found.of(SHORT.cells[0])
    half = replace(first, federation=replace(first.federation, notes=("digits: the stored half", "newcomers: 2")))
    halves = replace(found, runs={("short", "Theirs"): (half, half)})
    assert other_size(SHORT, SHORT.cells[0], halves) == "About the data: digits: the stored half."


def with_numbers_of_the_paper(recipe, *numbers):
    return replace(recipe, lines=tuple(replace(line, paper={"short": number})
                                       for line, number in zip(recipe.lines, numbers, strict=True)))  # fmt: skip


def test_rows_of_different_sizes_are_not_compared(made, tmp_path):
    recipe = with_numbers_of_the_paper(SHORT, "1", "2")
    do(SHORT.chosen([], ["Theirs"]), tmp_path / "more", [0, 1], rounds=3)
    both = gather(recipe, read_places([made]))
    mixed = gather(recipe, read_places([made / "short" / "fedprox-mu=0.1", tmp_path / "more"]))
    (cell,) = recipe.cells
    alike, apart = (entries(recipe, cell, found) for found in (both, mixed))
    assert [each.size for each in alike] == ["", ""]
    assert [each.size for each in apart] == ["rounds 3 instead of 2", ""]
    assert alike[0].pair is not None
    assert apart[0].pair is None
    assert "of 1 pairs of methods" in order(alike)
    assert order(apart) == ""
    assert other_size(recipe, cell, mixed) == ("Not at the paper's size: rounds 3 instead of 2 (Theirs). Only rows of "
                                               "one size are compared.")  # fmt: skip


OTHERS = ({"partition": "iid"}, {"data_seed": 5}, {"min_count": 3}, {"set": {"local.momentum": "0.5"}})


@pytest.mark.parametrize("more", OTHERS, ids=lambda each: next(iter(each)))
def test_a_run_with_other_clients_scores_or_settings_is_another_one(made, tmp_path, more):
    do(SHORT.chosen([], ["Theirs"]), tmp_path / "other", [2], **more)
    assert not gather(SHORT, read_places([tmp_path / "other"])).runs


def test_seeds_are_those_that_have_a_number(made):
    found = gather(SHORT, read_places([made]))
    (cell,) = SHORT.cells
    first, second = found.runs["short", "Theirs"]
    unscored = replace(second, scores=())
    some = replace(found, runs={**found.runs, ("short", "Theirs"): (first, unscored)})
    assert [each.seeds for each in entries(SHORT, cell, some)] == [1, 2]


def test_pairs_are_ordered_by_the_seeds_that_both_have():
    """Ours is ahead with every seed of both; the mean of all its seeds is not."""
    shown = Shown().column
    values = {"Theirs": {0: 0.8, 1: 0.9}, "Ours": {0: 0.81}}
    made = [
        Entry(Line(name, "fedavg"), paper, {}, len(each), "", None, shown,
              {seed: Sample(value, None) for seed, value in each.items()})
        for (name, each), paper in zip(values.items(), ("1", "2"), strict=True)
    ]  # fmt: skip
    assert order(made, "validated") == "1 of 1 pairs of methods are in the paper's order."


def test_the_command_merges(call, made, monkeypatch, tmp_path):
    monkeypatch.setattr(recipe_files, "recipes", lambda: {"X-T4": RECIPE})
    pack_runs(made / "short" / "fedavg", tmp_path / "a.jsonl.xz")
    other = str(made / "short" / "fedprox-mu=0.1")
    words = ("reproduce", "X-T4", "--from", str(tmp_path / "a.jsonl.xz"), "--from", other, "--out", str(tmp_path / "t"))
    code, said, _ = call(*words, "--cells", "short")
    assert code == 0
    assert "of 1 pairs" not in said  # the paper has no numbers here
    page = (tmp_path / "t" / "table.md").read_text()
    assert page.count(" | 2 | ") == 2
    assert [path.name for path in (tmp_path / "t").iterdir()] == ["table.md"]
    code, _, complained = call(*words, "--scale", "0.1")
    assert code == 2
    assert "--from runs nothing" in complained


def test_the_list_says_what_came_of_the_published_runs_and_what_is_here(call, made, monkeypatch, tmp_path):
    monkeypatch.setattr("posterity.papers.cli.recipes", lambda: {"X-T4": RECIPE})
    monkeypatch.setattr(show.console, "_width", 200)
    said = call("reproduce", "--list", "--out", str(tmp_path))[1]
    assert "not yet run" in said
    assert "N-T7" in said
    assert "not yet run; here" not in said
    (tmp_path / "X-T4").mkdir()
    (tmp_path / "X-T4" / "table.md").write_text("## X-T4")
    assert "not yet run; here" in call("reproduce", "--list", "--out", str(tmp_path))[1]


def test_a_folder_is_of_one_table(call, made, copy, monkeypatch, tmp_path):
    """Columns of two tables may have the same names."""
    other = replace(SHORT, id="X-T5", settings={**SHORT.settings, "partition": "iid"})
    monkeypatch.setattr(recipe_files, "recipes", lambda: {"X-T4": SHORT, "X-T5": other})
    go = lambda name, *more: call("reproduce", name, "--out", str(copy), *more)  # noqa: E731
    code, _, said = go("X-T5")
    assert code == 2
    assert "holds a run with other settings (partition: there" in " ".join(said.split())
    place = tmp_path / "page"
    place.mkdir()
    (place / "table.md").write_text("## X-T5: Somebody, Table 5\n")
    code, _, said = call("reproduce", "X-T4", "--from", str(made), "--out", str(place))
    assert code == 2
    assert "holds the table X-T5, and not X-T4" in " ".join(said.split())
    assert (place / "table.md").read_text().startswith("## X-T5")


def test_what_other_commands_and_systems_leave_in_a_folder_is_no_obstacle(call, copy, monkeypatch):
    monkeypatch.setattr(recipe_files, "recipes", lambda: {"X-T4": SHORT})
    (copy / ".DS_Store").write_text("")
    assert call("report", str(copy))[0] == 0
    assert (copy / "report.html").exists()
    assert call("reproduce", "X-T4", "--out", str(copy))[0] == 0
    (copy / "notes.txt").write_text("")
    code, _, said = call("reproduce", "X-T4", "--out", str(copy))
    assert code == 2
    assert "holds other files (notes.txt)" in " ".join(said.split())


@pytest.mark.parametrize("flag", ["--cells", "--methods"])
def test_an_empty_list_is_not_everything(call, flag):
    code, _, said = call("reproduce", "V-T1c", flag, ",")
    assert code == 2
    assert f"{flag} takes a comma-separated list of names" in said


def test_an_id_like_a_figures_is_looked_up_among_figures(call):
    code, _, said = call("reproduce", "V-F5")
    assert code == 2
    assert "there is no figure 'V-F5': did you mean" in " ".join(said.split())


ROWS = [("M-T8", "fedprox", "FedProx"), ("M-T8", "FedAvg+ft", "FedAvg+FT"),
        ("M-T8", "perfedavg", "PerFedAvg (HF-MAML)"),
        ("M-T8", "fedprox[mu=0.1]", "FedProx"), ("V-T1c", "pfedvmp", "pFedVMP")]  # fmt: skip


@pytest.mark.parametrize(("table", "given", "row"), ROWS)
def test_a_row_is_the_papers_own_unless_its_settings_are_given(table, given, row):
    assert [line.name for line in recipe_files.find(table).chosen([], [given]).lines] == [row]


def test_a_method_of_several_rows_names_them():
    with pytest.raises(ValueError, match=r"V-T7 has several rows of pfedvmp: ξ₁ = 1; .* give one of these names"):
        recipe_files.find("V-T7").chosen([], ["pfedvmp"])


def test_a_figure_of_models_is_not_drawn_from_logs(call, tmp_path):
    code, _, complained = call("reproduce", "V-F2", "--from", str(tmp_path))
    assert code == 2
    assert "V-F2 shows data or what models make of them" in complained


def test_runs_of_another_table_make_no_page(call, made, tmp_path):
    """A page that was there stays."""
    page = tmp_path / "t" / "table.md"
    page.parent.mkdir()
    page.write_text("kept")
    code, _, said = call("reproduce", "V-T7", "--from", str(made), "--out", str(page.parent))
    assert code == 2
    assert "no run of V-T7 is there, so nothing was written" in " ".join(said.split())
    assert page.read_text() == "kept"
