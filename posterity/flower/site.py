"""What a site answers. It is started anew for every question, so whatever it needs is in the question or on its disk.

    register   who is there: the client's name, what its samples are like, how many it trains on
    visit      an offer: its scores as asked, then training; the message goes back, the record stays
    leave      the client's own factor of the server's state, which is taken out of it

Scores and training go in one message, because on a network each message starts a process. A site that wishes to leave
(`wish.py`) answers a visit as if it had been asked to leave.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from posterity.core.codec import CodecError, decode, encode, read_facts
from posterity.core.messages import Message, acceptable
from posterity.core.named_arrays import read_header
from posterity.core.protocol import Personal
from posterity.core.tree import tree_finite, tree_map, tree_named
from posterity.core.wire import Offer
from posterity.engine.client import Site, Visit, predict_client, visit_client
from posterity.experiment.config import Config
from posterity.experiment.run_folder import write_atomic
from posterity.experiment.scoring import Scored
from posterity.flower.agreement import Agreement, agree
from posterity.flower.question import ClientQuestion
from posterity.flower.records import RecordFiles
from posterity.flower.refusal import telling
from posterity.flower.samples import Samples
from posterity.flower.scores import scored_rows, tell_loss, tell_scores
from posterity.flower.sent import SampleCounts, counts_behind, describe_reply, write_sent
from posterity.flower.wish import is_leaving, seal_wish, write_left

HELD = ("validation", "test")
OFFER = "offer.bin"  # beside the record: the last question that was complete


@dataclass(frozen=True)
class ClientSite:
    """One client's machine: its samples, its folder for records, and the configuration that everybody has."""

    config: Config
    experiment: str
    samples: Samples
    folder: Path

    def register(self) -> dict[str, Any]:
        """Who this is; nothing of the samples themselves."""
        mine = self.samples
        kind = replace(mine.kind, classes=mine.named(self.config.least))
        return {"client": mine.name, "newcomer": mine.newcomer, "train": len(mine.rows["train"]), **kind.facts()}

    @property
    def place(self) -> Path:
        """Where this client's record is, and what was sent."""
        return RecordFiles(self.folder, self.experiment, self.samples.name, "").place


def answer(site: ClientSite, data: bytes) -> bytes:
    """The reply to a question of the server's."""
    told = read_facts(data)
    if told.get("ask") == "register":
        return _registration(site)
    asked = ClientQuestion.of(told)
    if asked.ask == "leave" or is_leaving(site.place, asked.trial):
        return _leave(site, asked, data)
    return _visit(site, asked, data)


def _registration(site: ClientSite) -> bytes:
    told, mine = site.register(), site.samples
    sizes = [mine.size_of(name) for name in told["classes"]] if mine.private else []
    behind = {"train": told["train"], "classes": min(sizes, default=None)}
    reply = encode({}, facts=told)
    write_sent(site.place, describe_reply(reply, 0, behind, {}))
    return reply


@dataclass(frozen=True)
class Opened:
    """A question, read: what server and site agree on, the client's samples and machine, its offer and its record."""

    agreement: Agreement
    mine: Samples
    machine: Site
    offer: Offer
    files: RecordFiles
    record: Personal | None


def open_question(site: ClientSite, data: bytes, same: bool = True) -> Opened:
    """What a question of the kinds `visit` and `leave` is about; `same`: only with the data that were trained on."""
    asked = ClientQuestion.of(read_facts(data))
    kind, number = asked.samples, asked.number
    with telling("its columns, task or classes are not those that were agreed on"):
        mine = site.samples.as_kind(kind, site.config.least)  # before a network is made of that size
    with telling():  # it knows the configuration and the question, and no data
        agreement = agree(site.config, kind, **asked.federation)
    read_facts(data, agreement.fingerprint)  # before a state is made for so many clients
    _check_epochs(agreement, asked)
    machine = machine_of(agreement, mine, number)
    offer = decode(data, agreement.offer_like(None if asked.newcomer else number), agreement.fingerprint, finite=False)
    values = site.samples.fingerprint if same else ""
    files = RecordFiles(site.folder, site.experiment, mine.name, agreement.fingerprint, values)
    return Opened(agreement, mine, machine, offer, files, _record(machine, offer, files, asked))


def _check_epochs(agreement: Agreement, asked: ClientQuestion) -> None:
    """Nobody makes a site adapt for longer than its configuration says."""
    most = max(1, agreement.method.adaptation, agreement.config.newcomer_epochs)
    for point, _, epochs in asked.score:
        if epochs > most:
            raise CodecError(f"the server asks for scores after {epochs} epochs, {point!r}; expected at most {most}")


def _visit(site: ClientSite, asked: ClientQuestion, data: bytes) -> bytes:
    found, round = open_question(site, data), asked.round
    agreement, mine, machine, offer, record = found.agreement, found.mine, found.machine, found.offer, found.record
    scores = [_scored(machine, mine, offer, record, site.config.least, *each) for each in asked.score]
    if scores:
        _keep_offer(site, data)
    reply = {"client": mine.name, "round": round, "trial": asked.trial, "scores": scores}
    say = partial(_say, site, agreement, mine)
    if not asked.train:
        return say({}, reply)
    done = visit_client(machine, offer.shared, offer.own, record, round)
    if not _usable(done):
        return say({}, {**reply, "refused": "not finite or outside its declared range"})
    if not asked.trial:
        found.files.write(done.record, round, {asked.counted, _counted_in_offer(site)})
    enough = len(mine.rows["train"]) >= site.config.least
    return say(done.message, {**reply, "loss": tell_loss(done.loss) if enough else None})


def _leave(site: ClientSite, asked: ClientQuestion, data: bytes) -> bytes:
    """The factor that the server is to subtract for a client that goes for good, if there is one.

    It is in the record: whose data have changed meanwhile can leave all the same.
    """
    found, round = open_question(site, data, same=False), asked.round
    factor = None if found.record is None else found.agreement.method.factor(found.record)
    if asked.ask == "visit" and not seal_wish(site.place):
        return _visit(site, asked, data)  # it stays after all
    if _is_complete(data, found.offer):
        _keep_offer(site, data)
    told = {"client": site.samples.name, "round": round, "trial": asked.trial, "leave": True}
    reply = encode({} if factor is None else factor, found.agreement.fingerprint, told)
    rows = len(found.mine.rows["train"])
    behind = {} if factor is None else dict.fromkeys((name.split("/")[0] for name, _ in tree_named(factor)), rows)
    write_sent(site.place, describe_reply(reply, round, {}, behind))
    write_left(site.place, round, factor is not None)
    return reply


def _keep_offer(site: ClientSite, data: bytes) -> None:
    """A question whose offer is complete: with it and the record, this site can predict by itself."""
    site.place.mkdir(parents=True, exist_ok=True)
    write_atomic(site.place / OFFER, data)


def _is_complete(data: bytes, offer: Offer) -> bool:
    """Whether nothing is left out of a question's offer, be it that there is nothing that travels for scoring alone."""
    return read_header(data).arrays.keys() == read_header(encode(offer, complete=True)).arrays.keys()


def _counted_in_offer(site: ClientSite) -> int:
    """The round of the record that belongs to the offer on this site's disk; 0: to none."""
    path = site.place / OFFER
    return int(read_facts(path.read_bytes())["counted"]) if path.is_file() else 0


def _say(site: ClientSite, agreement: Agreement, mine: Samples, message: Message, facts: Mapping[str, Any]) -> bytes:
    """A reply, once it is written down what leaves with it."""
    reply, train = encode(message, agreement.fingerprint, facts), mine.rows["train"]
    sizes = mine.y[train].bincount().tolist() if mine.kind.classes else []
    counts = SampleCounts(len(train), tuple(sizes), site.config.least)
    scored = [each[part]["n"] for each in facts["scores"] for part in HELD if each[part]["n"]]
    behind = {"loss": None if facts.get("loss") is None else len(train), "scores": min(scored, default=0)}
    leaves = counts_behind(agreement.method, message, counts)
    write_sent(site.place, describe_reply(reply, facts["round"], behind, leaves))
    return reply


def machine_of(agreement: Agreement, mine: Samples, number: int) -> Site:
    """The engine's view of this client: its samples, its number, and the setting."""
    setting = (agreement.method, agreement.model, agreement.initial, agreement.visits)
    return Site(*setting, torch.tensor(number), mine.x, mine.y, {n: mine.rows[n] for n in ("train", "validation")})


def _record(machine: Site, offer: Offer, files: RecordFiles, asked: ClientQuestion) -> Personal | None:
    """The record that counts; None before the first, and for a newcomer."""
    if asked.newcomer or not asked.counted:
        return None
    like = machine.arrive(offer.shared, offer.own, None, asked.round).personal
    with telling(f"its record of round {asked.counted} is missing, damaged or of another experiment"):
        return files.read(like, asked.counted)


def _scored(
    machine: Site,
    mine: Samples,
    offer: Offer,
    record: Personal | None,
    least: int,
    point: str,
    round: int,
    epochs: int,
) -> dict[str, Any]:
    """Scores of this client's own model on its validation and test rows; of fewer than `least` rows none."""

    def scored(part: str) -> Scored:
        rows = mine.rows[part] if len(mine.rows[part]) >= least else mine.rows[part][:0]
        outputs = torch.zeros(0, len(mine.kind.classes) or 2)
        if len(rows):
            outputs = predict_client(machine, offer.shared, offer.own, record, round, mine.x[rows], point, epochs)
        return scored_rows(outputs, mine.y[rows], mine.kind)

    tables = tell_scores(scored(HELD[0]), scored(HELD[1]), machine, point, epochs, least)
    return {"point": point, "round": round, "epochs": epochs, **tables}


def _usable(done: Visit) -> bool:
    """Whether a message and a record are finite and within what was declared: only then anything is sent or kept."""
    one = tree_map(lambda leaf: leaf[None], (done.message, done.record))
    return all(bool(verdict.all()) for verdict in (acceptable(one[0]), tree_finite(one[1])))


__all__ = ["OFFER", "ClientSite", "answer", "machine_of", "open_question"]
