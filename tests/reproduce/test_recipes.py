"""Every table of the papers that can be asked for, and what is said about a wrong one."""

from __future__ import annotations

import pytest

from posterity import methods, models
from posterity.experiment.variants import parse_variant
from posterity.reproduce.beside import number
from posterity.reproduce.cells import shrunk
from posterity.reproduce.recipe import find, read, recipes

SMALL = """
id = "X-T1"
paper = "Somebody"
title = "Table 1"
seeds = [0, 1]
open = ["everything"]

[settings]
dataset = "digits"
clients = 8
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


@pytest.mark.parametrize("name", list(recipes()))
def test_every_table_can_be_run(name):
    recipe = recipes()[name]
    assert recipe.open, "every paper left something open"
    for cell in recipe.cells:
        config = recipe.config(cell, shrunk(recipe, cell, 0.01))
        assert config.rounds < recipe.config(cell, {}).rounds
        models.build(config.model, (3, 32, 32), 10, **config.settings("model"))
        for line in recipe.lines_of(cell):
            variant = parse_variant(line.method)
            methods.build(variant.method, variant.settings, config.training())
            printed = line.paper.get(cell.name)
            assert printed is None or number(printed) is not None
    assert any(line.paper for line in recipe.lines)


def test_the_last_line_is_the_papers_own_method():
    for recipe in recipes().values():
        assert recipe.lines[-1].method.startswith(recipe.paper.casefold()), recipe.id


def test_a_table_by_its_id():
    assert find("v-t1A").id == "V-T1a"
    with pytest.raises(ValueError, match="there is no table 'V-T1': did you mean 'V-T1"):
        find("V-T1")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('id = "X-T1"', "id = ", "x.toml is no table of a paper: Invalid value"),
        ('paper = "Somebody"', 'papers = "Somebody"', "unknown key 'papers': did you mean 'paper'"),
        ("rounds = 40", "round = 40", "round"),
        (
            '"iid, half" = "80.2 ± 0.3"',
            '"iid half" = "80.2"',
            "line 'Theirs' speaks of a cell 'iid half': did you mean",
        ),
    ],
)
def test_a_wrong_table_is_told_with_its_place(old, new, told):
    assert old in SMALL
    with pytest.raises(ValueError, match=told) as caught:
        read(SMALL.replace(old, new, 1), "x.toml")
    assert str(caught.value).startswith("x.toml is no table of a paper: ")


def test_settings_of_the_table_and_of_a_column_add_up():
    text = SMALL.replace("rounds = 40", 'rounds = 40\nset = { "local.momentum" = "0.9" }')
    recipe = read(text.replace('partition = "iid"', 'partition = "iid"\nset = { "model.hidden" = "8" }'), "x.toml")
    assert [dict(recipe.config(cell, {}).set) for cell in recipe.cells] == [
        {"local.momentum": "0.9"},
        {"local.momentum": "0.9", "model.hidden": "8"},
    ]


def test_columns_and_rows_are_chosen_by_name_or_method():
    recipe = read(SMALL, "x.toml")
    some = recipe.chosen(["iid, half"], ["Ours", "fedavg+ft"])
    assert [cell.name for cell in some.cells] == ["iid, half"]
    assert [line.name for line in some.lines] == ["Ours", "Theirs"]
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
    with pytest.raises(ValueError, match="--scale must be above 0 and at most 1; 2 was given"):
        shrunk(recipe, recipe.cells[0], 2)


@pytest.mark.parametrize(("text", "value"), [("80.81", 80.81), ("62.93% ± 0.3%", 62.93), ("−0.14", -0.14), ("", None)])
def test_numbers_as_printed(text, value):
    assert number(text) == value
