"""A site goes on with the data that it has trained on, and with no others; records of before go on as they did."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from posterity.flower.experiment import open_server
from posterity.flower.records import CHANGED, RecordFiles
from posterity.flower.samples import read_site_file
from posterity.flower.sent import refuse
from posterity.flower.site import ClientSite, answer, predict_rows, wish_to_leave

from .in_process import configuration
from .test_samples_own_files import write_site

NAMES = ("x", "y", "z")
CONFIG = configuration("fedper", rounds=4, evaluate_every=1, min_count=5, dataset="unused", subset=None,
                       partition=None, target="outcome")  # fmt: skip


@dataclass
class OwnFiles:
    """Sites that read their file for every question, and say by themselves why they do not answer, as the app's do."""

    folder: object
    errors: list = field(default_factory=list)

    def nodes(self):
        return list(range(len(NAMES)))

    def ask(self, questions):
        for node, data in questions:
            site = open_site(self.folder, NAMES[node])[1]
            try:
                yield node, answer(site, data)
            except ValueError as error:
                self.errors.append(str(error))
                yield node, f"the site says: {refuse(error, site.place, 1)}"


def open_site(folder, name):
    federation, samples = read_site_file(CONFIG, name, folder / f"{name}.csv")
    return federation, ClientSite(CONFIG, "test", samples, folder / "records")


def begun(folder, lines):
    """A server after two rounds with three sites."""
    for name in NAMES:
        write_site(folder, name, 30, ("a", "b"))
    (folder / "server").mkdir()
    server = open_server(CONFIG, OwnFiles(folder), folder / "server", 3, lines.append, wait=0)
    for _ in range(2):
        server.step()
    return server


def edit(path, change):
    head, *rows = path.read_text().splitlines()
    path.write_text("\n".join([head, *change(rows)]) + "\n")


CHANGES = {
    "sorted otherwise": sorted,
    "a row more": lambda rows: [*rows, "1.234,0.5,ill"],
    "a row less": lambda rows: rows[:-1],
    "a value": lambda rows: [rows[0].replace("0", "7", 1), *rows[1:]],
}


QUICK = ("sorted otherwise", "a row more")


@pytest.mark.parametrize("case", [pytest.param(c, marks=() if c in QUICK else pytest.mark.everything) for c in CHANGES])
def test_a_file_that_changed_is_refused_without_a_value_of_it(case, tmp_path):
    lines: list = []
    server = begun(tmp_path, lines)
    before = (tmp_path / "y.csv").read_text()
    edit(tmp_path / "y.csv", CHANGES[case])
    server.step()
    (line,) = [line for line in lines if line["kind"] == "round" and line["round"] == 3]
    assert line["refused"] == [{"client": "y", "reason": f"the site says: {CHANGED}"}]
    assert "put the old file back, or let the new one take part as another client" in server.exchange.errors[0]
    (tmp_path / "y.csv").write_text(before)
    server.step()
    assert [line["accepted"] for line in lines if line["kind"] == "round"] == [3, 3, 2, 3]


def test_predictions_are_those_of_the_file_that_was_trained_on(tmp_path):
    begun(tmp_path, [])
    federation, site = open_site(tmp_path, "y")
    assert predict_rows(site, federation, torch.zeros(1, 2)).round == 1
    edit(tmp_path / "y.csv", CHANGES["a row more"])
    federation, site = open_site(tmp_path, "y")
    with pytest.raises(ValueError, match=r"client 'y': its data are not those that .* was trained on"):
        predict_rows(site, federation, torch.zeros(1, 2))


def test_names_of_columns_belong_to_the_data(tmp_path):
    write_site(tmp_path, "x", 30, ("a", "b"))
    one = open_site(tmp_path, "x")[1].samples.fingerprint
    path = tmp_path / "x.csv"
    path.write_text(path.read_text().replace("a,b", "b,a", 1))
    assert open_site(tmp_path, "x")[1].samples.fingerprint != one


def test_whose_data_changed_can_leave(tmp_path):
    lines: list = []
    server = begun(tmp_path, lines)
    edit(tmp_path / "y.csv", CHANGES["a row less"])
    wish_to_leave(open_site(tmp_path, "y")[1].place)
    server.step()
    assert list(server.leaving) == ["y"]


def test_a_record_says_which_data_it_was_trained_on(tmp_path):
    """A share of a dataset that everybody knows is not looked at."""
    record = {"head": torch.arange(3.0)}
    RecordFiles(tmp_path, "test", "x", "one", "mine").write(record, 5, ())
    assert torch.equal(RecordFiles(tmp_path, "test", "x", "one").read(record, 5)["head"], record["head"])
    with pytest.raises(ValueError, match="client 'x': its data are not those"):
        RecordFiles(tmp_path, "test", "x", "one", "others").read(record, 5)
