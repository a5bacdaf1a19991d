"""Which settings reach what: seeds, evaluation, resumed runs, and the methods of a comparison."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from posterity.engine.process_settings import with_threads
from posterity.experiment import compare, run
from posterity.experiment.compare import compare_runs, resume_all
from posterity.experiment.setup import load_federation, set_up
from posterity.runs import files
from posterity.runs import folder as run_folder
from posterity.settings.config import Config, from_table

BASE = Config(method="fedavg", dataset="digits", clients=5, rounds=2, subset="20%", set={"model.hidden": "8"})


@pytest.mark.parametrize(
    ("rounds", "asked", "every"), [(1, None, 1), (19, None, 1), (40, None, 2), (100, None, 5), (100, 30, 30)]
)
def test_a_twentieth_of_the_rounds_between_evaluations(rounds, asked, every):
    assert Config(rounds=rounds, evaluate_every=asked).every == every


def test_settings_of_method_model_and_data_are_told_apart():
    config = from_table({"set": {"xi": 3, "local": {"momentum": 0.5}, "model": {"hidden": 4}, "data": {"skew": "x"}}})
    assert config.settings() == {"xi": 3, "local.momentum": 0.5}
    assert config.settings("model") == {"hidden": 4}
    assert config.settings("data") == {"skew": "x"}


def counts(**changes):
    return load_federation(replace(BASE, **changes)).train.counts.tolist()


def test_a_data_seed_of_zero_is_a_seed():
    assert counts(seed=3, data_seed=0) == counts(seed=0)
    assert counts(seed=3) != counts(seed=0)


def test_the_seed_moves_the_first_leaves():
    one, other = (set_up(replace(BASE, seed=seed, data_seed=0)).sim.initial for seed in (0, 1))
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_a_resumed_run_has_the_engine_and_the_threads_that_it_began_with(tmp_path):
    run.start_run(BASE, tmp_path / "run")
    path = tmp_path / "run" / run_folder.RUN
    facts = files.read_json(path)
    assert facts["engine"] == "graph"
    files.write_json(path, {**facts, "engine": "stacked", "threads": 1, "memory": 2**20})
    with with_threads(2):
        again = run.resume_run(tmp_path / "run")
        assert torch.get_num_threads() == 2  # the process is left as it was found
    assert again.setup.settings.threads == 1
    assert again.setup.engine.name == "stacked"
    assert again.setup.sim.memory == 2**20


@pytest.fixture
def planned(monkeypatch):
    """What comparisons would run."""
    tasks = []
    monkeypatch.setattr(compare, "execute", lambda some, *_: tasks.extend(some))
    return tasks


def quiet(title, rounds):
    return nullcontext(run.silent)


def test_the_first_seed_of_all_methods_comes_before_the_second(planned, tmp_path):
    compare_runs(BASE, ["fedavg", "local"], [4, 1], tmp_path, quiet)
    assert [task.title for task in planned] == ["fedavg seed 4", "local seed 4", "fedavg seed 1", "local seed 1"]


def test_a_setting_reaches_the_methods_that_have_it(planned, tmp_path):
    config = replace(BASE, set={"xi": 2.0, "model.hidden": "8", "local.momentum": 0.5})
    compare_runs(config, ["fedavg", "pfedvmp"], [0], tmp_path, quiet)
    found = {task.config.method: dict(task.config.set) for task in planned}
    assert found["fedavg"] == {"model.hidden": "8", "local.momentum": 0.5}
    assert found["pfedvmp"] == {"xi": 2.0, "model.hidden": "8", "local.momentum": 0.5}
    with pytest.raises(ValueError, match="has no setting 'xii'"):
        compare_runs(replace(BASE, set={"xii": 2.0}), ["fedavg", "pfedvmp"], [0], tmp_path, quiet)


@pytest.mark.parametrize(
    ("names", "setting", "message"),
    [
        (["feddyn", "apfl"], {"alpha": 2.0}, "apfl: alpha must be at least 0 and at most 1; 2.0 was given"),
        (["pfedbred", "qlsd"], {"prior": "mh"}, "qlsd: prior takes a number; 'mh' was given"),
    ],
)
def test_a_value_that_one_method_cannot_have_is_refused(planned, tmp_path, names, setting, message):
    with pytest.raises(ValueError, match=message + r".*in brackets behind it, as in fedprox\[mu=0.1\]"):
        compare_runs(replace(BASE, set=setting), names, [0], tmp_path, quiet)
    one, other = names
    ((key, value),) = setting.items()
    compare_runs(BASE, [f"{one}[{key}={value}]", other], [0], tmp_path, quiet)
    found = [dict(task.config.set) for task in planned]
    assert found == [{"model.hidden": "8", key: str(value)}, {"model.hidden": "8"}]


def test_a_setting_counts_together_with_the_others(planned, tmp_path):
    config = replace(BASE, set={"variate": "I", "local.momentum": "0.5"})  # option II has no momentum
    compare_runs(config, ["scaffold", "fedavg"], [0], tmp_path, quiet)
    assert [dict(task.config.set) for task in planned] == [dict(config.set), {"local.momentum": "0.5"}]


def test_what_is_finished_is_left_and_what_is_not_goes_on(planned, tmp_path):
    run.start_run(BASE, tmp_path / "fedavg" / "seed-0")
    compare_runs(BASE, ["fedavg"], [0, 1], tmp_path, quiet)
    assert [task.title for task in planned] == ["fedavg seed 1"]
    path = tmp_path / "fedavg" / "seed-0" / run_folder.RUN
    files.write_json(path, {**files.read_json(path), "status": "running"})
    planned.clear()
    resume_all(tmp_path, quiet)  # the plan was written down
    assert [task.title for task in planned] == ["fedavg seed 0", "fedavg seed 1"]
    with pytest.raises(ValueError, match=r"other settings \(lr: there not set, now 0.5\): give another --out"):
        compare_runs(replace(BASE, lr=0.5), ["fedavg"], [0], tmp_path, quiet)


def test_runs_that_have_not_begun_get_the_threads_of_their_comparison(tmp_path, monkeypatch):
    """However many are left: of a network with convolutions the engine depends on them, and so do the bits."""
    asked = []
    monkeypatch.setattr(compare.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(compare, "execute", lambda tasks, watching, *how: asked.append((len(tasks), *how)))
    with with_threads(2):
        compare_runs(BASE, ["fedavg", "local"], [0], tmp_path, quiet, 2)
        run.start_run(replace(BASE, method="local"), tmp_path / "local" / "seed-0")
        compare_runs(BASE, ["fedavg", "local"], [0], tmp_path, quiet, 2)
        resume_all(tmp_path, quiet)
    assert asked == [(2, 2, 1), (1, 2, 1), (1, 2, 1)]  # tasks, runs at once, threads of each


def test_what_is_run_one_after_the_other_has_its_threads(monkeypatch):
    seen = []

    class Counted:
        title, config = "fedavg seed 0", BASE

        def do(self, watch):
            seen.append(torch.get_num_threads())

    with with_threads(2):
        compare.execute([Counted()], quiet, 2, 1)
        assert torch.get_num_threads() == 2
    assert seen == [1]
