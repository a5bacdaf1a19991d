"""`@paper`: the values of a method's paper, which settings and flags override; and the label of such a run."""

import tomllib
from contextlib import nullcontext
from dataclasses import is_dataclass, replace

import pytest
from kinds import needs, of_each_kind

import posterity
from posterity import methods
from posterity.core.passes import Training
from posterity.experiment.compare import compare_runs
from posterity.report import load_runs
from posterity.runs.lines import rounds_of
from posterity.settings.config import Config, from_table, to_toml
from posterity.settings.hyperparameters import UNSTATED, knobs, paper_values, parse

EVERY = {**methods.available(), **methods.suffixes()}
ADAM = Training(lr=1e-3, epochs=50, batch=64, optimiser="adam")
DRIFT = Training(lr=0.1, epochs=5, batch=50, weight_decay=1e-3)
STATED = {  # the hyper-parameter tables and errata of the specifications, where they are not our defaults
    "pfedvmp": {"mode": "printed", "upload": "dense"},
    "fednp": {"moments": "closed", "local": Training(lr=0.01, epochs=10, batch=128)},
    "metavd": {"noise_param": "alpha", "beta": 10.0, "moves": "all"},
    "fedmap": {"weighting": "posterior", "local": ADAM},
    "fedbps": {"local": Training(lr=0.01, epochs=5, batch=128, momentum=0.9, weight_decay=5e-4)},
    "fedpa": {"burn_rounds": 400, "local": Training(lr=0.02, epochs=5, batch=20, momentum=0.9)},
    "fedbn": {"local": Training(lr=0.01, epochs=1, batch=32)},
    "reptile": {"server_clip": 100.0, "local": Training(lr=0.02, epochs=5, batch=64, clip=5.0)},
    "maml": {"part_clip": 5.0, "server_clip": 100.0, "local": Training(lr=0.1, epochs=5, batch=64, clip=5.0)},
    "perfedavg": {"local": Training(steps=10)},
    "fedrep": {"head_epochs": 10, "local": Training(lr=0.01, epochs=1, batch=10, momentum=0.5, weight_decay=1e-4)},
    "feddyn": {"alpha": 0.01, "balance": "samples", "local": replace(DRIFT, clip=10.0)},
    "feddc": {"alpha": 0.01, "balance": "samples", "local": DRIFT},
    "moon": {"mu": 5.0, "projection": True,
             "local": Training(lr=0.01, epochs=10, batch=64, momentum=0.9, weight_decay=1e-5)},
    "fedrod": {"local": Training(epochs=5, momentum=0.9)},
    "fedproto": {"weighting": "counts", "local": Training(momentum=0.5)},
    "gpfl": {"local": Training(lr=0.005)},
    "fedcp": {"local": Training(lr=0.005)},
    "fedpac": {"local": Training(lr=0.01, epochs=5, batch=50, momentum=0.5, weight_decay=5e-4)},
    "fedala": {"first_epochs": 11, "local": Training(lr=0.005)},
    "pfedme": {"prox_lr": 0.01, "local": Training(lr=0.005, steps=20, batch=20)},
    "pfedbred": {"prox_lr": 0.01, "local": Training(lr=0.01, steps=20, batch=20)},
    "pvi": {"local": Training(lr=1e-3, optimiser="adam")},
    "pfedbayes": {"zeta": 10.0, "solver": "gradient",
                  "local": Training(lr=1e-3, steps=20, batch=100, optimiser="adam")},
    "fedla": {"fallback": False, "local": Training(lr=0.01, epochs=40, batch=32, clip=10.0)},
    "qlsd": {"step": 1e-5, "prior": 200.0, "local": Training(lr=0.01, batch=64)},
    "fedep": {"clip": 100.0, "burn_rounds": 400, "local": Training(lr=0.01, epochs=10, batch=20, momentum=0.9)},
    "fedbe": {"temperature": 0.5, "server_steps": 1580, "server_batch": 128, "swa_start": 0.3165, "swa_every": 25,
              "local": Training(lr=0.01, epochs=20, momentum=0.9, weight_decay=1e-3)},
}  # fmt: skip
SAME = ("local", "fedavg", "fedprox", "fedper", "scaffold", "ft", "calibrated", "drop", "snip", "clip", "dp",
        "lgfedavg", "ditto", "apfl", "pfedgp")  # fmt: skip


def spec_of(name, suffix="@paper"):
    return f"{name}{suffix}" if name in methods.available() else f"fedavg+{name}{suffix}"


def test_nobody_is_forgotten():
    assert {*STATED, *SAME} == set(EVERY)


@pytest.mark.parametrize("name", STATED)
def test_the_values_of_the_paper(name):
    """The preset has exactly these values where it differs, and the default has none of them."""
    paper, default = methods.build(spec_of(name)), methods.build(spec_of(name, ""))
    different = {k.name: getattr(paper, k.name) for k in knobs(EVERY[name])
                 if getattr(paper, k.name) != getattr(default, k.name)}  # fmt: skip
    assert different == STATED[name] == paper_values(EVERY[name])


@pytest.mark.parametrize("name", SAME)
def test_a_method_whose_paper_says_nothing_else_is_its_default(name):
    assert methods.build(spec_of(name)) == methods.build(spec_of(name, ""))


@pytest.mark.parametrize("name", EVERY)
def test_what_a_paper_states_is_of_the_field(name):
    for knob in knobs(EVERY[name]):
        if knob.paper is UNSTATED:
            continue
        if is_dataclass(knob.paper):
            assert type(knob.paper) is type(knob.default)
        else:
            found = parse(knob.paper, knob)
            assert (found, type(found)) == (knob.paper, type(knob.paper))


def test_settings_and_flags_override_the_paper():
    method = methods.build("fednp@paper", {"moments": "quadrature", "local.batch": "7"}, {"lr": 0.5})
    assert method.moments == "quadrature"
    assert method.local == Training(lr=0.5, epochs=10, batch=7)
    assert methods.build("perfedavg@paper", {"local.lr": 0.3}).local == Training(lr=0.3, steps=10)
    assert methods.build("perfedavg@paper", {}, {"epochs": 2}).local == Training(epochs=2)  # instead of ten steps
    assert methods.build("perfedavg@paper", {"local.steps": 4}, {"epochs": 2}).local.schedule()["max_steps"] == 4


def test_each_part_of_a_spec_has_its_own_preset():
    inner, outer, both = (methods.build(s) for s in ("reptile@paper+metavd", "reptile+metavd@paper",
                                                     "reptile@paper+metavd@paper"))  # fmt: skip
    assert (inner.noise_param, inner.method.server_clip) == ("log_variance", 100.0)
    assert (outer.noise_param, outer.method.server_clip) == ("alpha", None)
    assert (both.noise_param, both.method.server_clip) == ("alpha", 100.0)
    mixed = methods.build("fedavg+metavd@paper+ft", {"metavd.beta": 3, "epochs": 2})
    assert (mixed.epochs, mixed.method.beta, mixed.method.noise_param) == (2, 3.0, "alpha")
    assert methods.build("posterity.methods.pfedvmp:PFedVMP@paper").mode == "printed"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("pfedvmp@papr", "pfedvmp has no preset 'papr': did you mean 'paper'. possible: paper; our defaults need none"),
        ("pfedvmp@", "pfedvmp has no preset ''"),
        ("fedavg+metavd@Paper@paper", "metavd has no preset 'Paper@paper'"),
        ("pfedvmpp@paper", "no method 'pfedvmpp': did you mean 'pfedvmp'"),
        ("ft+fedavg", r"'ft' is a wrapper, which stands behind a method: fedavg\+ft"),
        ("fedavg@paper+fft", r"no wrapper \+fft: did you mean 'ft'"),
    ],
)
def test_bad_hyper_parameters(spec, message):
    with pytest.raises(ValueError, match=message):
        methods.build(spec)


@pytest.mark.parametrize(
    ("spec", "label"),
    [
        ("pfedvmp", "pFedVMP"),
        ("pfedvmp@paper", "pFedVMP (paper)"),
        ("fedavg@paper+ft", "FedAvg-FT (fedavg: paper)"),
        ("reptile+metavd@paper", "Reptile+MetaVD (metavd: paper)"),
        ("reptile@paper+metavd@paper", "Reptile+MetaVD (paper)"),
        ("posterity.methods.pfedvmp:PFedVMP@paper", "pFedVMP (paper)"),
    ],
)
def test_labels(spec, label):
    assert methods.title(spec, methods.build(spec)) == label


@pytest.mark.parametrize("spec", ["pfedvmp@paper", "fedavg@paper+ft", "fedavg+metavd@paper"])
def test_a_spec_survives_toml(spec):
    config = Config(method=spec, set={"local.lr": 0.1})
    assert from_table(tomllib.loads(to_toml(config))) == config


@pytest.mark.parametrize("name", of_each_kind(STATED))
def test_two_rounds(name):
    """On a tenth of the digits; with the paper's own training."""
    result = posterity.run(method=spec_of(name), dataset="digits", subset="10%", clients=3, partition="iid", rounds=2,
                           **needs(name), **({"set": {"server_steps": "9"}} if name == "fedbe" else {}))  # fmt: skip
    rounds = rounds_of(result.lines)
    assert [line.accepted for line in rounds] == [3, 3]
    assert 0.0 <= result.metric("accuracy") <= 1.0


def test_a_comparison_tells_presets_apart(tmp_path):
    """Folders that any file system takes, one row each in a report; a finished comparison is found again."""
    config = Config(dataset="digits", subset="10%", clients=3, partition="iid", rounds=1, set={"xi": 2.0})
    names = ["pfedvmp", "pfedvmp@paper", "fedavg@paper+ft"]
    for _ in range(2):
        compare_runs(config, names, [0], tmp_path, lambda title, rounds: nullcontext(lambda *_: None))
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == ["fedavg-paper+ft", "pfedvmp", "pfedvmp-paper"]
    runs = {run.label: run for run in load_runs(tmp_path)}
    assert set(runs) == {"pFedVMP", "pFedVMP (paper)", "FedAvg-FT (fedavg: paper)"}
    assert runs["pFedVMP (paper)"].fields["mode"] == "printed"
    assert runs["pFedVMP (paper)"].fields["xi"] == 2.0
