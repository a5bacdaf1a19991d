"""MetaVD's Table 9: the recipe runs, its statistic is checked by hand, and the paper is within the luck of a draw."""

from __future__ import annotations

import json
import statistics

import numpy as np
import pytest
import torch
from kinds import everything


@pytest.fixture
def recipe(script):
    return script("metavd_table9")


def test_it_writes_the_table_and_its_numbers(recipe, tmp_path, monkeypatch):
    monkeypatch.delenv("POSTERITY_DATA", raising=False)
    recipe.main(["--out", str(tmp_path), "--seeds", "2", "--quick"])
    text = (tmp_path / "metavd_table9.md").read_text()
    numbers = json.loads((tmp_path / "metavd_table9.json").read_text())
    for printed in ("99.78 ± 0.5", "73.18 ± 5.2", "33.78 ± 7.33", "10 ± 0", "9.1 ± 0.94", "4.65 ± 1.49"):
        assert f"({printed})" in text
    assert "stored half" not in text
    cell = numbers["CIFAR-10"]["0.1"]
    assert len(cell["means"]) == len(cell["deviations"]) == 2
    assert f"{statistics.fmean(cell['means']):.2f} ± {statistics.fmean(cell['deviations']):.2f}" in text
    assert "z = " in text


def test_the_stored_halves_are_read_where_they_are(recipe, tmp_path, monkeypatch):
    """Training rows only: 260 of 300 pictures."""
    (tmp_path / "cifar10").mkdir()
    labels, place = np.arange(300, dtype=np.uint8) % 10, np.arange(300) + 49_740
    np.savez(tmp_path / "cifar10" / "cifar10_half_a.npz", labels=labels, index=place.astype(np.uint16))
    monkeypatch.setenv("POSTERITY_DATA", str(tmp_path))
    found = recipe.stored()
    assert list(found) == ["CIFAR-10"]
    assert len(found["CIFAR-10"]) == 260


def test_classes_are_counted_by_client(recipe):
    """One class is one class for everybody, and a huge α̂ gives everybody all ten."""
    assert recipe.count_classes(torch.zeros(50_000, dtype=torch.int64), 0.5, 0).tolist() == [1] * 130
    assert recipe.count_classes(recipe.published(10), 1000.0, 0).tolist() == [10] * 130


def test_only_the_counts_of_the_labels_matter(recipe):
    """Another order of the data and other names of the classes: the same classes per client."""
    labels = recipe.published(10)
    shuffled = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))]
    first, second = (recipe.count_classes(y, 0.1, 0) for y in (labels, shuffled))
    assert torch.equal(first, second)


def test_distance_by_hand(recipe):
    """Means 1, 2, 3: sd 1, so 4 is two deviations above 2."""
    assert recipe.Cell([1.0, 2.0, 3.0], [0.0] * 3).distance(4.0) == pytest.approx(2.0)
    assert recipe.Cell([10.0, 10.0], [0.0] * 2).distance(10.0) is None
    assert recipe.Cell([1.0, 2.0, 9.0], [0.5, 1.5, 7.0]).shown(2) == "1.50 ± 1.00, seeds ± 0.71"


def floored(classes, alpha, seed, rows=50_000, clients=130):
    """Classes of each client where shares are cut at floors of their cumulative sums, by numpy alone."""
    rng, n = np.random.default_rng(seed), rows // classes
    while True:
        ends = (np.cumsum(rng.dirichlet(np.full(clients, alpha), classes), 1) * n).astype(int)
        counts = np.diff(np.concatenate([np.zeros((classes, 1)), ends[:, :-1], np.full((classes, 1), n)], 1)).T
        if counts.sum(1).min() > 0:
            return (counts > 0).sum(1)


@pytest.mark.parametrize("name", ["CIFAR-10", *everything("CIFAR-100")])
def test_the_paper_is_within_the_luck_of_a_draw(recipe, name):
    """|z| ≤ 3 of 20 draws for the mean. The sd over clients, within a fifth or a tenth of a class, is another matter.

    Floors give the last client what they take from the others: a row of 98 of 100 classes at α̂ = 0.1, where others have
    34 classes. The printed 7.33 has it; without that client, as here, the sd is 4.8.
    """
    for alpha, (mean, deviation) in recipe.PAPER[name].items():
        cell = recipe.measure(recipe.published(recipe.CLASSES[name]), alpha, 20)
        z = cell.distance(mean)
        assert (z is None and cell.means == [mean] * 20) or abs(z) <= 3
        cut = [floored(recipe.CLASSES[name], alpha, seed) for seed in range(20)]
        whole, rest = (statistics.fmean(c[:end].std(ddof=1) for c in cut) for end in (None, -1))
        assert whole == pytest.approx(deviation, rel=0.2, abs=0.1)
        assert statistics.fmean(cell.deviations) == pytest.approx(rest, rel=0.05, abs=0.05)
