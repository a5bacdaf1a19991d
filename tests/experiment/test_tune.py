"""Equal tuning: the space comes from the fields, the choice from validation alone, and a kill changes nothing."""

from __future__ import annotations

import json
import math
import tomllib
from dataclasses import replace
from types import SimpleNamespace

import pytest

import posterity
from posterity import methods
from posterity.experiment import run
from posterity.experiment.compare import planned
from posterity.experiment.tune import (
    PLAN,
    TUNED,
    Budget,
    Tried,
    best,
    can_be_tried,
    layers,
    limits,
    read_trials,
    rounded,
    search_space,
    tune,
    validation_score,
    with_tuned,
)
from posterity.runs.lines import ScoreLine
from posterity.settings.config import Config
from posterity.settings.hyperparameters import Knob, knobs

EVERY = [*sorted(methods.available()), *(f"fedavg+{name}" for name in sorted(methods.suffixes())), "vd@paper+ft"]
BASE = Config(dataset="digits", clients=4, rounds=2)


def setting(name, default, search, kind=float):
    return Knob(name, kind, default, "", "", (), search=search)


def at(each: Knob, share: float):
    """The value so far along a range, from 0 to 1."""
    if limits(each) is None:
        return each.search[min(int(share * len(each.search)), len(each.search) - 1)]
    low, high, scale = limits(each)
    if scale == "log":
        return rounded(each, math.exp(math.log(low) + share * (math.log(high) - math.log(low))))
    return rounded(each, low + share * (high - low))


def names(space):
    return [each.name for each in space]


@pytest.mark.parametrize("spec", EVERY)
def test_every_value_of_the_space_is_a_setting_of_the_method(spec):
    """Both ends and the middle can be built, and each name reaches its field."""
    space = search_space(spec)
    for share in (0.0, 0.5, 1.0):
        values = {each.name: at(each, share) for each in space}
        method = methods.build(spec, {k: str(v) for k, v in values.items()})
        for prefix, layer in layers(spec, method):
            for knob in (k for k in knobs(type(layer)) if k.search is not None):
                assert getattr(layer, knob.name) == values[f"{prefix}{knob.name}"]


def test_the_spaces_of_the_papers():
    assert names(search_space("fedavg")) == ["local.lr"]
    assert names(search_space("fedprox")) == ["local.lr", "mu"]
    assert names(search_space("reptile+metavd+ft")) == ["local.lr", "server_lr", "metavd.beta"]
    assert names(search_space("metavd")) == ["local.lr", "server_lr", "metavd.beta"]


def test_what_was_given_is_not_tuned():
    assert names(search_space("fedprox", ["mu"])) == ["local.lr"]
    assert names(search_space("fedprox", ["local.lr"])) == ["mu"]
    assert names(search_space("reptile+metavd", ["beta"])) == ["local.lr", "server_lr"]
    assert names(search_space("reptile+metavd", ["metavd.beta", "lr"])) == ["local.lr", "server_lr"]


def test_a_range():
    log = setting("a", 0.1, (1e-3, 10.0, "log"))
    assert [at(log, share) for share in (0.0, 0.25, 0.5, 1.0)] == [1e-3, 0.01, 0.1, 10.0]
    assert rounded(log, 0.123456) == 0.123
    assert rounded(log, 10.0049) == 10.0  # within
    assert at(setting("b", 1, (0.0, 1.0, "linear")), 0.5) == 0.5
    assert at(setting("c", 3, (1, 9, "linear"), int), 0.5) == 5
    words = setting("d", "x", ("x", "y"), str)
    assert [at(words, share) for share in (0.0, 0.49, 0.5, 1.0)] == ["x", "x", "y", "y"]
    assert can_be_tried([log, words], {"a": 0.1, "d": "x"})
    assert not any(can_be_tried([log, words], {"d": "x", **a}) for a in ({"a": 99.0}, {"a": None}, {}))
    assert not can_be_tried([words], {"d": "z"})


def fake_score(seen):
    """The nearer µ is to 0.3 and the step size to 0.1, the better; every call is noted."""

    def score(config):
        seen.append((config.method, config.seed, dict(config.set)))
        lr, mu = float(config.set.get("local.lr", 0.01)), float(config.set.get("mu", 0.3))
        return -abs(math.log(lr / 0.1)) - abs(math.log(mu / 0.3)) - 0.01 * config.seed, True

    return score


def along(space, before, number):
    """A walk through the space; it depends on what was found before."""
    return {each.name: at(each, (number * 0.37 + 0.01 * len(before)) % 1) for each in space}


def test_every_method_has_the_same_budget_and_the_defaults_come_first(tmp_path):
    seen = []
    tune(BASE, ["fedavg", "fedprox"], Budget(4, (0, 1)), tmp_path, along, fake_score(seen))
    for method in ("fedavg", "fedprox"):
        calls = [settings for name, _, settings in seen if name == method]
        assert len(calls) == 4 * 2
        assert calls[0] == {**({"mu": 0.01} if method == "fedprox" else {}), "local.lr": 0.01}
    assert {seed for _, seed, _ in seen} == {0, 1}


def test_trials_of_a_larger_search_before_do_not_count(tmp_path):
    """Later trials are better here, so the sixth would win; the other method gets two."""
    seen = []

    def score(config):
        seen.append(config.method)
        return 0.5 + 0.01 * len(seen), True

    tune(BASE, ["fedprox"], Budget(6), tmp_path, along, score)
    path = tune(BASE, ["fedprox", "ditto"], Budget(2), tmp_path, along, score)
    found = tomllib.loads(path.read_text())["methods"]
    assert {name: (told["trial"], told["trials"]) for name, told in found.items()} == {
        "fedprox": (2, 2), "ditto": (2, 2)}  # fmt: skip
    assert len(read_trials(tmp_path / "fedprox.jsonl")) == 6  # they stay for a larger one
    assert seen == ["fedprox"] * 6 + ["ditto"] * 2


def test_the_best_on_validation_is_chosen_and_the_file_says_how(tmp_path):
    path = tune(BASE, ["fedprox"], Budget(6, (0,)), tmp_path, along, fake_score([]))
    assert path == tmp_path / TUNED
    table = tomllib.loads(path.read_text())
    trials = read_trials(tmp_path / "fedprox.jsonl")
    chosen = table["methods"]["fedprox"]
    top = max(trials, key=lambda trial: trial.value((0,)))
    assert chosen["set"] == top.values
    assert (chosen["value"], chosen["trial"], chosen["trials"]) == (top.value((0,)), top.number + 1, 6)
    assert chosen["default"] == trials[0].value((0,)) < chosen["value"]
    about = table["about"]
    assert (about["dataset"], about["clients"], about["rounds"]) == ("digits", 4, 2)
    assert (about["trials"], about["seeds"], about["search_seed"]) == (6, [0], 0)


def test_a_search_that_was_killed_ends_like_one_that_was_not(tmp_path):
    """Killed in the middle of a trial of two seeds, and in the middle of a line."""
    budget, whole = Budget(5, (0, 1)), tmp_path / "whole"
    expected = tune(BASE, ["fedprox"], budget, whole, along, fake_score([])).read_text()
    seen = []
    score = fake_score(seen)

    def killed(config):
        if len(seen) == 5:
            raise KeyboardInterrupt
        return score(config)

    out = tmp_path / "killed"
    with pytest.raises(KeyboardInterrupt):
        tune(BASE, ["fedprox"], budget, out, along, killed)
    with (out / "fedprox.jsonl").open("a") as file:
        file.write('{"trial": 2, "val')
    again = []
    assert tune(BASE, ["fedprox"], budget, out, along, fake_score(again)).read_text() == expected
    assert len(seen) + len(again) == 10  # nothing twice
    assert (out / "fedprox.jsonl").read_text() == (whole / "fedprox.jsonl").read_text()


def test_more_trials_go_on_and_other_data_are_refused(tmp_path):
    tune(BASE, ["fedavg"], Budget(2), tmp_path, along, fake_score([]))
    seen = []
    tune(BASE, ["fedavg"], Budget(5), tmp_path, along, fake_score(seen))
    assert len(seen) == 3
    with pytest.raises(ValueError, match="begun with rounds = 2, and now it is 3"):
        tune(replace(BASE, rounds=3), ["fedavg"], Budget(5), tmp_path, along, fake_score([]))
    with pytest.raises(ValueError, match=r"begun with seeds = \[0\], and now it is \[4\]"):
        tune(BASE, ["fedavg"], Budget(5, (4,)), tmp_path, along, fake_score([]))
    assert json.loads((tmp_path / PLAN).read_text())["asked"]["seeds"] == [0]


OWN = """
from dataclasses import dataclass
from posterity.core import hyper
from posterity.methods.fedavg import FedAvg

@dataclass(frozen=True)
class Own(FedAvg):
    beta: float = hyper(0.5, "does nothing")

    def message(self, carry, here):
        return super().message(carry, here)
"""


def test_trials_of_an_edited_method_are_done_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    file, out = tmp_path / "own_to_tune.py", tmp_path / "out"
    file.write_text(OWN)
    names, seen = ["fedavg", "own_to_tune:Own"], []
    tune(BASE, names, Budget(3), out, along, fake_score(seen))
    file.write_text(OWN.replace("return super", "here = here\n        return super"))
    tune(BASE, names, Budget(3), out, along, fake_score(seen))
    assert [name for name, _, _ in seen[6:]] == ["own_to_tune:Own"] * 3
    said = capsys.readouterr().err
    assert "own_to_tune:Own: the source of own_to_tune was edited. Its trials are kept as" in said
    assert len(read_trials(out / "own_to_tune-Own.jsonl.before-1")) == 3
    tune(BASE, names, Budget(3), out, along, fake_score(seen))
    assert len(seen) == 9  # nothing was edited since


def test_other_values_of_the_data_are_refused(tmp_path):
    rows = "".join(f"{i % 3},{i * 7 % 11},{i % 2}\n" for i in range(60))
    table, out = tmp_path / "rows.csv", tmp_path / "out"
    table.write_text("client,a,target\n" + rows)
    own = replace(BASE, dataset=str(table), clients=None)
    tune(own, ["fedavg"], Budget(2), out, along, fake_score([]))
    seen = []
    table.write_text("client,a,target\n" + rows.replace("0,0,0", "0,5,0", 1))
    with pytest.raises(ValueError, match=r"begun with other values of .*rows.csv: rows were edited since"):
        tune(own, ["fedavg"], Budget(3), out, along, fake_score(seen))


def test_it_says_what_is_searched(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_to_search.py").write_text(OWN)
    told = []
    tune(BASE, ["own_to_search:Own[server_lr=0.9]"], Budget(2), tmp_path, along, fake_score([]), told.append)
    assert told[0] == "own_to_search:Own[server_lr=0.9]: searched local.lr"


def test_what_came_to_nothing_is_never_the_best():
    lost, low, high = Tried(0, {}, {0: math.nan}), Tried(1, {}, {0: 0.2, 1: 0.4}), Tried(2, {}, {0: 0.5, 1: 0.4})
    assert best([lost, low, high], (0, 1)) is high
    assert best([lost], (0,)) is None
    errors = [Tried(1, {}, {0: 0.2}, higher=False), Tried(2, {}, {0: 0.5}, higher=False)]
    assert best(errors, (0,)) is errors[0]
    ties = [Tried(1, {}, {0: 0.2}), Tried(2, {}, {0: 0.2})]
    assert best(ties, (0,)) is ties[0]


def test_all_trials_lost_is_a_sentence(tmp_path):
    with pytest.raises(ValueError, match="every trial of fedavg came to nothing"):
        tune(BASE, ["fedavg"], Budget(2), tmp_path, along, lambda config: (math.nan, True))


def test_settings_in_brackets_are_kept_and_not_tuned(tmp_path):
    seen = []
    tune(BASE, ["fedprox[mu=0.5]"], Budget(3), tmp_path, along, fake_score(seen))
    assert {settings["mu"] for _, _, settings in seen} == {"0.5"}
    assert len({settings["local.lr"] for _, _, settings in seen}) == 3


def test_settings_of_one_method_are_not_those_of_another(tmp_path):
    seen = []
    fixed = replace(BASE, set={"mu": 0.5})
    tune(fixed, ["fedavg", "fedprox"], Budget(2), tmp_path, along, fake_score(seen))
    assert all(settings.get("mu") == (0.5 if name == "fedprox" else None) for name, _, settings in seen)
    with pytest.raises(ValueError, match="fedprox is to be tuned twice"):
        tune(BASE, ["fedprox", "fedprox[mu=1]"], Budget(2), tmp_path / "twice", along, fake_score([]))


def test_flags_are_not_tuned(tmp_path):
    seen = []
    tune(replace(BASE, lr=0.2), ["fedprox"], Budget(3), tmp_path / "one", along, fake_score(seen))
    assert all("local.lr" not in settings for _, _, settings in seen)
    seen.clear()
    tune(replace(BASE, lr=0.2), ["fedavg"], Budget(3), tmp_path / "other", along, fake_score(seen))
    assert len(seen) == 1  # nothing is left to tune: the defaults, once


class Told:
    """A result whose test scores may not be looked at."""

    lines, method = (), SimpleNamespace(scored="received")
    federation = SimpleNamespace(task="classification")

    def __init__(self, values):
        self.values, self.setup = values, SimpleNamespace(sim=SimpleNamespace(federation=self.federation))

    def history(self, metric, rule):
        assert (metric, rule) == ("accuracy", "pooled")

        class Blind(dict):
            def __getitem__(self, key):
                assert key in ("round", "validation")
                return super().__getitem__(key)

            def get(self, key, default=None):
                assert key in ("round", "validation")
                return super().get(key, default)

        return [Blind(round=i, validation=v, test=1 - (v or 0), held=0.5) for i, v in enumerate(self.values, 1)]


def test_the_score_is_the_best_round_on_validation():
    assert validation_score(Told([0.2, 0.7, 0.4, None, math.nan])) == (0.7, True)
    assert math.isnan(validation_score(Told([None]))[0])


SHORT = {"dataset": "digits", "clients": 4, "rounds": 2, "subset": "15%", "engine": "stacked", "evaluate_every": 1}


@pytest.fixture(scope="module")
def short():
    return posterity.run("fedavg", lr=0.2, **SHORT)


def test_a_real_run_scores_what_its_history_says(short):
    expected = max(entry["validation"] for entry in short.history("accuracy"))
    config = Config(method="fedavg", set={"local.lr": 0.2}, **SHORT)
    assert validation_score(run.start_run(config)) == (expected, True)


def with_nll(result, part, value):
    """The result, as if a part of the held-out rows had this NLL."""
    lines = [replace(line, metrics={**line.metrics, "nll": {**line.metrics["nll"], "pooled": value}})
             if isinstance(line, ScoreLine) and line.part == part else line for line in result.lines]  # fmt: skip
    return replace(result, lines=lines)


def test_whether_a_trial_has_exploded_is_judged_on_validation_alone(short):
    assert validation_score(with_nll(short, "test", 1e5)) == validation_score(short)
    assert math.isnan(validation_score(with_nll(short, "validation", 1e5))[0])


def test_a_comparison_takes_the_file(tmp_path):
    path = tune(BASE, ["fedavg", "fedprox"], Budget(3), tmp_path, along, fake_score([]))
    tuned = tomllib.loads(path.read_text())["methods"]
    found, remarks = with_tuned(["fedavg", "fedprox[mu=0.7]"], BASE, path)
    assert remarks == []
    runs = planned(BASE, found, [0], tmp_path / "out")
    built = [methods.build(config.method, config.settings(), config.training()) for _, config in runs]
    assert [method.local.lr for method in built] == [tuned[n]["set"]["local.lr"] for n in ("fedavg", "fedprox")]
    assert built[1].mu == 0.7  # what is said of one method wins
    _, remarks = with_tuned(["fedavg"], replace(BASE, clients=9), path)
    assert remarks == [f"{path} was tuned with clients 4 (here 9)"]
    given = replace(BASE, partition="iid", rounds=1, participation="50%", set={"model.hidden": "8"})
    _, remarks = with_tuned(["fedavg"], given, path)
    assert remarks == [f"{path} was tuned with partition by default (here 'iid'), rounds 2 (here 1), participation "
                       "'all' (here '50%'), model.hidden by default (here '8')"]  # fmt: skip
    fixed = tune(replace(BASE, set={"mu": 0.5}), ["fedprox"], Budget(1), tmp_path / "mu", along, fake_score([]))
    assert with_tuned(["fedprox"], BASE, fixed)[1] == [f"{fixed} was tuned with mu 0.5 (here by default)"]
    assert with_tuned(["fedprox"], replace(BASE, set={"mu": "0.5"}), fixed)[1] == []
    with pytest.raises(ValueError, match="has no values for 'fedper': tune it as well"):
        with_tuned(["fedavg", "fedper"], BASE, path)
    other = tmp_path / "other.toml"
    other.write_text("rounds = 3\n")
    with pytest.raises(ValueError, match="holds no tuned values"):
        with_tuned(["fedavg"], BASE, other)


def test_bad_budgets():
    with pytest.raises(ValueError, match="at least one trial"):
        Budget(0)
    with pytest.raises(ValueError, match="at least one trial"):
        Budget(3, ())


def test_without_optuna_it_says_what_to_install(monkeypatch):
    import sys

    from posterity.experiment.tune import parzen

    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ValueError, match=r"pip install 'posterity\[tune\]'"):
        parzen((0,), 0)


class TestOptuna:
    """With the library itself."""

    @pytest.fixture(autouse=True)
    def _needs_it(self):
        pytest.importorskip("optuna", reason="the search needs the extra tune (pip install 'posterity[tune]')")

    def test_it_finds_a_better_place_and_the_same_again(self, tmp_path):
        from posterity.experiment.tune import parzen

        budget = Budget(15)
        texts = [tune(BASE, ["fedprox"], budget, tmp_path / str(i), parzen((0,), 0), fake_score([])).read_text()
                 for i in range(2)]  # fmt: skip
        assert texts[0] == texts[1]
        chosen = tomllib.loads(texts[0])["methods"]["fedprox"]
        assert chosen["value"] > chosen["default"] + 1
        other = tune(BASE, ["fedprox"], Budget(15, search_seed=1), tmp_path / "other", parzen((0,), 1), fake_score([]))
        assert other.read_text() != texts[0]

    def test_a_kill_changes_nothing(self, tmp_path):
        from posterity.experiment.tune import parzen

        for trials in (4, 14):
            tune(BASE, ["fedprox"], Budget(trials), tmp_path / "parts", parzen((0,), 0), fake_score([]))
        tune(BASE, ["fedprox"], Budget(14), tmp_path / "whole", parzen((0,), 0), fake_score([]))
        parts, whole = ((tmp_path / name / "fedprox.jsonl").read_text() for name in ("parts", "whole"))
        assert parts == whole

    def test_words_and_whole_numbers(self):
        from posterity.experiment.tune import parzen

        space = [setting("word", "x", ("x", "y"), str), setting("count", 3, (1, 9, "linear"), int)]
        found = [parzen((0,), 0)(space, [], number) for number in range(12)]
        assert {each["word"] for each in found} == {"x", "y"}
        assert all(isinstance(each["count"], int) and 1 <= each["count"] <= 9 for each in found)
