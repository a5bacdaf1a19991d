"""What a site answers. It is started anew for every question, so whatever it needs is in the question or on its disk.

    register   who is there: the client's name, what its samples are like, how many it trains on
    visit      an offer: its scores as asked, then training; the message goes back, the record stays
    leave      the client's own factor of the server's state, which is taken out of it

Scores and training go in one message, because on a network each message starts a process.

A site may wish to leave by itself, in a file beside its record. It finds it at the next question, and answers as if it
had been asked to leave:

    leave.json   the wish; it can be taken back
    left.json    the question that was answered with it; from then on the site has left

One becomes the other by being renamed, so that a wish is either taken back or answered, never both. A site that has
left answers every further question in the same way, for the first answer may be lost.

A site's own model predicts without a server or a network: from the record and the last offer on its disk, also after
it has left.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posterity.core.messages import Message, Offer
from posterity.core.protocol import Method, Personal
from posterity.core.tree import tree_finite, tree_map, tree_named
from posterity.data.federation import Federation
from posterity.engine.client import Site, predict_client, visit_client
from posterity.experiment.setup import DTYPES
from posterity.flower.agreement import Agreement, agree
from posterity.flower.codec import CodecError, decode, encode, read_arrays, read_facts
from posterity.flower.question import ClientQuestion
from posterity.flower.records import RecordFiles, place_of
from posterity.flower.samples import Samples
from posterity.flower.scores import encode_loss, encode_scores, scored_rows
from posterity.flower.sent import SENT, counts_behind, describe_reply, refusing, write_sent
from posterity.runs.files import read_json, write_atomic, write_json
from posterity.settings.config import Config

HELD = ("validation", "test")
OFFER = "offer.bin"  # beside the record: the last question that was complete
WISH, LEFT = "leave.json", "left.json"


@dataclass(frozen=True)
class ClientSite:
    config: Config
    experiment: str
    samples: Samples
    folder: Path

    @property
    def place(self) -> Path:
        return place_of(self.folder, self.experiment, self.samples.name)


def answer(site: ClientSite, data: bytes) -> bytes:
    facts = read_facts(data)
    if facts.get("ask") == "register":
        return _registration(site)
    asked = ClientQuestion.of(facts)
    if asked.ask == "leave" or is_leaving(site.place, asked.trial):
        return _leave(site, asked, data)
    return _visit(site, asked, data)


def _registration(site: ClientSite) -> bytes:
    mine, classes = site.samples, site.samples.named(site.config.least)
    train, kind = len(mine.rows["train"]), replace(mine.kind, classes=classes)
    sizes = [mine.size_of(name) for name in classes] if mine.private else []
    behind = {"train": train, "classes": min(sizes, default=None)}
    reply = encode({}, facts={"client": mine.name, "newcomer": mine.newcomer, "train": train, **kind.facts()})
    write_sent(site.place, describe_reply(reply, 0, behind, {}))
    return reply


@dataclass(frozen=True)
class Opened:
    agreement: Agreement
    mine: Samples
    machine: Site
    offer: Offer
    files: RecordFiles
    record: Personal | None

    def predict(self, x: Tensor, round: int, point: str, epochs: int) -> Tensor:
        return predict_client(self.machine, self.offer.shared, self.offer.own, self.record, round, x, point, epochs)


def open_question(site: ClientSite, data: bytes, same: bool = True) -> Opened:
    """What a question is about; `same`: only with the data that were trained on."""
    asked = ClientQuestion.of(read_facts(data))
    kind, number = asked.samples, asked.number
    with refusing("its columns, task or classes are not those that were agreed on"):
        mine = site.samples.as_kind(kind, site.config.least)  # before a network is made of that size
    with refusing():  # it knows the configuration and the question, and no data
        agreement = agree(site.config, kind, **asked.federation)
    read_facts(data, agreement.fingerprint)  # before a state is made for so many clients
    longest = max(1, agreement.method.adaptation, agreement.config.newcomer_epochs)
    for point, _, epochs in asked.score:  # nobody makes a site adapt longer
        if epochs > longest:
            raise CodecError(f"the server asks for scores after {epochs} epochs, {point!r}; expected at most {longest}")
    setting, rows = (agreement.method, agreement.model, agreement.initial, agreement.visits), mine.rows
    parts = {name: rows[name] for name in ("train", "validation")}
    machine = Site(*setting, torch.tensor(number), mine.x, mine.y, parts)
    offer = decode(data, agreement.offer_like(None if asked.newcomer else number), agreement.fingerprint, finite=False)
    values = site.samples.fingerprint if same else ""
    files = RecordFiles(site.folder, site.experiment, mine.name, agreement.fingerprint, values)
    return Opened(agreement, mine, machine, offer, files, _record(machine, offer, files, asked))


def _visit(site: ClientSite, asked: ClientQuestion, data: bytes) -> bytes:
    found = open_question(site, data)
    mine, round = found.mine, asked.round
    scores = [_scored(found, site.config.least, *each) for each in asked.score]
    if scores:
        _keep_offer(site, data)
    reply = {"client": mine.name, "round": round, "trial": asked.trial, "scores": scores}
    if not asked.train:
        return _reply(site, found, {}, reply)
    done = visit_client(found.machine, found.offer.shared, found.offer.own, found.record, round)
    one = tree_map(lambda leaf: leaf[None], (done.message, done.record))
    if not bool(tree_finite(one).all()):
        return _reply(site, found, {}, {**reply, "refused": "not finite"})
    if not asked.trial:
        found.files.write(done.record, round, {asked.counted, _counted_in_offer(site)})
    enough = len(mine.rows["train"]) >= site.config.least
    return _reply(site, found, done.message, {**reply, "loss": encode_loss(done.loss) if enough else None})


def _leave(site: ClientSite, asked: ClientQuestion, data: bytes) -> bytes:
    """The factor that the server is to subtract for a client that goes, if there is one.

    It is in the record: whose data have changed meanwhile can leave all the same.
    """
    found, round = open_question(site, data, same=False), asked.round
    factor = None if found.record is None else found.agreement.method.factor(found.record)
    if asked.ask == "visit" and not seal_wish(site.place):
        return _visit(site, asked, data)  # it stays after all
    if read_arrays(data).keys() == read_arrays(encode(found.offer, complete=True)).keys():
        _keep_offer(site, data)  # nothing that travels for scoring alone is left out
    facts = {"client": site.samples.name, "round": round, "trial": asked.trial, "leave": True}
    reply = encode({} if factor is None else factor, found.agreement.fingerprint, facts)
    rows = len(found.mine.rows["train"])
    behind = {} if factor is None else dict.fromkeys((name.split("/")[0] for name, _ in tree_named(factor)), rows)
    write_sent(site.place, describe_reply(reply, round, {}, behind))
    about = {"client": site.place.name, "experiment": site.place.parent.name, "round": round}
    write_json(site.place / LEFT, about)  # for whoever asks at the site
    return reply


def _keep_offer(site: ClientSite, data: bytes) -> None:
    """A complete offer: with it and the record, this site can predict by itself."""
    site.place.mkdir(parents=True, exist_ok=True)
    write_atomic(site.place / OFFER, data)


def _counted_in_offer(site: ClientSite) -> int:
    """The round of the record that belongs to the offer on this site's disk; 0: to none."""
    path = site.place / OFFER
    return int(read_facts(path.read_bytes())["counted"]) if path.is_file() else 0


def _reply(site: ClientSite, found: Opened, message: Message, facts: Mapping[str, Any]) -> bytes:
    """A reply, once it is written down what leaves with it."""
    agreement, mine, train = found.agreement, found.mine, found.mine.rows["train"]
    reply = encode(message, agreement.fingerprint, facts)
    sizes = mine.y[train].bincount().tolist() if mine.kind.classes else []
    smallest = min((size for size in sizes if size >= max(1, site.config.least)), default=0)
    scored = [each[part]["n"] for each in facts["scores"] for part in HELD if each[part]["n"]]
    behind = {"loss": None if facts.get("loss") is None else len(train), "scores": min(scored, default=0)}
    leaves = counts_behind(agreement.method, message, len(train), smallest)
    write_sent(site.place, describe_reply(reply, facts["round"], behind, leaves))
    return reply


def _record(machine: Site, offer: Offer, files: RecordFiles, asked: ClientQuestion) -> Personal | None:
    """The record that counts; None before the first, and for a newcomer."""
    if asked.newcomer or not asked.counted:
        return None
    like = machine.receive(offer.shared, offer.own, None, asked.round).personal
    with refusing(f"its record of round {asked.counted} is missing, damaged or of another experiment"):
        return files.read(like, asked.counted)


def _scored(found: Opened, least: int, point: str, round: int, epochs: int) -> dict[str, Any]:
    """Scores of this client's own model on its held-out rows; of fewer than `least` none."""
    mine, halves = found.mine, []
    for part in HELD:
        rows = mine.rows[part] if len(mine.rows[part]) >= least else mine.rows[part][:0]
        outputs = torch.zeros(0, len(mine.kind.classes) or 2)
        if len(rows):
            outputs = found.predict(mine.x[rows], round, point, epochs)
        halves.append(scored_rows(outputs, mine.y[rows], mine.kind))
    tables = encode_scores(halves[0], halves[1], found.machine, point, epochs, least)
    return {"point": point, "round": round, "epochs": epochs, **tables}


# --- its wish to leave
def is_leaving(place: Path, trial: bool) -> bool:
    """Whether a request is answered with the wish; a trial belongs to the round before."""
    return (place / LEFT).exists() or ((place / WISH).exists() and not trial)


def seal_wish(place: Path) -> bool:
    """Make the wish one that cannot be taken back; False: it has been, a moment ago."""
    with suppress(FileNotFoundError):
        os.replace(place / WISH, place / LEFT)
    return (place / LEFT).exists()


def left_in(place: Path) -> int:
    """The round in which this client said that it leaves; 0: it has not."""
    return int(read_json(place / LEFT).get("round", 0)) if (place / LEFT).exists() else 0


def find_place(folder: Path) -> Path:
    """The folder of the one client that has registered from `folder`, in it or below."""
    found = sorted({path.parent for depth in ("", "*/", "*/*/") for path in folder.glob(depth + SENT)})
    if not found:
        raise ValueError(f"{folder} holds no {SENT}: no client has registered from there; give this site's 'records'")
    if len(found) > 1:
        raise ValueError(f"{folder} holds several clients: give the folder of one, {' or '.join(map(str, found))}")
    return found[0]


def wish_to_leave(place: Path) -> None:
    _refuse_left(place)
    write_json(place / WISH, {"client": place.name, "experiment": place.parent.name})


def take_back(place: Path) -> None:
    try:
        (place / WISH).unlink()
    except FileNotFoundError:
        _refuse_left(place)
        raise ValueError(f"{place} holds no wish to leave that could be taken back: this client takes part") from None


def _refuse_left(place: Path) -> None:
    if (place / LEFT).exists():
        raise ValueError(f"{place} has left for good, in round {left_in(place)}; its own model is still here")


# --- its own model at work
UNSCORED = "this method is scored as trained: the model was trained once more, and no score of the run is of it"
NO_LATER = "no score of the run is of this model: the client left or was away, or the run was stopped"


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
        raise ValueError(f"there is no {path}: this client has not been scored yet in {site.experiment!r}")
    data = path.read_bytes()
    asked = ClientQuestion.of(read_facts(data))
    try:
        found = open_question(site, data)
    except CodecError as error:
        raise ValueError(f"{path} does not go with the settings of the app's folder ({error}): write into its "
                         "pyproject.toml what was given to 'flwr run -c'") from error  # fmt: skip
    here, method = found.mine.kind, found.agreement.method
    round, epochs, note = _point(method, asked, left_in(site.place) == asked.round)
    rows = federation.preprocessing.apply(x, 0, federation.shape, DTYPES[site.config.dtype])
    if here.columns != site.samples.kind.columns:
        rows = rows[:, here.order_of(site.samples.kind.columns, f"client {site.samples.name!r}")]
    outputs = found.predict(rows, round, method.scored, epochs).double()
    outputs = outputs if here.task == "regression" else outputs.exp()
    return SitePrediction(outputs, here.classes, round, method.scored, note)


def _point(method: Method, asked: ClientQuestion, left: bool) -> tuple[int, int, str]:
    """Round and epochs of the model that an offer gives, and what must be said about it."""
    points = {point: (round, epochs) for point, round, epochs in asked.score}
    if method.scored in points and not left:
        return (*points[method.scored], "")
    if method.scored == "trained":
        return asked.round, 0, UNSCORED
    return asked.round - 1, method.adaptation if method.scored == "adapted" else 0, NO_LATER
