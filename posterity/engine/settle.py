"""How a round ends, in a simulation and across machines: taken, repeated without those who stand out, or rolled back.

A caller says what its `finish` does with a sum of messages (the next state and the log, or a rolled-back log and the
state that was) and how the same round is visited `again` without some clients. Visits leave no trace before a round is
committed, so that both may happen as often as needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from posterity.core.protocol import State
from posterity.engine.server import Accumulator, Refusal, RoundLog
from posterity.engine.usable import FAR, outstanding

Finish = Callable[[Accumulator], tuple[State, RoundLog]]
TOO_LARGE = "the round cannot be used with it: it holds a number of magnitude {:.3g}, far beyond the others'"
STUCK = "no client could go on from the state after it"


def settle(
    visited: Accumulator, finish: Finish, again: Callable[[list[int]], Accumulator],
    sizes: Callable[[], Mapping[int, float]],
) -> tuple[State, RoundLog]:  # fmt: skip
    """The end of a round; if its result cannot be used, of the same round without the clients that stand out.

    `sizes` are the largest numbers that the accepted clients sent; they are asked for only if the round failed.
    """
    after, log = finish(visited)
    suspects = outstanding(sizes()) if log.rolled_back else []
    if not suspects:
        return after, log
    others = again(suspects)
    named = {client: visited.sizes[client] for client in suspects if client in visited.sizes}
    others.refused += [Refusal(client, TOO_LARGE.format(size)) for client, size in named.items()]
    then, second = finish(others)
    if second.rolled_back:
        return after, log
    return then, replace(second, bytes_up=log.bytes_up, bytes_down=log.bytes_down)


def rolled_back(log: RoundLog, why: str) -> RoundLog:
    """The log of a round of which nothing is kept."""
    return replace(log, accepted=0, rolled_back=why)


def unusable(why: str) -> str:
    """In a sentence, that a state cannot be used."""
    return f"the state after it cannot be used: {why}"


def goes_on(now: RoundLog, then: RoundLog) -> bool:
    """Whether clients can go on from a round's state: by its log, and by that of visits that only tried it."""
    return then.accepted > 0 and not then.loss > FAR * max(1.0, now.loss)  # nan: nobody counted


__all__ = ["STUCK", "goes_on", "rolled_back", "settle", "unusable"]
