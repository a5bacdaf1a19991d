"""Runs: rounds, scores, checkpoints. Killed at any instant, they resume and end with the same bits.

One run on its way: its state, its records, and the lines that tell what has happened.
"""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from posterity.core.network import Network
from posterity.core.tree import Tree
from posterity.data.federation import Federation
from posterity.engine.blocks import able
from posterity.engine.disk_store import DiskStore
from posterity.engine.participation import Participation
from posterity.engine.processes import started_first
from posterity.engine.round import first_state
from posterity.engine.seeds import MultiSeed, answers, train_rounds
from posterity.engine.server import RoundLog
from posterity.engine.simulation import Simulation
from posterity.engine.store import Store
from posterity.evaluate import share_of_zeros
from posterity.experiment import models, resume, scoring
from posterity.experiment.divergence import warn
from posterity.experiment.result import Result
from posterity.experiment.schedule import member_points, newcomer_epochs
from posterity.experiment.setup import Setup, describe, records_like, set_up
from posterity.runs import files, folder
from posterity.runs.folder import CHECKPOINT, CONFIG, METRICS, RUN
from posterity.runs.lines import Line, RoundLine, ScoreLine, write_lines
from posterity.settings.config import Config, to_toml

WRITING = 0.05  # share of the time that checkpoints may take
ACROSS_MACHINES = "flower"  # the engine that `run.json` of a Flower server names: clients' records are at their sites
Watch = Callable[[int, int, list[Line]], None]  # round, rounds, the round's lines
FRESH: dict[str, Any] = {"round": 0, "length": 0, "commit": 0, "seconds": 0.0}


class RunState:
    """The one place where a run's state changes; it begins where its last checkpoint was written."""

    def __init__(
        self, config: Config, setup: Setup, out: Path | None, checkpoint: Path | None = None, only_read: bool = False
    ) -> None:
        self.config, self.setup, self.out = config, setup, out
        self.schedule = setup.schedule
        self.state: Tree = first_state(self.sim)
        self.able = able(self.sim)
        self.participation = Participation.parse(config.participation)
        self.round, self.commit, self.length, self.seconds = 0, 0, 0, 0.0
        self.lines: list[Line] = []
        self.kept: list[str] = []  # files of kept rounds that the checkpoint knows
        self.only_read = only_read
        self.writes = out is not None and self.sim.processes.leads and not only_read
        clients = self.sim.federation.clients
        self.store = Store(clients, self.sim.root.device)
        if config.store == "disk":
            if out is None:
                raise ValueError("personal records on disk need a folder: give --out")
            self.store = DiskStore(out / "personal", clients, only_read=only_read)
        self.chosen = models.Chosen(config, self.sim, out if self.writes else None)
        self._recover(checkpoint)
        self.chosen.recover(self.lines)
        if out is not None and self.sim.processes.leads:  # refuse a folder that has lost what it would deliver
            last = checkpoint == out / CHECKPOINT  # of what the previous knew, it may have removed some
            ended = files.read_json(out / RUN).get("kept", [])
            models.check_delivered(out, self.chosen.wanted(), {*ended, *(self.kept if last else ())})

    @property
    def sim(self) -> Simulation:
        return self.setup.sim

    def cohort(self, round: int) -> Tensor:
        """Who takes part in a round."""
        return self.participation.draw(self.able, self.sim.root, round)

    def ask(self, round: int, before: bool) -> list[scoring.Asked]:
        """What to score right after local training, before a round is combined; or with the new state."""
        if not self.schedule.due(round):
            return []
        points = ("trained",) if before else ("received", "adapted")
        asked = tuple(point for point in points if point in member_points(self.config, self.sim.method))
        members = scoring.ask_members(self.sim, asked, self.schedule.who(round), self.schedule.judges(round))
        if before:
            return list(members)
        late = newcomer_epochs(self.config, self.sim.method)
        return [*members, *scoring.ask_newcomers(self.sim, late), *scoring.ask_common(self.sim)]

    def arrive(self, log: RoundLog, scores: list[ScoreLine], seconds: float) -> list[Line]:
        """A round is over: its lines, which are forced to disk."""
        notes = [self.schedule.remark] if log.round == 1 and self.schedule.remark else []
        zeros = share_of_zeros(self.state.params) if self.schedule.due(log.round) else None
        line = replace(round_line(log, seconds), zeros=zeros,
                       notes=(*notes, *self.sim.traces.take_notes()))  # fmt: skip
        lines: list[Line] = [line, *scores]
        self.round, self.seconds = log.round, self.seconds + seconds
        if self.writes:
            assert self.out is not None
            self.length, lines = write_lines(self.out / METRICS, lines)
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
        facts = {"round": self.round, "commit": self.commit, "seconds": self.seconds, "length": self.length,
                 **self.store.facts()}  # fmt: skip
        if self.out is not None:
            facts["kept"] = models.names_in(self.out, self.chosen.wanted())
            facts["lines"] = folder.checksum_of_lines(self.out / METRICS, self.length)
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
            self.chosen.prune()  # a kill may have come between the last checkpoint and this
            path = self.out / RUN
            facts = files.read_json(path)
            if facts.get("status") != "finished":
                metrics = self.out / METRICS
                facts["checksums"][METRICS] = folder.checksum_of_lines(metrics, self.length)
                facts |= {"status": "finished", "seconds": self.seconds, "models": result.save_models(self.out)}
                files.write_json(path, {**facts, "kept": models.names_in(self.out, self.chosen.wanted())})
        return result

    def _recover(self, checkpoint: Path | None) -> None:
        """Take up a checkpoint, if there is one, and cut off whatever was written after it."""
        if self.out is None:
            return
        leaves, facts = folder.read_saved(checkpoint) if checkpoint else ({}, FRESH)
        if self.sim.processes.leads:
            metrics = self.out / METRICS
            self.lines = folder.recover_lines(metrics, facts, checkpoint is not None, cut=self.writes)
        self.round, self.length, self.kept = facts["round"], facts["length"], facts.get("kept", [])
        self.commit, self.seconds = facts["commit"], facts["seconds"]
        if checkpoint is not None:
            leaves = {name: leaf.to(self.sim.root.device) for name, leaf in leaves.items()}
            self.state = folder.restore(self.state, leaves, "state")

        def restore(table: Tree) -> Tree:
            return folder.restore(table, leaves, "personal")

        known = folder.restore({"clients": self.store.known}, leaves, "known")["clients"] if checkpoint else None
        self.store.recover(self.commit, known, restore, self._records_like, facts)
        if self.writes and checkpoint != self.out / CHECKPOINT:
            self._reopen(self.out / RUN)
            (self.out / CHECKPOINT).unlink(missing_ok=True)  # the next must not push out the one before

    def _reopen(self, path: Path) -> None:
        """What a finished run had come to counts no more: its lines get other seconds."""
        facts = files.read_json(path)
        if facts.get("status") == "finished":
            facts["checksums"].pop(METRICS)
            files.write_json(path, {name: told for name, told in facts.items() if name not in ("status", "kept")})

    def _records_like(self) -> Tree:
        return records_like(self.setup, self.state)


def round_line(log: RoundLog, seconds: float | None) -> RoundLine:
    """A round, for the folder."""
    refused = tuple((each.client, each.reason) for each in log.refused)
    return RoundLine(log.round, log.cohort, log.accepted, refused, log.empty, log.loss, log.bytes_up, log.bytes_down,
                     seconds, log.report, log.rolled_back)  # fmt: skip


def silent(round: int, rounds: int, lines: list[Line]) -> None:
    """Watch nothing."""


def start_run(
    config: Config,
    out: Path | None = None,
    watch: Watch = silent,
    federation: Federation | None = None,
    model: Network | None = None,
    setup: Setup | None = None,
) -> Result:
    """Run an experiment; with `out`, everything is written there as it happens. A `setup` is not made again."""
    if out is not None and started_first() and (out / CONFIG).exists():
        raise ValueError(f"{out} already holds a run: go on with 'posterity resume {out}', or give another --out")
    return run_seeds([config], None if out is None else [out], watch, federation, model, setup)[0]


def resume_run(
    out: Path, watch: Watch = silent, federation: Federation | None = None, model: Network | None = None
) -> Result:
    """Go on with a run where its last checkpoint was written; a finished run is only read."""
    if not (out / CONFIG).exists():
        raise ValueError(f"{out} holds no run (there is no {CONFIG} in it)")
    facts = folder.read_run(out)
    if facts["engine"] == ACROSS_MACHINES:  # a folder without records can neither go on here nor predict
        raise ValueError(f"{out} is the folder of a server on Flower: the clients' records are at their sites. Show it "
                         f"with 'posterity report {out}', go on with 'flwr run', and predict at a site with 'posterity "
                         "flower predict'")  # fmt: skip
    only_read = facts.get("status") == "finished" and folder.last_common([out]) == [out / CHECKPOINT]
    with folder.disk_explained(out), files.locked(out) if started_first() and not only_read else nullcontext():
        facts, config = folder.read_run(out), resume.read_config(out)
        if not only_read:
            if facts.get("together"):
                seeds = ", ".join(map(str, facts["together"]))
                raise ValueError(f"{out} runs at once with the seeds {seeds}: go on with all of them "
                                 f"(posterity resume {out.parent.parent})")  # fmt: skip
            resume.remark_versions(facts, out)
        if federation is None:
            absent = resume.absent_federation(out, facts) if only_read else None
            federation = absent or resume.find_federation(config, out, facts)
        setup = set_up(_as_before(config, facts), federation, model, threads=facts["threads"])
        resume.check_same(facts, config, setup.sim, out)
        return _go([config], [setup], [out], watch, only_read)[0]


def run_seeds(
    configs: Sequence[Config],
    outs: Sequence[Path] | None = None,
    watch: Watch = silent,
    federation: Federation | None = None,
    model: Network | None = None,
    setup: Setup | None = None,
) -> list[Result]:
    """Runs that differ in their seed alone, all at once; those that were begun before go on."""
    if len({out.parent for out in outs or ()}) > 1:
        raise ValueError("the folders of seeds that run at once must stand side by side in one folder")
    if not started_first():  # the first of several processes writes
        outs = None
    begun = [out for out in outs or () if (out / CONFIG).exists()]
    for out, config in zip(outs or (), configs, strict=False):
        folder.check_files(out)
        if out in begun:
            resume.check_settings(out, config)
    facts = folder.read_run(begun[0]) if begun else None
    setups = [] if setup is None else [setup]
    for config in configs[len(setups) :]:  # trials choose for the first, and so for all
        fixed = _as_before(config, facts) if facts else _like(config, setups[0]) if setups else config
        setups.append(set_up(fixed, federation, model, threads=facts["threads"] if facts else None))
    if outs is None:
        return _go(configs, setups, [None] * len(configs), watch)
    with ExitStack() as stack:
        stack.enter_context(folder.disk_explained(outs[0] if len(outs) == 1 else outs[0].parent))
        for out, config, each in zip(outs, configs, setups, strict=True):
            folder.make_folder(out)
            stack.enter_context(files.locked(out))
            if out in begun:
                resume.check_same(folder.read_run(out), config, each.sim, out)
            else:
                _begin(config, each, out, [c.seed for c in configs])
        return _go(configs, setups, outs, watch)


def _go(
    configs: Sequence[Config],
    setups: Sequence[Setup],
    outs: Sequence[Path | None],
    watch: Watch,
    only_read: bool = False,
) -> list[Result]:
    """Runs from where they are to their end, with the settings of the process that they need."""
    if not only_read:
        _ = setups[0].notes  # a method may refuse a run of this size
    folders = [out for out in outs if out is not None]
    last = folder.last_common(folders) if folders else [None] * len(outs)
    with setups[0].settings.applied():
        each = zip(configs, setups, outs, last, strict=True)
        results = Runner([RunState(*one, only_read) for one in each], watch).go()
    for result in results if not only_read else ():
        warn(result.diverged, result.folder if setups[0].sim.processes.leads else None)
    return results


def _begin(config: Config, setup: Setup, out: Path, together: Sequence[int] = ()) -> None:
    """The files of a new run."""
    facts = describe(config, setup, " ".join(sys.argv))
    facts["federation"] |= resume.data_facts(config, setup.sim.federation)
    resume.save_inputs(out, setup.sim.federation)
    (out / METRICS).write_bytes(b"")
    facts |= {"together": list(together)} if len(together) > 1 else {}
    folder.write_run(out, facts, to_toml(config))


def _as_before(config: Config, facts: dict[str, Any]) -> Config:
    """The configuration with what was chosen when the run began; sums in other pieces would round otherwise."""
    engine = config.engine if ":" in config.engine else facts["engine"]  # yours is found by its place
    return replace(config, engine=engine, convolution=facts["convolution"] or "auto", onednn=facts["onednn"],
                   memory=facts["memory"], evaluate_every=facts["evaluate_every"])  # fmt: skip


def _like(config: Config, setup: Setup) -> Config:
    """The configuration with what was chosen for another seed."""
    choice = setup.choice
    way, onednn = choice.model.conv_backend or "auto", "on" if choice.onednn else "off"
    return replace(config, engine=choice.engine.name, convolution=way, onednn=onednn,
                   evaluate_every=setup.schedule.every)  # fmt: skip


class Runner:
    """Runs that go together, round by round: one run, or several seeds of it."""

    def __init__(self, runs: Sequence[RunState], watch: Watch) -> None:
        self.runs, self.watch = runs, watch
        self.seeds = MultiSeed.of([run.sim for run in runs])
        self.engine = runs[0].setup.engine
        self.spent = self.since = 0.0
        rounds = {run.round for run in runs}
        if len(rounds) > 1:
            raise ValueError(f"these seeds have come to different rounds ({sorted(rounds)}) and cannot go on at once: "
                             "go on with each of them alone, or start again in another folder")  # fmt: skip

    @property
    def round(self) -> int:
        return self.runs[0].round

    def go(self) -> list[Result]:
        rounds, begun = self.runs[0].config.rounds, time.perf_counter()
        if self.runs[0].sim.federation.absent and self.round < rounds:
            raise ValueError(f"this run says that it is finished, but its checkpoint is of round {self.round} of "
                             f"{rounds}: hand its data in to go on (posterity.load(folder, federation=...))"
                             )  # fmt: skip
        while self.round < rounds:
            lines = self._step(self.round + 1, rounds)
            self._keep(time.perf_counter() - begun, self.round == rounds)
            self.watch(self.round, rounds, lines)
        return [run.finish() for run in self.runs]

    def _step(self, round: int, rounds: int) -> list[Line]:
        """One round of training of all, with scores if it is evaluated; the lines of the first."""
        before, runs = time.perf_counter(), self.runs
        scores = self._score(round, before=True)
        states, stores = [run.state for run in runs], [run.store for run in runs]
        cohorts = [run.cohort(round) for run in runs]
        ends = train_rounds(self.seeds, self.engine, states, stores, cohorts, round, rounds)
        for run, (state, _) in zip(runs, ends, strict=True):
            run.state = state
        later = self._score(round, before=False)
        seconds = (time.perf_counter() - before) / len(runs)  # each has its share
        each = zip(runs, ends, scores, later, strict=True)
        told = [run.arrive(log, first + second, seconds) for run, (_, log), first, second in each]
        return told[0]

    def _score(self, round: int, before: bool) -> list[list[ScoreLine]]:
        """The answers of each run as lines; it keeps the round if a selection rule chooses it."""
        lines: list[list[ScoreLine]] = [[] for _ in self.runs]
        states, stores = [run.state for run in self.runs], [run.store for run in self.runs]
        asked = [run.ask(round, before) for run in self.runs]
        for some in zip(*asked, strict=True):
            outputs = answers(self.seeds, self.engine, states, stores, [each.question for each in some], round)
            for told, run, each, output in zip(lines, self.runs, some, outputs, strict=True):
                if run.sim.processes.leads:  # what the others computed is scored by the first
                    told += scoring.score_lines(run.sim, round, each, output, run.setup.metrics)
        for run, told in zip(self.runs, lines, strict=True):
            if run.schedule.due(round):
                state, store = run.state, run.store
                run.chosen.consider(round, told, state, store, before, run.gather_records)
        return lines

    def _keep(self, elapsed: float, last: bool) -> None:
        """Write a checkpoint when writing has become cheap enough, and at the end."""
        first = self.runs[0]
        worth = first.writes and self.spent <= WRITING * (elapsed - self.since)
        if not first.sim.processes.all_gather(float(worth))[0] and not last:
            return
        begun = time.perf_counter()
        for run in self.runs:
            run.gather_records()
        if not first.writes:
            return
        folders = [run.out for run in self.runs if run.out is not None]
        folder.save_checkpoints(folders, [run.pack() for run in self.runs])
        for run in self.runs:
            run.packed()
        self.spent, self.since = time.perf_counter() - begun, elapsed
