"""What a run returns: numbers that agree with each other, and models that predict."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from kinds import everything

import posterity
from posterity import data, models
from posterity.experiment.result import as_run
from posterity.report import headline
from posterity.report.table import select_round
from posterity.runs import files
from posterity.runs import folder as run_folder
from posterity.runs.lines import rounds_of, scores_of

SMALL = {"dataset": "digits", "clients": 6, "rounds": 4, "evaluate_every": 2, "subset": "25%", "lr": 0.1}


@pytest.fixture(scope="module")
def result():
    return posterity.run(method="fedper", newcomers="2", **SMALL)


@pytest.mark.parametrize("method", ["fedper", "fedmap", "fedavg+ft", "fedper+calibrated", *everything("local")])
def test_predictions_are_those_that_were_scored(method):
    result = posterity.run(method=method, newcomers="2", **SMALL)
    federation = result.federation
    correct = total = 0
    for client in range(federation.members):
        rows = federation.test.client(client)
        if len(rows):
            probabilities = result.predict_proba(client, federation.x[rows], show="last")
            assert torch.allclose(probabilities.sum(1), torch.ones(len(rows)), atol=1e-5)
            correct += int((probabilities.argmax(1) == federation.y[rows]).sum())
            total += len(rows)
    assert result.metric("accuracy", show="last") == pytest.approx(correct / total)
    assert result.predict_proba(federation.names[0], federation.x[:2]).shape == (2, 10)


def test_every_point_and_part_is_written_for_members_and_newcomers(result):
    found = {(x.group, x.point, x.epochs, x.part) for x in scores_of(result.lines)}
    parts = ("validation", "test", "held")
    members = {("members", p, e, q) for p, e in (("received", 0), ("adapted", 1), ("trained", 0)) for q in parts}
    late = {("newcomers", p, e, q) for p, e in (("received", 0), ("adapted", 1), ("adapted", 5)) for q in parts}
    assert found == members | late
    assert all(len(x.clients["n"]) == (4 if x.group == "members" else 2)
               for x in scores_of(result.lines))  # fmt: skip


def test_held_is_validation_and_test_together(result):
    last = {x.part: x for x in scores_of(result.lines) if x.round == 4
            and (x.group, x.point) == ("members", "trained")}  # fmt: skip
    n = {part: sum(x.clients["n"]) for part, x in last.items()}
    hits = {part: x.value("accuracy") * n[part] for part, x in last.items()}
    assert hits["held"] == pytest.approx(hits["validation"] + hits["test"])


def test_selection_never_looks_at_the_test_half(result):
    entries = result.history()
    best = max(entries, key=lambda e: e["validation"])
    assert result.chosen_round("validated") == best["round"]
    assert result.metric() == best["test"]
    assert result.metric(show="paper") == max(e["held"] for e in entries)


def test_newcomers_after_each_number_of_epochs(result):
    """Lines of 1 and of 5 epochs are two histories; without a number, it is asked for."""
    for epochs in (1, 5):
        lines = [x for x in scores_of(result.lines) if x.group == "newcomers"
                 and (x.point, x.epochs) == ("adapted", epochs)]  # fmt: skip
        expected = {(x.round, x.part): x.value("nll") for x in lines}
        entries = result.history("nll", "pooled", "adapted", "newcomers", epochs=epochs)
        assert [e["round"] for e in entries] == [2, 4]
        parts = ("validation", "test", "held")
        assert {(e["round"], p): e[p] for e in entries for p in parts} == expected
    one, five = (result.history("nll", point="adapted", group="newcomers", epochs=e) for e in (1, 5))
    assert all(a["held"] != b["held"] for a, b in zip(one, five, strict=True))
    with pytest.raises(ValueError, match=r"'newcomers' were scored at the point 'adapted' .* 1, 5\. Say which"):
        result.history(point="adapted", group="newcomers")
    with pytest.raises(ValueError, match=r"after 3 epochs in this run; scored after: 1, 5"):
        result.history(point="adapted", group="newcomers", epochs=3)
    assert len(result.history(point="received", group="newcomers")) == 2  # one number: nobody has to ask
    assert result.history(point="adapted") == result.history(point="adapted", epochs=1)


def test_save_and_load(result, tmp_path):
    result.save(tmp_path / "kept")
    again = posterity.load(tmp_path / "kept")
    x = result.federation.x[:3]
    assert torch.equal(again.predict_proba(2, x), result.predict_proba(2, x))
    assert again.clients() == json.loads(json.dumps(files.clean(result.clients())))
    with pytest.raises(ValueError, match="already holds a run"):
        result.save(tmp_path / "kept")


def test_an_infinite_score_stays_infinite_in_a_folder(tmp_path):
    """JSON has no infinity, and a mean over seeds must not lose the one that was certain and wrong."""
    own = data.load("digits", clients=6, subset="25%", seed=0)
    x = own.x.clone()
    x[own.test.rows[own.test.offsets[2]]] = 3e38  # the network overflows
    own = replace(own, x=x)
    made = posterity.run("fedavg", federation=own, rounds=2, lr=0.1, out=tmp_path / "run")
    again = posterity.load(tmp_path / "run", federation=own)
    assert made.metric("nll") == again.metric("nll") == math.inf
    assert made.clients()["nll"] == again.clients()["nll"] == as_run_client_values(made)
    assert [k for k, nll in enumerate(again.clients()["nll"]) if nll == math.inf] == [2]
    assert again.history("nll") == made.history("nll")
    assert "NLL ∞" in repr(made)
    assert "NLL ∞" in repr(replace(made, folder=None))


def as_run_client_values(result):
    """What a run without a folder shows of its clients' NLL."""
    run = as_run(replace(result, folder=None))
    return select_round(run, "validated").by_client("nll")


@pytest.mark.parametrize("name", ["metrics.jsonl", "run.json", "checkpoint.safetensors", "notes.txt"])
def test_nothing_is_saved_among_other_files(result, tmp_path, name):
    (tmp_path / name).write_text("precious")
    with pytest.raises(ValueError, match=rf"holds other files \({name}\) and no run: .*nothing was written"):
        result.save(tmp_path)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "precious")]


def test_without_validation_rows_no_round_is_validated(tmp_path):
    """A number is never called validated that no validation chose; models are those of the last round, and say so."""
    own = data.load("digits", clients=4, subset="20%", seed=9)
    none = data.Part.of([torch.zeros(0, dtype=torch.int64) for _ in range(4)])
    made = posterity.run(method="fedper", federation=replace(own, validation=none), rounds=2, evaluate_every=1)
    for result in (made, posterity.load(made.save(tmp_path / "kept"))):
        with pytest.raises(ValueError, match=r"no member has validation rows.* ask for show='last'"):
            result.metric()
        with pytest.raises(ValueError, match="no member has validation rows"):
            result.clients()
        assert result.metric(show="last") >= 0
        assert "after its last round, 2" in result.delivered().note
        with pytest.warns(UserWarning, match="'validated' chooses no round"):
            shown = result.predict_proba(0, own.x[:3])
        assert torch.equal(shown, result.predict_proba(0, own.x[:3], show="last"))


@pytest.mark.parametrize(
    ("sizes", "changes", "why"),
    [
        ((4, 4, 4, 4), {"min_count": 5}, r"no member has 5 validation rows \(min_count\)"),
        ((0, 0, 0, 4), {"evaluate_clients": "1"}, "no member that was scored has validation rows"),
    ],
)
def test_too_few_validation_rows_are_none(tmp_path, sizes, changes, why):
    """Who has fewer rows than may be told is not scored; the report and Python agree that nothing was validated."""
    own = data.load("digits", clients=4, subset="20%", seed=9)
    begins = own.validation.offsets.tolist()
    few = [own.validation.rows[begin : begin + size] for begin, size in zip(begins, sizes, strict=False)]
    own = replace(own, validation=data.Part.of(few))
    made = posterity.run(method="fedper", federation=own, rounds=2, evaluate_every=1, **changes)
    for result in (made, posterity.load(made.save(tmp_path / "kept"), federation=own)):
        with pytest.raises(ValueError, match=f"{why}, so 'validated' chooses no round: ask for show='last'"):
            result.metric()
        assert result.metric(show="last") > 0
        assert result.delivered().note.endswith("chooses no round: these are the models after its last round, 2")
        assert headline([as_run(result)])[0].picked == ()
        assert f"Accuracy {100 * result.metric(show='last'):.1f} %" in repr(result)
        assert repr(result).endswith("(last, received)>")
        assert "nothing was validated, and round 2 of 2 is shown" in result._repr_html_()


def test_a_federation_of_your_own_must_be_handed_in_again_to_go_on(tmp_path):
    own = data.load("digits", clients=4, subset="20%", seed=9)
    first = posterity.run(method="fedper", federation=own, rounds=2, evaluate_every=2, out=tmp_path / "mine")
    for again in (posterity.load(tmp_path / "mine"), posterity.load(tmp_path / "mine", federation=own)):
        assert torch.equal(again.predict_proba(1, own.x[:3]), first.predict_proba(1, own.x[:3]))
    path = tmp_path / "mine" / run_folder.RUN
    files.write_json(path, {**files.read_json(path), "status": "running"})
    with pytest.raises(ValueError, match="hand it in again"):
        posterity.load(tmp_path / "mine")


def test_bad_questions(result):
    with pytest.raises(ValueError, match="no client 99"):
        result.predict_proba(99, result.federation.x[:1])
    with pytest.raises(ValueError, match=r"expected \(samples, 1, 8, 8\)"):
        result.predict_proba(0, torch.zeros(2, 3))
    with pytest.raises(ValueError, match="no scores"):
        result.history(point="nowhere")


def test_a_message_that_is_not_finite_is_left_out_and_named():
    federation = data.load("digits", clients=5, subset="20%")
    x = federation.x.clone()
    x[federation.train.client(3)] = 3e38  # this client's training diverges at once
    spoilt = data.Federation(**{**federation.__dict__, "x": x})
    found = posterity.run(method="fedmap", federation=spoilt, rounds=2, evaluate_every=2)
    rounds = rounds_of(found.lines)
    assert all(r.refused == ((3, "not finite"),) for r in rounds)
    assert all(r.accepted == 4 and not r.empty for r in rounds)
    assert found.store.known.tolist() == [True, True, True, False, True]


def test_a_round_without_clients_is_empty_and_changes_nothing():
    found = posterity.run(method="fedavg", participation="p:0.0001", **SMALL)
    assert all(x.empty and x.bytes_up == 0 for x in rounds_of(found.lines))
    initial = found.setup.sim.initial
    assert all(torch.equal(p, initial[n]) for n, p in found.state.params.items())


def test_a_test_set_that_belongs_to_no_client():
    found = posterity.run(method="fedavg", dataset="polynomial", model="cubic", rounds=3, evaluate_every=3, lr=1e-5)
    line = next(x for x in scores_of(found.lines) if x.group == "common")
    assert line.clients["n"] == [100]
    assert line.value("mse") > 0
    assert found.metric("mse") > 0


def test_a_network_of_your_own():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body = torch.nn.Sequential(
                torch.nn.Flatten(), torch.nn.Linear(64, 12), torch.nn.BatchNorm1d(12), torch.nn.ReLU(),
                torch.nn.Dropout(0.2))  # fmt: skip
            self.top = torch.nn.Linear(12, 10)

        def forward(self, x):
            return self.top(self.body(x))

    model = models.wrap(Net(), "top", 10, "classification")
    same = [
        posterity.run(method="fedper", model=model, engine=e, dtype="float64", **SMALL) for e in ("loop", "stacked")
    ]
    assert same[0].metric("nll") == pytest.approx(same[1].metric("nll"), rel=1e-9)


def test_an_operator_that_cannot_be_stacked_is_named():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = torch.nn.GRU(8, 6, batch_first=True)
            self.top = torch.nn.Linear(6, 10)

        def forward(self, x):
            return self.top(self.rnn(x[:, 0])[0][:, -1])

    model = models.wrap(Net(), "top", 10, "classification")
    assert posterity.run(method="fedavg", model=model, **SMALL).setup.engine.name == "loop"
    with pytest.raises(ValueError, match="GRU"):
        posterity.run(method="fedavg", model=model, engine="stacked", **SMALL)


def test_steps_instead_of_epochs_and_other_optimisers():
    for optimiser in ("sgd", "adam", "rmsprop"):
        found = posterity.run(method="fedavg", local_steps=3, optimiser=optimiser, batch_size=5, **SMALL)
        assert found.method.local.steps == 3
        assert found.metric("nll", show="last") < 20


def test_the_data_seed_fixes_the_partition():
    runs = [posterity.run(method="local", seed=s, data_seed=d, **SMALL) for s, d in ((0, 5), (1, 5), (5, None))]
    counts = [r.federation.train.counts.tolist() for r in runs]
    assert counts[0] == counts[1] == counts[2]
    assert runs[0].metric("nll") != runs[1].metric("nll")


class Forward(torch.nn.Module):
    """A network whose forward does something that `trick` says."""

    def __init__(self, trick):
        super().__init__()
        self.body, self.top, self.trick = torch.nn.Linear(64, 12), torch.nn.Linear(12, 10), trick

    def forward(self, x):
        return self.top(self.trick(self.body(x.flatten(1))))


def test_a_network_that_draws_by_itself_is_refused():
    model = models.wrap(Forward(torch.nn.functional.dropout), "top", 10, "classification")
    with pytest.raises(ValueError, match="draws random numbers by itself"):
        posterity.run(method="fedavg", model=model, **SMALL)


def test_an_operator_inside_the_forward_that_cannot_be_stacked_is_named():
    def halve_if_large(z):
        return z / 2 if z.abs().max() > 1e3 else z

    model = models.wrap(Forward(halve_if_large), "top", 10, "classification")
    found = posterity.run(method="fedavg", model=model, **SMALL)
    assert found.setup.engine.name == "loop"
    assert "an operator in its forward" in found.setup.remark
