"""An experiment across machines from its beginning, or from where its folder stands, to its end.

After every round the state is written with what a restart needs: the round, the clients and their numbers, and which
message of each was the last to count. A server that dies goes on from there; sites that have trained meanwhile are told
what counted, and take up the record of that round (`records.py`). Nobody counts twice.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from posterity.core.protocol import Plan
from posterity.experiment import run_folder
from posterity.experiment.config import Config
from posterity.flower.agreement import Agreement, SampleKind, agree
from posterity.flower.facts import begin_facts, update_facts
from posterity.flower.final import finish
from posterity.flower.labels import label_remarks
from posterity.flower.leave import depart, release
from posterity.flower.roster import Exchange, Registered, Roster
from posterity.flower.rules import RoundRules
from posterity.flower.secret import open_keys
from posterity.flower.server import Server, Watch
from posterity.flower.unchanged import check_agreed, check_settings

WAIT = 600.0  # seconds until enough sites are there
SINGLE = (
    "min_count = 1: what sites say about a class, and their scores, may be of a single sample; min_count = 5 sends "
    "nothing that is of fewer samples than that"
)


def run_experiment(
    config: Config, exchange: Exchange, folder: Path, sites: int, watch: Watch = print, public: Tensor | None = None,
    wait: float = WAIT, rules: RoundRules = RoundRules(), leave: Sequence[str] = (), secret: int | None = None,
) -> Server:  # fmt: skip
    """All rounds that are left, each of them saved; `public` are rows that the server may use.

    Clients that `leave` do so before the next round, for good; a site may also say so itself, in any round. A `secret`
    is given by tests alone (`secret.py`).
    """
    folder.mkdir(parents=True, exist_ok=True)
    with run_folder.locked(folder):
        server = open_server(config, exchange, folder, sites, watch, public, wait, rules, secret)
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
            watch({"kind": "note", "text": f"{folder} holds all of this run, which has ended: nobody is asked again"})
        update_facts(server)  # a kill may have come between the last checkpoint and this
    return server


def open_server(
    config: Config, exchange: Exchange, folder: Path, sites: int, watch: Watch = print, public: Tensor | None = None,
    wait: float = WAIT, rules: RoundRules = RoundRules(), secret: int | None = None,
) -> Server:  # fmt: skip
    """The server of a new experiment, or of one that was begun in this folder."""
    rows = 0 if public is None else len(public)
    saved = run_folder.read_checkpoint(folder)
    roster, lacking = Roster(), []
    if saved is not None:
        check_settings(config, folder)
        roster, lacking = _roster(saved[1]), saved[1].get("lacking", [])
    roster.wait(
        exchange, max(1, sites - len(roster.gone)), wait, lacking, lambda text: watch({"kind": "note", "text": text})
    )
    roster.number()
    agreement = _agreement(config, roster, rows, None if saved is None else saved[1])
    keys = open_keys(folder, agreement.method, config.seed, saved is not None, secret)
    server = Server(config, exchange, folder, roster, agreement, agreement.first_state(), keys, public, watch=watch,
                    rules=rules)  # fmt: skip
    if saved is None:
        _begin(server)
        return server
    leaves, facts = saved
    check_agreed(config, folder, agreement.fingerprint, facts["fingerprint"])
    server.state = run_folder.restore(server.state, leaves, "state")
    server.round, server.counted, server.finished = facts["round"], facts["counted"], facts["finished"]
    server.lacking, server.last = lacking, facts.get("last", {})
    _cut(folder / run_folder.METRICS, facts["length"])
    return server


def save(server: Server) -> None:
    """The state, and what a restart needs to know."""
    metrics, told = server.folder / run_folder.METRICS, server.agreement.facts
    roster = server.roster
    clients = {name: [roster.numbers[name], client.newcomer, client.train]
               for name, client in roster.clients.items() if name in roster.numbers}  # fmt: skip
    facts = {
        "round": server.round, "finished": server.finished, "commit": server.round,
        "length": metrics.stat().st_size if metrics.exists() else 0,
        "counted": server.counted, "clients": clients, "gone": roster.gone, "samples": server.agreement.kind.facts(),
        "federation": [told.clients, told.samples], "fingerprint": server.agreement.fingerprint,
    }  # fmt: skip
    ending = {"lacking": server.lacking, "last": server.last} if server.lacking else {}
    run_folder.save_checkpoint(server.folder, {"state": server.state}, {**facts, **ending})
    update_facts(server)


def _begin(server: Server) -> None:
    """What must be said before the first round; a method may refuse a run of this size."""
    config, facts, method = server.config, server.agreement.facts, server.agreement.method
    participation, able = server.participation, len(server.roster.able)
    plan = Plan(facts.clients, config.rounds, participation.size(able), participation.probability)
    said = () if config.least > 1 else (SINGLE,)
    labels = label_remarks(server.roster.known, server.agreement.kind.classes)
    notes = (*said, *server.roster.news(), *labels, *method.remarks(server.agreement.model), *method.announce(plan))
    (server.folder / run_folder.METRICS).write_bytes(b"")
    begin_facts(server, list(notes))
    server.tell([{"kind": "note", "text": note} for note in notes])


def _agreement(config: Config, roster: Roster, rows: int, saved: dict[str, Any] | None) -> Agreement:
    if saved is not None:
        clients, samples = saved["federation"]
        return agree(config, SampleKind.of(saved["samples"]), clients, samples, rows)
    members = roster.members
    if not members:
        raise ValueError("every site that registered is a newcomer: at least one must train")
    return agree(config, roster.kind(), len(members), sum(client.train for client in members), rows)


def _roster(saved: dict[str, Any]) -> Roster:
    """The clients of an experiment that was begun before; where they are now must be asked."""
    kind = SampleKind.of(saved["samples"])
    told = {name: Registered(name, bool(late), int(train), kind) for name, (_, late, train) in saved["clients"].items()}
    numbers = {name: int(number) for name, (number, _, _) in saved["clients"].items()}
    return Roster(told, numbers, gone=dict(saved["gone"]))


def _cut(path: Path, length: int) -> None:
    """Drop lines that were written after the checkpoint."""
    with open(path, "ab") as file:
        file.truncate(min(length, os.fstat(file.fileno()).st_size))


__all__ = ["open_server", "run_experiment", "save"]
