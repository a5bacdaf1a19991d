"""Every method file and every wrapper has a test file of its own here."""

from pathlib import Path

import posterity.methods

HERE = Path(__file__).parent
FILES = Path(posterity.methods.__path__[0])


def test_every_method_has_a_test_file():
    names = {
        p.stem for folder in (FILES, FILES / "wrappers") for p in folder.glob("*.py") if not p.stem.startswith("_")
    }
    assert {"local", "fedavg", "ft"} <= names
    missing = sorted(n for n in names if not (HERE / f"test_{n}.py").exists())
    assert not missing, f"no tests/methods/test_<name>.py for {missing}"


def test_every_test_file_tests_two_clients_by_hand_or_says_bad_values():
    for file in HERE.glob("test_*.py"):
        if file.stem != "test_rule":
            assert "def test_bad_hyper_parameters" in file.read_text(), file.name
