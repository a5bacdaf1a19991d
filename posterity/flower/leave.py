"""Clients that leave an experiment for good.

They are not asked any more, whatever the method. One that keeps every client's factor apart (FedNP, FedEP, PVI) also
loses theirs: the site sends it, for the server only has the product of all, and the state goes on without. What others
learnt from it meanwhile stays, and so does everything of a client whose method cannot tell its part.
"""

from __future__ import annotations

from collections.abc import Sequence

from posterity.core.codec import CodecError, decode
from posterity.core.tree import tree_like
from posterity.engine.usable import why_unusable
from posterity.flower.request import Request
from posterity.flower.server import Server

FORGOTTEN, NEVER = "", "the method cannot tell what is its part of the state"


def depart(server: Server, names: Sequence[str]) -> None:
    """Take clients out of an experiment; one whose factor could not be taken out may be named again."""
    known = server.roster.numbers
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"leave names {unknown[0]!r}, who is no client of this experiment: its clients are "
                         f"{', '.join(map(repr, known))}")  # fmt: skip
    for name in names:
        if server.roster.gone.get(name) in (FORGOTTEN, NEVER):
            continue
        why = _forget(server, name)
        server.roster.gone[name] = why
        done = "its factor was taken out of the state" if not why else f"what it contributed stays: {why}"
        server.tell([{"kind": "note", "text": f"{name!r} has left before round {server.round + 1}; {done}"}])
    server.counted = {name: round for name, round in server.counted.items() if server.roster.gone.get(name) not in
                      (FORGOTTEN, NEVER)}  # fmt: skip


def _forget(server: Server, name: str) -> str:
    """Take a client's factor out of the state, or say why not."""
    client, number, counted = server.roster.clients[name], server.roster.numbers[name], server.counted.get(name, 0)
    if not counted:
        return FORGOTTEN  # no message of its was ever counted
    request = Request(server.agreement, server.state, server.round + 1, (), ask="leave")
    like, method = request.factor_like(client, number), server.agreement.method
    if like is None:
        return NEVER
    if name not in server.roster.node:
        return "its site is not there, so its factor is not known; name it again when it is"
    question = (server.roster.node[name], request.question(client, number, counted))
    for _, reply in server.exchange.ask([question]):
        try:
            data, _ = request.heard(client, reply)
            factor = decode(data, like, server.agreement.fingerprint)
        except CodecError as error:
            return f"its factor was not understood: {error}"
        after = tree_like(method.forget(server.state, factor), server.state)
        why = why_unusable(after, server.state)
        if not why:
            server.state = after
        return f"without its factor the state cannot be used: {why}" if why else FORGOTTEN
    return "its site did not answer"


__all__ = ["depart"]
