"""The protocol: what a method is, and the records that its functions are given.

A method is a frozen dataclass whose fields are its hyper-parameters and whose functions are pure and speak about one
client. The server keeps State and offers Shared (to everybody) and Own (to one client). A client keeps Personal, works
through passes over its own data, and sends a Message; messages add up (`messages.py`), and `combine` turns the sum into
the next State. How many clients run at once is the engine's business and cannot be seen from here.

`State`, `Shared`, `Own` and `Personal` are `Any` on purpose: each method has records of its own for them. As type
parameters they would stand in every signature (`here: Here[Shared, Own, Personal]`), and an engine, which takes any
method, could not use them: that a method's functions fit each other is for the laws to say.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from posterity.core.likelihood import NOISE
from posterity.core.messages import Message as Message
from posterity.core.network import Network
from posterity.core.network import Params as Params
from posterity.core.random import make_key
from posterity.core.tree import STATIC, Tree, record
from posterity.settings.hyperparameters import check_fields

State = Any
Shared = Any
Own = Any
Personal = Any
Point = Literal["received", "adapted", "trained"]
POINTS: tuple[Point, ...] = get_args(Point)


@record
class Here:
    """Everything a client's function may know, besides its carry and the batch.

    Attributes:
        shared: the broadcast
        own: what the server sent to this client alone
        personal: the client's record; () before `join`
        kept: what earlier passes of this visit left under names of theirs (`gather`, or a pass of yours)
        client: its number, () int64: a name, not a quantity
        n: its training samples, () in the parameters' dtype
        steps: of this client in this pass, () int64
        step: the current one, () int64, from 0
        round: the current one, () int64, from 1
        key: of this client, round, pass and step, (2,) int64: for `uniform`, `normal` and the model's `key=`
        initial: the network's common first leaves: every site makes them from the seed, so they are never sent
        model: the network, called as `model(params, x, …)`
    """

    shared: Shared
    own: Own
    personal: Personal
    kept: dict[str, Tree]
    client: Tensor
    n: Tensor
    steps: Tensor
    step: Tensor
    round: Tensor
    key: Tensor
    initial: Params
    model: Network = field(metadata={STATIC: True})


@record
class Carry:
    """What moves during a visit.

    Attributes:
        params: the leaves that `start` returned, moved by the passes; predictions are made with them
        kept: what passes leave for later passes (as `here.kept`), for `message` and for `predict`
        opt: of one pass alone: made by its `open`, gone after its `close`; an optimiser's state
    """

    params: Params
    kept: dict[str, Tree]
    opt: Tree


@record
class Batch:
    """Samples of one step. A row with mask 0 is padding: a real row's values, which must have no influence.

    Sums and means over rows use `mask`; a network is given `layer_mask`.

    Attributes:
        x: inputs (B, ...)
        y: labels or targets (B,)
        mask: 1 for real rows, 0 for padding (B,), in the parameters' dtype
        padded: False if there is known to be no padding, so that mask is 1
    """

    x: Tensor
    y: Tensor
    mask: Tensor
    padded: bool = field(default=True, metadata={STATIC: True})

    @property
    def layer_mask(self) -> Tensor | None:
        """`mask`, or None if there is no padding: batch norm is then PyTorch's own."""
        return self.mask if self.padded else None


def keep(carry: Carry, here: Here) -> Carry:
    return carry


@dataclass(frozen=True)
class Pass:
    """One walk over a client's own data.

    Attributes:
        step: from one batch to the next carry
        open: before the first step; makes what the steps need in `carry.opt` or `carry.kept`
        close: after the last step; finishes what is in `carry.kept`, and leaves `carry.opt` empty
        epochs: over the client's data
        batch: samples of a step; None: all data in one batch
        max_steps: at most so many steps
        shuffle: whether each epoch has an order of its own, drawn by key
        learns: whether fine-tuning repeats it (`gather` does not learn)
        on: which of the client's data
        copies: of the parameters that a step, or the message after it, holds at once: value, gradient, optimiser,
            temporaries
        scratch: numbers (not bytes) that it, or a prediction, holds besides these and the activations, of a batch of so
            many rows and the network: kernels, a gradient for every row; `--memory` counts them (see `holding`)
    """

    step: Callable[[Carry, Batch, Here], Carry]
    open: Callable[[Carry, Here], Carry] = keep
    close: Callable[[Carry, Here], Carry] = keep
    epochs: int = 1
    batch: int | None = 10
    max_steps: int | None = None
    shuffle: bool = True
    learns: bool = True
    on: Literal["train", "validation"] = "train"
    copies: int = 8
    scratch: Callable[[int, Network], int] | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "max_steps"):
            given = getattr(self, name)
            if (given is None and name == "epochs") or (given is not None and not given >= 1):
                raise ValueError(f"a Pass takes {name} of 1 or more; {given} was given: leave out a pass that is to do "
                                 "nothing")  # fmt: skip
        if self.on not in ("train", "validation"):
            raise ValueError(f"a Pass is on 'train' or 'validation', for what is tested is not trained on; {self.on!r} "
                             "was given")  # fmt: skip


@dataclass(frozen=True)
class Facts:
    """What the server knows about the federation before the first round.

    Attributes:
        clients: that may take part in training
        samples: for training, of all of them
        classes: 0 for regression
        key: of the run's seed: for what a server draws at first
        public: rows that the server has (`--public`); 0 = none
    """

    clients: int
    samples: int
    classes: int
    key: Tensor = field(default_factory=lambda: make_key(0))
    public: int = 0


Passes = tuple[Pass, ...]
Sent = tuple[Message, Personal]  # what a client sends, and its record


def check_round(number: int) -> None:
    """Rounds count from 1 everywhere, so that "after N rounds" means that rounds 1 … N are over."""
    if number < 1:
        raise ValueError(f"round {number} was given: rounds count from 1; call the first one 1")


@dataclass(frozen=True)
class Now:
    """When `combine` happens.

    Attributes:
        round: the one whose messages are combined; the first is round 1
        rounds: of the whole run
        key: of this round, for what the server draws
        cohort: clients whose message was accepted
        public: rows that belong to nobody, for baselines that distil on them (`--public`)
        model: the network, so that a server can train; engines always say it
        play: `play(name, function, *trees)` is `function(*trees)`, which may depend on the trees, the model and the
            method alone: long work that an engine may record and replay
    """

    round: int
    rounds: int
    key: Tensor
    cohort: int
    public: Tensor | None = None
    model: Network = cast(Network, None)
    play: Callable[..., Any] = lambda name, function, *trees: function(*trees)

    def __post_init__(self) -> None:
        check_round(self.round)


@dataclass(frozen=True)
class Plan:
    """What a run is going to be.

    Attributes:
        clients: that may take part in training
        rounds: of the whole run
        cohort: clients of a round, on average
        chance: with which each client takes part in a round, independently of the others; None: not drawn so
    """

    clients: int
    rounds: int
    cohort: float
    chance: float | None = None


def log_predictive(params: Params, x: Tensor, here: Here) -> Tensor:
    """Log-probabilities (B, classes); for regression the mean and variance of a Gaussian (B, 2)."""
    output, _ = here.model(params, x)
    if here.model.task == "regression":
        return torch.stack((output, torch.full_like(output, NOISE)), -1)
    return F.log_softmax(output, -1)


@record
class Leaves:
    """The State, and the broadcast, of a method whose server keeps nothing but the network's leaves."""

    params: Params


class Method(Protocol):
    """A plain method writes `passes`, `message` and `combine`; the rest have the defaults below.

    Attributes:
        label: as papers write it
        reference: the paper
        absent: what an absent client means: "cohort only", "remembered factor", "delta messages"
        scored: the evaluation point that its paper means
        adaptation: epochs of `adapt` at the point "adapted"
        differences: names of its means that hold how far leaves moved, and not where they are
        class_statistics: what it gathers class by class, by its name in `kept`, and the parts of its message that are
            made of it; classes of too few samples are taken out before `message` (`wrapper.py`)
        without_base: what becomes of it with a network that is all head; empty: nothing worth a word
        secret: whether it protects clients by what its server draws (`+dp`)
    """

    label: ClassVar[str]
    reference: ClassVar[str]
    absent: ClassVar[str]
    scored: ClassVar[Point] = "received"
    adaptation: ClassVar[int] = 1
    differences: ClassVar[tuple[str, ...]] = ()
    class_statistics: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    without_base: ClassVar[str] = ""
    secret: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_fields(self)

    # --- server
    def init(self, model: Network, params: Params, facts: Facts) -> State:
        """The first State; it has a field `params` with the network's leaves."""
        return Leaves(params)

    def offer(self, state: State, client: Tensor | None) -> tuple[Shared, Own]:
        """The broadcast and the part for one client; `client` is None for a newcomer. Shared may not depend on it."""
        return state, ()

    def combine(self, state: State, total: Message, now: Now) -> State:
        """The next State from the sum of the messages (float64)."""
        ...

    def forget(self, state: State, factor: Tree) -> State:
        """The State after a client has left and taken its `factor` along."""
        return state

    def report(self, state: State, total: Message) -> dict[str, Tensor]:
        """Scalars worth seeing each round."""
        return {}

    def inspect(self, message: Message, here: Here) -> str:
        """Why a message that came from another machine breaks a bound of the method's; empty: it does not.

        `here` is the client's as a server knows it: what was offered, and how many samples it registered.
        """
        return ""

    @property
    def outside(self) -> str:
        """In words: what predicts for a test set that belongs to no client (`offer` to somebody without data)."""
        return "the server's model"

    def remarks(self, model: Network) -> tuple[str, ...]:
        """In sentences: what must be known about this method with this network, such as that it is another one here."""
        if model.base_names or not self.without_base:
            return ()
        return (f"{self.label} {self.without_base}: all of the network {model.name!r} is head",)

    def announce(self, plan: Plan) -> tuple[str, ...]:
        """In sentences: what must be known of a run of this size before it begins; a ValueError refuses the run."""
        return ()

    # --- one client; every one of these is vmapped
    def join(self, here: Here) -> Personal:
        """The client's record at first contact."""
        return ()

    def start(self, here: Here) -> Params:
        """The leaves that the passes will move: by default those of the broadcast."""
        return here.shared.params

    def passes(self) -> tuple[Pass, ...]:
        """The client's work of a round, in order."""
        ...

    def message(self, carry: Carry, here: Here) -> tuple[Message, Personal]:
        """What is sent and what is kept; both are committed together or not at all."""
        ...

    def factor(self, personal: Personal) -> Tree | None:
        """The client's own part of the State, by its record: what it sends when it leaves. None: it cannot be told."""
        return None

    def adapt(self, epochs: int) -> tuple[Pass, ...]:
        """Fine-tuning: by default the round's passes with `epochs` epochs. For 0 nothing happens, whoever writes it."""
        return tuned(self.passes(), epochs)

    def prepare(self) -> tuple[Pass, ...]:
        """The work before any prediction, whatever was trained or adapted: a temperature, a classifier of the data."""
        return ()

    def predict(self, carry: Carry, x: Tensor, here: Here) -> Tensor:
        """Log-probabilities (B, classes), or mean and variance (B, 2) for regression."""
        return log_predictive(carry.params, x, here)


def tuned(passes: tuple[Pass, ...], epochs: int) -> tuple[Pass, ...]:
    """`passes` up to the last that learns, with the learning ones cut to `epochs`; none for 0 epochs."""
    if epochs == 0:
        return ()
    last = max((i for i, p in enumerate(passes) if p.learns), default=-1)
    return tuple(replace(p, epochs=epochs, max_steps=None) if p.learns else p for p in passes[: last + 1])
