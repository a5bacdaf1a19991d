"""The server's folder has the lines of the simulator's run, and so the page: members and newcomers, at all points."""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import fields, replace
from types import SimpleNamespace

import pytest
import torch

import posterity
from posterity.flower.agreement import SampleSpec
from posterity.flower.codec import CodecError
from posterity.flower.scores import encode_scores, read_scores, scored_rows
from posterity.report import write_report
from posterity.runs.files import clean, read_json, read_lines
from posterity.runs.lines import to_json
from posterity.settings.config import Config

from .in_process import configuration, deploy, node_of
from .test_codec import with_header
from .test_samples_own_files import SITES, run_files

NAMES = ("round", "point", "epochs", "group", "part")
WHERE = {"point": "received", "round": 1, "epochs": 0}
TWO = SampleSpec((2,), "classification", ("no", "yes"))


def simulated(config: Config, out=None):
    """The lines of the simulator's run."""
    told = {f.name: getattr(config, f.name) for f in fields(config)}
    return [to_json(line) for line in posterity.run(**told, out=out).lines]


def scores_of(lines):
    """(round, point, epochs, group, part) -> line."""
    return {tuple(line[name] for name in NAMES): clean(line) for line in lines if line["kind"] == "score"}


def numbers(value):
    """Every number of a line, for a comparison up to the last places."""
    if isinstance(value, dict):
        return [each for name in sorted(value) for each in numbers(value[name])]
    if isinstance(value, (list, tuple)):
        return [each for some in value for each in numbers(some)]
    return [] if isinstance(value, str) else [-1.0 if value is None else value]


@pytest.mark.parametrize(
    "spec",
    [
        "pfedvmp",
        pytest.param("feddyn", marks=pytest.mark.everything),
        pytest.param("fedper+ft", marks=pytest.mark.everything),
        pytest.param("fedavg+calibrated", marks=pytest.mark.everything),
    ],
)
def test_they_are_those_of_the_simulator(spec, tmp_path):
    config = configuration(spec, clients=4, newcomers="1")
    deploy(config, tmp_path)
    lines, others = read_lines(tmp_path / "server" / "metrics.jsonl"), simulated(config, tmp_path / "simulated")
    found, expected = scores_of(lines), scores_of(others)
    assert found.keys() == expected.keys()
    assert {key[3] for key in found} == {"members", "newcomers"}
    for key, line in found.items():
        assert line.keys() == expected[key].keys()
        assert line["clients"]["accuracy"] == expected[key]["clients"]["accuracy"]
        assert numbers(line) == pytest.approx(numbers(expected[key]), rel=1e-12)
    rounds = [[{**line, "seconds": None} for line in some if line["kind"] == "round"] for some in (lines, others)]
    assert [numbers(clean(line)) for line in rounds[0]] == [
        pytest.approx(numbers(clean(line)), rel=1e-6) for line in rounds[1]
    ]
    assert [line.keys() for line in rounds[0]] == [line.keys() for line in rounds[1]]
    check_page(tmp_path)


def page_lines(folder):
    """The words of a run's page, without drawings."""
    page = re.sub(r"<(svg|script|style).*?</\1>", "", write_report(folder).read_text(), flags=re.S)
    return [line.strip() for line in re.sub(r"<[^>]*>", "\n", page).splitlines() if line.strip()]


def check_page(folder):
    """The same page, without data: all that differs is what the server does not know of them, and how long it took."""
    mine, other = page_lines(folder / "server"), page_lines(folder / "simulated")
    train = sum(read_json(folder / "server" / "run.json")["federation"]["train"])
    data = rf"(.* on )?data of 4 sites( – posterity)?|{train}|Bars: .*|: min_count = 1.*"
    differ = re.compile(rf"{data}|–|.*engine flower.*|[^:%\d]+")
    changed = [line[2:] for line in difflib.ndiff(mine, other) if line.startswith("- ")]
    assert any("engine flower" in line for line in changed)
    assert [line for line in changed if not differ.fullmatch(line)] == []
    assert read_json(folder / "server" / "run.json")["status"] == "finished"
    with pytest.raises(ValueError, match="is the folder of a server on Flower: the clients' records are at their"):
        posterity.load(folder / "server")


def test_what_may_be_of_few_rows_is_not_pooled(tmp_path):
    """With min_count, sums by bin and by class stay at home, and AUROC's rows always do; the page says what it has."""
    server, _ = run_files(replace(configuration("fedper", rounds=1), min_count=5), tmp_path)
    found = scores_of(read_lines(tmp_path / "server" / "metrics.jsonl"))
    line = found[1, "received", 0, "members", "test"]
    assert line["clients"]["n"] == [6, 6, 0]
    assert set(line["metrics"]["accuracy"]) == {"pooled", "mean", "train_weighted", "clients"}
    for name in ("ece", "auroc", "balanced_accuracy", "sensitivity"):
        assert set(line["metrics"][name]) == {"mean", "train_weighted", "clients"}
        assert line["metrics"][name]["clients"] == (2.0 if name == "ece" else 0.0)  # three of each class, or fewer
    assert line["bins"] == []
    assert write_report(tmp_path / "server").is_file()
    assert list(server.roster.numbers) == sorted(SITES)


def told(validation, test, least):
    """The metrics that a site sends of two halves, each given by its labels and the probabilities of class 1."""

    def scored(y, p):
        p = torch.tensor(p, dtype=torch.float64)
        return scored_rows(torch.stack((1 - p, p), 1).log(), torch.tensor(y), TWO)

    site = SimpleNamespace(passes=lambda epochs=None: (), prepare=lambda: ())
    tables = encode_scores(scored(*validation), scored(*test), site, "received", 0, least)
    return {part: tables[part]["metrics"] for part in ("validation", "test", "held")}


def test_a_metric_that_is_of_few_rows_stays_at_home():
    """Of ten rows one is positive: sensitivity says whether it was found, and a bin of one row with what confidence."""
    many, few = ([0, 1] * 5, [0.12, 0.88] * 5), ([0] * 9 + [1], [0.12] * 8 + [0.6, 0.7])
    by_class = {"balanced_accuracy", "sensitivity", "specificity", "auroc", "auprc", "calibration_slope",
                "calibration_intercept"}  # fmt: skip
    every = by_class | {"ece", "ece_flat", "mce", "mce_flat"}
    found = told(many, few, 5)
    assert set(found["validation"]) == every
    assert set(found["test"]) == set(found["held"]) == {"ece", "ece_flat"}  # both halves less one is the other
    assert set(told(many, many, 5)["held"]) == every
    assert set(told(many, many, 6)["held"]) == {"ece", "ece_flat", "mce"}  # five rows of each class in either half
    assert set(told(many, few, 1)["test"]) == by_class - {"balanced_accuracy", "sensitivity", "specificity"}
    assert set(told(many, ([0] * 10, [0.12] * 10), 5)["test"]) == every  # a class that is not there


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"n": "6"}, "are of '6' rows"),
        ({"n": 6}, "hold no sums and metrics"),
        ({"n": 6, "sums": {"correct": [1.0]}, "metrics": {}}, "'correct' of its scores are "),
        ({"n": 6, "sums": {"correct": "all"}, "metrics": {}}, "'correct' of its scores are no numbers"),
        ({"n": 6, "sums": dict.fromkeys(("correct", "nll", "brier", "square"), 1), "metrics": {"accuracy": 1}},
         "hold 'accuracy' with 1, which is not expected"),
    ],
)  # fmt: skip
def test_scores_that_are_none_are_named(table, told):
    with pytest.raises(CodecError, match=told):
        read_scores({**WHERE, **dict.fromkeys(("validation", "test", "held"), table)}, TWO, 5)
    with pytest.raises(CodecError, match="no tables of validation, test, held"):
        read_scores({**WHERE, "test": table}, TWO, 5)


def changed_sum(score, value):
    return {**score, "test": {**score["test"], "sums": {**score["test"]["sums"], "correct": value}}}


LIES = {
    "deep": lambda score: {**score, "more": json.loads("[" * 600 + "]" * 600)},
    "deep sum": lambda score: changed_sum(score, json.loads("[" * 600 + "]" * 600)),
    "words": lambda score: {**score, "test": "good"},
    "nothing": lambda score: {name: score[name] for name in ("point", "round", "epochs")},
    "count": lambda score: {**score, "test": {**score["test"], "n": -1}},
    "metric": lambda score: {**score, "test": {**score["test"], "metrics": {"accuracy": "1.0"}}},
    "sum": lambda score: changed_sum(score, "1.0"),
    "large": lambda score: changed_sum(score, 10**400),
}


@pytest.mark.parametrize("case", LIES)
def test_scores_of_another_form_are_refused(case, tmp_path):
    """They are written into the server's folder, so they must be what a reader of it expects."""
    lines: list = []

    def lie(sent):
        def changed(header):
            facts = header["facts"]
            return {**header, "facts": {**facts, "scores": [LIES[case](each) for each in facts["scores"]]}}

        return with_header(sent, changed)

    lies = {(node_of(1), n): lie for n in (4, 5, 6)}  # whichever of the round's three questions it is asked
    server = deploy(configuration("fedavg", rounds=1), tmp_path, lines.append, lies)
    (line,) = [line for line in lines if line["kind"] == "round"]
    ((client, reason),) = [(each["client"], each["reason"]) for each in line["refused"]]
    assert client == "client 1"
    assert "of its scores" in reason or reason.startswith("its scores ")
    assert server.finished
