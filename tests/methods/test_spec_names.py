"""Names for specs: metavd is reptile+metavd, and says so."""

import json

import pytest

import posterity
from posterity import methods
from posterity.cli import flags as completion
from posterity.methods.reptile import Reptile
from posterity.methods.wrappers.metavd import MetaVD
from posterity.settings.names import NAMES, Named, expand

FAMILIES = [("metavd", "hyper", "Reptile+MetaVD"), ("vd", "naive", "Reptile+VD"),
            ("ensemblevd", "ensemble", "Reptile+EnsembleVD")]  # fmt: skip


@pytest.mark.parametrize(("name", "family", "label"), FAMILIES)
def test_what_a_name_stands_for(name, family, label):
    built = methods.build(name)
    assert built == MetaVD(Reptile(), family=family) == methods.build("reptile+metavd", {"family": family})
    assert methods.title(name, built) == label
    (told,) = methods.tell_name(f"{name}+ft")
    assert told.startswith(f"{name} is reptile+metavd")


def test_settings_suffixes_and_the_paper():
    assert methods.build("vd", {"beta": 3, "local.lr": 0.5}).beta == 3
    assert methods.build("vd", {"metavd.family": "hyper"}).family == "hyper"  # what is asked for wins
    assert methods.build("metavd+ft") == methods.build("reptile+metavd+ft")
    assert methods.build("metavd@paper") == methods.build("reptile@paper+metavd@paper")
    assert methods.title("metavd@paper", methods.build("metavd@paper")) == "Reptile+MetaVD (paper)"
    assert methods.words_of("vd@paper+ft") == ["reptile", "metavd", "ft"]


def test_a_method_is_no_name():
    assert methods.tell_name("fedavg+metavd") == ()
    assert methods.build("fedavg+metavd").family == "hyper"
    with pytest.raises(ValueError, match="did you mean 'metavd'"):
        methods.build("metavdd")


def test_a_name_whose_method_is_missing_is_none():
    assert expand("metavd", ["fedavg"]) == ("metavd", {})
    assert expand("fedsep", [*methods.available(), "fedsep"]) == ("fedsep", {})  # a method of this name wins


def test_names_are_completed_and_sorted():
    assert "metavd" in completion.complete_method("met")
    assert completion.complete_method("ensem") == ["ensemblevd"]
    assert list(NAMES) == sorted(NAMES)
    assert all(isinstance(named, Named) for named in methods.names().values())
    assert {n for n in NAMES if NAMES[n].needs in methods.available()} == set(methods.names())


@pytest.mark.parametrize("name", sorted(methods.names()))
def test_every_name_can_be_built(name):
    assert methods.build(name).label


def test_a_run_says_it(tmp_path):
    posterity.run("vd", out=tmp_path / "run", dataset="digits", clients=3, rounds=1, subset="10%", engine="stacked",
                  set={"model.hidden": "6", "width": "5"})  # fmt: skip
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["method"]["name"] == "vd"
    assert facts["method"]["label"] == "Reptile+VD"
    assert "vd is reptile+metavd with --set metavd.family=naive" in facts["notes"]
    assert posterity.load(tmp_path / "run").method.family == "naive"
