"""`posterity new method foo`: a method's file and its test, complete and passing, to be changed."""

from __future__ import annotations

import keyword
from pathlib import Path

METHOD = '''"""{title}: say in one paragraph what the idea is.

    client   theta_k <- E epochs of SGD on the loss, from w                                                # (1)
    server   w <- sum_k p_k theta_k                                                                        # (2)

Reference: authors, "title", venue and year.

Differs from the paper: nothing yet (this file is FedAvg with a pull to the broadcast; change it).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from posterity.core import (
    Batch,
    Carry,
    Facts,
    Here,
    Message,
    Method,
    Network,
    Now,
    Params,
    Pass,
    Personal,
    Point,
    Training,
    averaged,
    check_fields,
    fit,
    hyper,
    record,
    weighted,
)


@record
class State:
    params: Params  # w: the network's leaves


@dataclass(frozen=True)
class {title}(Method):
    label: ClassVar[str] = "{title}"
    reference: ClassVar[str] = "authors, year"
    absent: ClassVar[str] = "cohort only"
    scored: ClassVar[Point] = "received"  # or "adapted", "trained"

    local: Training = hyper(Training(), "how the clients train")
    pull: float = hyper(0.1, "strength of the pull to the broadcast", "ours")

    def __post_init__(self) -> None:
        check_fields(self)

    def init(self, model: Network, params: Params, facts: Facts) -> State:
        return State(params)

    def start(self, here: Here) -> Params:
        return here.shared.params

    def loss(self, params: Params, batch: Batch, here: Here) -> tuple[Tensor, Params]:
        value, buffers = fit(params, batch, here)
        far = sum(((params[n] - here.shared.params[n]) ** 2).sum() for n in here.model.trainable)
        return value + 0.5 * self.pull * far, buffers

    def passes(self) -> tuple[Pass, ...]:
        return (self.local.descend(self.loss),)  # (1)

    def message(self, carry: Carry, here: Here) -> tuple[Message, Personal]:
        return weighted(carry.params, here), ()

    def combine(self, state: State, total: Message, now: Now) -> State:
        return State(averaged(state.params, total))  # (2)
'''

TEST = '''"""{title}: the laws, and one identity that must hold."""

import posterity
from posterity.laws import check
from {module} import {title}


def test_laws() -> None:
    broken = [v for v in check({title}()) if not v.held and not v.follows]
    assert not broken, "\\n".join(f"{{v.law}}: {{v.detail}}" for v in broken)


def test_without_its_pull_it_is_fedavg() -> None:
    setting = {{"dataset": "digits", "clients": 5, "rounds": 2, "evaluate_every": 2}}
    mine = posterity.run(method="{module}:{title}", set={{"pull": 0.0}}, **setting)
    theirs = posterity.run(method="fedavg", **setting)
    assert mine.metric("nll") == theirs.metric("nll")
'''


def write_method(name: str, folder: Path) -> tuple[Path, Path, str]:
    """Write `name.py` and `test_name.py` into `folder`; returns both and the method's dotted path."""
    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower():
        raise ValueError(f"a method's name is a Python name in lower case, such as 'fedfoo'; {name!r} was given")
    made, test = folder / f"{name}.py", folder / f"test_{name}.py"
    for path in (made, test):
        if path.exists():
            raise ValueError(f"{path} exists; nothing was written")
    title = "".join(word.capitalize() for word in name.split("_"))
    folder.mkdir(parents=True, exist_ok=True)
    made.write_text(METHOD.format(title=title))
    test.write_text(TEST.format(title=title, module=name))
    return made, test, f"{name}:{title}"
