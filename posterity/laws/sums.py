"""Laws about adding up: messages are elements of a commutative monoid, and the server looks at their sum only."""

import math
import random
from dataclasses import replace
from functools import reduce
from typing import Any

from posterity.core.messages import LogMean, Mean, Message, Moments, Sum, fold_stack, merge, zero_like
from posterity.core.tree import Tree, tree_map, tree_rows
from posterity.engine.round import moment
from posterity.laws.case import COHORTS, Broken, Case, RoundHistory, assert_close, assert_same_bits, history
from posterity.laws.law import law

TREES = 4


@law(
    "sums",
    "Messages add up: zero changes nothing, + commutes and associates, and every tree of merges gives one total.",
    "a message kind of your own whose zero is not neutral (the zero of a maximum is minus infinity, not 0), or whose "
    "`+` loses the weights. Prefer Sum, Mean, LogMean, Moments, Rows and Bag of core.messages.",
)
def law_sums(case: Case) -> None:
    rng = random.Random(0)
    for number, done in enumerate(history(case, "stacked").rounds, 1):
        parts, total = single_totals(done), fold_stack(done.sent)
        where = f"round {number}"
        for client, part in zip(done.clients.tolist(), parts, strict=True):
            zero = zero_like(part)
            assert_close(merge(zero, part), part, f"{where}, zero + message of client {client}", case.slack)
            assert_close(merge(part, zero), part, f"{where}, message of client {client} + zero", case.slack)
        assert_close(merge(total, zero_like(total)), total, f"{where}, total + zero", case.slack)
        for _ in range(TREES):
            a, b, c = rng.sample(parts, 3)
            assert_close(merge(a, b), merge(b, a), f"{where}, a + b and b + a", case.slack)
            left, right = merge(merge(a, b), c), merge(a, merge(b, c))
            assert_close(left, right, f"{where}, (a + b) + c and a + (b + c)", case.slack)
            assert_close(random_merge(parts, rng), total, f"{where}, a random tree of merges and all", case.slack)


def single_totals(done: RoundHistory) -> list[Message]:
    """Every client's message of a round as a total of its own, in float64."""
    return [fold_stack(tree_rows(done.sent, slice(i, i + 1))) for i in range(len(done.clients))]


def random_merge(parts: list[Message], rng: random.Random) -> Message:
    left = list(parts)
    while len(left) > 1:
        a, b = left.pop(rng.randrange(len(left))), left.pop(rng.randrange(len(left)))
        left.append(merge(a, b))
    return left[0]


@law(
    "weights",
    "Weight counts, not the number of messages: a client of weight zero adds nothing, and two copies of a client at "
    "half weight are that client, for the sum and for the state that follows.",
    "dividing by now.cohort what Mean has divided already, or scaling by the number of messages. Let Mean divide; "
    "where a constant is needed, take it from facts.clients.",
)
def law_weights(case: Case) -> None:
    made, sim = history(case, "stacked"), case.sim()
    for number, done in enumerate(made.rounds, 1):
        parts, total = single_totals(done), fold_stack(done.sent)
        nothing = {n: _weighed(p, -math.inf) for n, p in parts[0].items()}
        halves = [{n: _weighed(p, -math.log(2)) for n, p in part.items()} for part in parts]
        usable = [n for n, p in halves[0].items() if p is not None]
        doubled: Message = reduce(merge, [{n: h[n] for n in usable} for h in (*halves, *halves)])
        twice = f"round {number}, every client twice at half weight"
        for name in usable:
            same, more = {name: _plain(total[name])}, total[name] + nothing[name]
            assert_close({name: _plain(doubled[name])}, same, twice, case.slack)
            assert_close({name: _plain(more)}, same, f"round {number}, a client of weight zero added", case.slack)
        if usable and len(usable) == len(total):
            state, _ = made.before(number)
            now = moment(sim, number, len(COHORTS), len(parts))
            once = case.method.combine(state, total, now)
            again = case.method.combine(state, doubled, replace(now, cohort=2 * len(parts)))
            assert_close(again, once, f"state after {twice}", case.slack)


def _weighed(part: Any, log_share: float) -> Any:
    share = math.exp(log_share)
    if isinstance(part, Mean):
        return Mean(tree_map(lambda w: w * share, part.weight), part.value)
    if isinstance(part, Moments):
        return Moments(part.weight * share, part.mean, tree_map(lambda s: s * share, part.square))
    if isinstance(part, LogMean):
        return LogMean(part.log_weight + log_share, part.value)
    if isinstance(part, Sum):
        return Sum(tree_map(lambda v: v * share, part.value))
    return None


def _plain(part: Any) -> Tree:
    """What a total says, without the count of clients that a LogMean reports."""
    return (part.log_weight, part.value) if isinstance(part, LogMean) else part


@law(
    "empty",
    "Combining the total of no clients raises, or leaves the state as it was; it never invents one.",
    "reading total[...].value where total[...].mean() would raise. Use mean(), or mean(missing=...) to keep leaves; "
    "of a Bag or Rows without a row (len(total[...].client) == 0) return the state.",
)
def law_empty(case: Case) -> None:
    made, sim = history(case, "stacked"), case.sim()
    done, (state, _) = made.at(2), made.before(2)
    nothing = zero_like(fold_stack(done.sent))
    try:
        after = case.method.combine(state, nothing, moment(sim, 2, len(COHORTS), 0))
    except ValueError:
        return
    except Exception as error:
        raise Broken(f"combine raised {type(error).__name__} ({error}); an empty total is a ValueError") from None
    assert_same_bits(tree_map(lambda a, b: a.to(b), after, state), state, "state after nobody's message")
