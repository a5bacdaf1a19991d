"""What the server of a private method draws: from a secret of its own, and not from the seed that sites are given."""

from __future__ import annotations

import stat

import pytest
import torch

from posterity.core.random import make_key
from posterity.core.tree import tree_leaves
from posterity.flower.experiment import open_server, run_experiment
from posterity.flower.server import SECRET, Server, read_key
from posterity.methods import build
from posterity.methods.wrappers import dp

from .in_process import InProcess, assert_same_end, configuration, deploy, put_secret, simulate, sites
from .test_experiment_faults import Killed, killed_at

NOISY = {"dp.noise": "1"}


@pytest.fixture(autouse=True)
def few_clients(monkeypatch):
    """Three are enough here; what ε is does not matter."""
    monkeypatch.setattr(dp, "FEWEST", 3)
    monkeypatch.setattr(dp, "epsilon", lambda *args: 1.0)


def private(**changes):
    return configuration(
        changes.pop("method", "fedavg+dp"), **{"rounds": 2, "evaluate_every": 3, "set": NOISY, **changes}
    )


def run(config, folder, watch=lambda line: None, exchange=None):
    """A server that draws its own secret, as the app's does."""
    return run_experiment(config, exchange or InProcess(sites(config, folder)), folder / "server", 3, watch, wait=0)


def weights(state):
    return torch.cat([leaf.reshape(-1) for leaf in tree_leaves(state.params)])


def test_with_its_secret_a_run_is_that_of_the_simulator(tmp_path):
    config = private()
    assert_same_end(deploy(config, tmp_path), tmp_path, simulate(config))


def test_the_noise_does_not_follow_from_the_seed(tmp_path):
    """Whoever subtracts the noise of the public seed is as far from the truth as before."""
    config = private(rounds=1)
    clear = weights(simulate(private(rounds=1, set={"dp.noise": "0"}))[0])
    public = weights(simulate(config)[0]) - clear
    one, two = (weights(run(config, tmp_path / name).state) - clear for name in ("one", "two"))
    size = float(public.norm())
    for noise, other in ((one, public), (two, public), (one, two)):
        assert float(noise.norm()) == pytest.approx(size, rel=0.2)
        assert (noise - other).norm() > size  # independent: about the square root of 2


def test_cohorts_do_not_follow_from_the_seed(tmp_path):
    config = private(participation="p:0.5", set={**NOISY, "dp.cohort": "1.5"})
    (tmp_path / "server").mkdir()
    server = open_server(config, InProcess(sites(config, tmp_path)), tmp_path / "server", 3, lambda line: None, wait=0)
    drawn = [server.cohort(number) for number in range(1, 41)]
    server.key = make_key(config.seed)
    assert drawn != [server.cohort(number) for number in range(1, 41)]
    server.key = read_key(tmp_path / "server", server.agreement.method, config.seed, True)
    assert drawn == [server.cohort(number) for number in range(1, 41)]


def test_a_run_that_was_interrupted_goes_on_with_it_and_nobody_is_told(tmp_path, capsys):
    config, folder, asked = private(), tmp_path / "server", []

    class Listening(InProcess):
        def ask(self, questions):
            yield from super().ask(asked.append(each) or each for each in questions)

    with pytest.raises(Killed):
        run(config, tmp_path, killed_at(2, "round"), Listening(sites(config, tmp_path)))
    secret = (folder / SECRET).read_text().strip()
    assert stat.S_IMODE((folder / SECRET).stat().st_mode) == 0o600
    again = run(config, tmp_path, exchange=Listening(sites(config, tmp_path)))
    assert (folder / SECRET).read_text().strip() == secret
    assert_same_end(again, tmp_path, undisturbed(config, tmp_path / "one", int(secret, 16)))
    forms = [secret.encode(), str(int(secret, 16)).encode(), int(secret, 16).to_bytes(8, "little")]
    files = [path.read_bytes() for path in folder.iterdir() if path.name != SECRET]
    said = [data for _, data in asked] + [capsys.readouterr().out.encode(), repr(again).encode()]
    assert len(asked) > 6
    assert not any(form in text for form in forms for text in (*files, *said))


def undisturbed(config, folder, secret):
    """A run with this secret that nobody stopped, as `assert_same_end` wants it."""
    exchange = InProcess(sites(config, folder))
    put_secret(folder / "server", secret)
    server = run_experiment(config, exchange, folder / "server", 3, lambda line: None, wait=0)
    return server.state, *simulate(config)[1:]


def test_without_its_secret_a_run_does_not_go_on(tmp_path):
    config = private()
    with pytest.raises(Killed):
        run(config, tmp_path, killed_at(2, "round"))
    path = tmp_path / "server" / SECRET
    text = path.read_text()
    path.write_text("twelve\n")
    with pytest.raises(ValueError, match="is damaged: expected a number of 16 digits"):
        run(config, tmp_path)
    path.unlink()
    with pytest.raises(ValueError, match="is missing: with it the run's noise and its cohorts are drawn"):
        run(config, tmp_path)
    path.write_text(text)
    assert run(config, tmp_path).finished


def test_only_a_method_that_protects_has_a_secret(tmp_path):
    assert [build(spec).secret for spec in ("fedavg+dp", "fedavg+dp+ft", "fedavg+clip", "fedavg")] == [
        True, True, False, False,
    ]  # fmt: skip
    config = configuration("fedavg", rounds=1, evaluate_every=2)
    assert_same_end(run(config, tmp_path), tmp_path, simulate(config))
    assert not (tmp_path / "server" / SECRET).exists()


@pytest.mark.parametrize(("method", "tries"), [("fedavg", True), ("fedavg+dp", False)])
def test_no_state_is_tried_out_on_sites_that_is_not_taken(tmp_path, monkeypatch, method, tries):
    """A state that has grown is shown to the cohort first; one with noise would be a second sum with the same noise."""
    shown, real = [], Server.tried
    monkeypatch.setattr("posterity.engine.server.has_grown", lambda after, before: True)
    monkeypatch.setattr(Server, "tried", lambda self, *given: shown.append(1) or real(self, *given))
    run(private(method=method, set=NOISY if method == "fedavg+dp" else {}), tmp_path)
    assert bool(shown) is tries
