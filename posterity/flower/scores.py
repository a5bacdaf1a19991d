"""A client's scores on their way: what a site says of its held-out rows, and the lines that the server makes of it.

For every point and every part (validation, test, held out of all fitting) a site sends sums over its rows, and the
server makes of everybody's sums the lines that a simulation writes (`experiment/scoring.py`), to the last bit.

Sums over all rows of a part (right answers, log-probabilities, …) leave if the part has `min_count` rows. Sums over a
bin of confidence or over a class may be of a single row, so they leave only where `min_count` is 1; otherwise the site
sends the metrics that are made of them, and what is pooled over sites is not known. What is ordered by row (AUROC)
never leaves: of two classes the site sends those metrics, too. A metric that is itself of few rows stays at home: what
tells classes apart (sensitivity is the recall of one) where a class has fewer than `min_count` rows, and the largest
gap of a bin where a bin has. What is told of both halves together must not be that of a small half by subtraction.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import Tensor

from posterity.core.tree import tree_cat
from posterity.engine.client import Site, passes_at
from posterity.evaluate import METRICS, Metric, Scores, per_client, rank, score, zero
from posterity.experiment.scoring import Scored, ScoringPlace, fits_validation, score_line
from posterity.flower.agreement import SampleSpec
from posterity.flower.codec import CodecError
from posterity.runs.files import clean
from posterity.runs.lines import ScoreLine

PARTS = ("validation", "test", "held")  # of every table of scores, and the order of lines
TOTALS = ("correct", "nll", "brier", "square")  # sums over all rows of a part
OF_ALL = {"ece", "ece_flat"}  # metrics that are of all rows of a part, though made of sums by bin
MOST = 2**40  # rows: more is a mistake
Line = dict[str, Any]


# --- the site
def scored_rows(outputs: Tensor, y: Tensor, kind: SampleSpec) -> Scored:
    offsets, classes = torch.tensor([0, len(y)]), len(kind.classes)
    ranks = rank(outputs, y, offsets) if kind.task == "classification" and classes == 2 else None
    return Scored(score(outputs, y, offsets, classes, kind.task), ranks, {})


def encode_scores(validation: Scored, test: Scored, site: Site, point: str, epochs: int, least: int) -> Line:
    """The tables of a client at a point; what was fitted on the validation part is not judged by it."""
    fitted = fits_validation(passes_at(site, point, epochs))
    halves = ((validation,), (test,), (test,) if fitted else (validation, test))
    return {name: _encode(parts, least) for name, parts in zip(PARTS, halves, strict=True)}


def encode_loss(loss: Tensor | None) -> list[float] | None:
    """Loss times samples, and samples, for JSON, which has no infinity."""
    return loss.double().tolist() if loss is not None and bool(loss.isfinite().all()) else None


def _encode(parts: Sequence[Scored], least: int) -> Line:
    scored = reduce(add, parts)
    scores = scored.scores
    unknown = {m.name for m in _extra_metrics(scores.classes, least)}
    unknown = {name for name in unknown if not any(_is_of_few(name, each.scores, least) for each in parts)}
    values = per_client(scores, scored.ranks)
    return _table(scores, {n: float(v[0]) for n, v in values.items() if n in unknown}, least)


def _table(scores: Scores, metrics: Mapping[str, float], least: int) -> Line:
    """The sums of one part that may leave a site, and metrics beside them."""
    sums = {name: getattr(scores, name)[0].tolist() for name in _leaving(scores, least)}
    return clean({"n": int(scores.n), "sums": sums, "metrics": dict(metrics)}) if scores.n else {"n": 0}


def _is_of_few(metric: str, scores: Scores, least: int) -> bool:
    """Whether a metric of a part may be of fewer than `least` rows, or show by subtraction what is."""
    if metric in OF_ALL:
        return False
    counts, enough = scores.support, least
    if metric == "mce":
        counts = scores.bins[..., 0]
    elif metric == "mce_flat":  # a row has a probability for every class, and all may be in one bin
        counts, enough = scores.flat[..., 0], least * scores.classes
    return bool(((counts > 0) & (counts < enough)).any())


def _extra_metrics(classes: int, least: int) -> list[Metric]:
    """Metrics that the server cannot make of the sums that it gets."""
    task = "classification" if classes else "regression"
    return [m for m in METRICS if m.fits(task, classes) and not (m.row_mean or (least == 1 and m.source == "sums"))]


# --- the server
@dataclass(frozen=True)
class PartScores:
    """What a client said of one part: sums, and metrics that do not follow from them."""

    scores: Scores
    metrics: Mapping[str, float]


PointScores = dict[str, PartScores]  # by part


def read_scores(table: Mapping[str, Any], kind: SampleSpec, least: int) -> PointScores:
    if set(table) != {"point", "round", "epochs", *PARTS} or not all(isinstance(table[part], dict) for part in PARTS):
        raise CodecError(f"its scores are no tables of {', '.join(PARTS)}")
    return {part: _read(table[part], len(kind.classes), least) for part in PARTS}


def store_scores(scores: Mapping[tuple[str, int, int], PointScores], least: int) -> list[Line]:
    """Tables of a client at some points as `read_scores` reads them, for the server's own folder."""
    return [{"point": point, "round": round, "epochs": epochs,
             **{name: _table(part.scores, part.metrics, least) for name, part in parts.items()}}
            for (point, round, epochs), parts in scores.items()]  # fmt: skip


def _leaving(scores: Scores, least: int) -> list[str]:
    """Names of the sums that leave a site."""
    return [f.name for f in fields(scores) if f.name != "n" and (least == 1 or f.name in TOTALS)]


def _read(table: Mapping[str, Any], classes: int, least: int) -> PartScores:
    none, rows = zero(1, classes), table.get("n")
    if type(rows) is not int or not 0 <= rows < MOST:
        raise CodecError(f"its scores are of {rows!r:.40} rows; expected a number of rows")
    if not rows:
        return PartScores(none, {})
    sums, metrics = (table.get(name) for name in ("sums", "metrics"))
    if not (isinstance(sums, dict) and isinstance(metrics, dict)):
        raise CodecError("its scores hold no sums and metrics")
    found = {name: _numbers(sums.get(name), getattr(none, name)[0], name)[None] for name in _leaving(none, least)}
    allowed = {m.name for m in _extra_metrics(classes, least)}
    for name, value in metrics.items():
        is_number = value is None or (type(value) in (int, float) and math.isfinite(value))
        if name not in allowed or not is_number:
            raise CodecError(f"its scores hold {name!r:.40} with {value!r:.40}, which is not expected")
    known = {name: float(value) for name, value in metrics.items() if value is not None}
    return PartScores(Scores(**{**none.__dict__, **found, "n": none.n + rows}), known)


def _numbers(value: Any, like: Tensor, name: str) -> Tensor:
    """Finite numbers in the shape of `like`; a sum that is infinite is null in JSON."""
    try:
        found = torch.tensor(math.inf if value is None else value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise CodecError(f"the sums {name!r} of its scores are no numbers") from None
    if found.shape != like.shape or bool(found.isnan().any()):
        raise CodecError(f"the sums {name!r} of its scores are {[*found.shape]} numbers; expected {[*like.shape]}")
    return found


def group_lines(
    place: ScoringPlace, clients: Sequence[PointScores | None], train: Sequence[int], kind: SampleSpec, least: int
) -> Iterator[ScoreLine]:
    """None: a client that said nothing."""
    nothing = PartScores(zero(1, len(kind.classes)), {})
    for part in PARTS:
        found = [nothing if each is None else each[part] for each in clients]
        scored = Scored(tree_cat([each.scores for each in found]), None, {})
        values = _values(scored.scores, found, least)
        line = score_line(place, kind.task, part, scored, torch.tensor(train), values)
        yield _without_unknown(line) if least > 1 else line


def _values(scores: Scores, clients: Sequence[PartScores], least: int) -> dict[str, Tensor]:
    made = per_client(scores)
    for metric in _extra_metrics(scores.classes, least):
        said = [each.metrics.get(metric.name, math.nan) for each in clients]
        made[metric.name] = torch.tensor(said, dtype=torch.float64)
    return made


def _without_unknown(line: ScoreLine) -> ScoreLine:
    """Without sums by bin and by class, only means over rows can be pooled."""
    row_means = {metric.name for metric in METRICS if metric.row_mean}
    metrics = {name: {rule: value for rule, value in summary.items() if rule != "pooled" or name in row_means}
               for name, summary in line.metrics.items()}  # fmt: skip
    return replace(line, metrics=metrics, bins=[], flat=[])
