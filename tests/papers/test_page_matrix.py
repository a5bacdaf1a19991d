"""The page of results has a line for every table and figure of the papers, and says nothing that is not stored."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from posterity.cli import terminal as show
from posterity.papers.cli import show_table
from posterity.papers.figures import figures
from posterity.papers.page import entries, markdown
from posterity.papers.recipe import find, recipes, without_recipe
from posterity.papers.runs import gather, read_places

RESULTS = Path(__file__).parents[2] / "docs" / "results"
OF_OTHERS = {"V-T2": ["V-T2", "V-T1a", "V-T1b"], "V-T3": ["V-T1a", "V-T1c"], "V-T7": ["V-T7", "V-T1a"],
             "B-T2": ["B-T2", "B-T1"], "M-T12": ["M-T8"], "M-T16": ["M-T16", "M-T8"]}  # fmt: skip
"""Tables that show runs of another table, too."""
TABLES = sorted(path.parent.name for path in (RESULTS / "tables").glob("*/table.md"))


def test_everything_has_one_line():
    page = (RESULTS / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| ([VNMABP]-[TF][0-9]+[a-h]?) \|", page, re.M)
    assert sorted(listed) == sorted([*recipes(), *figures(), *without_recipe()])


def test_what_stands_at_a_glance_is_what_the_lines_say():
    page = (RESULTS / "README.md").read_text(encoding="utf-8")
    heads, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in
                       page.partition("| id | what |")[0].splitlines() if line.startswith("|")]  # fmt: skip
    papers = [head[-3:-1] for head in heads[1:]]  # V-, N-, …
    found = {paper + name: row[0] for row in rows for paper, cell in zip(papers, row[1:], strict=True)
             for name in re.findall(r"\b[TF][0-9]+[a-h]?\b", re.sub(r"\(.*?\)", "", cell))}  # fmt: skip
    told = dict(re.findall(r"^\| ([VNMABP]-[TF][0-9]+[a-h]?) \|[^|]*\| (.*) \|$", page, re.M))
    assert sorted(found) == sorted(told)
    for name, state in found.items():
        words = ("schematic", "no numbers", "words", "describes", "graphical") if state == "no numbers" else (state,)
        assert told[name].lstrip("*").startswith(words), name
    linked = re.findall(r"\[([TF][0-9]+[a-h]?)\]\(tables/([VNMABP]-)\1/table.md\)", page)
    assert sorted(paper + name for name, paper in linked) == TABLES


def test_the_list_has_the_matrixs_outcomes():
    page = (RESULTS / "README.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| ([VNMABP]-T[0-9]+[a-h]?) \|[^|]*\| (.*) \|$", page, re.M))
    for name, recipe in recipes().items():
        if recipe.outcome == "not yet run":
            assert told[name].startswith("not yet run"), name
        else:
            assert told[name].startswith(f"**{recipe.outcome}**"), name


@cache
def published(name):
    """The runs of a file of raw metrics; four tables show those of V-T1a."""
    return read_places([RESULTS / "raw" / f"{name}.jsonl.xz"])


@pytest.mark.parametrize("name", TABLES)
def test_a_stored_table_is_that_of_its_raw_metrics(name):
    recipe = find(name)
    found = gather(recipe, [run for each in OF_OTHERS.get(name, [name]) for run in published(each)])
    assert found.runs
    assert markdown(recipe, found) == (RESULTS / "tables" / name / "table.md").read_text(encoding="utf-8")


def test_the_readmes_table_is_the_stored_one():
    text = (RESULTS.parents[1] / "README.md").read_text(encoding="utf-8")
    rows = [
        line
        for line in text.partition("### Against the papers")[2].partition("\n## ")[0].splitlines()
        if line[:2] == "| "
    ]
    page = (RESULTS / "tables" / "V-T1a" / "table.md").read_text(encoding="utf-8")
    assert len(rows) > 10
    assert "\n".join(rows) in page


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_a_terminal_shows_whole_numbers_whatever_its_width(width, capsys, monkeypatch):
    """PFLlib's rows, as the page has them."""
    recipe = find("P-T1")
    found = gather(recipe, published("P-T1"))
    monkeypatch.setattr(show.console, "_width", width)
    monkeypatch.setattr(show.console, "_height", 60)
    show_table(recipe, found)
    out = capsys.readouterr().out
    lines = out.splitlines()
    for each in entries(recipe, recipe.cells[0], found):
        assert each.seeds == 3
        numbers = [each.paper, *each.ours.values()]
        assert any(all(number in line for number in numbers) for line in lines), each.name
    assert "FedCP less it (95 %)" in out or width < 140
