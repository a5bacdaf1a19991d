"""How a run scores: with whose data, on which rows, and with which weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from kinds import of_each_kind
from oracles.sims import ENGINES, Run, mlp, points, same_bits, worst

import posterity
from posterity import methods
from posterity.cli import terminal as show
from posterity.core.protocol import Method
from posterity.data.federation import Part
from posterity.engine.round import Question, answer
from posterity.experiment.scoring import Asked, ask_common, ask_members, score_lines
from posterity.report import headline, load_runs, write_report
from posterity.runs.lines import scores_of, to_json

SMALL = {"dataset": "digits", "clients": 5, "rounds": 3, "evaluate_every": 1, "subset": "25%", "lr": 0.1}
EVERY = [*sorted(methods.available()), *(f"fedavg+{name}" for name in sorted(methods.suffixes())), "fedbn+calibrated"]
each_engine = pytest.mark.parametrize("engine", ENGINES, ids=lambda e: e.name)


def with_common():
    """Clients with a validation part, and 40 rows that belong to none of them."""
    federation, stray = points((14, 9, 11), held=8), points((40,), held=0, seed=3)
    rows = torch.arange(len(federation.x), len(federation.x) + 40)
    pool = {n: torch.cat((getattr(federation, n), getattr(stray, n))) for n in ("x", "y")}
    return replace(federation, common=rows, public=rows[:10], **pool)


def spoilt(federation):
    """The same federation with other values in all rows that a client has."""
    mine = torch.cat([federation.train.rows, federation.validation.rows, federation.test.rows])
    x, y = federation.x.clone(), federation.y.clone()
    x[mine] = 3 - 2 * x[mine].flip(0)
    y[mine] = (y[mine] + 1) % federation.classes
    return replace(federation, x=x, y=y)


def common(run, engine, federation=None):
    """What a run's state predicts for the common rows, if the clients had the data of `federation`."""
    sim = run.sim if federation is None else replace(run.sim, federation=federation.to("cpu", run.sim.dtype))
    asked = next(iter(ask_common(sim)))
    return answer(sim, engine, run.state, run.store, asked.question, run.played)[0][0]


def trained(name, engine, **settings):
    federation = with_common()
    method = methods.build(name, settings, {"lr": 0.1, "batch": 4})
    return Run(method, federation, mlp(federation, norm=True), engine).rounds(2)


@pytest.mark.parametrize("name", of_each_kind(EVERY))
def test_the_common_score_is_the_servers_alone(name):
    """Clients with other data, the same state: the same score to the last bit, and one that is a distribution."""
    run = trained(name, ENGINES[1])
    found = common(run, ENGINES[1])
    assert same_bits(found, common(run, ENGINES[1], spoilt(run.sim.federation)))
    assert torch.allclose(found.exp().sum(1), torch.ones(40, dtype=found.dtype))
    assert worst(found, common(run, ENGINES[0])) < 1e-9


@each_engine
@pytest.mark.parametrize("name", ["fedavg", "fedbn"])
def test_nobody_has_no_temperature(name, engine):
    plain, calibrated = (trained(n, engine) for n in (name, f"{name}+calibrated"))
    assert worst(common(plain, engine), common(calibrated, engine)) < 1e-14
    mine = [run.outputs("received", newcomers=True)[0] for run in (plain, calibrated)]
    assert worst(*mine) > 1e-3  # client 0 has one


@each_engine
@pytest.mark.parametrize(("name", "how"), [("fedavg", {}), ("fedbn", {"newcomers": "mean"}), ("fedbn", {})])
def test_the_common_score_is_a_forward_pass_of_the_servers_leaves(name, how, engine):
    """By hand: batch norm with the running statistics of the state, which are averages where clients send them."""
    run = trained(name, engine, **how)
    p, x = run.state.params, run.sim.federation.x[run.sim.federation.common]
    norm = next(n for n in p if n.endswith("running_mean")).removesuffix("running_mean")
    first = next(n for n in p if n.endswith("weight") and p[n].dim() == 2).removesuffix("weight")
    last = [n for n in p if n.endswith("weight") and p[n].dim() == 2][-1].removesuffix("weight")
    h = x @ p[f"{first}weight"].T + p[f"{first}bias"]
    h = (h - p[f"{norm}running_mean"]) / torch.sqrt(p[f"{norm}running_var"] + 1e-5)
    h = torch.relu(h * p[f"{norm}weight"] + p[f"{norm}bias"])
    expected = torch.log_softmax(h @ p[f"{last}weight"].T + p[f"{last}bias"], -1)
    assert worst(common(run, engine), expected) < 1e-12
    untouched = bool((p[f"{norm}running_mean"] == 0).all())
    assert untouched == (name == "fedbn" and not how)  # FedBN's clients keep theirs at home


class Numbered(Method):
    """Predicts nothing but the number that it was given."""

    def start(self, here):
        return here.initial

    def passes(self):
        return ()

    def adapt(self, epochs):
        return ()

    def predict(self, carry, x, here):
        return torch.stack([here.client.to(x.dtype), here.n]).expand(len(x), 2)


@each_engine
def test_nobody_has_a_number_and_so_draws_of_its_own(engine):
    run = Run(methods.build("fedavg"), with_common(), mlp(with_common()), engine)
    run.sim, run.played = replace(run.sim, method=Numbered()), 1
    assert common(run, engine).unique(dim=0).tolist() == [[3.0, 0.0]]  # clients are 0, 1, 2; no samples


def test_several_seeds_at_once_score_the_common_rows_as_each_does_alone():
    given = {"method": "fedavg", "dataset": "polynomial", "model": "cubic", "rounds": 2, "lr": 1e-5, "dtype": "float64"}
    both = posterity.run_seeds([0, 1], **given)
    for seed, result in enumerate(both):
        alone = posterity.run(seed=seed, **given)
        pair = [[x.value("mse") for x in scores_of(r.lines) if x.group == "common"] for r in (result, alone)]
        assert len(pair[0]) == 2
        assert pair[0] == pytest.approx(pair[1], rel=1e-9)


def test_the_page_says_how_the_common_test_was_scored(tmp_path):
    given = SMALL | {"test_partition": "common", "rounds": 1, "set": {"model.norm": "true"}}
    for name in ("fedavg", "fedavg+calibrated", "fedbn"):
        posterity.run(name, out=tmp_path / name, **given)
    said = write_report(tmp_path).read_text()
    assert "No client&#39;s data were used: scored with the server&#39;s model" in said
    assert "the server&#39;s model (FedAvg)" in said
    assert "the server&#39;s model, without a temperature (β = 1) (FedAvg (calibrated))" in said
    assert "the server&#39;s model with the initial normalisation layers" in said


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    out = tmp_path_factory.mktemp("pair")
    return out, *(posterity.run(n, out=out / n, newcomers="1", **SMALL) for n in ("fedavg", "fedavg+calibrated"))


def lines(result, part):
    keep = [x for x in scores_of(result.lines) if x.part == part]
    return [{k: v for k, v in to_json(x).items() if k != "part"} for x in keep]  # nan is not itself


def test_paper_scores_no_row_that_a_temperature_was_fitted_on(pair, capsys):
    out, plain, calibrated = pair
    assert lines(calibrated, "held") == lines(calibrated, "test")  # at every point, of members and newcomers
    assert all(a != b for a, b in zip(lines(plain, "held"), lines(plain, "test"), strict=True))
    at = calibrated.chosen_round("paper")
    for metric in ("ece", "nll", "brier", "accuracy"):
        test = next(e for e in calibrated.history(metric) if e["round"] == at)["test"]
        assert calibrated.metric(metric, show="paper") == test
    assert calibrated.clients("paper")["n"] == calibrated.federation.test.counts[:4].tolist()
    rows = {row.label: row for row in headline(load_runs(out), "paper")}
    assert rows["FedAvg (calibrated)"].cells["nll"].mean == pytest.approx(calibrated.metric("nll", show="paper"))
    told = "FedAvg (calibrated): fitted on the validation half, so under “paper” only the test half is scored."
    assert told in write_report(out).read_text()
    show.print_table(out, "paper")
    assert "fitted on the validation half" in capsys.readouterr().out
    show.print_table(out, "validated")
    assert "fitted on the validation half" not in capsys.readouterr().out


def test_paper_still_scores_both_halves_of_others(pair):
    _, plain, _ = pair
    at = plain.chosen_round("paper")
    entry = next(e for e in plain.history("nll") if e["round"] == at)
    n = [int(part.counts[:4].sum()) for part in (plain.federation.validation, plain.federation.test)]
    expected = (n[0] * entry["validation"] + n[1] * entry["test"]) / sum(n)
    assert plain.metric("nll", show="paper") == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(7))
def test_train_weighted_means_weigh_by_training_size(seed):
    """Three clients with 14, 9 and 11 training rows, against numpy's weighted average of what each gets right."""
    federation = points((14, 9, 11), held=8, seed=seed)
    run = Run(methods.build("fedavg"), federation, mlp(federation))
    draw = torch.Generator().manual_seed(seed)
    outputs = [
        [torch.randn(8, 3, generator=draw, dtype=torch.float64).log_softmax(-1) for _ in range(3)] for _ in range(2)
    ]
    asked = next(iter(ask_members(run.sim, ("received",))))
    found = {line.part: line.metrics for line in score_lines(run.sim, 1, asked, outputs)}
    right = [[float((o.argmax(-1) == federation.y[part.client(k)]).double().mean()) for k, o in enumerate(some)]
             for part, some in zip((federation.validation, federation.test), outputs, strict=True)]  # fmt: skip
    for name, each in zip(("validation", "test", "held"), (*right, np.mean(right, 0)), strict=True):
        assert found[name]["accuracy"]["train_weighted"] == pytest.approx(np.average(each, weights=[14, 9, 11]))
        assert found[name]["accuracy"]["mean"] == pytest.approx(np.mean(each))


def test_newcomers_are_weighed_by_their_own_training_size():
    federation = replace(points((14, 9, 11, 3), held=8), members=2)
    run = Run(methods.build("fedavg"), federation, mlp(federation))
    late = Question(torch.tensor([2, 3]), (federation.validation, federation.test), "received", 0, True)
    right = torch.nn.functional.one_hot(federation.y, 3).double().add(1e-3).log().log_softmax(-1)
    wrong = right.roll(1, 1)
    outputs = [[right[part.client(2)], wrong[part.client(3)]] for part in late.parts]
    found = {x.part: x.metrics for x in score_lines(run.sim, 1, Asked("newcomers", late), outputs)}
    assert found["test"]["accuracy"]["train_weighted"] == pytest.approx(11 / 14)
    assert isinstance(late.parts[0], Part)
