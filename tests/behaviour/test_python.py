"""`import posterity` as a user of a notebook meets it: parameters that are visible, results that show themselves."""

from __future__ import annotations

import gc
import inspect
import subprocess
import sys
import typing
from dataclasses import fields, replace
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import posterity
from posterity.core.protocol import Method
from posterity.data.federation import Federation
from posterity.experiment.result import as_run
from posterity.laws import check
from posterity.methods.fedavg import FedAvg
from posterity.models import wrap
from posterity.report import columns, headline
from posterity.report import show as notebook
from posterity.settings.config import Config

SMALL = {"dataset": "digits", "clients": 4, "rounds": 2, "subset": "20%", "evaluate_every": 1, "engine": "loop"}


@pytest.fixture(scope="module")
def result() -> posterity.Result:
    return posterity.run("fedavg+ft", **SMALL)


@pytest.fixture(scope="module")
def results() -> posterity.Results:
    return posterity.compare(["fedprox[mu=0.1]", "fedprox[mu=1]"], seeds=[0, 1], **SMALL)


def test_the_first_parameter_is_the_method(result, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert result.config.method == "fedavg+ft"
    assert not any(tmp_path.iterdir())
    with pytest.raises(ValueError, match="no method 'runs/mine'"):
        posterity.run("runs/mine", **SMALL)
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(ValueError, match="holds other files"):
        posterity.run("fedavg", out=tmp_path, **SMALL)


def tensors_alive() -> dict[int, int]:
    gc.collect()
    found = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
    return {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in found}


def test_a_run_that_nobody_needs_any_more_leaves_nothing_behind():
    """Every run of a process kept its rows once: hundreds of megabytes each for images on a GPU."""
    posterity.run("fedper", **SMALL)  # what is made once for all runs
    before = tensors_alive()
    posterity.run("fedper", **SMALL)
    assert sum(tensors_alive().values()) <= sum(before.values())


@pytest.mark.parametrize("function", [posterity.run, posterity.run_seeds, posterity.compare])
def test_every_setting_is_a_visible_parameter(function):
    """For `help`, and for type checkers; the same names, types and defaults as the configuration's."""
    hints, defaults = typing.get_type_hints(Config), {f.name: f.default for f in fields(Config)}
    seen = inspect.signature(function).parameters
    names = {f.name for f in fields(Config)} - ({"method", "seed"} if function is posterity.compare else set())
    names -= {"seed"} if function is posterity.run_seeds else set()
    assert names <= set(seen)
    for name in names - {"model", "set"}:
        assert seen[name].default == defaults[name], name
        if name != "method":
            assert seen[name].annotation == hints[name], name
            assert f"    {name}: " in (function.__doc__ or "")
    assert next(iter(seen)) in ("method", "methods", "seeds")


@pytest.mark.parametrize(
    ("given", "message"),
    [({"roundz": 3}, "no parameter 'roundz': did you mean 'rounds'"), ({"xi": 3}, "go into set={'xi': …}")],
)
def test_an_unknown_parameter_gets_the_nearest(given, message):
    with pytest.raises(TypeError, match=message):
        posterity.run("pfedvmp", **given)


def test_names_at_the_top():
    assert (posterity.Federation, posterity.Method) == (Federation, Method)
    assert (posterity.check, posterity.wrap) == (check, wrap)
    assert {"Result", "Results", "compare", "check", "wrap"} <= set(dir(posterity))
    assert set(posterity.__all__) <= set(dir(posterity))
    with pytest.raises(AttributeError, match="no attribute 'Ferderation'"):
        posterity.Ferderation  # noqa: B018


def test_the_package_is_imported_at_once():
    code = "import sys, posterity; dir(posterity); help(posterity.run); print('torch' in sys.modules)"
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert asked.stdout.endswith("False\n")
    assert "rounds: int = 100" in asked.stdout
    assert "step size of the clients" in asked.stdout


def test_a_result_shows_its_table(result):
    html, said = result._repr_html_(), repr(result)
    cell = f"{100 * result.metric('accuracy'):.1f}"
    assert "<td" in html
    assert f">{cell}<" in html
    assert "FedAvg-FT" in html
    assert said.startswith("<Result of FedAvg-FT on digits, 2 rounds: Accuracy ")
    assert f"Accuracy {cell} %" in said
    assert ElementTree.fromstring(f"<div>{html}</div>") is not None  # well formed


def test_a_label_is_no_html(result):
    rows = headline([replace(as_run(result), label="<script>alert(1)</script>\x1b[31m")])
    html = notebook.html_table(rows, columns(rows), "said <b>")
    assert not [word for word in ("<script>", "\x1b", "said <b>") if word in html]
    assert "&lt;script&gt;" in html


def test_columns_for_a_data_frame(result, results):
    table = result.to_dict()
    assert len({len(column) for column in table.values()}) == 1
    assert {"round", "part", "point", "group", "epochs", "accuracy", "ece"} <= set(table)
    at = [k for k, place in enumerate(zip(table["round"], table["part"], table["point"], strict=True))
          if place == (2, "test", "adapted")]  # fmt: skip
    assert [table["accuracy"][k] for k in at] == [result.metric("accuracy", show="last")]
    every = results.to_dict()
    assert len({len(column) for column in every.values()}) == 1
    assert sorted(every["seed"]) == [0, 0, 1, 1]


def test_a_curve(result, results, tmp_path):
    drawn = result.plot()
    svg = ElementTree.fromstring(drawn._repr_svg_())
    assert svg.tag.endswith("svg")
    assert "class" not in {name for each in svg.iter() for name in each.attrib}
    assert drawn.save(tmp_path / "curve.svg").read_text() == drawn.svg
    with pytest.raises(ValueError, match="a plot is an SVG"):
        drawn.save(tmp_path / "curve.png")
    assert "ECE" in results.plot("ece").svg
    assert "FedProx (mu 0.1)" in results.plot("ece").svg
    with pytest.raises(ValueError, match="no metric 'acuracy' in this run: did you mean 'accuracy'"):
        result.plot("acuracy")
    with pytest.raises(ValueError, match="did you mean 'test'"):
        result.plot(part="tests")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "acuracy"}, "no metric 'acuracy' in this run: did you mean 'accuracy'"),
        ({"name": "auroc"}, "no metric 'auroc' in this run"),
        ({"rule": "poled"}, "no aggregation rule 'poled' of accuracy: did you mean 'pooled'"),
        ({"show": "validate"}, "did you mean 'validated'"),
        ({"point": "recieved"}, "did you mean 'received'"),
    ],
)
def test_a_mistyped_name_gets_the_nearest(result, given, message):
    with pytest.raises(ValueError, match=message):
        result.metric(**given)


def test_a_comparison_in_memory(results, tmp_path):
    labels = [row.label for row in results.rows]
    assert sorted(labels) == ["FedProx (mu 0.1)", "FedProx (mu 1)"]
    assert all(row.seeds == 2 for row in results.rows)
    assert all(label in results.table() for label in labels)
    assert results.table("csv", metrics=["ece"]).splitlines()[0] == "method,point,rule,seeds,ece,ece_sd"
    assert results.finding in repr(results)
    assert all(label in results._repr_html_() for label in labels)
    page = results.report(tmp_path / "page.html").read_text()
    assert all(label in page for label in labels)
    with pytest.raises(ValueError, match="say where to write"):
        results.report()
    with pytest.raises(ValueError, match="did you mean 'latex'"):
        results.table("latx")
    with pytest.raises(ValueError, match="did you mean 'ece'"):
        results.table(metrics=["eces"])


def test_a_comparison_in_a_folder_is_not_repeated(tmp_path):
    given = {"methods": "fedavg,local", "seeds": [0], "out": tmp_path / "two", **SMALL}
    first = posterity.compare(**given)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "two").rglob("metrics.jsonl")}
    again = posterity.compare(**given)
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "two").rglob("metrics.jsonl")} == before
    assert [row.cells["accuracy"] for row in first.rows] == [row.cells["accuracy"] for row in again.rows]
    assert again.report() == tmp_path / "two" / "report.html"


def test_seeds_of_numpy_are_whole_numbers(tmp_path):
    short = {**SMALL, "rounds": 1}
    made = posterity.compare("local", np.arange(2), out=tmp_path / "runs", **short)  # type: ignore[arg-type]
    assert made.to_dict()["seed"] == [0, 1]
    with pytest.raises(ValueError, match=r"seeds takes whole numbers; \[0.5\] was given"):
        posterity.compare("local", [0.5], **short)


def test_a_comparison_of_objects(result, tmp_path):
    federation = result.federation
    given = {"methods": ["fedavg", "local"], "seeds": (0,), "rounds": 1, "federation": federation, "engine": "loop"}
    found = posterity.compare(**given, out=tmp_path / "mine")
    assert {row.label for row in found.rows} == {"FedAvg", "Local"}
    assert (tmp_path / "mine" / "local" / "seed-0" / "config.toml").exists()
    again = posterity.compare(**given, out=tmp_path / "mine")
    assert [row.cells["accuracy"] for row in found.rows] == [row.cells["accuracy"] for row in again.rows]
    for wrong in ({"jobs": 2}, {"jobs": 0}, {"seeds": ()}, {"seeds": (1, 1)}, {"methods": []}, {"show": "best"}):
        with pytest.raises(ValueError):
            posterity.compare(**{**given, **wrong})


def test_a_method_may_be_given_by_its_class() -> None:
    found = posterity.run(FedAvg, **SMALL)
    assert found.config.method == "posterity.methods.fedavg:FedAvg"
    with pytest.raises(ValueError, match=r"the method is a FedAvg; expected one by name .* its values go into set="):
        posterity.run(FedAvg(), **SMALL)

    class Inside(FedAvg):
        pass

    with pytest.raises(ValueError, match=r"Inside cannot be found again .* give 'mine:Inside'"):
        posterity.compare([Inside], **SMALL)


@pytest.mark.parametrize(
    ("seeds", "message"), [(2, "in a list, such as"), ("0,1", "in a list"), ([0, 1, 0], "a seed is named twice")]
)
def test_seeds_that_are_none_are_refused(seeds, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        posterity.compare("fedavg", seeds=seeds, **SMALL)
    with pytest.raises(ValueError, match=message):
        posterity.run_seeds(seeds, "fedavg", out=tmp_path / "seeds", **SMALL)
    assert not list(tmp_path.iterdir())


def test_a_federation_of_another_type_is_refused():
    with pytest.raises(
        ValueError, match=r"federation is of type str; expected a posterity\.Federation; a dataset goes into dataset="
    ):
        posterity.run("fedavg", federation="digits", rounds=1)


def test_a_comparison_in_which_nothing_is_held_out_says_so():
    made = posterity.compare("local", [0], **{**SMALL, "rounds": 1, "split": "100/0"})
    assert made.finding == "No member holds rows out (--split), so nothing is scored."
