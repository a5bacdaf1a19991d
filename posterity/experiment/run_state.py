"""One run on its way: its state, its records, and the lines that tell what has happened."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from posterity.core.tree import Tree
from posterity.engine.blocks import able
from posterity.engine.mapped_store import Mapped
from posterity.engine.participation import Participation
from posterity.engine.round import first_state
from posterity.engine.server import RoundLog
from posterity.engine.simulation import Simulation
from posterity.engine.store import Memory, Store
from posterity.evaluate import share_of_zeros
from posterity.evaluate.client_scores import stored, write_columns
from posterity.experiment import kept_round, run_folder
from posterity.experiment.chosen import Chosen
from posterity.experiment.config import Config
from posterity.experiment.result import Result
from posterity.experiment.schedule import Schedule, member_points, newcomer_epochs
from posterity.experiment.scoring import Asked, ask_common, ask_members, ask_newcomers
from posterity.experiment.setup import Setup, records_like
from posterity.experiment.verify import Lines, check_state

FRESH: dict[str, Any] = {"round": 0, "length": 0, "commit": 0, "seconds": 0.0}


class RunState:
    """The one place where a run's state changes; it begins where its last checkpoint was written."""

    def __init__(
        self, config: Config, setup: Setup, out: Path | None, checkpoint: Path | None = None, only_read: bool = False
    ) -> None:
        self.config, self.setup, self.out = config, setup, out
        self.schedule = setup.schedule or Schedule.of(config, setup.sim)
        self.state: Tree = first_state(self.sim)
        self.able = able(self.sim)
        self.participation = Participation.parse(config.participation)
        self.round, self.commit, self.length, self.seconds = 0, 0, 0, 0.0
        self.lines: list[dict[str, Any]] = []
        self.kept: list[str] = []  # files of kept rounds that the checkpoint knows
        self.only_read = only_read
        self.writes = out is not None and self.sim.processes.leads and not only_read
        self.log = None if out is None else Lines(out / run_folder.METRICS)
        clients = self.sim.federation.clients
        self.store: Store = Memory(clients, self.sim.root.device)
        if config.store == "disk":
            if out is None:
                raise ValueError("personal records on disk need a folder: give --out")
            self.store = Mapped(out / "personal", clients, only_read=only_read)
        self.chosen = Chosen(config, self.sim, out if self.writes else None)
        self._recover(checkpoint)
        self.chosen.recover(self.lines)
        if out is not None and self.sim.processes.leads:
            self._check_kept(out, checkpoint)

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
        return self.schedule.due(round)

    def ask_before(self, round: int) -> list[Asked]:
        """What to score before the round is combined: each client right after its local training."""
        return list(self._ask_members(("trained",), round)) if self.due(round) else []

    def ask_after(self, round: int) -> list[Asked]:
        """What to score with the new state."""
        if not self.due(round):
            return []
        members = self._ask_members(("received", "adapted"), round)
        late = newcomer_epochs(self.config, self.sim.method)
        return [*members, *ask_newcomers(self.sim, late), *ask_common(self.sim)]

    def _ask_members(self, points: tuple[str, ...], round: int) -> Iterator[Asked]:
        asked = member_points(self.config, self.sim.method)
        some = tuple(point for point in points if point in asked)
        return ask_members(self.sim, some, self.schedule.who(round), self.schedule.judges(round))

    def choose(self, round: int, scores: list[dict[str, Any]], before: bool) -> None:
        """Keep a round that was scored, if a selection rule has chosen it."""
        if self.due(round):
            self.chosen.consider(round, scores, self.state, self.store, before, self.gather_records)

    def arrive(self, log: RoundLog, scores: list[dict[str, Any]], seconds: float) -> list[dict[str, Any]]:
        """A round is over: its lines, which are forced to disk."""
        line = round_line(log, seconds)
        notes = [self.schedule.remark] if log.round == 1 and self.schedule.remark else []
        if notes := notes + self.sim.limit.told() + self.sim.traces.told():
            line["notes"] = notes
        if self.due(log.round):
            line["zeros"] = share_of_zeros(self.state.params)
        lines = [line, *scores]
        self.round, self.seconds = log.round, self.seconds + seconds
        if self.writes:
            assert self.out is not None
            lines = write_columns(self.out, lines)
            self.length = run_folder.append_lines(self.out / run_folder.METRICS, lines)
            lines = [stored(each, self.out) for each in lines]
        self.lines += lines
        return lines

    def pack(self) -> tuple[dict[str, Tree], dict[str, Any]]:
        """The trees and facts of a checkpoint."""
        self.commit += 1
        self.chosen.write()
        trees: dict[str, Tree] = {"state": self.state, "known": {"clients": self.store.known}}
        personal = self.store.prepare()
        if personal is not None:
            trees["personal"] = personal
        facts = {"round": self.round, "commit": self.commit, "seconds": self.seconds, **self.store.facts()}
        if self.out is not None:
            facts["kept"] = kept_round.names_in(self.out, self.chosen.wanted())
        return trees, facts | self._lines_facts()

    def _lines_facts(self) -> dict[str, Any]:
        """How much of metrics.jsonl belongs to this round, and its checksum."""
        return {"length": self.length, **({} if self.log is None else {"lines": self.log.checksum(self.length)})}

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
            self.chosen.prune()  # a kill may have come between the last checkpoint and this
            path = self.out / run_folder.RUN
            facts = run_folder.read_json(path)
            if facts.get("status") != "finished":
                sums = {**facts.get("checksums", {}), run_folder.METRICS: self._lines_facts()["lines"]}
                ended = {"status": "finished", "seconds": self.seconds, "checksums": sums}
                ended["models"] = result.save_models(self.out)
                ended["kept"] = kept_round.names_in(self.out, self.chosen.wanted())
                run_folder.write_json(path, {**facts, **ended})
        return result

    def _recover(self, checkpoint: Path | None) -> None:
        """Take up a checkpoint, if there is one, and cut off whatever was written after it."""
        if self.out is None or self.log is None:
            return
        leaves, facts = run_folder.read_saved(checkpoint) if checkpoint else ({}, FRESH)
        if self.sim.processes.leads:
            lines = self.log.recover(facts, checkpoint is not None, cut=self.writes)
            self.lines = [stored(line, self.out) for line in lines]
        self.round, self.length, self.kept = facts["round"], facts["length"], facts.get("kept", [])
        self.commit, self.seconds = facts["commit"], facts["seconds"]
        if checkpoint is not None:
            check_state(leaves, checkpoint, self.only_read)
            leaves = {name: leaf.to(self.sim.root.device) for name, leaf in leaves.items()}
            self.state = run_folder.restore(self.state, leaves, "state")

        def restore(table: Tree) -> Tree:
            return run_folder.restore(table, leaves, "personal")

        known = run_folder.restore({"clients": self.store.known}, leaves, "known")["clients"] if checkpoint else None
        self.store.recover(self.commit, known, restore, self._records_like, facts)
        if self.writes and checkpoint == self.out / run_folder.PREVIOUS:
            self._reopen(self.out / run_folder.RUN)
            (self.out / run_folder.CHECKPOINT).unlink(missing_ok=True)  # damaged; the next must not push out this one

    def _reopen(self, path: Path) -> None:
        """What a finished run had come to counts no more when rounds are done again: its lines get other seconds."""
        facts = run_folder.read_json(path)
        if facts.get("status") == "finished":
            sums = {name: told for name, told in facts.get("checksums", {}).items() if name != run_folder.METRICS}
            before = {name: told for name, told in facts.items() if name not in ("status", "kept")}
            run_folder.write_json(path, {**before, "checksums": sums})

    def _check_kept(self, out: Path, checkpoint: Path | None) -> None:
        """Refuse a folder that has lost what it would deliver."""
        last = checkpoint == out / run_folder.CHECKPOINT  # of what the previous knew, the last may have removed some
        ended = run_folder.read_json(out / run_folder.RUN).get("kept", [])
        kept_round.check_delivered(out, self.chosen.wanted(), {*ended, *(self.kept if last else ())})

    def _records_like(self) -> Tree:
        return records_like(self.setup, self.state)


def round_line(log: RoundLog, seconds: float | None) -> dict[str, Any]:
    """A round, for the folder."""
    refused = [asdict(r) for r in log.refused]
    return {"kind": "round", "round": log.round, "cohort": log.cohort, "accepted": log.accepted, "refused": refused,
            "empty": log.empty, "loss": log.loss, "bytes_up": log.bytes_up, "bytes_down": log.bytes_down,
            "seconds": seconds, "report": log.report,
            **({"rolled_back": log.rolled_back} if log.rolled_back else {})}  # fmt: skip
