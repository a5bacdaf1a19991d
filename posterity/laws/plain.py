"""The first law: a method runs. One round and one prediction of three clients, one by one, every answer looked at.

An ordinary mistake ends here, with the author's file and line and what was expected, before other laws trip over it.
"""

from collections.abc import Callable
from dataclasses import is_dataclass
from itertools import zip_longest
from typing import Any

from torch import Tensor

from posterity.core.protocol import POINTS, Carry, Method, Pass
from posterity.core.tree import is_registered, tree_named
from posterity.laws.case import Broken, Case, predictions, run, shapes
from posterity.laws.law import Observed, law
from posterity.settings.plugins import describe_error, is_yours, place_of, place_of_class, place_of_function

FEW = (3, 4, 5)  # clients of 8, 5 and 2 samples
WRITTEN = ("passes", "message", "combine")  # what a method has to write
SAID = ("label", "reference", "absent", "scored")
KINDS = "Sum, Mean, LogMean, Moments, Rows or Bag of posterity.core"


@law(
    "runs",
    "One round and one prediction of three clients, one after another, give what each function is to return.",
    "docs/method.md says what every function is given and what it returns.",
)
def law_runs(case: Case) -> None:
    place, name = place_of_class(type(case.method)), type(case.method).__name__
    whose = f"{place}: {name}" if place else name
    if missing := unwritten(case.method):
        raise Broken(f"{whose} does not write {', '.join(missing)}; a method writes {', '.join(WRITTEN)}")
    if missing := [n for n in SAID if not isinstance(getattr(case.method, n, None), str)]:
        raise Broken(f"{whose} does not say {', '.join(missing)}; expected a text")
    if case.method.scored not in POINTS:
        raise Broken(f"{whose}: scored is {case.method.scored!r}; expected {', '.join(POINTS)}")
    sim = case.sim(method=Observed(case.method, looked_at))
    made = run(sim, "oracle", [FEW])
    predictions(sim, "oracle", made.state, made.store(), FEW[:1], case.method.scored)
    newcomer = [case.federation.members]
    predictions(sim, "oracle", made.state, made.store(), newcomer, "received", newcomers=True)


def unwritten(method: Any) -> list[str]:
    while hasattr(getattr(method, "inner", None), "label"):  # a wrapper has a method within
        method = method.inner
    return [n for n in WRITTEN if getattr(type(method), n, None) in (None, getattr(Method, n))]


def looked_at(name: str, function: Callable[..., Any], *args: Any) -> Any:
    """What a function of the method answers, if it is what the function is to return; what it raises has its line."""
    check: Callable[..., str] = RETURNED.get(name, _wrong_carry if " of pass " in name else _wrong_tree)
    if name == "offer" and args[1] is None:
        name = "offer to a newcomer (client is None)"
    try:
        answer = function(*args)
    except Broken:
        raise
    except Exception as error:
        if place_of(error) is None and (place := place_of_function(function)) is not None and is_yours(place.file):
            raise Broken(f"{place}: {name} raised {describe_error(error)}") from error
        raise Broken(f"{describe_error(error)} (while {name} ran)") from error
    if wrong := check(answer, *args):
        place = place_of_function(function)
        where = f"{place}: " if place is not None and is_yours(place.file) else ""
        raise Broken(f"{where}{name} {wrong}")
    return answer


# --- what is wrong with an answer, in words; nothing if it is right
def _wrong_state(state: Any, model: Any, *_: Any) -> str:
    held = getattr(state, "params", None)
    if not isinstance(held, dict) or not set(model.leaves) <= set(held):
        return (f"returned {_kind(state)}; expected a record State with a field params that holds the network's "
                "leaves: State(params)")  # fmt: skip
    return _wrong_tree(state, what="State")


def _wrong_combined(new: Any, state: Any, *_: Any) -> str:
    if type(new) is not type(state):
        return f"returned {_kind(new)}; expected a {type(state).__name__}, as init returned"
    if wrong := _wrong_tree(new, what=type(state).__name__):
        return wrong
    after, before = ([f"{path} of shape {shape}" for path, shape, _ in shapes(tree)] for tree in (new, state))
    for here, was in zip_longest(after, before, fillvalue="nothing"):
        if here != was:
            return f"returned {here} where the state before had {was}; expected the same names, order and shapes"
    return ""


def _wrong_report(report: Any, *_: Any) -> str:
    fine = isinstance(report, dict) and all(isinstance(v, Tensor) and v.numel() == 1 for v in report.values())
    return "" if fine else "must return a dict of names and tensors of one number"


def _wrong_start(params: Any, *_: Any) -> str:
    if not isinstance(params, dict):
        return f"returned {_kind(params)}; expected a dict of leaves by name, such as here.shared.params"
    return _wrong_tree(params, what="the leaves")


def _wrong_passes(given: Any, epochs: int | None = None) -> str:
    if not isinstance(given, tuple) or not all(isinstance(each, Pass) for each in given):
        return f"returned {_kind(given)}; expected a tuple of passes, such as (self.local.descend(),)"
    if given and epochs == 0:
        return (f"returned {len(given)} passes for 0 epochs; expected none: then nothing happens, and what must come "
                "before any prediction is `prepare`")  # fmt: skip
    return ""


def _wrong_carry(after: Any, *_: Any) -> str:
    fine = isinstance(after, Carry)
    return "" if fine else f"returned {_kind(after)}; expected a Carry: replace(carry, params=…)"


def _wrong_message(answer: Any, *_: Any) -> str:
    if wrong := _wrong_pair(answer, "message, record; () if nothing is kept"):
        return wrong
    sent, record = answer
    if not isinstance(sent, dict):
        return f"sends {_kind(sent)}; expected a dict of {KINDS}, such as weighted(carry.params, here)"
    for name, part in sent.items():
        if not hasattr(part, "fold") or isinstance(part, Tensor):  # what it folds to adds up: the law of sums
            return (f"sends {_kind(part)} as {name!r}, which does not add up; expected {KINDS}: Mean(here.n, value) is "
                    "averaged by samples, Sum(value) is added")  # fmt: skip
        if wrong := _wrong_tree(part, what=f"message[{name!r}]"):
            return wrong
    return _wrong_tree(record, what="the client's record")


def _wrong_offer(answer: Any, *_: Any) -> str:
    return _wrong_pair(answer, "Shared, Own") or _wrong_tree(answer, what="(Shared, Own)")


def _wrong_outputs(output: Any, carry: Any, x: Tensor, here: Any) -> str:
    classes = here.model.task == "classification"
    columns, what = (here.model.classes, "log-probabilities") if classes else (2, "means and variances")
    if isinstance(output, Tensor) and tuple(output.shape) == (len(x), columns):
        return ""
    given = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else _kind(output)
    return f"returned {given} for {len(x)} samples; expected {what} of shape ({len(x)}, {columns})"


def _wrong_pair(answer: Any, expected: str) -> str:
    if isinstance(answer, tuple) and len(answer) == 2:
        return ""
    given = f"{len(answer)} things" if isinstance(answer, tuple) else _kind(answer)
    return f"returned {given}; expected two, ({expected})"


def _wrong_tree(tree: Any, *_: Any, what: str = "the client's record") -> str:
    for path, leaf in tree_named(tree):
        if not isinstance(leaf, Tensor):
            return (f"returned {_kind(leaf)} at {what}{'/' * bool(path)}{path}; expected a tensor (a number becomes "
                    "one by here.n * 0 + number)")  # fmt: skip
    plain = _plain_class(tree)
    if plain:
        return f"returned a {plain} as {what}, a plain dataclass; put @record of posterity.core above its class"
    return ""


def _plain_class(tree: Any) -> str:
    """The name of a plain dataclass in a tree: stacking would not look into it; empty: there is none."""
    if is_dataclass(tree) and not is_registered(type(tree)):
        return type(tree).__name__
    children = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (tuple, list)) else ()
    return next(filter(None, map(_plain_class, children)), "")


def _kind(value: Any) -> str:
    name = type(value).__name__
    return f"{value!r} ({name})" if isinstance(value, (int, float, str)) else f"a {name}"


RETURNED: dict[str, Callable[..., str]] = {
    "init": _wrong_state,
    "offer": _wrong_offer,
    "combine": _wrong_combined,
    "report": _wrong_report,
    "start": _wrong_start,
    "message": _wrong_message,
    "predict": _wrong_outputs,
    **dict.fromkeys(("passes", "adapt", "prepare"), _wrong_passes),
}
