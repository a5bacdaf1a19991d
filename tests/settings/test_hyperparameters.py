"""Hyper-parameters: parsing flags and TOML values, errors that say what was expected; how clients train."""

import typing
from dataclasses import dataclass, replace

import pytest

from posterity import methods
from posterity.core.optim import SGD, Adam, RMSprop
from posterity.core.passes import Training
from posterity.settings.hyperparameters import (
    UNSTATED,
    Knob,
    check_fields,
    describe,
    hyper,
    knobs,
    nearest,
    paper_values,
    parse,
)


@dataclass(frozen=True)
class Some:
    rate: float = hyper(0.1, "a rate", "a paper")
    count: int = hyper(3, "a count")
    limit: int | None = hyper(None, "a limit")
    mode: str = hyper("fast", "a mode", choices=("fast", "slow"))
    flag: bool = hyper(False, "a switch")
    widths: tuple[int, ...] = hyper((1, 2), "widths")
    plain: int = 0  # not a hyper-parameter


KNOBS = {k.name: k for k in knobs(Some)}


def test_knobs_are_the_documented_fields():
    assert list(KNOBS) == ["rate", "count", "limit", "mode", "flag", "widths"]
    assert KNOBS["rate"] == Knob("rate", float, 0.1, "a rate", "a paper", ())


@dataclass(frozen=True)
class Printed:
    rate: float = hyper(0.1, "a rate", "ours", paper=0.5)
    limit: int | None = hyper(3, "a limit", "ours", paper=None)
    same: float = hyper(1.0, "what everybody uses", "ours", paper=1)
    silent: str = hyper("fast", "not in the paper", "ours")
    local: Training = hyper(Training(), "how clients train", paper=Training(batch=128))


def test_a_field_may_have_the_value_of_its_paper():
    """None is a value; a value that equals the default is no difference; not stated is neither."""
    found = {k.name: k for k in knobs(Printed)}
    assert found["rate"].paper == 0.5
    assert found["silent"].paper is UNSTATED
    assert {n for n, k in found.items() if k.differs} == {"rate", "limit", "local"}
    assert paper_values(Printed) == {"rate": 0.5, "limit": None, "local": Training(batch=128)}
    assert paper_values(Some) == {}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("rate", "1e-3", 1e-3),
        ("rate", 2, 2.0),
        ("count", "7", 7),
        ("count", 7.0, 7),
        ("limit", "none", None),
        ("limit", "5", 5),
        ("limit", None, None),
        ("mode", "slow", "slow"),
        ("flag", "yes", True),
        ("flag", "False", False),
        ("flag", True, True),
        ("widths", "32,16", (32, 16)),
        ("widths", [4], (4,)),
    ],
)
def test_values(name, text, value):
    found = parse(text, KNOBS[name])
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("rate", "fast", r"rate takes a number; 'fast' was given \(a rate\)"),
        ("count", "1.5", "count takes a whole number; '1.5'"),
        ("count", 1.5, "count takes a whole number; 1.5"),
        ("count", True, "count takes a whole number; True"),
        ("count", None, "count takes a whole number; None"),
        ("limit", "many", "limit takes a whole number or none; 'many'"),
        ("mode", "fsat", "mode = 'fsat' is unknown: did you mean 'fast'"),
        ("flag", "maybe", "flag takes true or false; 'maybe'"),
        ("widths", "3,x", "widths takes"),
    ],
)
def test_errors(name, text, message):
    with pytest.raises(ValueError, match=message):
        parse(text, KNOBS[name])


def test_an_infinite_count_is_an_error_in_words():
    with pytest.raises(ValueError, match="count takes a whole number"):
        parse(float("inf"), KNOBS["count"])


def test_words():
    assert describe(int | None) == "a whole number or none"
    assert nearest("slwo", ("fast", "slow")) == "did you mean 'slow'? possible: fast, slow"
    assert nearest("zzz", ("fast", "slow")) == "possible: fast, slow"


def test_check_fields():
    check_fields(Some())
    with pytest.raises(ValueError, match="mode = 'x' is unknown"):
        check_fields(Some(mode="x"))


@dataclass(frozen=True)
class Bounded:
    share: float | None = hyper(0.5, "a share", gt=0, le=1)


def test_bounds_stand_on_the_field():
    for share in (None, 1e-9, 1.0):
        check_fields(Bounded(share))
    for share in (0.0, 1.1):
        with pytest.raises(ValueError, match=rf"share must be above 0 and at most 1; {share} was given \(a share\)"):
            check_fields(Bounded(share))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lr": -0.1}, "lr must be at least 0; -0.1"),
        ({"epochs": 0}, "epochs must be at least 1; 0"),
        ({"batch": 0}, "batch must be at least 1; 0"),
        ({"steps": 0}, "steps must be at least 1; 0"),
        ({"optimiser": "adm"}, "did you mean 'adam'"),
        ({"epochs": 1.5}, "epochs takes a whole number; 1.5"),
        ({"clip": "long"}, "clip takes a number or none"),
    ],
)
def test_training_errors(given, message):
    with pytest.raises(ValueError, match=message):
        Training(**given)


BAD = [{"lr": float("nan")}, {"clip": -1.0}, {"momentum": -0.5}, {"weight_decay": -1.0}]


@pytest.mark.parametrize("given", BAD, ids=str)
def test_training_refuses_nonsense(given):
    with pytest.raises(ValueError):
        Training(**given)


def test_training_makes_optimisers_and_schedules():
    assert Training(lr=0.2, momentum=0.5, weight_decay=0.1, clip=3.0).make_optimiser() == SGD(0.2, 0.5, 0.1, 3.0)
    assert Training(lr=0.2, optimiser="adam").make_optimiser() == Adam(0.2)
    assert Training(lr=0.2, optimiser="rmsprop", clip=1.0).make_optimiser() == RMSprop(0.2, clip=1.0)
    assert Training(epochs=3, batch=7).schedule() == {"epochs": 3, "batch": 7}
    assert Training(epochs=3, steps=5, batch=7).schedule() == {"epochs": 5, "batch": 7, "max_steps": 5}


@pytest.mark.parametrize("given", ["inf", "-inf", "nan", float("inf"), float("nan")], ids=repr)
def test_a_number_is_finite_unless_its_field_says_otherwise(given):
    endless = replace(KNOBS["rate"], infinite=True)
    with pytest.raises(ValueError, match=r"rate must be a finite number; (-?inf|nan) was given \(a rate\)"):
        parse(given, KNOBS["rate"])
    if float(given) == float("inf"):
        assert parse(given, endless) == float("inf")
    else:
        with pytest.raises(ValueError, match="rate must be a finite number"):
            parse(given, endless)


LAYERS = {**methods.available(), **{f"fedavg+{name}": layer for name, layer in methods.suffixes().items()}}


@pytest.mark.parametrize("spec", sorted(LAYERS))
def test_no_method_takes_an_infinite_number_that_means_nothing_to_it(spec):
    """From the command line, where `inf` is a number like others to Python."""
    for knob in knobs(LAYERS[spec]):
        if knob.kind is not float and float not in typing.get_args(knob.kind):
            continue
        if knob.infinite:
            assert (spec, knob.name) in ENDLESS
        else:
            with pytest.raises(ValueError, match="must be a finite number; inf was given"):
                methods.build(spec, {knob.name: "inf"})


ENDLESS = {
    ("fedmap", "sigma2"),
    *((f"fedavg+{name}", bound) for name in ("clip", "dp") for bound in ("bound", "sum_bound")),
}
