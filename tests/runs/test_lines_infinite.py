"""JSON has no infinity: it is a word in a file, and a number again where the line is read."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from posterity.evaluate import per_client, score
from posterity.experiment.scoring import Scored, ScoringPlace, score_line
from posterity.runs.lines import (
    ClientColumns,
    ScoreLine,
    StoredColumns,
    from_json,
    read_lines,
    to_json,
    write_lines,
)

CERTAIN, FAIR = [0.0, -math.inf], [math.log(0.6), math.log(0.4)]
SOME = {  # three clients: one wrong beyond all measure, one fair, one without rows
    "classification": (torch.tensor([CERTAIN, FAIR, FAIR]), torch.tensor([1, 0, 1]), 2),
    "regression": (torch.tensor([[math.inf, 1.0], [0.5, 1.0], [0.2, 2.0]]), torch.tensor([0.0, 1.0, 0.0]), 0),
}
NONE = (torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64), 2)


def line_of(
    task: str, rows: tuple[torch.Tensor, torch.Tensor, int], *offsets: int, train: tuple[int, ...]
) -> ScoreLine:
    outputs, y, classes = rows
    scored = Scored(score(outputs, y, torch.tensor(offsets), classes, task), None, {})
    values = per_client(scored.scores)
    place = ScoringPlace(3, "received", 0, "members")
    return score_line(place, task, "test", scored, torch.tensor(train), values)


def same(one: object, other: object) -> bool:
    """Equal, where what is undefined may be None or NaN."""
    if isinstance(one, ScoreLine) and isinstance(other, ScoreLine):
        return same(vars(one), vars(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    undefined = [x is None or x != x for x in (one, other)]
    return all(undefined) or one == other


LINES = {
    "an infinite client": line_of("classification", SOME["classification"], 0, 1, 3, 3, train=(5, 5, 5)),
    "an infinite error": line_of("regression", SOME["regression"], 0, 1, 3, 3, train=(5, 5, 5)),
    "fair clients": line_of("classification", SOME["classification"], 1, 2, 3, 3, train=(5, 5, 5)),
    "nobody has trained": line_of("classification", SOME["classification"], 1, 2, 3, 3, train=(0, 0, 0)),
    "nobody has rows": line_of("classification", NONE, 0, 0, 0, train=(5, 5)),
    "nobody has targets": line_of("regression", (NONE[0], NONE[1].float(), 0), 0, 0, train=(5,)),
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_a_line_that_was_read_is_the_one_that_was_written(line: ScoreLine, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_lines(path, [line])
    assert "Infinity" not in path.read_text()
    (read,) = read_lines(path)
    assert same(read, line)
    assert to_json(read) == to_json(line)


def test_a_metric_of_ones_own_is_infinite_where_it_was_and_undefined_where_it_was(tmp_path: Path) -> None:
    """A perplexity of exp(1000), and of a client without rows; a plain null would be missing from every mean."""
    mine = {"pooled": math.inf, "mean": math.inf, "train_weighted": math.nan, "clients": 2.0}
    loss = {"pooled": -math.inf, "mean": -0.5}
    line = LINES["an infinite client"]
    line = replace(line, metrics={**line.metrics, "perplexity": mine, "log": loss},
                   clients={**line.clients, "perplexity": [math.inf, 1.7, math.nan]})  # fmt: skip
    path = tmp_path / "metrics.jsonl"
    write_lines(path, [line])
    assert "Infinity" not in path.read_text()
    (read,) = read_lines(path)
    assert same(read, line)
    assert to_json(read) == to_json(line)
    packed = {**json.loads(path.read_text()), "clients": {}}  # a round that no rule chose
    assert same(from_json(packed), replace(line, clients={}))


def test_columns_in_a_file_know_infinity(tmp_path: Path) -> None:
    line, path = LINES["an infinite client"], tmp_path / "metrics.jsonl"
    columns = ClientColumns(3, torch.arange(3), {"n": torch.tensor([1, 2, 0]), "nll": torch.tensor([math.inf, 0.7, 1])})
    write_lines(path, [replace(line, clients=columns)])
    (again,) = read_lines(path)
    assert isinstance(again.clients, StoredColumns)
    assert again.clients["nll"][0] == math.inf


def test_lines_of_other_kinds_are_left_out_and_odd_ones_pass() -> None:
    assert from_json({"kind": "another"}) is None
    odd = {"kind": "score", "round": 1, "point": "received", "part": "test", "metrics": {"nll": {}, "mse": {}},
           "clients": {"nll": [None], "n": [1, 2]}}  # fmt: skip
    assert from_json(odd).clients == odd["clients"]
