"""FedMAP's claims on next to nothing: shares, the outlier's page, bytes, single changes."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest
from kinds import everything

from posterity.runs import files
from posterity.runs import folder as run_folder


@pytest.mark.parametrize("weighting", ["num_examples", "posterior", *everything("uniform", "per_sample")])
def test_shares_are_found_in_the_average(tiny, claims, common, tmp_path, weighting):
    """Known shares for two weightings; for the others, the number of effective clients that the server reported."""
    plan = tiny(tmp_path)
    arm = claims.Arm("arm", "", "fedmap", "quantity", (("weighting", weighting), ("local.lr", 0.05)))
    common.perform(arm.tasks(plan))
    found = claims.shares(arm.folder(plan, 0))
    assert sum(found) == pytest.approx(1)
    known = {"num_examples": [0.8 / 5] * 5 + [0.2 / 5] * 5, "uniform": [0.1] * 10}
    if weighting in known:
        assert found == pytest.approx(known[weighting], abs=1e-4)
    reported = files.read_lines(arm.folder(plan, 0) / run_folder.METRICS)
    effective = [x["report"]["effective_clients"] for x in reported if x["kind"] == "round"]
    assert len(effective) == 2  # every round
    assert 1 / sum(w**2 for w in found) == pytest.approx(effective[-1], rel=1e-3)


def test_shares_of_a_method_without_own_models(tiny, claims, common, tmp_path):
    plan, arm = tiny(tmp_path), claims.Arm("arm", "", "fedavg", "quantity")
    common.perform(arm.tasks(plan))
    assert claims.shares(arm.folder(plan, 0)) == pytest.approx([0.8 / 5] * 5 + [0.2 / 5] * 5)


def test_a_model_that_is_no_mean_is_noticed(tiny, claims, common, tmp_path):
    plan, arm = tiny(tmp_path), claims.Arm("arm", "", "fedmap")
    common.perform(arm.tasks(plan))
    path = arm.folder(plan, 0)
    leaves, facts = run_folder.read_checkpoint(path)
    trees = {"state": {}, "known": {}, "personal": {}}
    for name, leaf in leaves.items():
        top, _, rest = name.partition("/")
        trees[top][rest] = leaf + 1 if top == "state" else leaf
    run_folder.save_checkpoint(path, trees, facts)
    with pytest.raises(ValueError, match="no mean of the clients'"):
        claims.shares(path)


def test_outlier_page(tiny, claims, common, tmp_path):
    plan = tiny(tmp_path)
    pairs = [pair for pair in claims.outlier_arms() if pair[0].label in ("FedAvg", "FedMAP, uniform")]
    assert len(claims.outlier_arms()) == 6
    common.perform([t for pair in pairs for arm in pair for t in arm.tasks(plan)])
    text, found = claims.outlier(plan)
    clean, spoilt = (arm.clients(plan, 0) for arm in pairs[1])
    lost = 100 * (statistics.fmean(spoilt[1:]) - statistics.fmean(clean[1:]))
    row = next(line for line in text.splitlines() if line.startswith("| FedMAP, uniform |")).split(" | ")
    assert row[3:5] == [f"{lost:.1f}", f"{100 * spoilt[0]:.1f}"]
    assert row[5:7] == ["0.100", "0.100"]
    assert float(row[7]) == pytest.approx(10)
    assert found["FedMAP, uniform"]["accuracy"][0] == (clean, spoilt)
    configs = [arm.tasks(plan)[0].config for arm in pairs[1]]
    assert [c.settings("data").get("outlier") for c in configs] == [None, 0]


def test_communication_counts_bytes_since_the_start(tiny, claims, common, tmp_path):
    plan = tiny(tmp_path)
    arms = claims.communication_arms()
    common.perform([t for arm in arms for t in arm.tasks(plan)])
    curve = claims.history(arms[1].folder(plan, 0))
    each = 10 * 4 * (30 * 32 + 32 + 32 * 16 + 16 + 16 + 1)  # FedAvg: ten clients, float32, and one weight a message
    assert [e["bytes_up"] for e in curve] == [2 * each + 40, 2 * (2 * each + 40)]
    text, _ = claims.communication(plan)
    row = next(line for line in text.splitlines() if line.startswith("| FedAvg |")).split(" | ")
    assert 1 <= int(row[2]) <= 2  # it reaches its own end
    assert next(line for line in text.splitlines() if line.startswith("| Individual |")).split(" | ")[5] == "0 |"


def test_changes_change_one_thing(claims, tables, tmp_path):
    plan = tables.BatchPlan(tmp_path, (0,), 20)
    for skew, listed in claims.CHANGES.items():
        arms = claims.change_arms(skew)
        assert len(arms) == 4 + len(listed)
        for arm in (a for a in arms if not a.label.endswith("as in the table")):
            config, base = arm.tasks(plan)[0].config, plan.config(arm.method, skew, "code", arm.model, 0)
            assert replace(config, set=base.set, rounds=20) == base
            new = {k: v for k, v in config.set.items() if base.set.get(k) != v}
            assert len(new) + (config.rounds != 20) in (1, 2)  # training alone: fewer rounds, and then a smaller step
            assert base.set.keys() <= config.set.keys()


def test_the_page_of_changes(claims, tiny, common, tmp_path):
    plan = tiny(tmp_path)
    arms = [a for a in claims.change_arms("feature") if a.method == "local"]
    common.perform([t for arm in arms for t in arm.tasks(plan)])
    shared = plan.task("local", "feature", "code", "mlp", 0)  # a run of the tables is not run again
    assert common.reached(shared.path) == 2
    common.perform([shared])
    text, found = claims.changes(plan)
    values = arms[0].clients(plan, 0)
    mean = 100 * statistics.fmean(values[5:])
    row = next(
        line for line in text.splitlines() if line.startswith("| Individual, as in the table") and "83.80" in line
    )
    assert row.split(" | ")[3] == f"{mean:.1f} (83.53) |"
    assert found["feature"]["Individual, as in the table"] == {0: values}
    assert "| FedAvg, as in the table | – (63.18) |" in text
