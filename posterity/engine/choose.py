"""How a network is run: which engine, which way to convolve, with oneDNN or without. `auto` measures.

Networks without convolutions are fastest stacked and recorded. Convolutions whose filters differ per client are another
matter: on a CPU one client after another may win, on a GPU any of three ways. Steps of each are timed in turn at the
start of a run; the usual way is left only for one that is clearly faster, so that noise does not decide. The choice is
written into `run.json`: --engine, --convolution and --onednn repeat it, and with it the last bit. Processes choose
together.

What a step of a network costs: steps of some clients in several ways, timed in turn and compared.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from posterity.core.gaussian import with_tf32
from posterity.core.network import Network
from posterity.core.protocol import Params
from posterity.core.tree import tree_bytes, tree_leaves, tree_map
from posterity.engine.blocks import free, out_of_memory, too_large
from posterity.engine.cache import Same
from posterity.engine.engines import Engine, find_engine
from posterity.engine.process_settings import with_onednn, with_threads
from posterity.engine.processes import Processes
from posterity.engine.simulation import Simulation
from posterity.fast._trace import trace_flat

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
        kind = (
            "loop" + names.get(self.model.conv_backend, f" {self.model.conv_backend}")
            if self.engine == "loop"
            else self.model.conv_backend
        )
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
    possible = model.conv_backends(device) if hasattr(model, "conv_backends") else ()
    switches = (True, False) if wish.onednn == "auto" and _has_onednn(device) else (wish.onednn != "off",)
    if not possible:
        yield Way(engine, model if asked == "auto" else model.with_conv_backend(asked), switches[0])
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
        wired = model.with_conv_backend(kind)
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


STRICT, LOOSE = 0.02, 0.3  # of a gradient's length: with few bits other pixels may win where they are pooled
FAIR = 1.5  # times as far from exact gradients as PyTorch's own with TF32: deep networks are far from them
SLIGHT = 0.01  # of all leaves' length: a bias before batch norm has no slope but rounding, which may be any
SPACE, FEW = 0.1, 4  # seconds that a step of several clients may take, about; slow ones are tried by few
SHORT = 0.03  # seconds of a step that is recorded before it is tried
BUDGET, LIMIT = 0.8, 1.5  # seconds of a race, and of one in which not all turns that count have been taken
TURNS = 5, 15  # of a race: for one that counts, and at most
LONG, HOPELESS, FAR = 0.2, 2.0, 1.4  # who is dropped: in the first turn, if that was long, and in later ones
CLEARLY = 1.15  # times faster than the usual way, for a way that was not faster in every turn
ALWAYS = 1.03  # for one that was
STEP = 1e-3  # of the optimiser: any would do

Timer = Callable[[], float]  # takes a step and says how long it took
Clock = Callable[[], float]


def clock_of(device: torch.device) -> Clock:
    """On one thread of a CPU that thread's own time: what others do to the machine must not decide."""
    return time.thread_time if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter


def _multiply(matrix: Tensor = torch.ones(512, 512)) -> Tensor:
    return matrix @ matrix


@dataclass(frozen=True)
class Step:
    """How to take a step, and what neighbours do meanwhile: the same, if several can, else something as heavy."""

    take: Callable[[], Any]
    meanwhile: Callable[[], Any] = _multiply


@dataclass(frozen=True)
class Trial:
    """The samples and the leaves that every way is tried with."""

    x: Tensor  # (rows, ...) a client's batch
    params: Params
    clients: int  # at once
    records: bool = True  # its steps, as they could be mapped over clients
    clock: Clock = time.perf_counter

    @staticmethod
    def of(x: Tensor, params: Params, rows: int, clients: int) -> Trial:
        """A batch of `rows` samples, repeated from `x` where there are fewer.

        Samples of a run that was loaded without its data are NaN, and so would every gradient be: zeros stand for them.
        """
        some = torch.nan_to_num(x[torch.arange(rows, device=x.device) % len(x)])
        return Trial(some, params, clients, clock=clock_of(x.device))

    def fitted(self, model: Network) -> Trial:
        """With fewer clients if the steps of this network are slow on a CPU: then a few say as much as many."""
        if self.x.is_cuda:
            return self
        timer = replace(self, records=False).timer(model, True)
        each = min(timer() for _ in range(2)) / self.clients
        return replace(self, clients=min(self.clients, max(FEW, int(SPACE / each))))

    def timer(self, model: Network, alone: bool) -> Timer:
        """Seconds of a step of all clients: some side by side, as the loop has them (one is tried), or all at once."""
        step = self._alone(model) if alone else self._stacked(model)

        def timed() -> float:
            if not alone:
                return self._seconds(step.take)
            threads = torch.get_num_threads()
            side = 1 if self.x.is_cuda else min(threads, self.clients)
            with with_threads(threads // side), with_neighbours(side - 1, step.meanwhile):
                return self._seconds(step.take) * self.clients / side

        return timed

    def _seconds(self, step: Callable[[], Any]) -> float:
        begun = self.clock()
        step()
        if self.x.is_cuda:
            torch.cuda.synchronize(self.x.device)
        return self.clock() - begun

    def check(self, other: Network, model: Network) -> None:
        """Refuse `other` if its gradients are not those of `model`: a kernel that a compiler got wrong must be seen."""
        if other is model:
            return
        lowered = torch.backends.cuda.matmul.allow_tf32
        limit = LOOSE if lowered or getattr(model, "compute", None) is not None else STRICT
        found, right = (_slopes(m, *self._together(2)) for m in (other, model))
        apart, own = _distances(found, right), dict.fromkeys(right, 0.0)
        if lowered and not all(far <= limit for far in apart.values()):  # is PyTorch's own way as far from exact ones?
            with with_tf32(False):
                exact = _slopes(model, *self._together(2))
            apart, own = _distances(found, exact), _distances(right, exact)
        for name, far in apart.items():
            most = max(limit, FAIR * own[name])
            if not far <= most:
                raise ValueError(
                    f"convolutions computed by {other.conv_backend!r} are wrong on this machine (the gradient of "
                    f"{name} differs from PyTorch's own by {far:.0%}; {most:.0%} may be rounding): "
                    "use --convolution native"
                )

    def _together(self, clients: int) -> tuple[Params, Tensor]:
        """So many clients, all with the same parameters and samples."""
        many, inputs = (tree_map(lambda leaf: leaf.expand(clients, *leaf.shape).clone(), tree)
                        for tree in (self.params, self.x))  # fmt: skip
        return many, inputs

    def _stacked(self, model: Network) -> Step:
        """A step of all clients at once."""
        both = self._together(self.clients)

        def step(many: Params, inputs: Tensor) -> Any:
            return tree_map(_moved, many, _slopes(model, many, inputs))

        return self._recorded(lambda: step(*both), step, *both)

    def _alone(self, model: Network) -> Step:
        """A step of one client, by autograd: where Python does not count, as fast as what a loop replays."""
        leaves = {n: p.detach().clone().requires_grad_(n in model.trainable) for n, p in self.params.items()}
        moving = [p for p in leaves.values() if p.requires_grad]

        def step() -> list[Tensor]:
            slopes = torch.autograd.grad(_loss(model, leaves, self.x, None), moving, allow_unused=True)
            return [_moved(p.detach(), g) for p, g in zip(moving, slopes, strict=True) if g is not None]

        def pure(leaves: Params, x: Tensor) -> Params:
            moved: Params = tree_map(_moved, leaves, grad(lambda q: _loss(model, q, x, None))(leaves))
            return {n: p for n, p in moved.items() if n in model.trainable}

        return self._recorded(step, pure, self.params, self.x)

    def _recorded(self, called: Callable[[], Any], pure: Callable[..., Any], *trees: Any) -> Step:
        """A step as it is in a run: recorded, if it is so short that Python would count and can be."""
        if self.x.is_cuda or not self.records or min(self._seconds(called) for _ in range(2)) > SHORT:
            return Step(called)
        run, leaves = trace_flat(pure, *trees)[0], tree_leaves(trees)

        def replay() -> Any:
            with torch.no_grad():
                return run(*leaves)

        return Step(replay, replay)


def _slopes(model: Network, many: Params, inputs: Tensor) -> Params:
    """Gradients of several clients at once."""
    return vmap(lambda p, x: grad(lambda q: _loss(model, q, x, x.new_ones(len(x))))(p))(many, inputs)


def _distances(found: Params, right: Params) -> dict[str, float]:
    """How far each gradient is from the right one, of that one's length."""
    least = SLIGHT * torch.stack([theirs.norm() for theirs in right.values()]).norm()
    return {n: float((found[n] - theirs).norm() / torch.maximum(theirs.norm(), least)) for n, theirs in right.items()}


def _loss(model: Network, params: Params, x: Tensor, mask: Tensor | None) -> Tensor:
    """A step's loss; without a mask as in the loop, where nothing is padding."""
    key = torch.zeros(2, dtype=torch.int64, device=x.device)
    loss: Tensor = (model(params, x, mask=mask, train=True, key=key)[0] ** 2).sum()
    return loss


def _moved(leaf: Tensor, slope: Tensor) -> Tensor:
    return torch.sub(leaf, slope, alpha=STEP)


@dataclass(frozen=True)
class Race:
    """What several timers said in turn; those that fell far behind took part in fewer turns."""

    times: tuple[tuple[float, ...], ...]  # the first is the usual way, which is always there

    @property
    def medians(self) -> list[float]:
        return [statistics.median(times) for times in self.times]

    @property
    def finished(self) -> list[int]:
        """Those that stayed to the end."""
        return [i for i, times in enumerate(self.times) if len(times) == len(self.times[0])]

    def winner(self) -> int:
        """The fastest of those that finished if it was clearly faster than the usual way, else that."""
        middle = self.medians
        best = min(self.finished, key=lambda i: middle[i])
        ahead = [new < usual for new, usual in zip(self.times[best], self.times[0], strict=True)]
        always = all(ahead) and len(ahead) >= TURNS[0]
        return best if middle[best] * (ALWAYS if always else CLEARLY) < middle[0] else 0


def hold_race(timers: Sequence[Timer], clock: Clock = time.perf_counter) -> Race:
    """All timers in turn, so that a busy moment of the machine hits all of them; the first turn only warms up."""
    times: list[list[float]] = [[] for _ in timers]
    warm = [timer() for timer in timers]
    running = [i for i, seconds in enumerate(warm) if i == 0 or seconds < max(LONG, HOPELESS * min(warm))]
    for i in set(range(len(timers))) - set(running):
        times[i].append(warm[i])
    begun = clock()
    for turn in range(TURNS[1]):
        if turn and clock() - begun > (BUDGET if turn >= TURNS[0] else LIMIT):
            break
        for i in running:
            times[i].append(timers[i]())
        best = min(min(times[i]) for i in running)
        if turn:  # one busy moment does not decide
            running = [i for i in running if i == 0 or min(times[i]) < FAR * best]
    return Race(tuple(tuple(each) for each in times))


@contextmanager
def with_neighbours(count: int, work: Callable[[], Any] = _multiply) -> Iterator[None]:
    """So many other threads at work for a while: those who share a unit, memory or Python slow each other down."""
    done = threading.Event()

    def toil() -> None:
        while not done.is_set():
            work()

    workers = [threading.Thread(target=toil, daemon=True) for _ in range(count)]
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        done.set()
        for worker in workers:
            worker.join()
