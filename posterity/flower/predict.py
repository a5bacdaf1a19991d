"""A site's own model at work: from the record and the last offer on its disk, without a server or a network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from posterity.core.codec import CodecError, read_facts
from posterity.core.protocol import Method
from posterity.data.federation import Federation
from posterity.engine.client import predict_client
from posterity.experiment.setup import DTYPES
from posterity.flower.question import ClientQuestion
from posterity.flower.site import OFFER, ClientSite, open_question
from posterity.flower.wish import left_in

UNSCORED = ("this method is scored as trained: the model was trained once more, from the last offer, and no score in "
            "the run's folder is of it")  # fmt: skip
LEFT = "this client left when it was offered this model: no score in the run's folder is of it"
NO_LATER = ("no score in the run's folder is of this model: a later one, which would be scored here, has not come to "
            "this site; where the run was stopped or the site was away, start the run again")  # fmt: skip


@dataclass(frozen=True)
class SitePrediction:
    """What a site's model says about some rows, and which model that was."""

    outputs: Tensor  # probabilities (n, classes), or mean and variance (n, 2)
    classes: tuple[str, ...]  # none for regression
    round: int
    point: str
    note: str = ""  # what its user must know


def predict_rows(site: ClientSite, federation: Federation, x: Any) -> SitePrediction:
    """Predictions for raw rows, whose columns are in the order of the site's file (`read_file` is `federation`).

    The model is that of the last offer that came to be scored, at the point where the method is scored: after the end
    of a run, that of its last round; of a client that left, that of the offer that it did not answer. Of a run that
    stopped in a scored round it is the model before that round. A method that is scored as trained trains once more,
    from the last offer.
    """
    path = site.place / OFFER
    if not path.is_file():
        raise ValueError(f"there is no {path}: this client has not been scored yet in the experiment "
                         f"{site.experiment!r}; give its name and its records' folder, or finish the run")  # fmt: skip
    data = path.read_bytes()
    asked = ClientQuestion.of(read_facts(data))
    try:
        found = open_question(site, data)
    except CodecError as error:
        raise ValueError(f"{path} does not go with the settings of the app's folder ({error}): write into its "
                         "pyproject.toml what was given to 'flwr run -c', or put back what it had"
                         ) from error  # fmt: skip
    here, method = found.mine.kind, found.agreement.method
    round, epochs, note = _point(method, asked, left_in(site.place) == asked.round)
    rows = federation.preprocessing.apply(x, 0, federation.shape, DTYPES[site.config.dtype])
    if here.columns != site.samples.kind.columns:
        rows = rows[:, here.order_of(site.samples.kind.columns, f"client {site.samples.name!r}")]
    offer = found.offer
    outputs = predict_client(
        found.machine, offer.shared, offer.own, found.record, round, rows, method.scored, epochs
    ).double()  # fmt: skip
    said = outputs if here.task == "regression" else outputs.exp()
    return SitePrediction(said, here.classes, round, method.scored, note)


def _point(method: Method, asked: ClientQuestion, left: bool) -> tuple[int, int, str]:
    """Round and epochs of the model that an offer gives where the method is scored, and what must be said about it."""
    points = {point: (round, epochs) for point, round, epochs in asked.score}
    if method.scored in points and not left:
        return (*points[method.scored], "")
    if method.scored == "trained":
        return asked.round, 0, UNSCORED
    return asked.round - 1, method.adaptation if method.scored == "adapted" else 0, LEFT if left else NO_LATER


__all__ = ["SitePrediction", "predict_rows"]
