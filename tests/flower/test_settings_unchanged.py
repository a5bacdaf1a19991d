"""An experiment goes on with the settings that it began with: others are refused by name, by server and sites."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch

from posterity.flower import settings as unchanged
from posterity.flower.agreement import SampleSpec, agree
from posterity.flower.samples import read_site_file
from posterity.flower.settings import check_settings
from posterity.flower.site import predict_rows
from posterity.runs.folder import CONFIG
from posterity.settings.config import Config, to_toml

from .in_process import configuration, deploy
from .test_experiment_faults import Killed, killed_at
from .test_samples_own_files import run_files

BEGAN = configuration("fedper", rounds=3, evaluate_every=4)
OTHERS = {
    "split": "50/50", "subset": "5%", "participation": "2", "data_seed": 5, "evaluate_every": 1, "newcomer_epochs": 3,
    "group": "hb", "partition": "iid", "newcomers": "1", "dataset": "diabetes", "target": "hb", "clients": 4,
}  # fmt: skip


def test_the_server_goes_on_with_nothing_else(tmp_path):
    with pytest.raises(Killed):
        deploy(BEGAN, tmp_path, killed_at(2, "round"))
    with pytest.raises(ValueError, match=r"\(participation = '2' was given, expected 'all'\): put back what it began"):
        deploy(replace(BEGAN, participation="2"), tmp_path)
    scaled = replace(BEGAN, set={**BEGAN.set, "data.scale": "none"})
    with pytest.raises(ValueError, match=r"\(data.scale = 'none' was given, expected nothing\)"):
        deploy(scaled, tmp_path)
    with pytest.raises(ValueError, match=r"holds another experiment \(lr = 0.01 was given, expected 0.05\)"):
        deploy(replace(BEGAN, lr=0.01), tmp_path)
    assert deploy(replace(BEGAN, engine="loop", evaluate_points="own", keep="paper"), tmp_path).finished


@pytest.mark.parametrize("name", OTHERS)
def test_each_setting_that_changes_numbers_is_named(name, tmp_path):
    (tmp_path / CONFIG).write_text(to_toml(BEGAN))
    check_settings(BEGAN, tmp_path)
    with pytest.raises(ValueError, match=rf"\({name} = .* was given, expected "):
        check_settings(replace(BEGAN, **{name: OTHERS[name]}), tmp_path)


def test_a_value_that_is_written_out_is_the_same_value(tmp_path):
    config = replace(BEGAN, evaluate_every=None)
    (tmp_path / CONFIG).write_text(to_toml(config))
    check_settings(replace(config, evaluate_every=config.every), tmp_path)
    check_settings(replace(config, set={**config.set, "model.hidden": 8}), tmp_path)


def test_no_setting_is_forgotten():
    """Each is compared, may change, or is in the fingerprint; a new one must be put somewhere."""
    agreed = {"method", "model", "rounds", "local_epochs", "local_steps", "batch_size", "lr", "optimiser", "min_count",
              "seed", "precision", "dtype", "set"}  # fmt: skip
    refused = {"augment"}
    assert {each.name for each in fields(Config)} == {*unchanged.FREE, *unchanged.COMPARED, *agreed, *refused}


def fingerprint_of(**changes):
    kind = SampleSpec((2,), "classification", ("a", "b"))
    return agree(configuration("fedavg", **changes), kind, 3, 30).fingerprint


def test_sites_agree_on_their_rows_and_their_scale():
    names = ("split", "subset", "data_seed", "group")
    found = [fingerprint_of(), *(fingerprint_of(**{name: OTHERS[name]}) for name in names)]
    found += [fingerprint_of(set={"data.scale": each}) for each in ("none", "all")]
    assert len(set(found)) == len(found)
    assert fingerprint_of(split="80/20", participation="2") == found[0]


def test_a_site_does_not_predict_with_another_scale(tmp_path):
    _, (_, make, made) = run_files(configuration("fedper", rounds=1, evaluate_every=1, min_count=5), tmp_path)
    site, rows = make[0](), torch.zeros(1, 2)
    assert predict_rows(site, made["east"][0], rows).round == 1
    config = replace(site.config, set={**site.config.set, "data.scale": "none"})
    federation, samples = read_site_file(config, "east", tmp_path / "east.csv")
    with pytest.raises(ValueError, match="server and site differ in method, configuration"):
        predict_rows(replace(site, config=config, samples=samples), federation, rows)
