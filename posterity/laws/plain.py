"""The first law: a method runs. One round and one prediction of three clients, one by one, every answer looked at.

An ordinary mistake ends here, with the author's file and line and what was expected, before other laws trip over it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, is_dataclass, replace
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from posterity.core.protocol import POINTS, Carry, Method, Pass
from posterity.core.tree import is_registered, tree_named
from posterity.core.wrapper import Wrapper
from posterity.engine.engines import ORACLE
from posterity.engine.round import first_state, score, train_round
from posterity.engine.store import Memory
from posterity.laws.case import Broken, Case, shapes
from posterity.laws.law import law
from posterity.settings.plugins import is_yours, place_of, place_of_class, place_of_function, told

FEW = (3, 4, 5)  # clients of 8, 5 and 2 samples
WRITTEN = ("init", "start", "passes", "message", "combine")  # what a method has to write
SAID = ("label", "reference", "absent", "scored")
KINDS = "Sum, Mean, LogMean, Moments, Rows or Bag of posterity.core"


def wrong(function: Callable[..., Any], name: str, found: str) -> Broken:
    """A mistake in what `function` returned."""
    place = place_of_function(function)
    where = f"{place}: " if place is not None and is_yours(place.file) else ""
    return Broken(f"{where}{name} {found}")


def called(name: str, function: Callable[..., Any], *args: Any) -> Any:
    """What a function of the method answers; what it raises is told with its line."""
    try:
        return function(*args)
    except Broken:
        raise
    except Exception as error:
        if place_of(error) is None and (place := place_of_function(function)) is not None and is_yours(place.file):
            raise Broken(f"{place}: {name} raised {told(error)}") from error
        raise Broken(f"{told(error)} (while {name} ran)") from error


def all_tensors(name: str, function: Callable[..., Any], tree: Any, what: str) -> None:
    """Refuse what is no tree of tensors."""
    for path, leaf in tree_named(tree):
        if not isinstance(leaf, Tensor):
            place = f"{what}/{path}" if path else what
            raise wrong(function, name, f"returned {_kind(leaf)} at {place}; expected a tensor "
                        "(a number becomes one by here.n * 0 + number)")  # fmt: skip
    _records(name, function, tree, what)


def _records(name: str, function: Callable[..., Any], tree: Any, what: str) -> None:
    """Refuse plain dataclasses: stacking would not look into them."""
    if is_dataclass(tree) and not is_registered(type(tree)):
        raise wrong(function, name, f"returned a {type(tree).__name__} as {what}, a plain dataclass; put @record of "
                    "posterity.core above its class")  # fmt: skip
    children = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (tuple, list)) else ()
    for child in children:
        _records(name, function, child, what)


def _told(tree: Any) -> list[str]:
    return [f"{path} of shape {shape}" for path, shape, _ in shapes(tree)]


def _kind(value: Any) -> str:
    return (
        f"{value!r} ({type(value).__name__})" if isinstance(value, (int, float, str)) else f"a {type(value).__name__}"
    )


def pair(name: str, function: Callable[..., Any], answer: Any, expected: str) -> tuple[Any, Any]:
    """The two things that a function returns."""
    if not isinstance(answer, tuple) or len(answer) != 2:
        given = f"{len(answer)} things" if isinstance(answer, tuple) else _kind(answer)
        raise wrong(function, name, f"returned {given}; expected two, ({expected})")
    return answer


@dataclass(frozen=True)
class Watched(Wrapper):
    """The method with every answer looked at."""

    def init(self, model: Any, params: Any, facts: Any) -> Any:
        state = called("init", self.inner.init, model, params, facts)
        held = getattr(state, "params", None)
        if not isinstance(held, dict) or not set(model.leaves) <= set(held):
            raise wrong(self.inner.init, "init", f"returned {_kind(state)}; expected a record State with a field "
                        "params that holds the network's leaves: State(params)")  # fmt: skip
        all_tensors("init", self.inner.init, state, "State")
        return state

    def offer(self, state: Any, client: Any) -> Any:
        whom = "offer" if client is not None else "offer to a newcomer (client is None)"
        answer = pair(whom, self.inner.offer, called(whom, self.inner.offer, state, client), "Shared, Own")
        all_tensors(whom, self.inner.offer, answer, "(Shared, Own)")
        return answer

    def combine(self, state: Any, total: Any, now: Any) -> Any:
        new = called("combine", self.inner.combine, state, total, now)
        if type(new) is not type(state):
            raise wrong(self.inner.combine, "combine", f"returned {_kind(new)}; expected a {type(state).__name__}, as "
                        "init returned")  # fmt: skip
        all_tensors("combine", self.inner.combine, new, type(state).__name__)
        for here, before in zip_longest(_told(new), _told(state), fillvalue="nothing"):
            if here != before:
                raise wrong(self.inner.combine, "combine", f"returned {here} where the state before had {before}; "
                            "expected the same names, order and shapes")  # fmt: skip
        return new

    def report(self, state: Any, total: Any) -> Any:
        told = called("report", self.inner.report, state, total)
        if not isinstance(told, dict) or any(not isinstance(v, Tensor) or v.numel() != 1 for v in told.values()):
            raise wrong(self.inner.report, "report", "must return a dict of names and tensors of one number")
        return told

    def join(self, here: Any) -> Any:
        record = called("join", self.inner.join, here)
        all_tensors("join", self.inner.join, record, "the client's record")
        return record

    def start(self, here: Any) -> Any:
        params = called("start", self.inner.start, here)
        if not isinstance(params, dict):
            raise wrong(self.inner.start, "start", f"returned {_kind(params)}; expected a dict of leaves by name, such "
                        "as here.shared.params")  # fmt: skip
        all_tensors("start", self.inner.start, params, "the leaves")
        return params

    def passes(self) -> Any:
        return self._passes("passes", self.inner.passes, called("passes", self.inner.passes))

    def adapt(self, epochs: int) -> Any:
        given = self._passes("adapt", self.inner.adapt, called("adapt", self.inner.adapt, epochs))
        if given and epochs == 0:
            raise wrong(self.inner.adapt, "adapt", f"returned {len(given)} passes for 0 epochs; expected none: then "
                        "nothing happens, and what must come before any prediction is `prepare`")  # fmt: skip
        return given

    def prepare(self) -> Any:
        return self._passes("prepare", self.inner.prepare, called("prepare", self.inner.prepare))

    def _passes(self, name: str, function: Callable[..., Any], given: Any) -> tuple[Pass, ...]:
        if not isinstance(given, tuple) or not all(isinstance(each, Pass) for each in given):
            raise wrong(function, name, f"returned {_kind(given)}; expected a tuple of passes, such as "
                        "(self.local.descend(),)")  # fmt: skip
        return tuple(_watched(each, f"pass {i} of {name}") for i, each in enumerate(given))

    def message(self, carry: Any, here: Any) -> Any:
        said = called("message", self.inner.message, carry, here)
        sent, record = pair("message", self.inner.message, said, "message, record; () if nothing is kept")
        if not isinstance(sent, dict):
            raise wrong(self.inner.message, "message", f"sends {_kind(sent)}; expected a dict of {KINDS}, such as "
                        "weighted(carry.params, here)")  # fmt: skip
        for name, part in sent.items():
            if not hasattr(part, "fold") or isinstance(part, Tensor):  # what it folds to adds up: the law of sums
                raise wrong(self.inner.message, "message", f"sends {_kind(part)} as {name!r}, which does not add up; "
                            f"expected {KINDS}: Mean(here.n, value) is averaged by samples, "
                            "Sum(value) is added")  # fmt: skip
            all_tensors("message", self.inner.message, part, f"message[{name!r}]")
        all_tensors("message", self.inner.message, record, "the client's record")
        return said

    def predict(self, carry: Any, x: Tensor, here: Any) -> Any:
        output = called("predict", self.inner.predict, carry, x, here)
        columns = here.model.classes if here.model.task == "classification" else 2
        what = "log-probabilities" if here.model.task == "classification" else "means and variances"
        if not isinstance(output, Tensor) or tuple(output.shape) != (len(x), columns):
            given = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else _kind(output)
            raise wrong(self.inner.predict, "predict", f"returned {given} for {len(x)} samples; expected {what} of "
                        f"shape ({len(x)}, {columns})")  # fmt: skip
        return output


def _watched(each: Pass, name: str) -> Pass:
    def moved(what: str) -> Callable[..., Any]:
        function = getattr(each, what)

        def move(carry: Carry, *args: Any) -> Carry:
            after = called(f"{what} of {name}", function, carry, *args)
            if not isinstance(after, Carry):
                raise wrong(function, f"{what} of {name}", f"returned {_kind(after)}; expected a Carry: "
                            "replace(carry, params=…)")  # fmt: skip
            return after

        return move

    return replace(each, step=moved("step"), open=moved("open"), close=moved("close"))


def unwritten(method: Any) -> list[str]:
    """Functions that a method has to write and did not."""
    made = [m for m in (method, getattr(method, "inner", None)) if hasattr(m, "label")]  # a wrapper has a method within
    return [n for n in WRITTEN for m in made if getattr(type(m), n, None) in (None, getattr(Method, n))]


@law(
    "runs",
    "One round and one prediction of three clients, one after another, give what each function is to return.",
    "docs/method.md says what every function is given and what it returns.",
)
def law_runs(case: Case) -> None:
    place = place_of_class(type(case.method))
    whose = f"{place}: {type(case.method).__name__}" if place else type(case.method).__name__
    if missing := unwritten(case.method):
        raise Broken(f"{whose} does not write {', '.join(missing)}; a method writes {', '.join(WRITTEN)}")
    if missing := [n for n in SAID if not isinstance(getattr(case.method, n, None), str)]:
        raise Broken(f"{whose} does not say {', '.join(missing)}; expected texts: label: ClassVar[str] = …")
    if case.method.scored not in POINTS:
        raise Broken(f"{whose}: scored is {case.method.scored!r}; expected {', '.join(POINTS)}")
    try:
        _go(case)
    except Broken:
        raise
    except Exception as error:
        raise Broken(told(error)) from error


def _go(case: Case) -> None:
    sim = case.sim(method=Watched(case.method))
    state, store = first_state(sim), Memory(case.federation.members)
    state, _ = train_round(sim, ORACLE, state, store, torch.tensor(FEW), 1, 1)
    tests = [case.federation.test]
    score(sim, ORACLE, state, store, torch.tensor(FEW[:1]), 1, tests, case.method.scored)
    newcomer = torch.tensor([case.federation.members])
    score(sim, ORACLE, state, store, newcomer, 1, tests, "received", newcomers=True)
