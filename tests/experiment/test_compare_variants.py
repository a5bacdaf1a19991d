"""A method may appear twice in a comparison, with other settings in brackets."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from posterity.experiment import compare, run
from posterity.experiment.compare import compare_runs, name_all, parse_variants, resume_all
from posterity.methods import available
from posterity.report import headline, load_runs
from posterity.runs import files
from posterity.settings.config import Config
from posterity.settings.hyperparameters import split_list

BASE = Config(dataset="digits", clients=4, rounds=1, subset="15%", set={"model.hidden": "4"})


def quiet(title, rounds):
    return nullcontext(run.silent)


def parsed(text: str):
    return [(v.method, dict(v.settings), v.folder) for v in parse_variants(split_list(text))]


def test_the_grammar():
    assert parsed("fedavg, fedprox[mu=0.1],fedprox[mu=1]") == [
        ("fedavg", {}, "fedavg"),
        ("fedprox", {"mu": "0.1"}, "fedprox-mu=0.1"),
        ("fedprox", {"mu": "1"}, "fedprox-mu=1"),
    ]
    assert parsed("pfedvmp@paper+ft[xi=5, ft.epochs=2],local") == [
        ("pfedvmp@paper+ft", {"xi": "5", "ft.epochs": "2"}, "pfedvmp-paper+ft-xi=5-ft.epochs=2"),
        ("local", {}, "local"),
    ]
    assert parsed("fedprox[mu=0.1,local.momentum=0.9]")[0][1] == {"mu": "0.1", "local.momentum": "0.9"}
    assert parsed("fedavg[model.hidden=32,16,local.lr=1e-3]")[0][1] == {"model.hidden": "32,16", "local.lr": "1e-3"}
    assert parsed("my.mod:Mine@paper[a=b/c]")[0][2] == "my.mod-Mine-paper-a=b-c"


@pytest.mark.parametrize("text", ["fedprox[mu=1", "fedprox[mu=1]+ft", "fedprox]", "fedprox[]", "fedprox[mu]", "[mu=1]",
                                  "fedprox[mu=[1]]", "fedprox[mu=1]x"])  # fmt: skip
def test_what_is_not_understood_is_told(text):
    with pytest.raises(ValueError, match="not understood as a method with settings: expected fedprox"):
        parse_variants([text])


def test_what_makes_no_sense_is_told():
    with pytest.raises(ValueError, match="'fedavg' is named twice"):
        parse_variants(["fedavg", "local", "fedavg"])
    with pytest.raises(ValueError, match="look the same"):
        parse_variants(["fedprox[mu=1]", "fedprox[ mu=1 ]"])
    with pytest.raises(ValueError, match="sets mu twice"):
        parse_variants(["fedprox[mu=1,mu=2]"])
    with pytest.raises(ValueError, match="same clients"):
        parse_variants(["fedprox[data.noise=1]"])


def test_a_mistake_in_brackets_is_told_before_the_first_run(tmp_path):
    with pytest.raises(ValueError, match="fedprox has no setting 'nu'"):
        compare_runs(BASE, ["fedavg", "fedprox[nu=1]"], [0], tmp_path / "out", quiet)
    assert not (tmp_path / "out").exists()


def test_all_stands_for_those_that_are_not_named():
    assert name_all(["all"]) == sorted(available())
    named = ["pvi", "fedep[burn_rounds=5]", "all", "fedavg+ft"]
    rest = [name for name in sorted(available()) if name not in ("pvi", "fedep")]
    assert name_all(named) == [*named[:2], *rest, "fedavg+ft"]
    assert name_all(["fedper", "fedavg"]) == ["fedper", "fedavg"]


def test_each_has_its_own_folder_settings_and_label(tmp_path, monkeypatch):
    config = Config(**{**vars(BASE), "set": {**BASE.set, "mu": "3"}})
    names = ["fedprox[mu=0.1]", "fedprox[mu=1,local.momentum=0.9]", "fedprox", "local"]
    compare_runs(config, names, [0], tmp_path, quiet)
    facts = {path.parent.parent.name: files.read_json(path) for path in tmp_path.glob("*/seed-0/run.json")}
    values = {name: told["method"]["fields"].get("mu") for name, told in facts.items()}
    assert values == {"fedprox-mu=0.1": 0.1, "fedprox-mu=1-local.momentum=0.9": 1.0, "fedprox": 3.0, "local": None}
    texts = [path.read_text() for path in sorted(tmp_path.glob("fedprox*/seed-0/config.toml"))]
    assert all('method = "fedprox"' in text for text in texts)
    rows = headline(load_runs(tmp_path), "last")
    assert len({row.label for row in rows}) == 4
    assert any("0.1" in row.label for row in rows)
    left = []
    monkeypatch.setattr(compare, "execute", lambda tasks, *_: left.extend(tasks))
    resume_all(tmp_path, quiet)  # the plan has the brackets
    assert left == []
