"""An experiment across machines from its beginning, or from where its folder stands, to its end.

After every round the state is written with what a restart needs: the round, the clients and their numbers, and which
message of each was the last to count. A server that dies goes on from there; sites that have trained meanwhile are told
what counted, and take up the record of that round (`records.py`). Nobody counts twice. `run.json` is that of a
simulation as far as a server knows it: not how many rows sites hold out, and how many samples of each class they have.

In the end everybody gets the final model and scores it. A site that is not there then has an older model. The run ends
all the same, says who it is (`run.json`: `without_final_model`), and keeps what the others said; when it is started
again, only those sites are asked.

Clients that leave for good are not asked any more, whatever the method. One that keeps every client's factor apart
(FedNP, FedEP, PVI) also loses theirs: the site sends it, for the server only has the product of all, and the state goes
on without. What others learnt from it meanwhile stays, and so does everything of a client whose method cannot tell its
part. The server's settings may name them, who then go before the next round; or a site says so itself, in place of a
message (`site.py`): the round goes on without it, and its factor is taken out of the state after the round.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posterity.core.protocol import Plan
from posterity.core.tree import tree_like
from posterity.engine.server import why_unusable
from posterity.experiment.facts import method_facts, software_facts
from posterity.experiment.fingerprint import sources
from posterity.experiment.run import ACROSS_MACHINES
from posterity.experiment.scoring import fits_validation
from posterity.flower.agreement import Agreement, SampleSpec, agree
from posterity.flower.codec import CodecError, decode
from posterity.flower.question import RoundQuestions
from posterity.flower.roster import Exchange, Registered, Roster, label_remarks
from posterity.flower.scores import read_scores, store_scores
from posterity.flower.server import ABSENT, Server, Watch, read_key
from posterity.flower.settings import RoundRules, check_agreed, check_settings
from posterity.runs import files
from posterity.runs import folder as run_folder
from posterity.runs.lines import LostLine, NoteLine, to_json
from posterity.settings.config import Config, to_toml

WAIT = 600.0  # seconds until enough sites are there
SINGLE = "min_count = 1: what sites say about a class, and their scores, may be of one sample; min_count = 5 keeps it"


def run_experiment(
    config: Config, exchange: Exchange, folder: Path, sites: int, watch: Watch = print, public: Tensor | None = None,
    wait: float = WAIT, rules: RoundRules = RoundRules(), leave: Sequence[str] = (),
) -> Server:  # fmt: skip
    """All rounds that are left, each of them saved; `public` are rows that the server may use.

    Clients that `leave` do so before the next round, for good; a site may also say so itself, in any round.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with files.locked(folder):
        server = open_server(config, exchange, folder, sites, watch, public, wait, rules)
        if leave:
            depart(server, leave)
            save(server)
        while server.round < config.rounds:
            server.step()
            release(server)
            save(server)
        if not server.finished or server.lacking:
            finish(server)
            release(server)
            save(server)
        elif not leave:
            watch(to_json(NoteLine(f"{folder} holds all of this run, which has ended: nobody is asked again")))
        update_facts(server)  # a kill may have come between the last checkpoint and this
    return server


def open_server(
    config: Config, exchange: Exchange, folder: Path, sites: int, watch: Watch = print, public: Tensor | None = None,
    wait: float = WAIT, rules: RoundRules = RoundRules(),
) -> Server:  # fmt: skip
    rows = 0 if public is None else len(public)
    saved = run_folder.read_checkpoint(folder)
    roster, lacking = Roster(), []
    if saved is not None:
        check_settings(config, folder)
        roster, lacking = _roster(saved[1]), saved[1]["lacking"]
    roster.wait(exchange, max(1, sites - len(roster.gone)), wait, lacking, lambda text: watch(to_json(NoteLine(text))))
    roster.number()
    agreement = _agreement(config, roster, rows, None if saved is None else saved[1])
    key = read_key(folder, agreement.method, config.seed, saved is not None)
    server = Server(config, exchange, folder, roster, agreement, agreement.first_state(), key, public, watch=watch,
                    rules=rules)  # fmt: skip
    if saved is None:
        _begin(server)
        return server
    leaves, facts = saved
    check_agreed(config, folder, agreement.fingerprint, facts["fingerprint"])
    server.state = run_folder.restore(server.state, leaves, "state")
    server.round, server.counted, server.finished = facts["round"], facts["counted"], facts["finished"]
    server.lacking, server.last = lacking, facts["last"]
    with open(folder / run_folder.METRICS, "ab") as file:  # lines that were written after the checkpoint go
        file.truncate(min(facts["length"], os.fstat(file.fileno()).st_size))
    return server


def save(server: Server) -> None:
    metrics, known, roster = server.folder / run_folder.METRICS, server.agreement.facts, server.roster
    clients = {name: [roster.numbers[name], client.newcomer, client.train]
               for name, client in roster.clients.items() if name in roster.numbers}  # fmt: skip
    facts = {
        "round": server.round, "finished": server.finished, "commit": server.round,
        "length": metrics.stat().st_size if metrics.exists() else 0,
        "counted": server.counted, "clients": clients, "gone": roster.gone, "samples": server.agreement.kind.facts(),
        "federation": [known.clients, known.samples], "fingerprint": server.agreement.fingerprint,
        "lacking": server.lacking, "last": server.last if server.lacking else {},
    }  # fmt: skip
    run_folder.save_checkpoint(server.folder, {"state": server.state}, facts)
    update_facts(server)


def _begin(server: Server) -> None:
    config, facts, method = server.config, server.agreement.facts, server.agreement.method
    participation, able = server.participation, len(server.roster.able)
    plan = Plan(facts.clients, config.rounds, participation.size(able), participation.probability)
    said = () if config.least > 1 else (SINGLE,)
    labels = label_remarks(server.roster.known, server.agreement.kind.classes)
    notes = (*said, *server.roster.news(), *labels, *method.remarks(server.agreement.model), *method.announce(plan))
    (server.folder / run_folder.METRICS).write_bytes(b"")
    begin_facts(server, list(notes))
    server.note(*notes)


def _agreement(config: Config, roster: Roster, rows: int, saved: dict[str, Any] | None) -> Agreement:
    if saved is not None:
        clients, samples = saved["federation"]
        return agree(config, SampleSpec.read(saved["samples"]), clients, samples, rows)
    members = roster.members
    if not members:
        raise ValueError("every site that registered is a newcomer: at least one must train")
    return agree(config, roster.kind(), len(members), sum(client.train for client in members), rows)


def _roster(saved: dict[str, Any]) -> Roster:
    kind, numbered = SampleSpec.read(saved["samples"]), saved["clients"]
    clients = {name: Registered(name, late, train, kind) for name, (_, late, train) in numbered.items()}
    return Roster(clients, {name: number for name, (number, _, _) in numbered.items()}, gone=dict(saved["gone"]))


# --- run.json
def begin_facts(server: Server, notes: list[str]) -> None:
    config, agreement = server.config, server.agreement
    method = agreement.method
    facts = {
        **software_facts(),
        "threads": torch.get_num_threads(),
        "engine": ACROSS_MACHINES,
        "command": " ".join(sys.argv),
        "method": method_facts(config, method, fits_validation([agreement.prepare()])),
        "sources": sources(config, method),
        "notes": notes,
        "federation": _federation(server),
    }
    run_folder.write_run(server.folder, facts, to_toml(config))


def update_facts(server: Server) -> None:
    """`run.json` once more, where somebody came late or the run has ended."""
    path = server.folder / run_folder.RUN
    before = files.read_json(path)
    now = {**before, "federation": _federation(server)}
    now.pop("without_final_model", None)
    if server.finished:
        metrics = server.folder / run_folder.METRICS
        now |= {"status": "finished", "checksums": {**before["checksums"], metrics.name: files.checksum_of(metrics)}}
        now |= {"without_final_model": server.lacking} if server.lacking else {}
    if now != before:
        files.write_json(path, now)


def _federation(server: Server) -> dict[str, Any]:
    kind, groups = server.agreement.kind, server.roster.groups()
    clients = [client for group in groups.values() for client in group]
    members, newcomers = (len(group) for group in groups.values())
    return {
        "name": f"data of {len(clients)} sites",
        "task": kind.task,
        "clients": len(clients),
        "members": members,
        "newcomers": newcomers,
        "classes": len(kind.classes),
        "class_names": list(kind.classes),
        "names": [client.name for client in clients],
        "train": [client.train for client in clients],
        "notes": [],
    }


# --- its end
def finish(server: Server) -> None:
    """The scores of the last round; of a run that has ended, those that lack."""
    again, before = server.finished, set(server.lacking)
    if again:
        server.note(*server.roster.news())  # nobody is admitted any more
    else:
        server.look()
    after = server.config.rounds + 1
    request = RoundQuestions(server.agreement, server.state, after, (), server.points(after))
    asked = [client for client in server.scored(request) if not again or client.name in before]
    kind, least = server.agreement.kind, server.config.least
    scores = {name: {(each["point"], each["round"], each["epochs"]): read_scores(each, kind, least) for each in tables}
              for name, tables in server.last.items()}  # fmt: skip
    visited = server.collect(request, asked, scores)
    silent = [client for client in asked if client.name not in scores and client.name not in server.leaving]
    server.lacking = [client.name for client in silent]
    server.last = {name: store_scores(each, least) for name, each in scores.items() if silent}
    fresh = server.score_lines(scores) if any(client.name in scores for client in asked) else ()
    why = dict(server.named(visited.refused))
    server.write([*fresh, *(LostLine(name, server.round, why.get(name, ABSENT)) for name in server.lacking)])
    here = sorted(name for name in before - set(server.lacking) if name not in server.roster.gone | server.leaving)
    if here:
        server.note(f"{', '.join(map(repr, here))}: the final model has arrived")
    if server.lacking:
        absent = ", ".join(map(repr, server.lacking))
        server.note(f"{absent} did not answer to the final model: start the run again when they are back")
    server.finished = True


# --- who leaves
FORGOTTEN, NEVER = "", "the method cannot tell what is its part of the state"


def depart(server: Server, names: Sequence[str]) -> None:
    """Take clients out; one whose factor could not be taken out may be named again."""
    known = server.roster.numbers
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"leave names {unknown[0]!r}, who is no client here: {', '.join(map(repr, known))}")
    for name in names:
        if server.roster.gone.get(name) not in (FORGOTTEN, NEVER):
            _close(server, name, f"has left before round {server.round + 1}", _forget(server, name))


def release(server: Server) -> None:
    for name, reply in server.leaving.items():
        _close(server, name, f"has left by its own wish after round {server.round}", _forget(server, name, reply))
    server.leaving.clear()


def _close(server: Server, name: str, what: str, why: str) -> None:
    """A client is not asked any more; `why` its factor stays, if it does."""
    server.roster.gone[name] = why
    if why in (FORGOTTEN, NEVER):
        server.counted.pop(name, None)
    done = "its factor was taken out of the state" if not why else f"what it contributed stays: {why}"
    server.note(f"{name!r} {what}; {done}")


def _forget(server: Server, name: str, reply: bytes | None = None) -> str:
    """Take a client's factor out of the state, or say why not; without a `reply` the site is asked."""
    client, number, counted = server.roster.clients[name], server.roster.numbers[name], server.counted.get(name, 0)
    if not counted:
        return FORGOTTEN  # no message of its was ever counted
    request = RoundQuestions(server.agreement, server.state, server.round + 1, (), ask="leave")
    like = request.factor_like(client, number)
    if like is None:
        return NEVER
    if reply is None and name not in server.roster.node:
        return "its site is not there, so its factor is not known; name it again when it is"
    try:
        if reply is None:
            question = (server.roster.node[name], request.question(client, number, counted))
            answers = [answer for _, answer in server.exchange.ask([question])]
            if not answers:
                return "its site did not answer"
            reply, _ = request.check(client, answers[0])
        factor = decode(reply, like, server.agreement.fingerprint)
    except CodecError as error:
        return f"its factor was not understood: {error}"
    after = tree_like(server.agreement.method.forget(server.state, factor), server.state)
    why = why_unusable(after, server.state)
    if why:
        return f"without its factor the state cannot be used: {why}"
    server.state = after
    return FORGOTTEN
