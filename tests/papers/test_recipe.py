"""Every table of the papers that can be asked for, and what is said about a wrong one."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from posterity import methods, models
from posterity.evaluate.summaries import RULES as WEIGHTS
from posterity.experiment.compare import parse_variant
from posterity.papers.figures import figures
from posterity.papers.page import number
from posterity.papers.recipe import find, read, recipes, without_recipe
from posterity.papers.runs import comparisons, shrunk
from posterity.runs.read import POINTS
from posterity.settings.hyperparameters import split_list

SMALL = """
id = "X-T1"
paper = "Somebody"
title = "Table 1"
seeds = [0, 1]
open = ["everything"]

[settings]
dataset = "digits"
clients = 8
batch_size = 50
rounds = 40

[[cell]]
name = "Dirichlet(0.3)"
partition = "dirichlet:0.3"

[[cell]]
name = "iid, half"
partition = "iid"
subset = "50%"

[[line]]
name = "Theirs"
method = "fedavg+ft"
paper = { "Dirichlet(0.3)" = "90.1", "iid, half" = "80.2 ± 0.3" }

[[line]]
name = "Ours"
method = "fedprox[mu=0.1]"
paper = { "Dirichlet(0.3)" = "91.0" }
"""


def test_every_network_of_a_table_is_there_and_has_its_settings():
    every = [recipe.config(cell, {}) for recipe in recipes().values() for cell in recipe.cells]
    possible = {network.name: network.options for network in models.available()}
    networks = {(config.model, *config.settings("model")) for config in every}
    assert ("cnn", "feature_dim") in networks
    for name, *settings in networks:
        assert set(settings) <= set(possible[name])


@pytest.mark.parametrize("name", list(recipes()))
def test_every_table_can_be_run(name):
    recipe = recipes()[name]
    assert recipe.open, "every paper left something open"
    for cell, lines in recipe.folders().values():
        config = recipe.config(cell, shrunk(recipe, cell, 0.01))
        assert config.rounds < recipe.config(cell, {}).rounds
        for line in lines:
            variant = parse_variant(line.method)
            methods.build(variant.method, variant.settings, config.training())
    for line in recipe.lines:
        assert all(number(printed) is not None for printed in line.paper.values())
    assert any(line.paper for line in recipe.lines)


def test_the_last_line_is_the_papers_own_method():
    for recipe in recipes().values():
        own = {"PFLlib": "fedcp"}.get(recipe.paper, recipe.paper.casefold())  # of a benchmark: the best as published
        assert own in re.split(r"[+@\[]", recipe.lines[-1].method), recipe.id


MISPRINTS = {("M-T8", "pFedGP", "α=0.1 Δ"), ("M-T3", "MAML", "α=0.1 MCE")}  # errata M12


def test_a_gap_that_is_printed_is_that_of_the_numbers_beside_it():
    seen = 0
    for recipe in recipes().values():
        for cell in (cell for cell in recipe.cells if cell.shown.shows == "gap"):
            for line in (line for line in recipe.lines if cell.name in line.paper):
                if (recipe.id, line.name, cell.name) in MISPRINTS:
                    continue
                gap, ood, test = (float(line.paper[cell.name.replace("Δ", kind)]) for kind in ("Δ", "OOD", "Test"))
                assert gap == pytest.approx(ood - test, abs=0.015), (recipe.id, line.name, cell.name)
                seen += 1
    assert seen > 200


@pytest.mark.parametrize(
    ("table", "of", "renamed"),
    [("M-T2", "M-T7", ""), ("M-T3", "M-T11", ""), ("M-T6", "M-T8", ""), ("M-T10", "M-T4", ""), ("M-T16", "M-T8", ""),
     ("M-T17", "M-T7", ""), ("M-T1", "M-T7", "C100 "), ("M-T1", "M-T8", "C10 "), ("V-T2", "V-T1a", ""),
     ("V-T2", "V-T1b", "")],
)  # fmt: skip
def test_a_number_that_two_tables_print_is_the_same(table, of, renamed):
    known = {line.name: line.paper for line in recipes()[of].lines}
    shared = [
        (line.name, column, value, known[line.name][column])
        for line in recipes()[table].lines
        for name, value in line.paper.items()
        if (column := name.removeprefix(renamed)) in known.get(line.name, {})
    ]
    assert shared
    for name, column, here, there in shared:
        assert here == there or (table, name, column) in MISPRINTS or (of, name, column) in MISPRINTS


def test_everything_of_the_papers_is_listed_once():
    every = [*recipes(), *figures(), *without_recipe()]
    assert len(set(every)) == len(every)
    numbers = {"T": {"V": 7, "N": 7, "M": 17, "A": 4, "B": 3, "P": 1}, "F": {"V": 4, "N": 5, "M": 5, "A": 1, "B": 3}}
    wanted = {f"{p}-{kind}{n + 1}" for kind, most in numbers.items() for p, count in most.items() for n in range(count)}
    assert {re.sub("[a-h]$", "", name) for name in every} == wanted
    with pytest.raises(ValueError, match=r"N-T2 .* has no runs here: the corpus is licensed"):
        find("n-t2")


def test_a_table_by_its_id():
    assert find("v-t1A").id == "V-T1a"
    with pytest.raises(ValueError, match="there is no table 'V-T1': did you mean 'V-T1"):
        find("V-T1")


OUTCOMES = ("reproduced", "ordering reproduced", "contradicted", "in part", "begun", "not yet run")


@pytest.mark.parametrize("name", list(recipes()))
def test_a_table_names_only_what_there_is(name):
    recipe = recipes()[name]
    names = {cell.name for cell in recipe.cells}
    assert recipe.outcome in OUTCOMES
    assert recipe.reported in ("", "paper", "last")
    assert all({*line.paper, *line.cells} <= names for line in recipe.lines)
    folders = {(cell.folder, str(cell.settings)) for cell in recipe.cells}
    assert len({folder for folder, _ in folders}) == len(folders)
    for shown in (cell.shown for cell in recipe.cells):
        assert shown.shows in ("members", "newcomers", "gap", "common")
        assert shown.weight in ("", *WEIGHTS)
        assert shown.point in ("", *POINTS)
        assert shown.column
        assert not shown.client or shown.shows == "members"


def test_columns_with_the_same_settings_share_their_runs():
    half = '[[cell]]\nname = "iid, newcomers"\npartition = "iid"\nsubset = "50%"\nshows = "newcomers"\n\n[[line]]'
    recipe = read(
        SMALL.replace("[[line]]", half, 1).replace('title = "Table 1"', 'title = ""\nweight = "mean"'), "x.toml"
    )
    assert [cell.folder for cell in recipe.cells] == ["Dirichlet-0.3", "iid--half", "iid--half"]
    assert {folder: len(lines) for folder, (_, lines) in recipe.folders().items()} == {
        "Dirichlet-0.3": 2,
        "iid--half": 2,
    }
    assert [(cell.shown.shows, cell.shown.weight) for cell in recipe.cells[1:]] == [
        ("members", "mean"),
        ("newcomers", "mean"),
    ]


def test_a_row_may_have_settings_of_its_own():
    recipe = read(SMALL.replace('method = "fedavg+ft"', 'method = "fedbe"\nsettings = { public = "4%" }'), "x.toml")
    cell = recipe.cells[0]
    assert recipe.config(cell, {}, recipe.lines[0]).public == "4%"
    made = comparisons(recipe, cell, recipe.lines, {"seed": 3})
    assert [(config.public, config.seed, names) for config, names in made] == [
        ("4%", 3, ["fedbe"]), ("0", 3, ["fedprox[mu=0.1]"])  # the plan of most rows is the last to be written
    ]  # fmt: skip


def test_a_row_may_be_in_some_columns_only():
    recipe = read(SMALL, "x.toml")
    first, second = recipe.cells
    theirs, ours = recipe.lines
    some = replace(recipe, lines=(replace(theirs, cells=(second.name,)), ours))
    assert [[line.name for line in some.lines_of(cell)] for cell in (first, second)] == [["Ours"], ["Theirs", "Ours"]]
    assert [[line.name for line in lines] for _, lines in some.folders().values()] == [["Ours"], ["Theirs", "Ours"]]


def test_settings_of_the_table_and_of_a_column_add_up():
    text = SMALL.replace("rounds = 40", 'rounds = 40\nset = { "local.momentum" = "0.9" }')
    recipe = read(text.replace('partition = "iid"', 'partition = "iid"\nset = { "model.hidden" = "8" }'), "x.toml")
    assert [dict(recipe.config(cell, {}).set) for cell in recipe.cells] == [
        {"local.momentum": "0.9"},
        {"local.momentum": "0.9", "model.hidden": "8"},
    ]


def test_every_name_can_be_typed():
    """`--cells` and `--methods` are divided at commas, and names have some."""
    for recipe in recipes().values():
        names = [each.name for each in (*recipe.cells, *recipe.lines)] + [line.method for line in recipe.lines]
        assert [split_list(name) for name in names] == [[name] for name in names]


def test_columns_and_rows_are_chosen_by_name_or_method():
    recipe = read(SMALL, "x.toml")
    some = recipe.chosen(["iid, half"], ["Ours", "fedavg+ft"])
    assert [cell.name for cell in some.cells] == ["iid, half"]
    assert [line.name for line in some.lines] == ["Theirs", "Ours"]  # as in the table: the last is the paper's own
    with pytest.raises(ValueError, match="X-T1 has no method 'Our': did you mean 'Ours'"):
        recipe.chosen([], ["Our"])


def test_a_smaller_table_has_as_many_samples_a_client():
    recipe = read(SMALL.replace('partition = "iid"', 'partition = "iid"\nrounds = 20'), "x.toml")
    assert [shrunk(recipe, cell, 0.75) for cell in recipe.cells] == [
        {"rounds": 30, "clients": 6, "subset": "75%"},
        {"rounds": 15, "clients": 6, "subset": "37.5%"},  # of its own rounds
    ]
    assert shrunk(recipe, recipe.cells[0], 1) == {}
    assert shrunk(recipe, recipe.cells[0], 0.001) == {"rounds": 2, "clients": 5, "subset": "62.5%"}
    natural = SMALL.replace('partition = "dirichlet:0.3"', 'newcomers = "4"\nlocal_epochs = 10\nparticipation = "3"')
    natural = read(natural.replace("rounds = 40", 'rounds = 40\nset = { "data.samples" = "2000" }'), "x.toml")
    assert shrunk(natural, natural.cells[0], 0.75) == {  # clients of the data itself keep their samples
        "rounds": 30, "clients": 6, "newcomers": "3", "participation": "50%", "local_epochs": 8,
        "set": {"data.samples": 1500},
    }  # fmt: skip
    with pytest.raises(ValueError, match="--scale must be above 0 and at most 1; 2 was given"):
        shrunk(recipe, recipe.cells[0], 2)


def test_of_a_table_with_few_large_clients_these_get_smaller():
    """Or next to nothing of ResNet-18 with 6,000 pictures a client would take hours on a CPU."""
    few, fewer, many = (find(name) for name in ("N-T1", "P-T1", "V-T1a"))
    assert shrunk(few, few.cells[0], 0.5)["subset"] == "50%"
    assert shrunk(few, few.cells[0], 0.25)["subset"] == "25%"  # five of ten clients, with half of their pictures
    assert shrunk(few, few.cells[0], 0.01)["subset"] == f"{100 * 5 * 500 / 60_000:g}%"
    assert shrunk(fewer, fewer.cells[0], 0.01)["subset"] == f"{100 * 5 * 500 / 70_000:g}%"
    assert shrunk(many, many.cells[0], 0.01)["subset"] == "2.5%"  # 300 a client are few enough


@pytest.mark.parametrize(("text", "value"), [("80.81", 80.81), ("62.93% ± 0.3%", 62.93), ("−0.14", -0.14), ("", None)])
def test_numbers_as_printed(text, value):
    assert number(text) == value
