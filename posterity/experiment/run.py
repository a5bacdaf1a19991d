"""A run: rounds, scores, checkpoints. Killed at any instant, it resumes and ends with the same bits."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from posterity.core.tree import Tree, tree_filled, tree_map, tree_named, tree_rows
from posterity.data.federation import Federation
from posterity.engine.cohort import Participation
from posterity.engine.ranks import started_first
from posterity.engine.round import Log, able, first_state, meet, train_round
from posterity.engine.store import Mapped, Memory
from posterity.evaluate import share_of_zeros
from posterity.experiment import folder as files
from posterity.experiment.config import Config, from_table, read_toml, to_toml
from posterity.experiment.result import Result
from posterity.experiment.scoring import score_common, score_members, score_newcomers
from posterity.experiment.setup import Setup, describe, set_up

WRITING = 0.05  # share of the time that checkpoints may take
Watch = Callable[[int, int, list[dict[str, Any]]], None]  # round, rounds, the round's lines


def silent(round: int, rounds: int, lines: list[dict[str, Any]]) -> None:
    """Watch nothing."""


def start_run(
    config: Config,
    out: Path | None = None,
    watch: Watch = silent,
    federation: Federation | None = None,
    model: Any = None,
    setup: Setup | None = None,
) -> Result:
    """Run an experiment; with `out`, everything is written there as it happens. A `setup` is not made again."""
    Participation.parse(config.participation)
    setup = set_up(config, federation, model) if setup is None else setup
    if out is None or not setup.world.ranks.leads:
        return Journey(config, setup, None, watch).go()
    if (out / files.CONFIG).exists():
        raise ValueError(f"{out} already holds a run: go on with 'posterity resume {out}', or give another --out")
    out.mkdir(parents=True, exist_ok=True)
    with files.locked(out):
        (out / files.METRICS).write_bytes(b"")
        files.write_json(out / files.RUN, describe(config, setup, " ".join(sys.argv)))
        files.write_atomic(out / files.CONFIG, to_toml(config).encode())  # last: now the folder is a run
        return Journey(config, setup, out, watch).go()


def resume_run(out: Path, watch: Watch = silent, federation: Federation | None = None, model: Any = None) -> Result:
    """Go on with a run where its last checkpoint was written; a finished run is only read."""
    if not (out / files.CONFIG).exists():
        raise ValueError(f"{out} holds no run (there is no {files.CONFIG} in it)")
    config = from_table(read_toml(out / files.CONFIG))
    with files.locked(out) if started_first() else nullcontext():
        facts = files.read_json(out / files.RUN)
        torch.set_num_threads(facts["threads"])  # sums in other pieces round otherwise
        chosen = {"engine": facts["engine"], "convolution": facts.get("convolution") or "auto"}  # not measured again
        chosen["onednn"] = facts.get("onednn", "on")
        setup = set_up(replace(config, **chosen), federation, model)
        _check_same(facts.get("federation", {}), setup, out)
        return Journey(config, setup, out, watch).go()


def _check_same(before: dict[str, Any], setup: Setup, out: Path) -> None:
    """Refuse to go on with other data than the run began with."""
    now = setup.world.federation
    if (before.get("name"), before.get("train")) != (now.name, now.train.counts.tolist()):
        was = f"{before.get('name')!r} with {before.get('clients')} clients"
        raise ValueError(
            f"{out} was run on {was}, but its configuration gives {now.name!r} with {now.clients}: if the federation "
            "was an object of yours, hand it in again (posterity.load(folder, federation=..., model=...)); if a data "
            "file changed, put the old one back"
        )


class Journey:
    """The one place where a run's state changes."""

    def __init__(self, config: Config, setup: Setup, out: Path | None, watch: Watch) -> None:
        self.config, self.setup, self.out, self.watch = config, setup, out, watch
        world = setup.world
        self.state: Tree = first_state(world)
        self.able = able(world)
        self.participation = Participation.parse(config.participation)
        self.round, self.commit, self.seconds = 0, 0, 0.0
        self.lines: list[dict[str, Any]] = []
        self.writes = out is not None and world.ranks.leads
        self.store: Memory | Mapped = Memory(world.federation.clients, world.root.device)
        if config.store == "disk":
            if out is None:
                raise ValueError("personal records on disk need a folder: give --out")
            self.store = Mapped(out / "personal", world.federation.clients)
        self.spent = self.since = 0.0
        self._recover()

    def go(self) -> Result:
        config = self.config
        begun = time.perf_counter()
        while self.round < config.rounds:
            before = time.perf_counter()
            lines = self._step(self.round + 1)
            self.round += 1
            lines[0]["seconds"] = time.perf_counter() - before
            self.lines += lines
            self.seconds += time.perf_counter() - before
            self._keep(lines, time.perf_counter() - begun)
            self.watch(self.round, config.rounds, lines)
        result = Result(config, self.setup, self.state, self.store, self.lines, self.round, self.out)
        if self.writes:
            self._finish()
        return result

    def _step(self, round: int) -> list[dict[str, Any]]:
        """One round of training, with scores if this is a round that is evaluated."""
        config, world, engine = self.config, self.setup.world, self.setup.engine
        due = round % config.every == 0 or round == config.rounds
        scores: list[dict[str, Any]] = []
        if due:  # before the round is combined: this is what each client has right after its local training
            scores += score_members(world, engine, self.state, self.store, round, ("trained",))
        cohort = self.participation.draw(self.able, world.root, round)
        self.state, log = train_round(world, engine, self.state, self.store, cohort, round, config.rounds)
        if due:
            state, store = self.state, self.store
            scores += score_members(world, engine, state, store, round, ("received", "adapted"))
            late = (1, world.method.adaptation, config.newcomer_epochs)
            scores += score_newcomers(world, engine, state, store, round, late)
            scores += score_common(world, engine, state, store, round)
        line = _round_line(log)
        if due:
            line["zeros"] = share_of_zeros(self.state.params)
        return [line, *scores]

    def _keep(self, lines: list[dict[str, Any]], elapsed: float) -> None:
        """Append the round's lines; write a checkpoint when writing has become cheap enough, and at the end."""
        ranks, length = self.setup.world.ranks, 0
        if self.writes:
            assert self.out is not None
            length = files.append_lines(self.out / files.METRICS, lines)
        worth = self.writes and self.spent <= WRITING * (elapsed - self.since)
        if not ranks.tell(float(worth))[0] and self.round < self.config.rounds:
            return
        begun = time.perf_counter()
        self._bring_home()
        if not self.writes or self.out is None:
            return
        self.commit += 1
        trees: dict[str, Tree] = {"state": self.state, "known": {"clients": self.store.known}}
        if isinstance(self.store, Mapped):
            self.store.flush()
        elif self.store.rows is not None:
            trees["personal"] = self.store.rows
        facts = {"round": self.round, "length": length, "commit": self.commit, "seconds": self.seconds}
        files.save_checkpoint(self.out, trees, facts)
        if isinstance(self.store, Mapped):
            self.store.begin(self.commit)
        self.spent, self.since = time.perf_counter() - begun, elapsed

    def _bring_home(self) -> None:
        """The records that other processes hold, for the process that writes them."""
        ranks, store = self.setup.world.ranks, self.store
        if ranks.size == 1 or not isinstance(store, Memory):
            return
        mine = ranks.share(torch.nonzero(store.known)[:, 0])
        named = {} if store.rows is None else dict(tree_named(tree_rows(store.rows, mine)))
        for found in ranks.collect({**named, "clients": mine})[1:]:
            clients = found.pop("clients")
            if found:
                store.rows = self._table() if store.rows is None else store.rows
                store.write(clients, tree_filled(store.rows, found))

    def _recover(self) -> None:
        """Take up the last checkpoint, if there is one, and cut off whatever was written after it."""
        if self.out is None:
            return
        found = files.read_checkpoint(self.out)
        facts: dict[str, Any] = found[1] if found else {"round": 0, "length": 0, "commit": 0, "seconds": 0.0}
        metrics = self.out / files.METRICS
        if self.writes:
            metrics.touch()
            with metrics.open("r+b") as file:
                file.truncate(facts["length"])
            self.lines = files.read_lines(metrics)
        self.round, self.commit, self.seconds = facts["round"], facts["commit"], facts["seconds"]
        device = self.setup.world.root.device
        if isinstance(self.store, Mapped):
            self.store.commit = self.commit
            self.store.recover()
        if found is None:
            return
        leaves = found[0]
        self.state = files.restore(self.state, {n: t.to(device) for n, t in leaves.items()}, "state")
        self.store.known = leaves["known/clients"].to(self.store.known.device)
        if isinstance(self.store, Memory):
            self._restore_rows({n: t.to(device) for n, t in leaves.items()})

    def _restore_rows(self, leaves: dict[str, torch.Tensor]) -> None:
        """Personal rows in the shape that `join` gives them."""
        assert isinstance(self.store, Memory)
        if not any(name.startswith("personal") for name in leaves):
            return
        self.store.rows = files.restore(self._table(), leaves, "personal")

    def _table(self) -> Tree:
        """Rows of zeros for all clients, in the shape that `join` gives them."""
        world, one = self.setup.world, self.able[:1]
        here, _ = meet(world, self.setup.engine, self.state, Memory(world.federation.clients), one, 0)
        return tree_map(lambda leaf: leaf.new_zeros(world.federation.clients, *leaf.shape[1:]), here.personal)

    def _finish(self) -> None:
        assert self.out is not None
        path = self.out / files.RUN
        facts = files.read_json(path)
        if facts.get("status") != "finished":
            files.write_json(path, {**facts, "status": "finished", "seconds": self.seconds})


def _round_line(log: Log) -> dict[str, Any]:
    refused = [asdict(r) for r in log.refused]
    return {"kind": "round", "round": log.round, "cohort": log.cohort, "accepted": log.accepted, "refused": refused,
            "empty": log.empty, "loss": log.loss, "bytes_up": log.bytes_up, "bytes_down": log.bytes_down,
            "seconds": 0.0, "report": log.report}  # fmt: skip
