"""Clients that leave an experiment for good.

They are not asked any more, whatever the method. One that keeps every client's factor apart (FedNP, FedEP, PVI) also
loses theirs: the site sends it, for the server only has the product of all, and the state goes on without. What others
learnt from it meanwhile stays, and so does everything of a client whose method cannot tell its part.

The server's settings may name them, who then go before the next round; or a site says so itself, in place of a message
(`wish.py`): the round goes on without it, and its factor is taken out of the state after the round.
"""

from __future__ import annotations

from collections.abc import Sequence

from posterity.core.codec import CodecError, decode
from posterity.core.tree import Tree, tree_like
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
        if server.roster.gone.get(name) not in (FORGOTTEN, NEVER):
            _close(server, name, f"has left before round {server.round + 1}", _forget(server, name))


def release(server: Server) -> None:
    """Take clients out of an experiment that said in the last round that they leave; their factor came along."""
    for name, reply in server.leaving.items():
        _close(server, name, f"has left by its own wish after round {server.round}", _forget(server, name, reply))
    server.leaving.clear()


def _close(server: Server, name: str, what: str, why: str) -> None:
    """A client is not asked any more; `why` its factor stays, if it does."""
    server.roster.gone[name] = why
    if why in (FORGOTTEN, NEVER):
        server.counted.pop(name, None)
    done = "its factor was taken out of the state" if not why else f"what it contributed stays: {why}"
    server.tell([{"kind": "note", "text": f"{name!r} {what}; {done}"}])


def _forget(server: Server, name: str, reply: bytes | None = None) -> str:
    """Take a client's factor out of the state, or say why not; without a `reply` that holds it, the site is asked."""
    client, number, counted = server.roster.clients[name], server.roster.numbers[name], server.counted.get(name, 0)
    if not counted:
        return FORGOTTEN  # no message of its was ever counted
    request = Request(server.agreement, server.state, server.round + 1, (), ask="leave")
    like = request.factor_like(client, number)
    if like is None:
        return NEVER
    if reply is not None:
        return _take_out(server, like, reply)
    if name not in server.roster.node:
        return "its site is not there, so its factor is not known; name it again when it is"
    question = (server.roster.node[name], request.question(client, number, counted))
    for _, told in server.exchange.ask([question]):
        try:
            data, _ = request.heard(client, told)
        except CodecError as error:
            return f"its factor was not understood: {error}"
        return _take_out(server, like, data)
    return "its site did not answer"


def _take_out(server: Server, like: Tree, data: bytes) -> str:
    """The state without a client's factor, or why it stays as it is."""
    try:
        factor = decode(data, like, server.agreement.fingerprint)
    except CodecError as error:
        return f"its factor was not understood: {error}"
    after = tree_like(server.agreement.method.forget(server.state, factor), server.state)
    why = why_unusable(after, server.state)
    if why:
        return f"without its factor the state cannot be used: {why}"
    server.state = after
    return FORGOTTEN


__all__ = ["depart", "release"]
