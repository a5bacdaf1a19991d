"""The folder that `posterity flower new` writes."""

from __future__ import annotations

import tomllib

import pytest
from typer.testing import CliRunner

from posterity.cli.app import app
from posterity.flower.new_app import write_app
from posterity.settings.config import Config, from_table


def table_of(folder):
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))


def test_its_settings_are_those_of_a_run(tmp_path):
    config = from_table(
        {"method": "pfedvmp", "clients": 4, "rounds": 7, "lr": 0.02, "set": {"model.hidden": "8", "xi": 3}}
    )
    write_app(tmp_path / "my-app", config, 4)
    table = table_of(tmp_path / "my-app")
    told = table["tool"]["flwr"]["app"]["config"]
    mine = {name: told.pop(name) for name in ("experiment", "out", "sites", "deadline", "minimum", "tries", "leave")}
    assert from_table(told) == config
    assert mine == {"experiment": "my-app", "out": "runs/my-app", "sites": 4, "deadline": 3600, "minimum": "50%",
                    "tries": 3, "leave": ""}  # fmt: skip


def test_nothing_but_flower_is_wanted_and_its_code_is_ours(tmp_path):
    write_app(tmp_path / "my-app", Config(), 2)
    table = table_of(tmp_path / "my-app")
    assert table["project"]["dependencies"] == ["flwr>=1.40,<1.43"]
    assert (tmp_path / "my-app" / table["project"]["license"]["file"]).exists()
    for side, path in table["tool"]["flwr"]["app"]["components"].items():
        module, _, name = path.partition(":")
        text = (tmp_path / "my-app" / f"{module.replace('.', '/')}.py").read_text()
        assert f"from posterity.flower.app import {side.removesuffix('app')}_app as {name}" in text


@pytest.mark.parametrize("name", ["my_app", "9lives", "import", "a" * 33])
def test_a_name_that_flower_would_refuse(name, tmp_path):
    with pytest.raises(ValueError, match="Flower wants the name of an app"):
        write_app(tmp_path / name, Config(), 2)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_something_in_it_is_left_alone(tmp_path):
    (tmp_path / "my-app").mkdir()
    (tmp_path / "my-app" / "notes").write_text("mine")
    with pytest.raises(ValueError, match="is not empty; nothing was written"):
        write_app(tmp_path / "my-app", Config(), 2)


def test_the_command(tmp_path):
    folder = tmp_path / "trial"
    done = CliRunner().invoke(app, ["flower", "new", str(folder), "--method", "fedper", "--set", "model.hidden=8"])
    assert done.exit_code == 0, done.output
    told = table_of(folder)["tool"]["flwr"]["app"]["config"]
    assert (told["method"], told["clients"], told["sites"], told["rounds"]) == ("fedper", 3, 3, 10)
    assert told["set"] == {"model.hidden": "8"}
