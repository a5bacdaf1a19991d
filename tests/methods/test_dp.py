"""+dp: the parent with equal weights where nothing is shortened and nothing added; what is refused and what is told."""

import math
import sys
from dataclasses import dataclass

import pytest
import torch
from oracles.sims import Run, each_engine, leaves, mlp, points, worst

from posterity.core import Message, Plan, Training
from posterity.experiment.run import start_run
from posterity.methods import build
from posterity.methods.fedavg import FedAvg
from posterity.methods.fedmap import FedMAP
from posterity.methods.fedper import FedPer
from posterity.methods.local import Local
from posterity.methods.perfedavg import PerFedAvg
from posterity.methods.scaffold import SCAFFOLD
from posterity.methods.wrappers import dp as accountant
from posterity.methods.wrappers.dp import Private
from posterity.settings.config import Config

TRAINING = Training(lr=0.1, batch=4)
EQUAL = (9, 9, 9)
PLAN = Plan(clients=30, rounds=10, cohort=30)
SMALL = {"dataset": "digits", "method": "fedavg+dp", "rounds": 1, "subset": "30%", "evaluate_every": 1,
         "engine": "stacked"}  # fmt: skip


@each_engine
@pytest.mark.parametrize("host", [FedAvg(TRAINING), SCAFFOLD(TRAINING), FedPer(TRAINING), PerFedAvg(TRAINING)],
                         ids=lambda h: h.label)  # fmt: skip
def test_no_noise_and_no_bound_is_the_parent_with_equal_weights(engine, host):
    federation = points(EQUAL)
    free = Private(host, math.inf, noise=0.0)
    plain, run = (Run(m, federation, mlp(federation), engine).rounds(2) for m in (host, free))
    assert worst(plain.state, run.state.host) < 1e-12
    assert not leaves(plain.store.rows) or worst(plain.store.rows, run.store.rows) < 1e-12


def test_samples_do_not_count():
    """Of clients of 1 and 20 samples the mean is the middle."""
    federation = points((1, 20))
    free = Private(FedAvg(TRAINING), math.inf, noise=0.0)
    both = Run(free, federation, mlp(federation)).rounds(1).state.params
    ends = [Run(FedAvg(TRAINING), federation, mlp(federation)).rounds(1, [k]).state.params for k in (0, 1)]
    middle = {n: (ends[0][n] + ends[1][n]) / 2 for n in both}
    assert worst(both, middle) < 1e-12


def test_personal_records_have_no_noise():
    federation = points(EQUAL)
    host = FedPer(TRAINING)
    plain, run = (Run(m, federation, mlp(federation)).rounds(1) for m in (host, Private(host, 0.1)))
    assert worst(plain.store.rows, run.store.rows) < 1e-12
    assert run.logs[0].bytes_up == plain.logs[0].bytes_up


@dataclass(frozen=True)
class Telling(FedAvg):
    """A test's method, which reports the sum of the round."""

    def report(self, state, total):
        return {"sum": total["params"].weight}


def test_what_has_no_noise_is_not_reported():
    federation = points(EQUAL)
    plain, run = (
        Run(m, federation, mlp(federation)).rounds(1) for m in (Telling(TRAINING), Private(Telling(TRAINING)))
    )
    assert set(plain.logs[0].report) == {"sum"}
    assert run.logs[0].report == {}


def test_what_has_no_length_is_not_sent_as_it_is():
    """In units of a bound that float64 hardly holds, every length is infinite: better no message than a long one."""
    federation = points(EQUAL)
    run = Run(Private(FedAvg(TRAINING), 5e-324, noise=0.0), federation, mlp(federation)).rounds(1)
    assert run.logs[0].accepted == 0


def test_clip_stands_before_it():
    """Behind it, +clip would measure differences from the broadcast and send what is as long as the broadcast."""
    assert isinstance(build("fedavg+clip+dp"), Private)
    for spec in ("fedavg+dp+clip", "fedavg+dp+ft+clip"):
        with pytest.raises(ValueError, match=r"\+clip behind \+dp"):
            build(spec)


def test_a_method_that_sends_nothing():
    federation = points(EQUAL)
    assert Run(Private(Local(TRAINING)), federation, mlp(federation)).rounds(1).logs[0].bytes_up == 0


def test_other_kinds_are_refused_by_name():
    federation = points(EQUAL)
    with pytest.raises(ValueError, match=r"\+dp bounds .* 'params' as a LogMean"):
        Run(Private(FedMAP(TRAINING)), federation, mlp(federation)).rounds(1)


def test_nobody_is_an_error_and_no_noise():
    federation = points(EQUAL)
    run = Run(Private(FedAvg(TRAINING)), federation, mlp(federation))
    from posterity.core.protocol import Now

    empty: Message = {}
    with pytest.raises(ValueError, match="the sum of nothing"):
        run.sim.method.combine(run.state, empty, Now(1, 1, run.sim.root, 0))


def test_few_clients_are_refused_before_anything_else():
    with pytest.raises(ValueError, match="at least 20 clients; this run has 19"):
        Private(FedAvg()).announce(Plan(19, 10, 19))
    with pytest.raises(ValueError, match="at least 20 clients; this run has 10"):
        start_run(Config(**SMALL, clients=10))


def test_a_number_to_divide_by_that_is_not_the_cohort_is_refused():
    with pytest.raises(ValueError, match=r"30, but 6 take part .* --set dp.cohort=6"):
        Private(FedAvg()).announce(Plan(30, 10, 6))
    with pytest.raises(ValueError, match=r"5.0, but 9 take part"):
        Private(FedAvg(), cohort=5.0).announce(Plan(30, 10, 9, 0.3))


def test_without_the_library_a_run_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    accountant.epsilon.cache_clear()
    with pytest.raises(ValueError, match=r"pip install 'posterity\[dp\]'"):
        Private(FedAvg()).announce(PLAN)


def test_without_noise_nothing_is_promised():
    (told,) = Private(FedAvg(), noise=0.0).announce(PLAN)
    assert "nothing is private" in told


def test_what_is_told(monkeypatch):
    """ε with clients, rounds, and how the cohort is drawn; a fixed number gets no credit."""
    asked = []
    monkeypatch.setattr("posterity.methods.wrappers.dp.epsilon", lambda *args: asked.append(args) or 2.5)
    (told,) = Private(FedAvg(), noise=1.5).announce(PLAN)
    assert "ε = 2.5, δ = 0.024" in told  # 30^-1.1
    assert "10 rounds with 30 of 30 clients, counted as if all took part" in told
    (told,) = Private(FedAvg(), cohort=6.0, delta=1e-3).announce(Plan(30, 10, 6.0))
    assert "with 6 of 30 clients, counted as if all took part" in told
    (told,) = Private(FedAvg(), cohort=9.0).announce(Plan(30, 10, 9.0, 0.3))
    assert "with 9 of 30 clients, drawn in secret" in told
    assert asked == [(1.5, 30**-1.1, 10, None, 30), (1.0, 1e-3, 10, None, 30), (1.0, 30**-1.1, 10, 0.3, 30)]


def test_a_run_tells_it(tmp_path):
    pytest.importorskip("dp_accounting", reason="ε needs the extra dp (pip install 'posterity[dp]')")
    from posterity.runs.files import read_json

    start_run(Config(**SMALL, clients=20), tmp_path / "run")
    (told,) = [note for note in read_json(tmp_path / "run" / "run.json")["notes"] if note.startswith("+dp")]
    assert "after 1 rounds with 20 of 20 clients" in told


def test_bad_hyper_parameters():
    with pytest.raises(ValueError, match="has no end"):
        Private(FedAvg(), math.inf)
    with pytest.raises(ValueError, match="has no end"):
        Private(FedAvg(), sum_bound=math.inf)
    for endless in (math.inf, math.nan):
        with pytest.raises(ValueError, match="noise must be a finite number"):
            Private(FedAvg(), noise=endless)
    bad = [("bound", 0.0), ("sum_bound", 0.0), ("noise", -1.0), ("delta", 0.0), ("delta", 1.0), ("cohort", 0.5)]
    for name, value in bad:
        with pytest.raises(ValueError, match=f"{name} must be "):
            Private(FedAvg(), **{name: value})
    assert build("fedavg+dp", {"dp.noise": "0.5"}).noise == 0.5


def test_a_bound_that_nobody_meets_and_batch_norm():
    """Running statistics are leaves like any other."""
    from posterity import models

    federation = points(EQUAL)
    model = models.build("mlp_bn", federation.shape, federation.classes, hidden=(8,))
    run = Run(Private(FedAvg(TRAINING), 5.0, noise=0.0), federation, model).rounds(2)
    assert all(torch.isfinite(leaf).all() for leaf in run.state.params.values())


def test_noise_makes_no_variance_negative():
    """A network with the root of a negative variance predicts nothing but NaN."""
    from posterity import models

    federation = points(EQUAL)
    model = models.build("mlp_bn", federation.shape, federation.classes, hidden=(8,))
    params = Run(Private(FedAvg(TRAINING), noise=30.0), federation, model).rounds(1).state.params
    variances = torch.cat([leaf for name, leaf in params.items() if name.endswith("running_var")])
    assert bool((variances > 0).all())
    assert 0 < int((variances == 1).sum()) < len(variances)  # some stayed, others have their noise
    assert any(bool((leaf < 0).any()) for name, leaf in params.items() if name.endswith("running_mean"))


def test_orders_that_the_library_leaves_out_are_no_news_to_a_user(caplog, capfd):
    pytest.importorskip("dp_accounting", reason="ε needs the extra dp (pip install 'posterity[dp]')")
    accountant.epsilon.cache_clear()
    assert 0 < accountant.epsilon(2.0, 0.01, 3, 0.2, 20) < 1
    assert "converge" not in caplog.text + capfd.readouterr().err
