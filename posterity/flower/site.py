"""What a site answers. It is started anew for every question, so whatever it needs is in the question or on its disk.

    register   who is there: the client's name, what its samples are like, how many it trains on
    visit      an offer: its scores as asked, then training; the message goes back, the record stays
    leave      the client's own factor of the server's state, which is taken out of it

Both go in one message, because on a network each message starts a process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posterity.core.codec import CodecError, decode, encode, read_facts
from posterity.core.messages import acceptable
from posterity.core.protocol import Personal
from posterity.core.tree import tree_finite, tree_map
from posterity.core.wire import Offer
from posterity.engine.client import Site, Visit, predict_client, visit_client
from posterity.evaluate import per_client, score
from posterity.experiment.config import Config
from posterity.flower.agreement import Agreement, SampleKind, agree
from posterity.flower.records import RecordFiles
from posterity.flower.samples import Samples

HELD = ("validation", "test")


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
        return {"client": mine.name, "newcomer": mine.newcomer, "train": len(mine.rows["train"]), **mine.kind.facts()}


def answer(site: ClientSite, data: bytes) -> bytes:
    """The reply to a question of the server's."""
    asked = read_facts(data)
    if asked.get("ask") == "register":
        return encode({}, facts=site.register())
    if asked.get("ask") not in ("visit", "leave"):
        raise CodecError(f"the server asks for {asked.get('ask')!r}; this site answers 'register', 'visit' and 'leave'")
    return _visit(site, asked, data)


def _visit(site: ClientSite, asked: Mapping[str, Any], data: bytes) -> bytes:
    kind = SampleKind.of(asked["samples"])
    told = asked["federation"]
    agreement = agree(site.config, kind, told["clients"], told["samples"], told["public"])
    mine, number, round = site.samples.as_kind(kind), asked["number"], asked["round"]
    late = bool(asked["newcomer"])
    machine = machine_of(agreement, mine, number)
    offer = decode(data, agreement.offer_like(None if late else number), agreement.fingerprint, finite=False)
    files = RecordFiles(site.folder, site.experiment, mine.name, agreement.fingerprint)
    record = _record(machine, offer, files, asked)
    if asked["ask"] == "leave":
        told = {"client": mine.name, "round": round, "trial": False}
        return encode(agreement.method.factor(record), agreement.fingerprint, told)
    scores = [_scored(machine, mine, offer, record, *each) for each in asked["score"]]
    reply = {"client": mine.name, "round": round, "trial": asked["trial"], "scores": scores}
    if not asked["train"]:
        return encode({}, agreement.fingerprint, reply)
    done = visit_client(machine, offer.shared, offer.own, record, round)
    if not _usable(done):
        return encode({}, agreement.fingerprint, {**reply, "refused": "not finite or outside its declared range"})
    if not asked["trial"]:
        files.write(done.record, round, asked["counted"])
    loss = None if done.loss is None else done.loss.double().tolist()
    return encode(done.message, agreement.fingerprint, {**reply, "loss": loss})


def machine_of(agreement: Agreement, mine: Samples, number: int) -> Site:
    """The engine's view of this client: its samples, its number, and the setting."""
    setting = (agreement.method, agreement.model, agreement.initial, agreement.visits)
    return Site(*setting, torch.tensor(number), mine.x, mine.y, {n: mine.rows[n] for n in ("train", "validation")})


def _record(machine: Site, offer: Offer, files: RecordFiles, asked: Mapping[str, Any]) -> Personal | None:
    """The record that counts; None before the first, and for a newcomer."""
    if asked["newcomer"] or not asked["counted"]:
        return None
    like = machine.arrive(offer.shared, offer.own, None, asked["round"]).personal
    return files.read(like, asked["counted"])


def _scored(
    machine: Site, mine: Samples, offer: Offer, record: Personal | None, point: str, round: int, epochs: int
) -> dict[str, Any]:
    """Metrics of this client's own model on its validation and test rows."""
    found: dict[str, Any] = {"point": point, "round": round, "epochs": epochs}
    for part in HELD:
        rows = mine.rows[part]
        outputs = predict_client(machine, offer.shared, offer.own, record, round, mine.x[rows], point, epochs)
        found[part] = {"n": len(rows), **_metrics(outputs, mine.y[rows], mine.kind)} if len(rows) else {"n": 0}
    return found


def _metrics(outputs: Tensor, y: Tensor, kind: SampleKind) -> dict[str, float]:
    scores = score(outputs, y, torch.tensor([0, len(y)]), len(kind.classes), kind.task)
    values = {name: float(value[0]) for name, value in per_client(scores).items()}
    return {name: value for name, value in values.items() if math.isfinite(value)}


def _usable(done: Visit) -> bool:
    """Whether a message and a record are finite and within what was declared: only then anything is sent or kept."""
    one = tree_map(lambda leaf: leaf[None], (done.message, done.record))
    return all(bool(verdict.all()) for verdict in (acceptable(one[0]), tree_finite(one[1])))


__all__ = ["ClientSite", "answer", "machine_of"]
