"""How a network is run: which engine, which way to convolve, with oneDNN or without. `auto` measures.

Networks without convolutions are fastest stacked and recorded. Convolutions whose filters differ per client are another
matter: on a CPU one client after another may win, on a GPU any of three ways. Steps of each are timed in turn at the
start of a run; the usual way is left only for one that is clearly faster, so that noise does not decide. The choice is
written into `run.json`: --engine, --convolution and --onednn repeat it, and with it the last bit. Processes choose
together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from posterity.core.network import Network
from posterity.core.protocol import Params
from posterity.core.tree import tree_bytes, tree_map
from posterity.engine.api import Engine
from posterity.engine.autotune.trials import Race, Timer, Trial, hold_race, with_neighbours
from posterity.engine.distributed import Processes
from posterity.engine.engines import find_engine
from posterity.engine.halving import free, out_of_memory, too_large
from posterity.engine.process_settings import with_onednn, with_threads
from posterity.engine.simulation import Simulation
from posterity.engine.tracing.trace import Same

ONE_BY_ONE = ("loop", "oracle")  # engines that need not stack clients
TOGETHER = 8  # clients of a trial
ROWS = 10, 64  # samples of each: the usual number, and the most
SHARING = 0.005, 1e-8  # seconds of an exchange, and of each byte of parameters, as measured on two cores
ALONE = 1.8  # clients at work at once, on average, below which a stack of them does not pay
PAYS = 1.1  # times faster that several processes must promise to be


@dataclass(frozen=True)
class Wish:
    """What was asked for; `auto` leaves it to trials."""

    engine: str = "auto"
    convolution: str = "auto"
    onednn: str = "auto"


@dataclass(frozen=True)
class Way:
    """One way to run a network."""

    engine: str
    model: Network
    onednn: bool = True

    @property
    def label(self) -> str:
        names = {"native": "", "last": " channel last"}
        kind = "loop" + names.get(self.model.way, f" {self.model.way}") if self.engine == "loop" else self.model.way
        return kind if self.onednn else f"{kind} without oneDNN"

    @property
    def alone(self) -> bool:
        """Whether every client is by itself."""
        return self.engine == "loop"

    def switched(self, timer: Timer) -> Timer:
        """The time of a step of this network with or without oneDNN."""

        def timed() -> float:
            with with_onednn(self.onednn):
                return timer()

        return timed


@dataclass(frozen=True)
class EngineChoice:
    """What was decided, and why. A time of 0 was not measured."""

    engine: Engine
    model: Network
    onednn: bool = True
    remark: str = ""
    step: float = 0.0  # seconds of a client's step
    apart: float = 0.0  # the same if every core had a process of its own


def choose(
    wish: Wish, model: Network, x: Tensor, params: Params, processes: Processes = Processes(), rows: int = ROWS[0],
    clients: int = TOGETHER, cores: int = 1, busy: float = math.inf,
) -> EngineChoice:  # fmt: skip
    """The way to run `model` on samples like `x`; trials take `rows` samples of `clients` clients.

    `busy` is how many clients would be at work at once, on average, if they were stacked (`at_work`).

    With several `cores`, also what a step would cost if each had a process of its own.
    """
    engine, reason = choose_engine(wish.engine, model, x, params)
    trial = Trial.of(x, params, min(rows, ROWS[1]), max(1, min(clients // processes.size, TOGETHER)))
    ways = list(_ways(wish, "loop" if reason else wish.engine, model, trial))
    if len(ways) == 1:
        if wish.engine == "auto" and not reason and x.device.type == "cpu" and busy < ALONE:
            engine, reason = find_engine("loop"), f"{busy:.1f} clients at work at once: one by one is faster"
        return EngineChoice(engine, ways[0].model, ways[0].onednn, reason)
    trial = replace(trial.fitted(model), records=not reason)
    trial, timers, race = _raced(ways, trial)
    best = int(processes.tell(float(race.winner()))[0])
    shown = ", ".join(f"{way.label} {1000 * seconds:.1f} ms" for way, seconds in zip(ways, race.medians, strict=True))
    measured = f"{trial.clients} clients x {len(trial.x)} samples: {shown}"
    remark = "; ".join(text for text in (reason, measured) if text)
    apart = _apart([timers[i] for i in race.finished], cores) / trial.clients if cores > 1 else 0.0
    name = ways[best].engine
    return EngineChoice(find_engine("graph" if name == "auto" else name), ways[best].model, ways[best].onednn, remark,
                  race.medians[best] / trial.clients, apart)  # fmt: skip


def at_work(counts: Tensor, batch: int, cohort: float) -> float:
    """Clients at work at once, on average, while the one with most samples is: of a cohort of such clients."""
    steps = -(-counts[counts > 0] // batch)
    return float(steps.double().mean() * cohort / steps.max()) if len(steps) else 0.0


def _raced(ways: Sequence[Way], trial: Trial) -> tuple[Trial, list[Timer], Race]:
    """The race of all ways, by half as many clients where these do not fit: other programs may use the device, too."""
    try:
        timers = _timers(ways, trial)
        return trial, timers, hold_race(timers, trial.clock)
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        if trial.clients == 1:
            raise too_large(trial.x.device, error) from None
    free(trial.x.device)  # here, where the frames that hold tensors of the failed race are gone
    return _raced(ways, replace(trial, clients=trial.clients // 2))


def _timers(ways: Sequence[Way], trial: Trial) -> list[Timer]:
    """A timer for each way; what differs only in a switch shares its recording."""
    made: dict[tuple[Same, bool], Timer] = {}
    keys = [(Same(way.model), way.alone) for way in ways]
    for way, key in zip(ways, keys, strict=True):
        if key not in made:
            made[key] = trial.timer(way.model, way.alone)
    return [way.switched(made[key]) for way, key in zip(ways, keys, strict=True)]


def _apart(timers: Sequence[Timer], cores: int) -> float:
    """Seconds that a step would add to a round if every core had a process of its own, all of them at work."""
    with with_threads(1), with_neighbours(cores - 1):
        return min(hold_race(timers).medians) / cores


def choose_engine(name: str, model: Network, x: Tensor, params: Params) -> tuple[Engine, str]:
    """The engine of that name and why; `auto` records and replays unless an operator cannot be stacked."""
    reasons = tuple(getattr(model, "unstackable", ())) or probe(model, x, params)
    if name == "auto":
        name = "loop" if reasons else "graph"
    engine = find_engine(name)
    if reasons and name not in ONE_BY_ONE and ":" not in name:  # one of your own may take them one by one, too
        raise ValueError(f"the model cannot be stacked ({'; '.join(reasons)}): use --engine loop or auto")
    return engine, "; ".join(reasons)


def exchange(sim: Simulation) -> float:
    """Seconds, about, that processes of one machine need in a round to add up messages and to share out the state."""
    return SHARING[0] + SHARING[1] * tree_bytes(sim.initial)


def saving(choice: EngineChoice, sim: Simulation, steps: float) -> float:
    """Seconds of a round of so many steps that a process for each core would save; 0 where it is not clearly faster."""
    alone, apart = steps * choice.step, steps * choice.apart + exchange(sim)
    return alone - apart if choice.apart and apart * PAYS < alone else 0.0


def _ways(wish: Wish, engine: str, model: Network, trial: Trial) -> Iterator[Way]:
    """All ways that were not ruled out, the usual one first."""
    device, asked = trial.x.device.type, wish.convolution
    possible = model.ways(device) if hasattr(model, "ways") else ()
    switches = (True, False) if wish.onednn == "auto" and _has_onednn(device) else (wish.onednn != "off",)
    if not possible:
        yield Way(engine, model if asked == "auto" else model.rewired(asked), switches[0])
        return
    kinds = tuple(reversed(possible)) if asked == "auto" else (asked,)  # the usual one last, and here first
    if engine == "loop" or (engine == "auto" and device == "cpu"):
        alone = [kind for kind in kinds if kind != "patches"] or kinds
        yield from _switched("loop", alone, model, switches)
    if engine != "loop":
        together = [kind for kind in kinds if kind != "last"]  # how a stack lies in memory is vmap's business
        if not together and engine != "auto":
            raise ValueError("convolutions with the channel last are for one client at a time: use --engine loop")
        for way in _switched(engine, together, model, switches):
            trial.check(way.model, model)
            yield way


def _switched(engine: str, kinds: Sequence[str], model: Network, switches: tuple[bool, ...]) -> Iterator[Way]:
    """With oneDNN and without, where that could make a difference: patches are products of matrices."""
    for kind in kinds:
        wired = model.rewired(kind)
        yield from (Way(engine, wired, on) for on in (switches if kind == "native" else switches[:1]))


def _has_onednn(device: str) -> bool:
    return device == "cpu" and bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


def probe(model: Network, x: Tensor, params: Params) -> tuple[str, ...]:
    """Why two clients cannot take a step of this network at once; () if they can.

    A network that draws its own random numbers is refused altogether: no engine could repeat them.
    """
    pair = tree_map(lambda leaf: torch.stack((leaf, leaf)), params)
    mask, key = x.new_ones(len(x)), torch.zeros(2, dtype=torch.int64, device=x.device)

    def slope(params: Params) -> Any:
        return grad(lambda p: model(p, x, mask=mask, train=True, key=key)[0].sum())(params)

    try:
        vmap(slope)(pair)
    except RuntimeError as error:
        if out_of_memory(error):
            raise too_large(x.device, error) from None
        if "random" in str(error):
            raise ValueError(
                "the network draws random numbers by itself (F.dropout, torch.rand, …), which no seed could repeat: "
                "use nn.Dropout layers, which are replaced by keyed ones"
            ) from None
        return (f"an operator in its forward: {str(error).splitlines()[0][:200]}",)
    return ()


def footprint(model: Network, x: Tensor, params: Params) -> int:
    """Bytes that one sample leaves behind for the backward pass: a few for an MLP, a thousand an input for a ResNet."""
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        kept[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor.detach()  # a node that kept its own result as it is would never be freed, nor the data it saw

    leaves = {n: p.detach().requires_grad_(p.is_floating_point()) for n, p in params.items()}
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model(leaves, x, mask=x.new_ones(len(x)), train=True, key=torch.zeros(2, dtype=torch.int64, device=x.device))
    for p in leaves.values():
        kept.pop(p.data_ptr(), None)
    return sum(kept.values()) // len(x)


__all__ = ["EngineChoice", "Wish", "at_work", "choose", "choose_engine", "exchange", "footprint", "probe", "saving"]
