"""What counts as the source of a run, and what does not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from posterity.experiment import fingerprint
from posterity.experiment.fingerprint import sources, tell_changes
from posterity.settings.config import Config
from posterity.settings.plugins import import_outside

METHOD = """
from dataclasses import dataclass
from posterity.core import hyper
from posterity.methods.fedprox import FedProx
import helpers
from package import inner
@dataclass(frozen=True)
class Mine(FedProx):
    \"\"\"A method.\"\"\"
    extra: float = hyper(0.5, "something")  # a comment
    def start(self, here):
        import later
        return super().start(here)
"""
FILES = {
    "mine_of_all.py": METHOD, "helpers.py": "import numpy\nFACTOR = 2\n", "later.py": "X = 1\n",
    "unrelated.py": "Y = 1\n", "package/__init__.py": "", "package/inner.py": "from . import deep\n",
    "package/deep.py": "Z = 1\n", "package/alone.py": "A = 1\n",
    "net_of_mine.py": "def make(shape, classes): ...\n", "dirichlet.py": "raise RuntimeError('imported')\n",
}  # fmt: skip
ALL = {"mine_of_all", "helpers", "later", "package", "package.inner", "package.deep", "posterity.methods.fedprox",
       "posterity.core", "net_of_mine"}  # fmt: skip
CONFIG = Config(method="mine_of_all:Mine", model="net_of_mine:make", partition="dirichlet:0.3")


@pytest.fixture
def room(tmp_path, monkeypatch):
    """A folder with a method of one's own; the function edits a file there and gives the sources."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def edited(name: str = "", old: str = "", new: str = "", config: Config = CONFIG) -> dict[str, str]:
        if name:
            text = (tmp_path / name).read_text()
            assert old in text
            (tmp_path / name).write_text(text.replace(old, new))
        for module in [
            m for m in sys.modules if m.partition(".")[0] in {Path(n).parts[0].split(".")[0] for n in FILES}
        ]:
            monkeypatch.delitem(sys.modules, module)
        fingerprint._parsed.cache_clear()
        return sources(config)

    return edited


def test_a_method_is_its_file_and_what_it_imports_from_its_folder(room):
    assert set(room()) == ALL
    assert set(sources(Config(method="fedavg+ft"))) == {
        "posterity.core", "posterity.methods.fedavg", "posterity.methods.wrappers.ft"
    }  # fmt: skip


def test_what_lies_in_the_current_folder_is_found_before_and_after_it_is_imported(room, tmp_path, monkeypatch):
    """A comparison imports no network of yours; its runs do."""
    config = Config(method="fedavg", model="net_of_mine:make", metrics="package.alone:A")
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != str(tmp_path)])
    monkeypatch.chdir(tmp_path)
    before = room(config=config)
    assert "net_of_mine" not in sys.modules
    assert {"net_of_mine", "package.alone"} <= set(before)
    for name in ("net_of_mine", "package.alone"):
        import_outside(name)
    assert sources(config) == before


@pytest.mark.parametrize(
    ("file", "old", "new", "changed"),
    [
        ("mine_of_all.py", "  # a comment", "  # another", None),
        ("mine_of_all.py", "A method.", "My method.", None),
        ("mine_of_all.py", "\n@dataclass", "\n\n\n@dataclass", None),
        ("mine_of_all.py", "\n", "\r\n", None),
        ("mine_of_all.py", "0.5", "0.25", "mine_of_all"),
        ("helpers.py", "2", "3", "helpers"),
        ("later.py", "1", "2", "later"),
        ("package/deep.py", "1", "2", "package.deep"),
        ("net_of_mine.py", "...", "return None", "net_of_mine"),
        ("unrelated.py", "1", "2", None),
        ("package/alone.py", "1", "2", None),
    ],
)
def test_an_edit_counts_where_it_can_change_a_number(room, file, old, new, changed):
    before, after = room(), room(file, old, new)
    assert [name for name in before if before[name] != after[name]] == ([changed] if changed else [])
    assert set(before) == set(after)


def test_changes_are_told_in_words(room):
    facts = {"sources": room(), "method": {"fields": {**_fields(), "mu": 7.0}}}
    assert tell_changes({**facts, "method": {"fields": _fields()}}, CONFIG) == []
    assert tell_changes(facts, CONFIG) == ["mu was 7.0 and is 0.01 now"]
    room("mine_of_all.py", "0.5", "0.25")
    told = tell_changes({**facts, "method": {"fields": {**_fields(), "extra": 0.5}}}, CONFIG)
    assert told == ["extra was 0.5 and is 0.25 now", "the source of mine_of_all was edited"]


def _fields():
    from posterity import methods

    return dict(fingerprint.fields_of(methods.build(CONFIG.method)))
