"""The end of an experiment across machines: everybody gets the final model and scores it.

A site that is not there then has an older model. The run ends all the same, says who it is (`run.json`:
`without_final_model`), and keeps what the others said; when it is started again, only those sites are asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from posterity.flower.request import Line, Request
from posterity.flower.roster import Registered
from posterity.flower.scores import read_scores, store_scores
from posterity.flower.server import ABSENT, ScoresByName, Server


def finish(server: Server) -> None:
    """The scores of the last round, with what clients receive after it; of a run that has ended, those that lack."""
    again, before = server.finished, set(server.lacking)
    if again:
        server.tell_news()  # nobody is admitted any more
    else:
        server.look()
    after = server.config.rounds + 1
    request = Request(server.agreement, server.state, after, (), server.points(after))
    asked = [client for client in server.scored(request) if not again or client.name in before]
    scores = stored_scores(server)
    visited = server.collect(request, asked, scores)
    silent = [client for client in asked if client.name not in scores and client.name not in server.leaving]
    server.lacking = [client.name for client in silent]
    server.last = {name: store_scores(each, server.config.least) for name, each in scores.items() if silent}
    fresh = server.score_lines(scores) if any(client.name in scores for client in asked) else ()
    why = dict(server.named(visited.refused))
    server.tell([*fresh, *_lost(server, silent, why), *_closing(server, before)])
    server.finished = True


def stored_scores(server: Server) -> ScoresByName:
    """What sites said when they were asked before; nothing, unless the run had ended without some."""
    kind, least = server.agreement.kind, server.config.least
    return {name: {(each["point"], each["round"], each["epochs"]): read_scores(each, kind, least) for each in tables}
            for name, tables in server.last.items()}  # fmt: skip


def _lost(server: Server, silent: Sequence[Registered], why: Mapping[str, str]) -> list[Line]:
    return [{"kind": "lost", "client": client.name, "round": server.round, "reason": why.get(client.name, ABSENT)}
            for client in silent]  # fmt: skip


def _closing(server: Server, before: set[str]) -> list[Line]:
    """Who has the final model now, and who still has not."""
    here = sorted(name for name in before - set(server.lacking) if name not in server.roster.gone | server.leaving)
    said = [f"{', '.join(map(repr, here))}: the final model has arrived"] if here else []
    if server.lacking:
        said.append(f"the run has ended, and {', '.join(map(repr, server.lacking))} did not answer to the final model: "
                    "start the run again when these sites are back, and only they are asked")  # fmt: skip
    return [{"kind": "note", "text": text} for text in said]


__all__ = ["finish"]
