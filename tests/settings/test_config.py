"""Configuration: record, TOML and flags are one thing; what is wrong is told in a sentence."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from posterity import methods
from posterity.cli.flags import read_config, read_methods, read_seeds
from posterity.experiment.facts import source_commit
from posterity.settings.config import Config, from_table, read_toml, to_toml

ROOT = Path(__file__).parents[2]


def test_toml_gives_the_same_record_back(tmp_path):
    config = Config(method="fedavg+ft", lr=0.05, participation="p:0.3", seed=3, data_dir='a "b" \\ c',
                    set={"epochs": 2, "model.hidden": [32, 16], "data.skew": "label", "prior": True})  # fmt: skip
    path = tmp_path / "c.toml"
    path.write_text(to_toml(config))
    assert to_toml(from_table(read_toml(path))) == to_toml(config)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (None, "none"),
        (np.float64(0.1), 0.1),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (torch.tensor(2.5), 2.5),
        ((32, np.int64(16)), [32, 16]),
        (np.array([4, 8]), [4, 8]),
        (Path("a") / "b", "a/b"),
    ],
    ids=repr,
)
def test_a_setting_from_python_can_be_written_and_read_back(tmp_path, given, kept):
    config = from_table({"set": {"value": given}})
    assert repr(config.set["value"]) == repr(kept)
    (tmp_path / "c.toml").write_text(to_toml(config))
    assert from_table(read_toml(tmp_path / "c.toml")) == config


def test_a_setting_that_no_file_can_hold_is_named():
    with pytest.raises(ValueError, match=r"<function .*> is a function, which no file of settings can hold"):
        to_toml(from_table({"set": {"model.act": from_table}}))


def test_any_name_of_a_file_can_be_written_and_read_back(tmp_path):
    names = "".join(map(chr, range(1, 160))) + "\u2028\u202e\\u0041 病院"
    config = Config(dataset=names, set={names: names})
    (tmp_path / "c.toml").write_text(to_toml(config), encoding="utf-8", newline="")
    again = from_table(read_toml(tmp_path / "c.toml"))
    assert (again.dataset, dict(again.set)) == (names, {names: names})


def test_flags_override_the_file(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text('rounds = 7\nlr = 0.5\n[set]\nxi = 3\nmodel.hidden = "4"\n')
    config = read_config({"config": path, "lr": "0.25", "set": ["xi=9"], "clients": None})
    assert (config.rounds, config.lr, dict(config.set)) == (7, 0.25, {"xi": "9", "model.hidden": "4"})


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"roundz": 3}, "no setting 'roundz': did you mean 'rounds'"),
        ({"rounds": "many"}, "rounds takes a whole number; 'many'"),
        ({"rounds": 0}, "rounds must be at least 1"),
        ({"engine": "turbo"}, "engine = 'turbo' is unknown"),
        ({"local_epochs": 1, "local_steps": 2}, "not both"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"seed": 2**70}, r"seed must be at least 0 and below 2\*\*63; 1180591620717411303424 was given"),
        ({"data_seed": 2**64}, r"data_seed must be .* below 2\*\*63"),
        ({"rounds": 10**30}, r"rounds must be .* below 2\*\*63"),
        ({"memory": 0}, "memory must be at least 1"),
        ({"memory": -5}, "memory must be at least 1"),
        ({"lr": "inf"}, "lr must be a finite number; inf was given"),
        ({"lr": "nan"}, "lr must be a finite number; nan was given"),
        ({"set": 3}, "set takes a table of settings"),
        ({"dataset": "a\udcff.csv"}, "dataset is 'a.udcff.csv', which is not UTF-8"),
        ({"set": {"model.kind": "\udcff"}}, "model.kind is .* not UTF-8"),
    ],
)
def test_mistakes_in_settings(table, message):
    with pytest.raises(ValueError, match=message):
        from_table(table)


def test_mistakes_in_files_and_flags(tmp_path):
    with pytest.raises(ValueError, match="no configuration file"):
        read_toml(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("rounds = = 3")
    with pytest.raises(ValueError, match="is not TOML"):
        read_toml(tmp_path / "bad.toml")
    (tmp_path / "latin.toml").write_bytes(b'dataset = "\xe9"')
    with pytest.raises(ValueError, match=r"latin.toml is not TOML: .utf-8. codec"):
        read_toml(tmp_path / "latin.toml")
    with pytest.raises(ValueError, match=r"is no file; expected a configuration in TOML"):
        read_toml(tmp_path)
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(ValueError, match=r"pipe.toml is no file"):
        read_toml(tmp_path / "pipe.toml")
    with pytest.raises(ValueError, match="--set takes name=value"):
        read_config({"set": ["xi"]})
    with pytest.raises(ValueError, match="--seeds takes 0,1,2"):
        read_seeds("0,x")
    for empty in ("3-1", "0,5-2"):
        with pytest.raises(ValueError, match=rf"a range from the lower one on \(0-4\); '{empty}' was given"):
            read_seeds(empty)
    with pytest.raises(ValueError, match="comma-separated"):
        read_methods(" , ")
    assert read_seeds("0-2,5") == [0, 1, 2, 5]


@pytest.mark.parametrize(
    ("spec", "settings", "message"),
    [
        ("fedavgg", {}, "no method 'fedavgg': did you mean 'fedavg'"),
        ("fedavg+fft", {}, r"no wrapper \+fft: did you mean 'ft'"),
        ("fedavg", {"xi": 1}, "fedavg has no setting 'xi'"),
        ("pfedvmp", {"mode": "printd"}, "did you mean 'printed'"),
        ("pfedvmp", {"xi": "much"}, "xi takes a number"),
        ("fedavg", {"local.momentun": 1}, "no setting 'local.momentun': did you mean 'local.momentum'"),
        ("no.such.module:X", {}, "no module 'no.such.module'"),
        ("posterity.methods.fedavg:Nothing", {}, "methods in posterity.methods.fedavg: FedAvg"),
    ],
)
def test_mistakes_in_methods(spec, settings, message):
    with pytest.raises(ValueError, match=message):
        methods.build(spec, settings)


def test_wrappers_apply_left_to_right_and_take_their_settings():
    method = methods.build("fedavg+ft+calibrated", {"epochs": "3", "calibrated.width": 2, "local.momentum": 0.5})
    assert (method.width, method.inner.epochs, method.inner.inner.local.momentum) == (2.0, 3, 0.5)
    assert (method.label, method.scored) == ("FedAvg-FT (calibrated)", "adapted")
    assert methods.build("posterity.methods.fedavg:FedAvg").label == "FedAvg"


def test_what_a_setting_may_be_can_depend_on_the_training_that_is_asked_for():
    """SCAFFOLD's option I allows a momentum, and its default does not."""
    for settings, training in (({"local.momentum": "0.5"}, {}), ({}, {"momentum": 0.5})):
        method = methods.build("scaffold", {"variate": "I", **settings}, training)
        assert (method.variate, method.local.momentum) == ("I", 0.5)
        with pytest.raises(ValueError, match=r"variate 'II' reads the mean gradient"):
            methods.build("scaffold", settings, training)
    assert methods.build("fedpa@paper", {"local.lr": 0.5}).local.momentum == 0.9  # the others stay the paper's


def test_a_run_says_its_commit(monkeypatch):
    monkeypatch.setenv("POSTERITY_COMMIT", "abc123")
    assert source_commit() == "abc123"
    monkeypatch.delenv("POSTERITY_COMMIT")
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    found = source_commit()
    assert head.stdout.startswith(found.removesuffix("-dirty")) if head.returncode == 0 else found == ""
    assert bool(found) == (head.returncode == 0)
