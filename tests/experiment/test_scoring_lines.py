"""The lines of a run add up: means by training size, parts, bins, rounds and seconds, computed again from others."""

from __future__ import annotations

import math
import statistics
import time

import pytest

import posterity
from posterity.experiment.run import RunState
from posterity.experiment.setup import set_up
from posterity.runs import files
from posterity.runs import folder as run_folder
from posterity.runs.lines import rounds_of, scores_of
from posterity.settings.config import Config

SMALL = {"dataset": "digits", "clients": 7, "newcomers": "2", "rounds": 3, "evaluate_every": 2, "subset": "20%",
         "lr": 0.1, "partition": "quantity:0.7:8"}  # fmt: skip


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return posterity.run(method="fedper", out=tmp_path_factory.mktemp("run") / "one", **SMALL)


def scores(result):
    return scores_of(result.lines)


@pytest.mark.parametrize("metric", ["accuracy", "nll"])
@pytest.mark.parametrize("group", ["members", "newcomers"])
def test_a_mean_by_training_size(result, group, metric):
    federation = result.federation
    sizes = federation.train.counts.tolist()
    mine = sizes[: federation.members] if group == "members" else sizes[federation.members :]
    assert len(set(mine)) > 1
    checked = 0
    for line in (x for x in scores(result) if x.group == group):
        values = line.clients[metric]
        known = [(n, v) for n, v in zip(mine, values, strict=True) if not math.isnan(v)]
        expected = sum(n * v for n, v in known) / sum(n for n, _ in known)
        assert line.metrics[metric]["train_weighted"] == pytest.approx(expected, rel=1e-12)
        plain = sum(v for _, v in known) / len(known)
        assert line.metrics[metric]["mean"] == pytest.approx(plain, rel=1e-12)
        checked += abs(plain - expected) > 1e-3
    assert checked  # so this test can fail


def test_parts_have_the_rows_that_the_federation_has(result):
    federation = result.federation
    counts = {"validation": federation.validation.counts, "test": federation.test.counts}
    counts["held"] = counts["validation"] + counts["test"]
    for line in scores(result):
        every = counts[line.part].tolist()
        members = federation.members
        mine = every[:members] if line.group == "members" else every[members:]
        assert line.clients["n"] == mine


def test_bins_hold_every_row_once(result):
    for line in scores(result):
        total, correct = (sum(one[i] for one in line.bins) for i in (0, 2))
        assert total == sum(line.clients["n"])
        assert correct / total == pytest.approx(line.metrics["accuracy"]["pooled"])


def test_the_last_round_is_evaluated_too(result):
    assert sorted({line.round for line in scores(result)}) == [2, 3]


def test_seconds_add_up(result):
    told = sum(line.seconds for line in rounds_of(result.lines))
    assert files.read_json(result.folder / run_folder.RUN)["seconds"] == pytest.approx(told)


def test_seeds_at_once_share_the_time():
    begun = time.perf_counter()
    found = posterity.run_seeds([0, 1], method="fedavg", **SMALL)
    wall = time.perf_counter() - begun
    spent = [sum(line.seconds for line in rounds_of(each.lines)) for each in found]
    assert spent[0] == pytest.approx(spent[1])
    assert sum(spent) <= wall


@pytest.mark.parametrize("method", ["local", "fedavg", "fedavg+ft"])
def test_a_model_predicts_as_it_was_scored_last(method):
    """Scored after training, as received, and adapted: no model is moved once more before it predicts."""
    found = posterity.run(method=method, **SMALL)
    federation, losses = found.federation, []
    for client in range(federation.members):
        rows = federation.test.client(client)
        if len(rows):
            outputs = found.predict_proba(client, federation.x[rows], show="last")
            losses += (-outputs.log()[range(len(rows)), federation.y[rows]]).tolist()
    assert found.metric("nll", show="last") == pytest.approx(statistics.fmean(losses), rel=1e-5)


def test_a_negative_number_is_no_client(result):
    with pytest.raises(ValueError, match="no client -1"):
        result.predict_proba(-1, result.federation.x[:1])


def test_every_round_has_a_cohort_of_its_own():
    config = Config(method="fedavg", participation="2", **SMALL)
    run_state = RunState(config, set_up(config), None)
    cohorts = [tuple(run_state.cohort(round).tolist()) for round in range(1, 9)]
    assert len(set(cohorts)) > 3
    assert all(len(cohort) == 2 for cohort in cohorts)


def test_the_round_of_a_regression_is_that_of_the_lowest_error():
    found = posterity.run(method="fedavg", dataset="polynomial", model="cubic", rounds=6, evaluate_every=1, lr=1e-5,
                          split="60/40")  # fmt: skip
    entries = found.history("mse")
    errors = {e["round"]: e["validation"] for e in entries}
    assert found.chosen_round("validated") == min(errors, key=errors.get)
    assert min(errors.values()) < max(errors.values())
    held = {e["round"]: e["held"] for e in entries}
    assert found.metric("mse", show="paper") == min(held.values())
