"""The rounds that selection rules choose, kept while a run goes on: what is reported is what is delivered.

Every evaluated round may become the one that a rule settles on; then its State and records are kept, and what was kept
before is let go. With a folder, kept rounds are written before the checkpoint that knows of them, and those that it
does not want are removed after it. Which rounds are kept follows from the lines alone: a run that goes on from any of
its checkpoints comes to choose the same rounds again, and keeps what it has not kept before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from posterity.core.hyperparameters import nearest
from posterity.core.parse import split_list
from posterity.core.tree import Tree
from posterity.engine.mapped_store import Mapped
from posterity.engine.simulation import Simulation
from posterity.engine.store import Store
from posterity.evaluate import goal_of, select
from posterity.evaluate.selection import RULES
from posterity.experiment import kept_round
from posterity.experiment.config import Config
from posterity.experiment.kept_round import Kept


def keeping(config: Config, show: str) -> Config:
    """The configuration of a run whose round is to be kept under the rule `show`, too."""
    rules = rules_of(config)
    return config if show in (*rules, "last") else replace(config, keep=",".join((*rules, show)))


def rules_of(config: Config) -> tuple[str, ...]:
    """The selection rules whose rounds are kept: the last round is there anyway."""
    asked = [rule for rule in split_list(config.keep) if rule not in ("validated", "last")]
    for rule in asked:
        if rule not in RULES:
            raise ValueError(f"keep: there is no selection rule {rule!r}: {nearest(rule, RULES)}")
    return ("validated", *asked)


def entry_of(lines: Sequence[dict[str, Any]], metric: str, point: str) -> dict[str, Any]:
    """The values that rules choose by, of the lines of one round."""
    mine = [x for x in lines if x["kind"] == "score" and (x["point"], x["group"]) == (point, "members")]
    values = {x["part"]: x["metrics"].get(metric, {}).get("pooled") for x in mine}
    return {"round": mine[0]["round"], **values} if mine else {}


@dataclass
class Chosen:
    """What a run keeps of its rounds; the process that leads has it."""

    config: Config
    sim: Simulation
    folder: Path | None
    entries: list[dict[str, Any]] = field(default_factory=list)
    kept: dict[int, Kept] = field(default_factory=dict)  # in memory
    unsaved: set[int] = field(default_factory=set)
    pieces: dict[int, int] = field(default_factory=dict)  # records in a piece, where they have been written already

    @property
    def before(self) -> bool:
        """Whether the method is scored before a round is combined, right after training."""
        return bool(self.sim.method.scored == "trained")

    def recover(self, lines: Sequence[dict[str, Any]]) -> None:
        """Go on from what the lines of a checkpoint say."""
        goal, point = goal_of(self.sim.federation.task).name, self.sim.method.scored
        by_round: dict[int, list[dict[str, Any]]] = {}
        for line in lines:
            by_round.setdefault(line["round"], []).append(line)
        self.entries = [entry for some in by_round.values() if (entry := entry_of(some, goal, point))]

    def wanted(self) -> set[int]:
        """The rounds that the rules choose by now; for a method scored after training, the run's last round, too."""
        if not self.entries:
            return set()
        higher = goal_of(self.sim.federation.task).higher
        found = {select(self.entries, rule, higher).round for rule in rules_of(self.config)}
        if self.before and self.entries[-1]["round"] == self.config.rounds:
            found.add(self.config.rounds)
        return {round for round in found if round is not None}

    def consider(
        self, round: int, scores: Sequence[dict[str, Any]], state: Tree, store: Store, before: bool,
        gather: Callable[[], None],
    ) -> None:  # fmt: skip
        """Keep a round if a rule has just chosen it; asked before it is combined and again with its new state."""
        if before != self.before:
            if round in self.unsaved:  # the round is over: this is what newcomers meet
                self.kept[round] = replace(self.kept[round], late=state)
            return
        processes = self.sim.processes
        if processes.leads and (
            entry := entry_of(scores, goal_of(self.sim.federation.task).name, self.sim.method.scored)
        ):
            self.entries.append(entry)
        wanted = self.wanted()
        if not processes.tell(float(round in wanted))[0]:
            return
        gather()
        if processes.leads:
            self._keep(round, state, store)
            self.kept = {r: kept for r, kept in self.kept.items() if r in wanted}
            self.unsaved &= wanted

    def _keep(self, round: int, state: Tree, store: Store) -> None:
        device = self.sim.root.device
        if isinstance(store, Mapped) and self.folder is not None:  # they may be larger than memory
            self.pieces[round] = each = kept_round.save_records(self.folder, round, store)
            like = store.read(torch.nonzero(store.known)[:1, 0]) if bool(store.known.any()) else ()
            records = kept_round.read_records(self.folder, round, store.known.clone(), each, like, device)
        else:
            records = kept_round.copied(store, device)
        self.kept[round] = Kept(round, state, records, state)
        self.unsaved.add(round)

    def write(self) -> None:
        """Write what is kept; the checkpoint that knows of it comes next."""
        if self.folder is None:
            return
        for round in sorted(self.unsaved):
            kept = self.kept[round]
            if round in self.pieces:
                kept.save_state(self.folder, self.pieces[round])
            else:
                kept.save(self.folder)
        self.unsaved = set()

    def prune(self) -> None:
        """The checkpoint is on disk: remove what it does not want."""
        if self.folder is None:
            return
        for round in kept_round.rounds_in(self.folder) - self.wanted():
            kept_round.remove(self.folder, round)
