"""Laws about purity: a function's answer depends on its arguments alone, and it writes to none of them."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from posterity.core.tree import Tree, tree_named
from posterity.laws.case import COHORTS, Broken, Case, History, assert_same_bits, history, largest_gap, predictions, run
from posterity.laws.law import Observed, law, line_of_change
from posterity.nn.model import global_generators
from posterity.settings.plugins import is_yours, place_of_function

Snapshot = list[tuple[str, Tensor, int, Tensor]]


@law(
    "purity",
    "The same call gives the same bits, and nothing that a function is handed is written to.",
    "state kept outside State and Personal (a module-level dict, an attribute of the method), torch.randn or another "
    "global generator (draw with posterity.core's normal and here.key), or an in-place operation (add_, +=, dict "
    "assignment). Put what must last into State or Personal and return new tensors.",
)
def law_purity(case: Case) -> None:
    sim = case.sim(method=Observed(case.method, twice))
    made = run(sim, "oracle", [(1, 2, 3), (1, 4)])
    for point in ("adapted", "trained"):
        predictions(sim, "oracle", made.state, made.store(), (1, 12), point)
    newcomer = [case.federation.members]
    predictions(sim, "oracle", made.state, made.store(), newcomer, "received", newcomers=True)


@law(
    "seed",
    "The same seed gives the same bits, another seed other ones, and no global generator is touched.",
    "torch.randn, numpy.random or random in a method. Draw with core.random and here.key; in combine with now.key.",
)
def law_seed(case: Case) -> None:
    before = global_generators()
    few = [COHORTS[0][1:4]]
    ones = run(case.sim(), "oracle", few)
    for name, state in global_generators().items():
        if state != before[name]:
            line = _moved(name, lambda: run(case.sim(), "oracle", few))
            raise Broken(line or f"the global generator of {name} moved during round 1")
    assert_same_bits(_end(ones), _end(run(case.sim(), "oracle", few)), "the same seed, round 1, loop")
    draws = [p for p in case.method.passes() if p.shuffle and p.batch is not None and p.learns]
    largest = max(len(case.federation.train.client(c)) for c in few[0])
    if any(p.batch is not None and p.batch < largest for p in draws):
        other = run(case.sim(seed=case.seed + 1, method=case.method), "oracle", few)
        if largest_gap(_end(other), _end(ones))[0] == 0:
            raise Broken("another seed gave the same bits in round 1, although the order of the samples is drawn")


@law(
    "stacking",
    "Many clients run as one tensor program, and twice so with the same bits.",
    "`if` on a tensor, .item(), x[x > 0], or an operator that vmap cannot batch. Use masks and torch.where.",
)
def law_stacking(case: Case) -> None:
    made = history(case, "stacked")
    again = run(case.sim(), "stacked", COHORTS[:2])
    assert_same_bits(_end(again), (made.at(2).state, made.at(2).rows), "the same seed, rounds 1 and 2, stacked")


def _end(made: History) -> Tree:
    return made.rounds[-1].state, made.rounds[-1].rows


def snapshot(tree: Tree) -> Snapshot:
    return [(n, t, t._version, t.clone()) for n, t in _tensors(tree).items()]


def _tensors(tree: Tree) -> dict[str, Tensor]:
    return {name: leaf for name, leaf in tree_named(tree) if isinstance(leaf, Tensor)}


def unchanged(before: Snapshot, after: Tree, where: str) -> None:
    """Nothing was written to since the snapshot, and no leaf came or went."""
    if words := written(before, after):
        raise Broken(f"{where} {words}")


def written(before: Snapshot, after: Tree) -> str:
    """What happened to a tree since its snapshot; empty if nothing did."""
    if [n for n, *_ in before] != list(_tensors(after)):
        return "added, removed or reordered leaves of what it was handed"
    for name, tensor, version, copy in before:
        if tensor._version != version or largest_gap(tensor, copy)[0] > 0:
            return f"wrote to what it was handed: leaf {name!r} (argument/path)"
    return ""


def twice(name: str, function: Callable[..., Any], *args: Any) -> Any:
    """Call `function` twice, compare the bits of both answers, and see that the arguments are as they were."""
    here = next((a for a in args if hasattr(a, "client") and hasattr(a, "round")), None)
    where = name if here is None else f"{name} (client {int(here.client)}, round {int(here.round)})"
    before = snapshot(args)
    first = function(*args)
    kept = snapshot(first)
    if words := written(before, args):
        place = line_of_change(lambda: [t._version for t in _tensors(args).values()], lambda: function(*args))
        raise Broken(f"{place}: `{place.text}`: {where} {words}" if place else f"{where} {words}")
    second = function(*args)
    unchanged(kept, first, f"the second call of {where}")
    one, other = _tensors(first), _tensors(second)
    if largest_gap(other, one)[0] > 0:
        for library in global_generators():
            if words := _moved(library, lambda: function(*args)):
                raise Broken(f"{words} ({where})")
        place = place_of_function(function)
        where = f"{place}: {where}" if place is not None and is_yours(place.file) else where
    assert_same_bits(other, one, f"{where} called twice with the same arguments")
    return first


def _moved(library: str, run: Callable[[], Any]) -> str:
    """Which line moves the global generator of a library, in a sentence; empty if none of yours does."""
    place = line_of_change(lambda: global_generators()[library], run)
    return f"{place}: `{place.text}` draws from the global generator of {library}" if place else ""
