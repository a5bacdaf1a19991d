"""The models that are delivered are those whose scores are reported, whichever round a rule chose."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from kinds import needs

import posterity
from posterity import methods
from posterity.experiment import models as chosen
from posterity.experiment import models as delivery
from posterity.experiment import models as kept_round
from posterity.experiment import run, scoring
from posterity.runs import files
from posterity.runs import folder as run_folder
from posterity.settings.config import Config

SMALL = {"dataset": "digits", "clients": 4, "newcomers": "1", "subset": "12%", "participation": "2", "rounds": 4,
         "evaluate_every": 1, "lr": 0.3, "dtype": "float64", "engine": "stacked",
         "set": {"model.hidden": "6"}}  # fmt: skip
KINDS = ["fedmap", "fedper+calibrated", "gpfl"]  # trained; fitted on validation; with layers of its own
SUFFIXES = sorted(methods.suffixes().keys() - {"dp"})  # which refuses so few clients
EVERY = [*sorted(methods.available()), *(f"fedavg+{name}" for name in SUFFIXES), "reptile+metavd",
         "fedmap+calibrated"]  # fmt: skip
ROSTER = [pytest.param(m, marks=() if m in KINDS else pytest.mark.everything) for m in sorted({*EVERY, *KINDS})]


def assert_as_scored(result, show: str, federation) -> None:
    """Accuracy and NLL of every member's predictions for its test rows are the reported ones of the chosen round."""
    told, seen = result.clients(show), 0
    for client in range(federation.members):
        rows = federation.test.client(client)
        if len(rows):
            found = result.predict_proba(client, federation.x[rows], show=show)
            right = found[range(len(rows)), federation.y[rows]]
            assert (found.argmax(1) == federation.y[rows]).double().mean().item() == told["accuracy"][client]
            assert -right.log().mean().item() == pytest.approx(told["nll"][client], rel=1e-9)
            seen += 1
    assert seen > 1


@pytest.fixture
def second_is_best(monkeypatch):
    """Have every run's second round chosen on validation, which none of these short runs would choose by itself."""
    lines = scoring.score_lines

    def better(sim, round, *rest):
        for line in lines(sim, round, *rest):
            best = {**line.metrics, "accuracy": {**line.metrics["accuracy"], "pooled": 2.0}}
            yield replace(line, metrics=best) if line.part == "validation" and round == 2 else line

    monkeypatch.setattr(scoring, "score_lines", better)


@pytest.mark.parametrize("method", ROSTER)
def test_what_is_reported_is_delivered(method, tmp_path, second_is_best):
    first = posterity.run(out=tmp_path / "run", method=method, **SMALL, **needs(method))
    federation = first.federation
    assert (first.delivered().round, first.delivered().rule, first.delivered().note) == (2, "validated", "")
    assert first.delivered("last").round == 4
    for result in (first, posterity.load(tmp_path / "run")):  # from memory, and from the folder
        for show in ("validated", "last"):
            assert_as_scored(result, show, federation)
        late = [result.predict_proba(3, federation.x[:4], show=show) for show in ("validated", "last")]
        assert torch.isfinite(torch.stack(late)).all()
    assert not [p for p in (tmp_path / "run").glob("kept-*") if p.name[5:11] not in ("000002", "000004")]


def kept_files(out: Path) -> dict[str, dict[str, bytes]]:
    """Kept rounds and models of a folder, leaf by leaf."""
    found = {}
    for path in sorted([*out.glob("kept-*.safetensors"), *out.glob("models-*.safetensors")]):
        leaves, facts = run_folder.read_saved(path)
        found[path.name] = {str(facts): b"", **{name: leaf.numpy().tobytes() for name, leaf in leaves.items()}}
    return found


class Interrupted(Exception):
    pass


@pytest.mark.parametrize(
    ("method", "store"), [("fedmap", "disk"), pytest.param("fedper", "memory", marks=pytest.mark.everything)]
)
def test_a_kill_at_any_write_keeps_the_same_round(method, store, tmp_path, second_is_best, monkeypatch):
    """Before a kept file, between it and its checkpoint, before the models: the folder ends with the same bits."""
    monkeypatch.setattr(run, "WRITING", math.inf)  # a checkpoint after every round
    monkeypatch.setattr(kept_round, "PIECE", 4000)  # a record or two in each piece
    config = Config(method=method, store=store, **{**SMALL, "dtype": "float32"})
    run.start_run(config, tmp_path / "whole")
    write, out = files.write_atomic, tmp_path / "cut"
    for start, count in (("kept-", 1), ("checkpoint", 2), ("kept-", 2), ("models-", 1)):
        left = [count]

        def torn(path, data, start=start, left=left):
            if path.name.startswith(start):
                left[0] -= 1
                if not left[0]:
                    path.with_name(path.name + ".part").write_bytes(data[: len(data) // 2])
                    raise Interrupted
            write(path, data)

        with monkeypatch.context() as patch:
            patch.setattr(files, "write_atomic", torn)
            try:
                run.resume_run(out) if (out / run_folder.CONFIG).exists() else run.start_run(config, out)
            except Interrupted:
                pass
            else:
                assert (method, start) == ("fedper", "models-")  # there are none to write
    run.resume_run(out)
    assert kept_files(out) == kept_files(tmp_path / "whole")
    assert kept_files(out)


def test_a_rule_that_was_asked_for_is_kept(tmp_path):
    config = chosen.keeping(Config(method="fedper", **SMALL), "paper")
    assert config == Config(method="fedper", **SMALL)  # for a comparison it is the same run
    result = run.start_run(config, tmp_path / "run")
    assert result.delivered("paper").round == result.chosen_round("paper")
    assert not result.delivered("paper").note
    with pytest.raises(ValueError, match="no selection rule 'papre': did you mean 'paper'"):
        run.start_run(Config(method="fedper", keep="papre", **SMALL))


@pytest.mark.everything
def test_several_seeds_at_once_keep_their_rounds(tmp_path, second_is_best):
    for result in posterity.run_seeds([0, 1], out=tmp_path, method="fedmap", **SMALL):
        assert result.delivered().round == 2
        assert_as_scored(result, "validated", result.federation)


@pytest.mark.parametrize("method", ["fedper", pytest.param("fedmap", marks=pytest.mark.everything)])
def test_records_on_disk_are_saved_too(method, tmp_path, second_is_best, monkeypatch):
    monkeypatch.setattr(kept_round, "PIECE", 4000)
    config = Config(method=method, store="disk", **SMALL)
    first = run.start_run(config, tmp_path / "run")
    again = posterity.load(first.save(tmp_path / "saved"))
    x = first.federation.x[:3]
    for client in range(4):
        for show in ("validated", "last"):
            assert torch.equal(again.predict_proba(client, x, show=show), first.predict_proba(client, x, show=show))


def test_models_above_the_limit_are_not_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(delivery, "LIMIT", 100)
    posterity.run(out=tmp_path / "run", method="fedavg+ft", **SMALL)
    told = files.read_json(tmp_path / "run" / run_folder.RUN)["models"]
    assert told.startswith("not stored: ")
    assert not list((tmp_path / "run").glob("models-*"))


def test_a_run_whose_convolutions_are_patches_is_loaded_without_its_data(tmp_path):
    """Its samples are NaN then, and a trial with them would find any way of computing convolutions wrong."""
    few = {"dataset": "digits", "clients": 3, "subset": "10%", "rounds": 1, "engine": "stacked", "model": "metavd_cnn"}
    posterity.run("fedper", out=tmp_path / "run", convolution="patches", **few)
    result = posterity.load(tmp_path / "run")
    assert result.setup.sim.federation.absent
    assert result.setup.choice.model.conv_backend == "patches"
