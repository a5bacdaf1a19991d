"""Tests stand where the package stands: the folder of a test is that of a package, its name begins with a module's."""

from __future__ import annotations

from pathlib import Path

import pytest

from .source import ROOT

OWN = {  # folders that are arranged by something else than modules
    "behaviour",  # what several rooms do together
    "benchmarks", "docs", "golden", "mutants", "oracles", "recipes", "rules",
    "laws",  # by law, and by what is wrong on purpose
    "methods",  # by paper, wrappers included
}  # fmt: skip


def modules_of(folder: Path) -> set[str]:
    """Names that a test of a package's folder may begin with: its modules, its subpackages, and the folder itself."""
    inside = (p for p in folder.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists())
    return {p.stem.lstrip("_") for p in inside} - {"init__"} | {folder.name}


def misplaced(root: Path) -> list[str]:
    """Test files that are not named after a module of the folder they stand for, and folders that stand for none."""
    wrong = []
    for folder in sorted(p for p in (root / "tests").iterdir() if p.is_dir() and p.name not in OWN):
        files = sorted(folder.glob("test_*.py"))
        package = root / "posterity" / folder.name
        if files and not package.is_dir():
            wrong.append(f"tests/{folder.name}: there is no posterity/{folder.name}")
            continue
        names = modules_of(package) if files else set()
        for file in files:
            about = file.stem.removeprefix("test_")
            if not any(about == name or about.startswith(f"{name}_") for name in names):
                wrong.append(f"tests/{folder.name}/{file.name}: posterity/{folder.name} has no module of that name")
    return wrong


def test_tests_stand_where_the_package_stands():
    assert misplaced(ROOT) == []


@pytest.mark.parametrize(
    ("planted", "told"),
    [
        ("room/test_door.py", None),
        ("room/test_door_hinges.py", None),
        ("room/test_lock.py", None),  # of `_lock.py`
        ("room/test_box_lid.py", None),  # of a subpackage
        ("room/test_room.py", None),  # of the package itself
        ("room/test_window.py", "tests/room/test_window.py: posterity/room has no module of that name"),
        ("room/test_doors.py", "tests/room/test_doors.py: posterity/room has no module of that name"),
        ("attic/test_door.py", "tests/attic: there is no posterity/attic"),
        ("behaviour/test_window.py", None),
    ],
)
def test_the_rule_itself(tmp_path, planted, told):
    for file in ("__init__.py", "door.py", "_lock.py", "box/__init__.py"):
        path = tmp_path / "posterity" / "room" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    path = tmp_path / "tests" / planted
    path.parent.mkdir(parents=True)
    path.touch()
    assert misplaced(tmp_path) == ([] if told is None else [told])
