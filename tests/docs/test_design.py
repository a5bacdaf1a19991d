"""docs/design: the picture has the floors that imports are held to, and every folder has its paragraph."""

from __future__ import annotations

import re

from rules.source import PACKAGE, ROOT
from rules.test_imports import FLOORS

DESIGN = ROOT / "docs" / "design"
DRAWN = re.compile(r'<text class="name" x="\d+" y="(\d+)">(\w+)</text>')


def test_the_picture_has_the_floors():
    drawn: dict[int, set[str]] = {}
    for height, name in DRAWN.findall((DESIGN / "floors.svg").read_text()):
        drawn.setdefault(int(height), set()).add(name)
    held = [floor - {"version", "__main__"} for floor in reversed(FLOORS)]
    assert [drawn[height] for height in sorted(drawn)] == [floor for floor in held if floor]


def test_every_folder_has_its_paragraph():
    page = (DESIGN / "README.md").read_text()
    folders = sorted(p.name for p in PACKAGE.iterdir() if p.is_dir() and p.name != "__pycache__")
    assert [name for name in folders if f"\n`posterity/{name}/` —" not in page.replace(". `", ".\n`")] == []


def test_decisions_have_headings_of_their_own():
    headings = re.findall(r"^### (.+)$", (DESIGN / "decisions.md").read_text(), re.M)
    assert len(headings) == len(set(headings)) > 40
