"""One client by itself: from the server's offer and its own record to its message, its next record and its outputs.

A site has its own samples and what server and clients agree on before the first round; it never sees the server's state
or other clients. `visit_client` trains, `predict_client` judges, both on plain tensors. The loop is made of the same
steps (`work`, `answer`), so what is simulated is what a client on a network does. A site without samples tells a
server the structure of a message before it arrives (`message_like`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from posterity.core.messages import Message
from posterity.core.network import Network, Task
from posterity.core.protocol import Carry, Here, Method, Own, Params, Pass, Personal, Shared, check_round
from posterity.data.federation import Part
from posterity.engine import keys
from posterity.engine.augment import Augmentation, augmented
from posterity.engine.batches import BuildBatch, build_batch, plan_batches

PREDICT_ROWS = 128  # samples of one client that are predicted at once; part of the draws of methods with noise
Passes = tuple[Pass, ...]
FIRST = torch.zeros(1, dtype=torch.int64)  # the one client of a site's own part


@dataclass(frozen=True)
class Visit:
    """What training left: of one client, or of a stack of clients."""

    message: Message
    record: Personal
    loss: Tensor | None  # (..., 2) loss times samples, and samples, seen while training; None if nobody counted

    @staticmethod
    def of(carry: Carry, said: tuple[Message, Personal]) -> Visit:
        return Visit(said[0], said[1], carry.kept.get("loss"))


class Setting(Protocol):
    """What server and clients agree on before the first round."""

    @property
    def method(self) -> Method: ...

    @property
    def model(self) -> Network: ...

    @property
    def initial(self) -> Params: ...

    def passes(self, epochs: int | None = None) -> Passes: ...

    def prepare(self) -> Passes: ...


@dataclass(frozen=True)
class Site:
    """A client's own machine: its number, its samples, and the setting."""

    method: Method
    model: Network
    initial: Params
    visits: Tensor  # (2,) key of what clients draw
    client: Tensor  # () its number in the federation
    x: Tensor  # (samples, ...)
    y: Tensor  # (samples,)
    rows: Mapping[str, Tensor]  # which samples belong to "train" and to "validation"
    build: BuildBatch = build_batch
    augment: Augmentation | None = None

    @cached_property
    def parts(self) -> dict[str, Part]:
        return {name: Part.of([rows]) for name, rows in self.rows.items()}

    def passes(self, epochs: int | None = None) -> Passes:
        passes = self.method.passes() if epochs is None else self.method.adapt(epochs)
        return augmented(passes, self.augment)

    def prepare(self) -> Passes:
        return self.method.prepare()

    def receive(self, shared: Shared, own: Own, record: Personal | None, round: int) -> Here:
        """`here` at the beginning of a visit; a client without a record joins."""
        check_round(round)
        number = torch.full_like(self.client, round)
        key = keys.client_keys(self.visits, self.client, number, keys.fold_key)
        here = make_here(self, self.client, len(self.rows["train"]), number, key, shared, own)
        return replace(here, personal=self.method.join(at(here, keys.JOIN)) if record is None else record)


def visit_client(site: Site, shared: Shared, own: Own, record: Personal | None, round: int) -> Visit:
    here = site.receive(shared, own, record, round)
    carry = work(site, site.passes(), start(site, at(here, keys.START)), here, keys.TRAIN)
    return send(site, at(here, keys.MESSAGE), carry)


def predict_client(
    site: Site, shared: Shared, own: Own, record: Personal | None, round: int, x: Tensor, point: str = "received",
    epochs: int | None = None,
) -> Tensor:  # fmt: skip
    """Outputs of one client's personal model for samples of its own, at an evaluation point. Leaves no trace."""
    here = site.receive(shared, own, record, round)
    return answer(site, at(here, keys.PREDICT), personal_at(site, here, point, epochs), x)


def personal_at(site: Site, here: Here, point: str, epochs: int | None = None) -> Carry:
    """A client's carry at an evaluation point: what `predict` needs."""
    passes, adapt = passes_at(site, point, epochs)
    carry = work(site, passes, start(site, at(here, keys.START)), here, keys.TRAIN)
    return work(site, adapt, carry, here, keys.SCORE)


def passes_at(setting: Setting, point: str, epochs: int | None) -> tuple[Passes, Passes]:
    """The round's own passes, if they come before the prediction at `point`, and those that adapt and prepare."""
    epochs = setting.method.adaptation if epochs is None else epochs
    adapt = setting.passes(epochs if point == "adapted" else 0)
    return setting.passes() if point == "trained" else (), (*adapt, *setting.prepare())


# --- the steps of a visit
def make_here(
    setting: Setting, client: Tensor, count: Any, round: Tensor, key: Tensor, shared: Shared, own: Own
) -> Here:
    """`here` of one client (), or of a stack (m,), that has just received the broadcast; without a record yet."""
    dtype = next(iter(setting.initial.values())).dtype
    return Here(
        shared=shared,
        own=own,
        personal=(),
        kept={},
        client=client,
        n=torch.as_tensor(count, device=client.device).to(dtype),
        steps=torch.zeros_like(client),
        step=client.new_zeros(()),
        round=round,
        key=key,
        initial=setting.initial,
        model=setting.model,
    )


def at(here: Here, stage: int) -> Here:
    return replace(here, key=keys.fold_key(here.key, stage))


def start(setting: Setting, here: Here) -> Carry:
    """The leaves that the passes will move; `here` has the key of this stage."""
    return Carry(setting.method.start(here), {}, ())


def send(setting: Setting, here: Here, carry: Carry) -> Visit:
    """What a client says and keeps after its passes; `here` has the key of this stage."""
    return Visit.of(carry, setting.method.message(carry, replace(here, kept=carry.kept)))


def work(site: Site, passes: Passes, carry: Carry, here: Here, stage: int) -> Carry:
    here = at(here, stage)
    for number, each in enumerate(passes):
        carry = _take(site, each, carry, replace(at(here, number), kept=carry.kept))
    return carry


def _take(site: Site, each: Pass, carry: Carry, here: Here) -> Carry:
    """One pass: batches without padding, in the order that its key draws. A client without data is not moved."""
    plan = plan_batches(each, site.parts[each.on], FIRST, here.key[None])
    numbers = torch.arange(plan.length(), device=here.key.device)
    here, has_data = replace(here, steps=plan.steps[0].to(here.key.device)), bool(plan.counts[0])
    carry = each.open(carry, here)
    for (rows, real), step, key in zip(plan.unpadded(), numbers, keys.fold_key(here.key, numbers), strict=True):
        batch = site.build(site.x, site.y, rows, real, here.n.dtype, padded=not has_data)
        with torch.no_grad():
            after = each.step(carry, batch, replace(here, step=step, key=key))
        carry = after if has_data else replace(carry, kept=after.kept)
    return each.close(carry, here)


def answer(setting: Setting, here: Here, carry: Carry, x: Tensor) -> Tensor:
    """Outputs for samples, in chunks with draws of their own; `here` has the key of this stage."""
    here, pieces = replace(here, kept=carry.kept), enumerate(torch.split(x, PREDICT_ROWS))
    return torch.cat([setting.method.predict(carry, some, at(here, number)) for number, some in pieces])


# --- what a server without data can know of a message before it arrives
def site_without_data(
    setting: Setting, visits: Tensor, client: Tensor, shape: Sequence[int], task: Task, integers: bool = False
) -> Site:
    """The machine of a client that has no samples.

    `shape` is that of a sample; `integers` if samples are whole numbers (words).
    """
    like = next(iter(setting.initial.values()))
    x = like.new_zeros((1, *shape), dtype=torch.int64 if integers else like.dtype)
    y = like.new_zeros(1, dtype=torch.int64 if task == "classification" else like.dtype)
    none = torch.zeros(0, dtype=torch.int64, device=like.device)
    rows = {"train": none, "validation": none}
    return Site(setting.method, setting.model, setting.initial, visits, client, x, y, rows)


def message_like(site: Site, shared: Shared, own: Own, round: int) -> Message:
    """The kinds, names, shapes and types of the message that answers an offer, by a site without data.

    They do not depend on a client's samples, or clients could not be stacked. The numbers that a client leaves out
    because the server knows them (`Sparse`) are right; others mean nothing.
    """
    return visit_client(site, shared, own, None, round).message
