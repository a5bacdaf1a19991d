"""One run on its way: its state, its records, and the lines that tell what has happened."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posterity.core.tree import Tree, tree_filled, tree_map, tree_named, tree_rows
from posterity.engine.participation import Participation
from posterity.engine.round import Log, able, first_state, meet
from posterity.engine.simulation import Simulation
from posterity.engine.store import Mapped, Memory
from posterity.evaluate import share_of_zeros
from posterity.experiment import run_folder
from posterity.experiment.config import Config
from posterity.experiment.result import Result
from posterity.experiment.scoring import Asked, ask_common, ask_members, ask_newcomers
from posterity.experiment.setup import Setup


class RunState:
    """The one place where a run's state changes; it begins where its last checkpoint was written."""

    def __init__(self, config: Config, setup: Setup, out: Path | None) -> None:
        self.config, self.setup, self.out = config, setup, out
        self.state: Tree = first_state(self.sim)
        self.able = able(self.sim)
        self.participation = Participation.parse(config.participation)
        self.round, self.commit, self.length, self.seconds = 0, 0, 0, 0.0
        self.lines: list[dict[str, Any]] = []
        self.writes = out is not None and self.sim.processes.leads
        clients = self.sim.federation.clients
        self.store: Memory | Mapped = Memory(clients, self.sim.root.device)
        if config.store == "disk":
            if out is None:
                raise ValueError("personal records on disk need a folder: give --out")
            self.store = Mapped(out / "personal", clients)
        self._recover()

    @property
    def sim(self) -> Simulation:
        return self.setup.sim

    def cohort(self, round: int) -> Tensor:
        """Who takes part in a round."""
        return self.participation.draw(self.able, self.sim.root, round)

    def announce(self, round: int) -> None:
        """Have the system fetch the records of those who will take part in a round, while others work."""
        if isinstance(self.store, Mapped) and round <= self.config.rounds:
            self.store.expect(self.cohort(round))

    def due(self, round: int) -> bool:
        """Whether a round is evaluated."""
        return round % self.config.every == 0 or round == self.config.rounds

    def ask_before(self, round: int) -> list[Asked]:
        """What to score before the round is combined: each client right after its local training."""
        return list(ask_members(self.sim, ("trained",))) if self.due(round) else []

    def ask_after(self, round: int) -> list[Asked]:
        """What to score with the new state."""
        if not self.due(round):
            return []
        sim, late = self.sim, (1, self.sim.method.adaptation, self.config.newcomer_epochs)
        return [*ask_members(sim, ("received", "adapted")), *ask_newcomers(sim, late), *ask_common(sim)]

    def arrive(self, log: Log, scores: list[dict[str, Any]], seconds: float) -> list[dict[str, Any]]:
        """A round is over: its lines, which are forced to disk."""
        line = _round_line(log, seconds)
        if self.due(log.round):
            line["zeros"] = share_of_zeros(self.state.params)
        lines = [line, *scores]
        self.lines += lines
        self.round, self.seconds = log.round, self.seconds + seconds
        if self.writes:
            assert self.out is not None
            self.length = run_folder.append_lines(self.out / run_folder.METRICS, lines)
        return lines

    def pack(self) -> tuple[dict[str, Tree], dict[str, Any]]:
        """The trees and facts of a checkpoint."""
        self.commit += 1
        trees: dict[str, Tree] = {"state": self.state, "known": {"clients": self.store.known}}
        if isinstance(self.store, Mapped):
            self.store.flush()
        elif self.store.rows is not None:
            trees["personal"] = self.store.rows
        facts = {"round": self.round, "length": self.length, "commit": self.commit, "seconds": self.seconds}
        return trees, facts

    def packed(self) -> None:
        """The checkpoint is on disk."""
        if isinstance(self.store, Mapped):
            self.store.begin(self.commit)

    def bring_home(self) -> None:
        """The records that other processes hold, for the process that writes them."""
        processes, store = self.sim.processes, self.store
        if processes.size == 1 or not isinstance(store, Memory):
            return
        mine = processes.share(torch.nonzero(store.known)[:, 0])
        named = {} if store.rows is None else dict(tree_named(tree_rows(store.rows, mine)))
        for found in processes.collect({**named, "clients": mine})[1:]:
            clients = found.pop("clients")
            if found:
                store.rows = self._table() if store.rows is None else store.rows
                store.write(clients, tree_filled(store.rows, found))

    def finish(self) -> Result:
        """What the run leaves."""
        if self.writes:
            assert self.out is not None
            path = self.out / run_folder.RUN
            facts = run_folder.read_json(path)
            if facts.get("status") != "finished":
                run_folder.write_json(path, {**facts, "status": "finished", "seconds": self.seconds})
        return Result(self.config, self.setup, self.state, self.store, self.lines, self.round, self.out)

    def _recover(self) -> None:
        """Take up the last checkpoint, if there is one, and cut off whatever was written after it."""
        if self.out is None:
            return
        found = run_folder.read_checkpoint(self.out)
        facts: dict[str, Any] = found[1] if found else {"round": 0, "length": 0, "commit": 0, "seconds": 0.0}
        metrics = self.out / run_folder.METRICS
        if self.writes:
            metrics.touch()
            with metrics.open("r+b") as file:
                file.truncate(facts["length"])
            self.lines = run_folder.read_lines(metrics)
        self.round, self.length = facts["round"], facts["length"]
        self.commit, self.seconds = facts["commit"], facts["seconds"]
        if isinstance(self.store, Mapped):
            self.store.commit = self.commit
            self.store.recover()
        if found is None:
            return
        leaves, device = found[0], self.sim.root.device
        self.state = run_folder.restore(self.state, {n: t.to(device) for n, t in leaves.items()}, "state")
        self.store.known = leaves["known/clients"].to(self.store.known.device)
        if isinstance(self.store, Memory) and any(name.startswith("personal") for name in leaves):
            moved = {n: t.to(device) for n, t in leaves.items()}
            self.store.rows = run_folder.restore(self._table(), moved, "personal")

    def _table(self) -> Tree:
        """Rows of zeros for all clients, in the shape that `join` gives them."""
        clients, one = self.sim.federation.clients, self.able[:1]
        here, _ = meet(self.sim, self.setup.engine, self.state, Memory(clients), one, 1)
        return tree_map(lambda leaf: leaf.new_zeros(clients, *leaf.shape[1:]), here.personal)


def _round_line(log: Log, seconds: float) -> dict[str, Any]:
    refused = [asdict(r) for r in log.refused]
    return {"kind": "round", "round": log.round, "cohort": log.cohort, "accepted": log.accepted, "refused": refused,
            "empty": log.empty, "loss": log.loss, "bytes_up": log.bytes_up, "bytes_down": log.bytes_down,
            "seconds": seconds, "report": log.report}  # fmt: skip
