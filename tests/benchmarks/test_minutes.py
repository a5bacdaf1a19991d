"""The minutes that `--list` shows are those of the stored times."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from posterity.papers.recipe import recipes

ROOT = Path(__file__).parents[2]
STORED = sorted((ROOT / "docs" / "results" / "raw").glob("minutes-*.json"))
MEASURED = {"V-T1a", "V-T5", "V-T7"}
"""Tables that were run: their minutes are those of the runs."""


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import minutes

    yield minutes
    sys.modules.pop("minutes", None)


def test_recipes_have_the_minutes_of_the_stored_times(benchmark):
    rows = [line.strip("|").split("|") for line in benchmark.tabulate(STORED).splitlines()[2:]]
    timed = {row[0].strip(): row[2].strip() for row in rows}
    assert len(timed) > 20
    for recipe in recipes().values():
        if recipe.id not in MEASURED:
            minutes = timed.get(recipe.id, "")
            assert recipe.minutes == (float(minutes) if minutes.isdigit() else None), recipe.id


def test_large_networks_are_timed_by_a_few_steps(benchmark):
    recipe = recipes()["N-T1"]
    (cell, _), _ = recipe.folders().values()
    config = recipe.config(cell, {})
    light, rows, times = benchmark.lightened(config)
    assert (light.local_epochs, rows) == (1, 10 * 128 * benchmark.STEPS * 1.25)
    assert times == config.local_epochs * 60_000 / rows
    cell, _ = recipes()["V-T5"].folders()["pathological"]
    config = recipes()["V-T5"].config(cell, {})
    assert benchmark.lightened(config) == (config, 0, 1.0)


def test_a_smaller_share_of_the_data_takes_less(benchmark):
    half, quarter = (recipes()[name] for name in ("V-T1b", "V-T1a"))
    (_, first), *_ = benchmark.settings(half)
    (_, second), *_ = benchmark.settings(quarter)
    assert (first.subset, second.subset) == ("50%", "25%")
    assert benchmark.seconds_of(second, {benchmark.work(first): 0.2}) == 0.1
    assert benchmark.seconds_of(second, {benchmark.work(first): 0.2, benchmark.work(second): 0.3}) == 0.3
    assert benchmark.seconds_of(second, {benchmark.work(first): "no room"}) is None
    (_, other), *_ = benchmark.settings(recipes()["V-T1c"])
    assert benchmark.seconds_of(other, {benchmark.work(first): 0.2}) is None


def test_a_mix_takes_longer_by_its_rows(benchmark):
    (_, config), *_ = benchmark.settings(recipes()["M-T13"])
    assert config.dataset == "celeba+cifar100"
    assert benchmark.longer(0.1, config) == pytest.approx(0.1 * (200_288 + 60_000) / 60_000)
    assert benchmark.longer("no room", config) == "no room"
    (_, alone), *_ = benchmark.settings(recipes()["M-T7"])
    assert benchmark.work(alone) == benchmark.work(config)
    assert benchmark.longer(0.1, alone) == 0.1


def test_rows_are_timed_with_their_own_settings(benchmark, tmp_path):
    methods = [line.method for line in recipes()["P-T1"].lines]
    assert [name for _, name, _ in benchmark.rows_of(recipes()["P-T1"])] == methods
    (_, _, snip), *_ = (row for row in benchmark.rows_of(recipes()["M-T16"]) if row[1].startswith("perfedavg+snip["))
    assert (snip.method, snip.set["local.lr"], snip.set["server_lr"]) == ("perfedavg+snip", "0.1", "0.9")
    assert "local.lr" not in benchmark.as_fedavg(snip).set
    place = {"table": "P-T1", "folder": "Dirichlet-0.1", "rounds": 2000}
    rows = [{**place, "method": name, "seconds": seconds} for name, seconds in (("fedavg", 0.2), ("fedcp", 0.5))]
    (tmp_path / "rows.json").write_text(
        json.dumps({"rows": [*rows, {**place, "method": "gpfl", "seconds": "no room"}]})
    )
    told = benchmark.tabulate_rows([tmp_path / "rows.json"]).splitlines()[2:]
    assert told[0] == "| P-T1 | Dirichlet-0.1 | fedavg | 0.200 | 1.00 |"
    assert told[1].endswith("| fedcp | 0.500 | 2.50 |")
    assert told[2].endswith("| gpfl | no room |  |")
    assert benchmark.tabulate([tmp_path / "rows.json"]).count("\n") == 1  # they say nothing of minutes


def test_a_server_that_waits_costs_the_same_for_every_network(benchmark):
    known = {"fedavg": benchmark.Cost(), "fedbe": benchmark.Cost(1.0, 1.2), "fedavg+metavd": benchmark.Cost(2.0)}
    assert benchmark.cost("fedbe", known) == benchmark.Cost(1.0, 1.2)
    assert benchmark.cost("fedavg+metavd+ft[beta=10]", known) == benchmark.Cost(2.0)
    assert benchmark.cost("fedbe+metavd", known) == benchmark.Cost(2.0, 1.2)
    assert benchmark.cost("pfedgp", known) is None
