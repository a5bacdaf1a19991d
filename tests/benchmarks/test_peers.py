"""The comparison with other simulators: its own two runners do the same work, and what goes wrong is told.

The peers themselves need environments of their own and are not run here.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch

from posterity import models

FOLDER = Path(__file__).parents[2] / "benchmarks"
TINY = {"clients": 3, "images": 10, "rounds": 2}


@pytest.fixture
def script(monkeypatch):
    """A script by its name, with its folder in front of the path, as Python does for a script."""
    for folder in (FOLDER / "peers", FOLDER):
        monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", torch.backends.mkldnn.enabled)  # a set-up may switch it
    yield importlib.import_module
    for name in ("peers", "workload", "on_plain", "on_posterity", "on_recorded"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("network", ["mlp", "cnn"])
def test_one_batch_a_client_gives_everybody_the_same(script, network):
    """With a single batch the order of samples cannot matter: plain and posterity end with the same loss."""
    common = script("workload")
    work = common.Workload(network=network, **TINY)
    found = {}
    for name in ("plain", "posterity"):
        outcome = script(f"on_{name}").simulate(work)
        found[name] = common.make_report(name, work, outcome, outcome.begun - 1, ())
    plain, own = found["plain"], found["posterity"]
    assert own.last_loss == pytest.approx(plain.last_loss, abs=1e-5)
    assert plain.last_loss < plain.first_loss - 0.01
    assert plain.first_loss == own.first_loss
    model = models.build(network, (1, 28, 28), 10)
    assert plain.parameters == own.parameters == sum(p.numel() for p in model.init(0).values())
    assert [len(report.rounds) for report in found.values()] == [2, 2]
    assert plain.startup == pytest.approx(1)


def test_several_batches(script):
    """Other orders, nearly the same loss; recorded operators give the bits of those that are not recorded."""
    common = script("workload")
    work = common.Workload(clients=3, images=25, rounds=2)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(work.seed)  # as the script does: whatever ran before must not decide
        plain, own, recorded = (
            common.mean_loss(script(f"on_{name}").simulate(work).module, work)
            for name in ("plain", "posterity", "recorded")
        )
    assert own == pytest.approx(plain, abs=0.02)
    assert recorded == own
    assert own != plain


def test_a_runner_that_does_not_train_fails(script, monkeypatch):
    common = script("workload")
    monkeypatch.setattr(sys, "argv", ["on_lazy.py", json.dumps(TINY)])
    for name in ("set_num_threads", "manual_seed"):  # of a process of its own
        monkeypatch.setattr(f"torch.{name}", lambda number: None)
    with pytest.raises(SystemExit, match="lazy did not train"):
        common.main("lazy", lambda work: common.Outcome(0.0, [1.0], common.make_network(work)))


@pytest.mark.everything
def test_a_process_reports(script):
    peers = script("peers")
    run = peers.run_script("plain", {"network": "mlp", **TINY})
    assert run.trouble == ""
    (report,) = run.reports
    assert run.seconds == report["rounds"][1] > 0
    assert report["startup"] > 0
    assert report["versions"]["torch"]


def test_what_goes_wrong_is_told(script, tmp_path, monkeypatch):
    peers = script("peers")
    monkeypatch.setattr(peers, "ENVIRONMENTS", tmp_path)
    missing = peers.run_script("pfl", {"network": "mlp", **TINY})
    assert missing.trouble == "no environment: python benchmarks/peers.py --setup --only pfl"
    failed = peers.read_run("fluke", "mlp", 1, '{"name": "fluke"}', "Traceback\nValueError: no such thing\n\n")
    assert failed.reports == ()
    assert failed.trouble == "failed: ValueError: no such thing"
    table = peers.format_table([missing, failed])
    assert "--setup --only pfl" in table
    assert "no such thing" in table


def test_factors_and_the_same_work(script):
    peers = script("peers")
    report = {"rounds": [9.0, 1.0, 3.0, 2.0], "startup": 5.0, "last_loss": 1.25, "first_loss": 2.3, "parameters": 7}
    own = peers.Run("posterity", "mlp", (report,))
    plain = [peers.Run("plain", "mlp", ({**report, "rounds": seconds},)) for seconds in ([9.0, 4.0], [7.0, 6.0])]
    slow = peers.join_repeats(plain)
    assert own.seconds == 2.0
    last = peers.format_table([own, slow]).splitlines()[-1]
    assert last == "| plain | 5.0000 | 2.50× | 4.0000 | 8.00 | 5.00 | 18.00 | 1.2500 |"
    peers.check_same_work([own, slow])
    with pytest.raises(ValueError, match="parameters"):
        peers.check_same_work([own, peers.Run("plain", "mlp", ({**report, "parameters": 8},))])
    failed = peers.join_repeats([own, peers.Run("posterity", "mlp", (), "failed: once")])
    assert (failed.reports, failed.trouble) == ((), "failed: once")
