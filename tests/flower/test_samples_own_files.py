"""Sites with files of their own from registration to predictions: another order of columns, a site with three rows."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from posterity.flower.experiment import run_experiment
from posterity.flower.samples import read_site_file
from posterity.flower.site import ClientSite, predict_rows
from posterity.runs.files import read_json

from .in_process import InProcess, configuration

MORE = (("pfedvmp", "received"), ("fedmap", "trained"))
SITES = {"east": (60, ("b", "a")), "north": (60, ("a", "b")), "west": (3, ("a", "b"))}


def write_site(folder, name, rows, columns):
    draw = torch.Generator().manual_seed(rows + len(name))
    lines = [",".join([*columns, "outcome"])]
    for i in range(rows):
        ill = 0 if name == "healthy" else i % 2
        value = {"a": 8 * ill + torch.randn((), generator=draw).item(), "b": torch.randn((), generator=draw).item()}
        lines.append(",".join([*(f"{value[c]:.3f}" for c in columns), ("well", "ill")[ill]]))
    path = folder / f"{name}.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def run_files(config, folder, before=lambda make, made: None, sites=SITES):
    """A run of three sites with files of their own: the server, its lines, the sites, and what they read."""
    config = replace(config, dataset="unused", clients=3, subset=None, partition=None, target="outcome")
    made, make, lines = {}, {}, []
    for node, (name, (rows, columns)) in enumerate(sites.items()):
        made[name] = read_site_file(config, name, write_site(folder, name, rows, columns))
        make[node] = partial(ClientSite, config, "test", made[name][1], folder / "records")
    before(make, made)
    server = run_experiment(config, InProcess(make), folder / "server", 3, lines.append, wait=0)
    return server, (lines, make, made)


@pytest.mark.parametrize(
    ("spec", "point"), [("fedper", "received"), *(pytest.param(*each, marks=pytest.mark.everything) for each in MORE)]
)
def test_from_files_to_each_sites_predictions(spec, point, tmp_path):
    def no_model_yet(make, made):
        with pytest.raises(ValueError, match="has not been scored yet"):
            predict_rows(make[0](), made["east"][0], [[0.0, 0.0]])

    server, (lines, make, made) = run_files(configuration(spec, rounds=3, min_count=5, lr=0.1), tmp_path, no_model_yet)
    assert [line["accepted"] for line in lines if line["kind"] == "round"] == [3, 3, 3]
    assert server.agreement.kind.columns == ("b", "a")
    assert server.agreement.kind.classes == ("ill", "well")
    scores = [line for line in lines if line["kind"] == "score" and (line["round"], line["part"]) == (3, "test")]
    assert scores
    for line in scores:
        assert line["clients"]["n"] == [6, 6, 0]  # west has too few
        assert line["clients"]["accuracy"][0] is not None
    for site in (each() for each in make.values()):
        federation, samples = made[site.samples.name]
        order = [samples.kind.columns.index(name) for name in ("a", "b")]
        raw = torch.tensor([[-1.0, 0.0], [9.0, 0.0]])[:, torch.tensor(order).argsort()]
        found = predict_rows(site, federation, raw)
        assert (found.point, found.classes, found.outputs.shape) == (point, ("ill", "well"), (2, 2))
        assert ("no score" in found.note) == (point == "trained")
        if site.samples.name != "west":
            assert found.outputs.argmax(1).tolist() == [1, 0]


def test_a_site_with_a_single_class_takes_part(tmp_path):
    """As it does in a simulation; what it lacks is a class of the others."""
    sites = {"east": SITES["east"], "healthy": (40, ("a", "b")), "west": SITES["west"]}
    config = configuration("fedavg", rounds=2, min_count=5, lr=0.1)
    server, (lines, make, made) = run_files(config, tmp_path, sites=sites)
    assert [line["accepted"] for line in lines if line["kind"] == "round"] == [3, 3]
    assert server.agreement.kind.classes == ("ill", "well")
    found = predict_rows(make[1](), made["healthy"][0], [[0.0, 0.0]])
    assert (found.classes, found.outputs.shape) == (("ill", "well"), (1, 2))


def test_predictions_with_other_settings_than_the_runs_say_what_to_do(tmp_path):
    """As when 'flwr run -c' was given something that the app's folder does not have."""
    _, (_, make, made) = run_files(configuration("fedper", rounds=1, min_count=5), tmp_path)
    site = make[1]()
    other = replace(site, config=replace(site.config, lr=0.5))
    with pytest.raises(ValueError, match=r"offer\.bin does not go with the settings .* given to 'flwr run -c'"):
        predict_rows(other, made["north"][0], [[0.0, 0.0]])


def test_a_patients_rows_stay_in_one_part_of_a_sites_file(tmp_path):
    """`group` names a column of the site's own file: it is no feature, and no value of it is in two parts."""
    lines = [f"{i}.5,p{i // 4},{('well', 'ill')[i % 2]}" for i in range(80)]
    path = tmp_path / "north.csv"
    path.write_text("\n".join(["age,patient,outcome", *lines]) + "\n")
    config = configuration("fedper", dataset="unused", subset=None, partition=None, target="outcome", group="patient")
    federation, samples = read_site_file(config, "north", path)
    assert samples.kind.columns == ("age",)
    parts = [getattr(federation, part).client(0) for part in ("train", "validation", "test")]
    patients = [{int(row) // 4 for row in rows} for rows in parts]
    assert [len(rows) for rows in parts] == [64, 8, 8]
    assert [len(some) for some in patients] == [16, 2, 2]
    assert len(set().union(*patients)) == 20


def test_labels_that_differ_in_capitals_are_noted_before_the_first_round(tmp_path):
    def shout(make, made):
        site = make[0]()
        kind = replace(site.samples.kind, classes=("ILL", "well"))
        make[0] = lambda: replace(site, samples=replace(site.samples, kind=kind))

    _, (lines, _, _) = run_files(configuration("fedper", rounds=1, min_count=5), tmp_path, shout)
    told = (
        "the classes 'ILL' and 'ill' differ only in capitals, spaces, zeros or how a character is stored: write "
        "them alike if they are one"
    )
    assert [line.get("text") for line in lines].count(told) == 1
    assert told in read_json(tmp_path / "server" / "run.json")["notes"]
