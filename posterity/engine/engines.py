"""What an engine is: it decides how many clients run at once, and nothing else. Two of them; where others are found.

An engine gets a stack of clients, each with the broadcast, what it alone was sent and its record (`here`), and returns
a stack of what they say. It may call a method's functions client by client, map them over the stack, or replay
recordings of them; a method cannot tell the difference, and the laws prove it.

`Loop` is the oracle: one client after another, each function called on plain tensors, without padding. All that is done
for a client is in `client.py`; other engines must equal this one (`posterity/laws`).

`Stacked` runs all clients of a block in one tensor program. They are sorted by their number of steps; at each step only
the prefix that still has data runs, so nobody waits and nothing is wasted. The tail that has finished is cut off once
and put back at the end of the pass.

Engines that are there to be faster replay what these two call: files of `posterity/fast`. `--engine
package.module:engine` names one of your own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.func import vmap

from posterity.core.messages import Message
from posterity.core.protocol import Carry, Here, Method, Own, Pass, Personal, Shared, State, keep
from posterity.core.tree import tree_cat, tree_map, tree_rows, tree_stack
from posterity.data.federation import Part
from posterity.engine import client, keys
from posterity.engine.batches import BatchPlan, plan_batches
from posterity.engine.cache import send
from posterity.engine.client import PREDICT_ROWS, Passes, Visit
from posterity.engine.simulation import Simulation, at, over, select, solid
from posterity.settings.names import engine_names
from posterity.settings.plugins import find_outside


@runtime_checkable
class Engine(Protocol):
    """How clients run. `here` is stacked: the fields of `PER_CLIENT` have a client axis, the others are common."""

    @property
    def name(self) -> str:
        """As `--engine` knows it."""
        ...

    def offer(self, sim: Simulation, state: State, clients: Tensor | None, count: int) -> tuple[Shared, Own]:
        """The broadcast and a stack of what each client gets by itself; `clients` None = `count` newcomers."""
        ...

    def join(self, sim: Simulation, here: Here) -> Personal:
        """A stack of new records, for clients that have none."""
        ...

    def visit(self, sim: Simulation, passes: Passes, here: Here) -> Visit:
        """Every client through the passes of a round, to its message."""
        ...

    def predict(
        self, sim: Simulation, passes: Passes, adapt: Passes, here: Here, parts: Sequence[Part]
    ) -> list[list[Tensor]]:
        """Outputs for each client's rows of each part, after `passes` that train, and those that adapt and prepare."""
        ...


Work = Callable[[Simulation, Passes, list[Carry], Here, int], list[Carry]]


def work(sim: Simulation, passes: Passes, carries: list[Carry], here: Here, stage: int) -> list[Carry]:
    sites = [sim.site(number) for number in here.client.tolist()]
    each = zip(sites, carries, _each(here), strict=True)
    return [client.work(site, passes, carry, mine, stage) for site, carry, mine in each]


@dataclass(frozen=True)
class Loop:
    """The engine of one client at a time; `work` takes a list of clients through their passes."""

    name: str = "oracle"
    work: Work = work

    def offer(self, sim: Simulation, state: State, clients: Tensor | None, count: int) -> tuple[Shared, Own]:
        pairs = [sim.method.offer(state, None if clients is None else clients[i]) for i in range(count)]
        return pairs[0][0], tree_stack([own for _, own in pairs])

    def join(self, sim: Simulation, here: Here) -> Personal:
        return tree_stack([sim.method.join(mine) for mine in _each(at(sim, here, keys.JOIN))])

    def start(self, sim: Simulation, here: Here) -> list[Carry]:
        return [client.start(sim, mine) for mine in _each(at(sim, here, keys.START))]

    def visit(self, sim: Simulation, passes: Passes, here: Here) -> Visit:
        carries = self.work(sim, passes, self.start(sim, here), here, keys.TRAIN)
        each = zip(_each(at(sim, here, keys.MESSAGE)), carries, strict=True)
        done = [client.send(sim, mine, carry) for mine, carry in each]
        message, record = tree_stack([v.message for v in done]), tree_stack([v.record for v in done])
        return Visit(message, record, None if done[0].loss is None else tree_stack([v.loss for v in done]))

    def predict(
        self, sim: Simulation, passes: Passes, adapt: Passes, here: Here, parts: Sequence[Part]
    ) -> list[list[Tensor]]:
        carries = self.work(sim, passes, self.start(sim, here), here, keys.TRAIN)
        carries = self.work(sim, adapt, carries, here, keys.SCORE)
        each, x = list(zip(_each(at(sim, here, keys.PREDICT)), carries, strict=True)), sim.federation.x
        numbers = here.client.tolist()
        return [
            [client.answer(sim, mine, carry, x[part.client(k)]) for k, (mine, carry) in zip(numbers, each, strict=True)]
            for part in parts
        ]


def _each(here: Here) -> list[Here]:
    return [select(here, i) for i in range(len(here.client))]


ORACLE = Loop()


Apply = Callable[..., Any]  # (sim, function, here, *stacks)
TakeSteps = Callable[[Simulation, Pass, Carry, Here, BatchPlan], Carry]


def apply(sim: Simulation, function: Callable[..., Any], here: Here, *stacks: Any) -> Any:
    return over(function, here, *stacks)


def take_steps(sim: Simulation, each: Pass, carry: Carry, here: Here, plan: BatchPlan) -> Carry:
    step_keys = step_keys_of(sim, here.key, 0, plan.length())  # (steps, m, 2)
    finished: list[Carry] = []
    empty = plan.idle()
    for step, active in enumerate(plan.active()):
        if active < len(here.client):
            carry, done = cut_off(carry, active)
            finished.append(done)
            here = select(here, slice(active))
        (rows,), (real,) = plan.rows(step, step + 1, active)
        now = replace(here, step=torch.full_like(here.step, step), key=step_keys[step, :active])
        after = over(each.step, now, carry, sim.build(sim.federation.x, sim.federation.y, rows, real, sim.dtype))
        carry = after if step or empty is None else unmoved(carry, after, empty)
    return tree_cat([carry, *reversed(finished)])


def step_keys_of(sim: Simulation, key: Tensor, first: int, last: int) -> Tensor:
    """Keys (steps, m, 2) of the steps first … last-1."""
    return sim.fold(key, torch.arange(first, last, device=key.device)[:, None])


def cut_off(carry: Carry, active: int) -> tuple[Carry, Carry]:
    """Clients that still have data, and copies of those that have finished: a view would keep the memory of all."""
    return tree_rows(carry, slice(active)), tree_map(lambda leaf: leaf[active:].clone(), carry)


def unmoved(before: Carry, after: Carry, empty: Tensor) -> Carry:
    """`after`, but clients without data keep their leaves: weight decay must not move them."""

    def left(old: Tensor, new: Tensor) -> Tensor:
        return torch.where(empty.reshape(-1, *[1] * (new.dim() - 1)), old, new)

    params = tree_map(left, before.params, after.params)
    return Carry(params, after.kept, tree_map(left, before.opt, after.opt))


@dataclass(frozen=True)
class Stacked:
    """The engine of all clients at once; `apply` maps a function over them, `take_steps` takes the steps of a pass."""

    name: str = "stacked"
    apply: Apply = apply
    take_steps: TakeSteps = take_steps

    def offer(self, sim: Simulation, state: State, clients: Tensor | None, count: int) -> tuple[Shared, Own]:
        if getattr(sim.method.offer, "__func__", None) is Method.offer:
            return state, ()  # the default needs no mapping
        if clients is None:
            shared, own = sim.method.offer(state, None)
            return shared, tree_map(lambda leaf: leaf.expand(count, *leaf.shape), own)
        return vmap(sim.method.offer, in_dims=(None, 0), out_dims=(None, 0))(state, clients)  # type: ignore[arg-type]

    def join(self, sim: Simulation, here: Here) -> Personal:
        return solid(self.apply(sim, sim.method.join, at(sim, here, keys.JOIN)))

    def visit(self, sim: Simulation, passes: Passes, here: Here) -> Visit:
        carry = self.work(sim, passes, self.start(sim, here), here, keys.TRAIN)
        return Visit.of(carry, self.message(sim, carry, here))

    def predict(
        self, sim: Simulation, passes: Passes, adapt: Passes, here: Here, parts: Sequence[Part]
    ) -> list[list[Tensor]]:
        carry = self.work(sim, passes, self.start(sim, here), here, keys.TRAIN)
        carry = self.work(sim, adapt, carry, here, keys.SCORE)
        return [self.answer(sim, carry, here, part) for part in parts]

    def start(self, sim: Simulation, here: Here) -> Carry:
        return Carry(solid(self.apply(sim, sim.method.start, at(sim, here, keys.START))), {}, ())

    def work(self, sim: Simulation, passes: Passes, carry: Carry, here: Here, stage: int) -> Carry:
        here = at(sim, here, stage)
        ids = here.client.cpu()  # once, before there is anything to wait for
        for number, each in enumerate(passes):
            here = replace(here, kept=carry.kept)
            carry = self._take(sim, each, carry, replace(here, key=sim.fold(here.key, number)), ids)
        return carry

    def _take(self, sim: Simulation, each: Pass, carry: Carry, here: Here, ids: Tensor) -> Carry:
        counts = sim.part(each.on).sizes[ids]
        order = torch.argsort(counts, descending=True, stable=True)  # who has more samples has no fewer steps
        if bool((order.diff() != 1).any()):  # this pass wants another order than the block's
            there, back = send(order, here.key.device), send(torch.argsort(order), here.key.device)
            carry, here = tree_rows(carry, there), select(here, there)
            return tree_rows(self._take(sim, each, carry, here, ids[order]), back)
        plan = plan_batches(each, sim.part(each.on), ids, here.key, sim.traces)
        here = replace(here, steps=send(plan.steps, here.key.device))
        if each.open is not keep:
            carry = solid(self.apply(sim, each.open, here, carry))
        carry = self.take_steps(sim, each, carry, here, plan)
        return carry if each.close is keep else self.apply(sim, each.close, here, carry)

    def message(self, sim: Simulation, carry: Carry, here: Here) -> tuple[Message, Personal]:
        here = at(sim, replace(here, kept=carry.kept), keys.MESSAGE)
        return solid(self.apply(sim, sim.method.message, here, carry))

    def answer(self, sim: Simulation, carry: Carry, here: Here, part: Part) -> list[Tensor]:
        here = at(sim, replace(here, kept=carry.kept), keys.PREDICT)
        look = Pass(step=lambda carry, batch, here: carry, batch=PREDICT_ROWS, shuffle=False)
        ids = here.client.cpu()
        order = torch.argsort(part.sizes[ids], descending=True, stable=True)
        there = send(order, here.key.device)
        carry, here = tree_rows(carry, there), select(here, there)
        plan = plan_batches(look, part, ids[order], here.key)
        flat, begin = None, plan.count.cumsum(0) - plan.count  # all clients' outputs, and where each one's begin
        for step, active in enumerate(plan.active()):
            (rows,), (real,) = plan.rows(step, step + 1, active)
            some = replace(select(here, slice(active)), key=sim.fold(here.key[:active], step))
            outputs = self.apply(sim, sim.method.predict, some, tree_rows(carry, slice(active)), sim.federation.x[rows])
            if flat is None:
                flat = outputs.new_zeros(int(plan.counts.sum()), *outputs.shape[2:])
            place = begin[:active, None] + step * PREDICT_ROWS + torch.arange(rows.shape[1], device=begin.device)
            flat[place[real]] = outputs[real]
        assert flat is not None  # every plan has a first step
        each = torch.split(flat, plan.counts.tolist())
        return [each[i] for i in torch.argsort(order).tolist()]


STACKED = Stacked()


BUILT_IN: dict[str, Engine] = {"stacked": STACKED, "oracle": ORACLE}


def find_engine(name: str) -> Engine:
    """The engine of that name; `package.module:attribute` is one of your own, or a class of them.

    Those that exist to be faster are found by their place: `posterity/fast/NAME.py` has an `engine`.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    if ":" not in name:
        if name not in engine_names():
            raise ValueError(f"engine {name!r} is unknown; possible: auto, {', '.join(engine_names())}")
        made: Engine = import_module(f"posterity.fast.{name}").engine
        return made
    found, _ = find_outside(name, "engine")
    engine = found() if isinstance(found, type) else found
    if not isinstance(engine, Engine):
        raise ValueError(f"{name!r} is not an engine: it needs a name and the functions offer, join, visit, predict")
    return engine
