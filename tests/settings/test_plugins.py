"""A stray `random.py` in the user's folder is never imported; what the user names there is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from posterity.settings import plugins as search_path
from posterity.settings.plugins import find_function, import_outside

ROOT = Path(__file__).parents[2]
TRAP = "raise SystemExit('a file of the current folder was imported')\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, and a path that is put back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    monkeypatch.setenv(search_path.SAFE, "")
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


def test_the_folder_leaves_the_path_of_this_process_and_its_children(here: Path, monkeypatch) -> None:
    sys.path.insert(0, str(here))
    search_path.leave_folder_out()
    assert str(here) not in sys.path
    (here / "random.py").write_text(TRAP)  # `tempfile` of a child needs it
    done = subprocess.run([sys.executable, "-c", "import tempfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    monkeypatch.setenv(search_path.SAFE, "")
    spoilt = subprocess.run([sys.executable, "-c", "import tempfile"], capture_output=True, text=True, check=False)
    assert "a file of the current folder was imported" in spoilt.stderr  # so this test can fail


def test_a_folder_that_was_asked_for_stays(here: Path) -> None:
    """PYTHONPATH is the user's word: only what Python adds by itself is taken away."""
    sys.path.insert(1, str(here))
    search_path.leave_folder_out()
    assert str(here) in sys.path


def test_what_is_named_is_found_here_with_its_neighbours_and_nothing_else_is(here: Path) -> None:
    (here / "lying_by.py").write_text("VALUE = 3\n")
    (here / "my_own.py").write_text("def make():\n    import lying_by, statistics\n    return lying_by.VALUE\n")
    (here / "statistics.py").write_text(TRAP)  # of Python, perhaps not imported yet
    sys.modules.pop("statistics", None)
    assert str(here) not in sys.path
    assert find_function("my_own:make", "thing")() == 3
    assert sys.path[-1] == str(here)
    assert import_outside("statistics") is not None  # Python's own


def test_what_is_named_wins_over_an_installed_module_of_its_name(here: Path, monkeypatch) -> None:
    installed = here / "installed"
    installed.mkdir()
    (installed / "utilities.py").write_text("WHO = 'installed'\n")
    (here / "utilities.py").write_text("WHO = 'mine'\n")
    sys.path.insert(0, str(installed))
    module = import_outside("utilities")
    assert module is not None
    assert module.WHO == "mine"


def test_a_package_a_plain_folder_and_a_broken_file(here: Path) -> None:
    for place in ("whole", "folder_only"):
        (here / place).mkdir()
        (here / place / "part.py").write_text("def make():\n    return __name__\n")
    (here / "whole" / "__init__.py").write_text("")
    (here / "broken_one.py").write_text("import nothing_of_this_name\n")
    assert [find_function(f"{p}.part:make", "thing")() for p in ("whole", "folder_only")] == [
        "whole.part",
        "folder_only.part",
    ]
    for _ in range(2):  # a half-imported module does not stay
        with pytest.raises(ModuleNotFoundError, match="nothing_of_this_name"):
            import_outside("broken_one")


def test_stray_files_do_not_stand_in_for_libraries(tmp_path: Path) -> None:
    for name in ("torch", "numpy", "rich", "typer", "scipy", "random", "tempfile"):
        (tmp_path / f"{name}.py").write_text(TRAP)
    env = {**os.environ, "PYTHONPATH": str(ROOT), search_path.SAFE: ""}
    done = subprocess.run([sys.executable, "-m", "posterity", "--version"], cwd=tmp_path, env=env, capture_output=True,
                          text=True, check=False)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.everything
def test_stray_files_do_not_stand_in_for_libraries_of_workers(tmp_path: Path) -> None:
    for name in ("torch", "random", "pickle", "socket", "queue", "tempfile"):
        (tmp_path / f"{name}.py").write_text(TRAP)
    env = {**os.environ, "PYTHONPATH": str(ROOT), search_path.SAFE: "", "OMP_NUM_THREADS": "1"}
    words = ["compare", "--methods", "local,fedavg", "--seeds", "0", "--jobs", "2", "--rounds", "1", "--clients", "3",
             "--subset", "20%", "--quiet"]  # fmt: skip
    done = subprocess.run([sys.executable, "-m", "posterity", *words], cwd=tmp_path, env=env, capture_output=True,
                          text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
