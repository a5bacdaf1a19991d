"""The simulation of comparisons at a tiny size: its numbers are shares, its draws what it says, its page is filled."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module("comparisons")
    sys.modules.pop("comparisons", None)


def test_the_whole_script_fills_a_page(script, monkeypatch, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- simulation -->\nold\n<!-- end of simulation -->\nafter\n")
    monkeypatch.setattr(sys, "argv", ["comparisons.py", "--comparisons", "4", "--out", str(page)])
    script.main()
    text = page.read_text()
    assert text.startswith("before\n<!-- simulation -->\n`python benchmarks/comparisons.py --comparisons 4 --seed 0`")
    assert text.endswith("<!-- end of simulation -->\nafter\n")
    assert "\nold\n" not in text
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ") and " % |" in line]
    assert len(rows) == 3 * 2 * 3
    assert all(0 <= float(cell.strip(" %")) <= 100 for row in rows for cell in row.split("|")[4:-1])
    (tmp_path / "bare.md").write_text("nothing")
    with pytest.raises(SystemExit, match="add the two marks"):
        script.replace_between(tmp_path / "bare.md", "simulation", "text")


def test_few_clients_fill_their_table(script, monkeypatch, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("<!-- few clients -->\n<!-- end of few clients -->\n")
    monkeypatch.setattr(sys, "argv", ["comparisons.py", "--few", "--comparisons", "2", "--out", str(page)])
    script.main()
    assert "`python benchmarks/comparisons.py --few --comparisons 2 --seed 0`" in page.read_text()
    rows = [
        line.split("|")[3:-1] for line in capsys.readouterr().out.splitlines() if line.startswith("| ") and "%" in line
    ]
    assert len(rows) == len(script.FEW)
    assert {cell.strip() for row in rows for cell in row} <= {"0.0 %", "50.0 %", "100.0 %"}


def test_one_client_has_most_rows(script):
    setting = next(each for each in script.FEW if each.largest and each.clients == 5)
    accuracy, sizes = script.draw(setting, 3, 0.0, np.random.default_rng(0))
    assert accuracy.shape == (3, 4, 10, 5)
    assert (sizes[..., 0] / sizes.sum(-1) == 0.8).all()


def test_true_difference_and_pairing_of_the_draws(script):
    setting = script.SETTINGS[1]
    accuracy, sizes = script.draw(setting, 60, setting.effect, np.random.default_rng(0))
    assert accuracy.shape == (60, 4, 10, 20)
    assert sizes.min() == 4
    assert sizes.max() == 16
    pooled = script.pooled(accuracy, sizes)
    gap = pooled[:, 0] - pooled[:, 1]
    assert gap.mean() == pytest.approx(script.expected(setting, setting.effect), abs=4 * gap.std() / np.sqrt(gap.size))
    assert gap.std() < 0.6 * pooled[:, 0].std(), "what a seed does to all methods cancels"


def test_winner_needs_every_pair(script):
    from posterity.evaluate.paired import Paired

    def pair(difference: float, p: float) -> Paired:
        return Paired((difference,) * 3, difference, "seeds", p=p, holm=p)

    pairs = {(i, j): pair(1.0, 0.01) for i in range(4) for j in range(i + 1, 4)}
    assert script.winner(pairs) == 0
    assert script.winner({**pairs, (0, 3): pair(1.0, 0.2)}) is None
    assert script.winner({**pairs, (0, 1): pair(-1.0, 0.01), (1, 2): pair(1.0, 0.04)}) == 1
