"""One run on its way: its state, its records, and the lines that tell what has happened."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from posterity.core.tree import Tree
from posterity.engine.blocks import able
from posterity.engine.participation import Participation
from posterity.engine.round import first_state
from posterity.engine.server import RoundLog
from posterity.engine.simulation import Simulation
from posterity.engine.store import Mapped, Memory, Store
from posterity.evaluate import share_of_zeros
from posterity.experiment import run_folder
from posterity.experiment.chosen import Chosen
from posterity.experiment.config import Config
from posterity.experiment.result import Result
from posterity.experiment.scoring import Asked, ask_common, ask_members, ask_newcomers
from posterity.experiment.setup import Setup, records_like


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
        self.store: Store = Memory(clients, self.sim.root.device)
        if config.store == "disk":
            if out is None:
                raise ValueError("personal records on disk need a folder: give --out")
            self.store = Mapped(out / "personal", clients)
        self.chosen = Chosen(config, self.sim, out if self.writes else None)
        self._recover()
        self.chosen.recover(self.lines)

    @property
    def sim(self) -> Simulation:
        return self.setup.sim

    def cohort(self, round: int) -> Tensor:
        """Who takes part in a round."""
        return self.participation.draw(self.able, self.sim.root, round)

    def announce(self, round: int) -> None:
        """Have the system fetch the records of those who will take part in a round, while others work."""
        if round <= self.config.rounds:
            self.store.prefetch(self.cohort(round))

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

    def choose(self, round: int, scores: list[dict[str, Any]], before: bool) -> None:
        """Keep a round that was scored, if a selection rule has chosen it."""
        if self.due(round):
            self.chosen.consider(round, scores, self.state, self.store, before, self.gather_records)

    def arrive(self, log: RoundLog, scores: list[dict[str, Any]], seconds: float) -> list[dict[str, Any]]:
        """A round is over: its lines, which are forced to disk."""
        line = _round_line(log, seconds)
        if notes := self.sim.limit.told():
            line["notes"] = notes
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
        self.chosen.write()
        trees: dict[str, Tree] = {"state": self.state, "known": {"clients": self.store.known}}
        personal = self.store.prepare()
        if personal is not None:
            trees["personal"] = personal
        facts = {"round": self.round, "length": self.length, "commit": self.commit, "seconds": self.seconds}
        return trees, facts

    def packed(self) -> None:
        """The checkpoint is on disk."""
        self.store.commit(self.commit)
        self.chosen.prune()

    def gather_records(self) -> None:
        """The records that other processes hold, for the process that writes them."""
        self.store.gather(self.sim.processes, self._records_like)

    def finish(self) -> Result:
        """What the run leaves."""
        state = (self.state, self.store, self.lines, self.round, self.out, self.chosen.kept)
        result = Result(self.config, self.setup, *state)
        if self.writes:
            assert self.out is not None
            path = self.out / run_folder.RUN
            facts = run_folder.read_json(path)
            if facts.get("status") != "finished":
                models = result.save_models(self.out)
                done = {"status": "finished", "seconds": self.seconds, "models": models}
                run_folder.write_json(path, {**facts, **done})
        return result

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
        leaves: dict[str, Tensor] = {}
        if found is not None:
            device = self.sim.root.device
            leaves = {name: leaf.to(device) for name, leaf in found[0].items()}
            self.state = run_folder.restore(self.state, leaves, "state")

        def restore(table: Tree) -> Tree:
            return run_folder.restore(table, leaves, "personal")

        self.store.recover(self.commit, leaves.get("known/clients"), restore, self._records_like)

    def _records_like(self) -> Tree:
        return records_like(self.setup, self.state)


def _round_line(log: RoundLog, seconds: float) -> dict[str, Any]:
    refused = [asdict(r) for r in log.refused]
    return {"kind": "round", "round": log.round, "cohort": log.cohort, "accepted": log.accepted, "refused": refused,
            "empty": log.empty, "loss": log.loss, "bytes_up": log.bytes_up, "bytes_down": log.bytes_down,
            "seconds": seconds, "report": log.report,
            **({"rolled_back": log.rolled_back} if log.rolled_back else {})}  # fmt: skip
