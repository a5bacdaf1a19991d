"""The examples of CONTRIBUTING.md: one file or one field, used from the command line as is written there."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from posterity.cli import main

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SECTION = re.compile(r"## Add an? (\w+)\n.*?```python\n# (\w+\.py)\n(.*?)```\n\n```sh\n(.*?)\n```", re.S)
EXAMPLES = {what: (file, code, command) for what, file, code, command in SECTION.findall(TEXT)}
FILES = ("method", "dataset", "partition", "metric", "network", "engine")
FUNCTION = re.compile(r"```python\n# my_function\.py\n(.*?)```\n\n```sh\n(.*?)\n```", re.S)


def typed(folder: Path, command: str) -> int:
    """The exit status of a command as a user types it in `folder`; in this process, since an import takes seconds."""
    words, path, known = shlex.split(command), list(sys.path), set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in known if name.startswith("my_")]:
            patch.delitem(sys.modules, name)  # a file of the same name that another test has written
        patch.chdir(folder)
        patch.setattr(sys, "argv", words)
        try:
            main()
        except SystemExit as stop:
            return int(stop.code or 0)
        finally:
            sys.path[:] = path
            for name in set(sys.modules) - known:
                if name.startswith("my_"):
                    del sys.modules[name]
    return 0


def test_there_is_an_example_of_everything():
    assert tuple(EXAMPLES) == (*FILES, "setting")


@pytest.mark.parametrize("what", FILES)
def test_one_file_is_enough(what, tmp_path):
    file, code, command = EXAMPLES[what]
    (tmp_path / file).write_text(code)
    assert typed(tmp_path, command) == 0
    folder = tmp_path / "runs" / what
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert f"my_{what}:" in (folder / "config.toml").read_text()
    assert json.loads((folder / "run.json").read_text())["status"] == "finished"
    if what == "metric":
        found = [line["metrics"]["top2"]["pooled"] for line in lines if "top2" in line.get("metrics", {})]
        assert found
        assert all(0 <= value <= 1 for value in found)


def copied(folder: Path, *rooms: str) -> Path:
    """The package with copies of these folders; the others are links."""
    package = folder / "posterity"
    package.mkdir()
    for each in (ROOT / "posterity").iterdir():
        if each.name in rooms:
            shutil.copytree(each, package / each.name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (package / each.name).symlink_to(each)
    return package


def started(folder: Path, command: str) -> None:
    words = [sys.executable, "-m", *shlex.split(command)]
    subprocess.run(words, check=True, cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)})


def test_a_function_is_a_network(tmp_path):
    [(code, command)] = FUNCTION.findall(TEXT)
    (tmp_path / "my_function.py").write_text(code)
    assert typed(tmp_path, command) == 0
    assert json.loads((tmp_path / "runs" / "function" / "run.json").read_text())["status"] == "finished"


NETWORK = """
def tiny(shape, outputs, *, width: int = 8):
    net = nn.Sequential()
    net.base, net.head = Small(shape, outputs, width).base, nn.Linear(width, outputs)
    return net
"""


def test_in_the_package_a_file_is_found_by_its_name(tmp_path):
    """An engine, a method and a network in the folders that the text names."""
    package = copied(tmp_path, "fast", "methods", "models")
    for what, place in (("engine", "fast/grouped"), ("method", "methods/fedavgm"), ("network", "models/tiny")):
        (package / f"{place}.py").write_text(EXAMPLES[what][1] + (NETWORK if what == "network" else ""))
    started(
        tmp_path, "posterity run --engine grouped --method fedavgm --model tiny --rounds 1 --clients 4 --out runs/in"
    )
    assert json.loads((tmp_path / "runs" / "in" / "run.json").read_text())["status"] == "finished"


def test_one_field_is_enough(tmp_path):
    """In a copy of the package that has the field, and nothing else that the package here has not."""
    file, code, command = EXAMPLES["setting"]
    package, name = copied(tmp_path, "settings"), code.split(":")[0].strip()
    text, place = (package / "settings" / file).read_text(), "    set: Mapping"
    assert text.count(f"\n{place}") == 1  # the last field of `Config`
    (package / "settings" / file).write_text(text.replace(place, f"{code}{place}"))
    started(tmp_path, command)
    assert f"{name} = 0.9\n" in (tmp_path / "runs" / "setting" / "config.toml").read_text()
    facts = json.loads((tmp_path / "runs" / "setting" / "run.json").read_text())
    assert (facts["status"], facts["method"]["fields"][f"local.{name}"]) == ("finished", 0.9)


def test_one_field_is_enough_for_the_log(tmp_path):
    [field] = re.findall(r"```python\n# lines\.py\n(.*?)```", TEXT, re.S)
    [script] = re.findall(r"```python\n# (?:my_log\.py)\n(.*?)```", TEXT, re.S)
    place = "    zeros: float | None = _key(number, None)"
    lines = copied(tmp_path, "runs") / "runs" / "lines.py"
    assert lines.read_text().count(place) == 1
    lines.write_text(lines.read_text().replace(place, f"{field}{place}"))
    (tmp_path / "my_log.py").write_text(script)
    subprocess.run(
        [sys.executable, "my_log.py"], check=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}
    )


@pytest.mark.everything
def test_the_method_keeps_the_laws(tmp_path):
    file, code, _ = EXAMPLES["method"]
    (tmp_path / file).write_text(code)
    assert typed(tmp_path, "posterity check my_method:FedAvgM") == 0


def test_links_and_folders_exist():
    for target in re.findall(r"\]\(([^)#:]+)\)", TEXT):
        assert (ROOT / target).exists(), target
    for folder in re.findall(r"`((?:posterity|tests)/[\w/]*)`", TEXT):
        assert (ROOT / folder).exists(), folder
