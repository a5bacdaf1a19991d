"""What is compared with what: the same clients, other data are told, nothing counts twice; the positive class."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from posterity.cli import terminal as show
from posterity.cli.flags import Output
from posterity.report import findings as verdict
from posterity.report import headline, load_runs, main_comparison, write_report
from posterity.report.sections import cautions, unlike

from .fake_runs import write_exact, write_run

VALUES = {s: [0.5 + 0.01 * s, 0.7, 0.6] for s in range(3)}
NUMBERED, NAMED = ["client 0", "client 1", "client 2"], ["north", "south", "west"]


def two_methods(folder: Path) -> Path:
    write_exact(folder, "fedavg", VALUES)
    write_exact(folder, "fedper", ahead(0.1))
    return folder


def ahead(by: float) -> dict[int, list[float]]:
    """Values that are so much higher, more or less."""
    return {s: [v + by + 0.01 * (s + k) ** 2 for k, v in enumerate(each)] for s, each in VALUES.items()}


def change(folder: Path, where: str = "**", **facts: Any) -> None:
    """Other facts of the federation in runs below `folder`; a value may be a function of the seed."""
    for path in folder.glob(f"{where}/run.json"):
        told = json.loads(path.read_text())
        seed = int(path.parent.name.removeprefix("seed-"))
        told["federation"] |= {k: v(seed) if callable(v) else v for k, v in facts.items()}
        path.write_text(json.dumps(told))


@pytest.mark.parametrize(
    ("rule", "names", "prints", "design"),
    [
        ("natural", NUMBERED, "", "crossed"),  # a file's own clients may be called so
        ("natural", NAMED, "", "crossed"),
        ("dirichlet", NUMBERED, "", "nested"),
        ("iid", ["client 1", "client 2", "client 4"], "", "nested"),  # the others are newcomers
        (None, NUMBERED, "", "nested"),  # by hand, in an old folder
        (None, NUMBERED, "same", "crossed"),  # by hand, one federation for all seeds
        (None, NUMBERED, "other", "nested"),
        (None, NAMED, "other", "crossed"),
    ],
)
def test_who_the_same_clients_are(tmp_path: Path, rule: str | None, names: list[str], prints: str, design: str) -> None:
    """The rule says whether a seed draws them; names say it only where no rule is known."""
    mark = {"": "", "same": "a", "other": lambda seed: f"a{seed}"}[prints]
    same = {"train": [40] * 3, "validation": [10] * 3, "test": [10] * 3}
    partition = rule and {"rule": rule}
    change(two_methods(tmp_path), names=names, partition=partition, fingerprint=mark, **same)
    assert main_comparison(headline(load_runs(tmp_path))).pairs[0, 1].design == design


def test_other_values_are_not_paired_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two runs of a method on a file that was edited in between."""
    change(two_methods(tmp_path), fingerprint="a")
    assert unlike(headline(load_runs(tmp_path))) == []
    change(tmp_path, "fedper/seed-[12]", fingerprint="b")
    rows = headline(load_runs(tmp_path))
    assert ["(seed 1 and 2)" in said for said in unlike(rows)] == [True]
    assert main_comparison(rows).pairs[0, 1].design == "seeds"
    show.print_table(tmp_path, "validated")
    assert "not run on the same data" in " ".join(capsys.readouterr().out.split())
    show.print_json(tmp_path, "validated", None)
    assert json.loads(capsys.readouterr().out)["cautions"] == unlike(rows)


def test_pairs_over_clients_and_without_them_are_told_apart(tmp_path: Path) -> None:
    two_methods(tmp_path)
    write_exact(tmp_path, "local", ahead(0.2))
    change(tmp_path, fingerprint="a")
    assert verdict.paired_over(main_comparison(headline(load_runs(tmp_path)))) == "the same seeds and clients"
    change(tmp_path, "local/*", fingerprint="b")
    said = verdict.paired_over(main_comparison(headline(load_runs(tmp_path))))
    assert said == "the same seeds, and clients where both had the same"
    change(tmp_path, "fedper/*", fingerprint="c")
    assert verdict.paired_over(main_comparison(headline(load_runs(tmp_path)))) == "the same seeds"


@pytest.mark.parametrize(("name", "value"), [("subset", '"200"'), ("split", '"50/50"'), ("local_steps", "1")])
def test_other_settings_are_told(tmp_path: Path, name: str, value: str) -> None:
    for path in two_methods(tmp_path).glob("fedper/*/config.toml"):
        path.write_text(f"{name} = {value}\n{path.read_text()}")
    (said,) = unlike(headline(load_runs(tmp_path)))
    assert f"not run with the same {name.replace('_', ' ')}: " in said


def test_a_run_that_is_there_twice_counts_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two_methods(tmp_path)
    before = {row.label: row.cells["accuracy"].mean for row in headline(load_runs(tmp_path))}
    shutil.copytree(tmp_path / "fedavg" / "seed-0", tmp_path / "later copy")
    runs = load_runs(tmp_path)
    rows = headline(runs)
    assert {row.label: row.cells["accuracy"].mean for row in rows} == before
    assert [row.seeds for row in rows] == [3, 3]
    assert "the first of them counts" in " ".join(cautions(runs, rows))
    show.print_json(tmp_path, "validated", None)
    values = [row["values"]["accuracy"] for row in json.loads(capsys.readouterr().out)["rows"]]
    assert [v["mean"] for v in values] == pytest.approx([sum(v["seeds"].values()) / 3 for v in values])


def test_partitions_of_their_own_are_no_copies(tmp_path: Path) -> None:
    """Runs with one seed and several values of `data_seed` all count."""
    for path in two_methods(tmp_path).glob("*/*/config.toml"):
        path.write_text(re.sub(r"^seed = \d", "seed = 0", path.read_text(), flags=re.MULTILINE))
    rows = headline(load_runs(tmp_path))
    assert [row.seeds for row in rows] == [3, 3]
    assert "several partitions" in " ".join(unlike(rows))


def test_the_positive_class_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sensitivity is about one of two classes: the page says which, and the terminal where it shows such a column."""
    write_run(tmp_path / "a", "fedavg", 0.8, 0, classes=2, rounds=4)
    told = json.loads((tmp_path / "a" / "run.json").read_text())
    told["federation"]["class_names"] = ["ill", "well"]
    (tmp_path / "a" / "run.json").write_text(json.dumps(told))
    said = "“well” is the positive class"
    assert said in write_report(tmp_path).read_text(encoding="utf-8")
    show.print_table(tmp_path, "validated", Output("validated", metrics=("sensitivity",)))
    assert said in " ".join(capsys.readouterr().out.split())
    show.print_table(tmp_path, "validated", Output("validated", metrics=("accuracy",)))
    assert said not in " ".join(capsys.readouterr().out.split())
    write_run(tmp_path / "many" / "a", "fedavg", 0.8, 0, rounds=4)
    assert "is the positive class" not in write_report(tmp_path / "many").read_text(encoding="utf-8")
