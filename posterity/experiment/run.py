"""Runs: rounds, scores, checkpoints. Killed at any instant, they resume and end with the same bits."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from posterity.data import Partition
from posterity.data.federation import Federation
from posterity.engine.cohort import Participation
from posterity.engine.fleet import Fleet, answer_all, train_rounds
from posterity.engine.ranks import started_first
from posterity.experiment import folder as files
from posterity.experiment.config import Config, from_table, read_toml, to_toml
from posterity.experiment.journey import Journey
from posterity.experiment.result import Result
from posterity.experiment.scoring import Asked, score_lines
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
        return Voyage([Journey(config, setup, None)], watch).go()[0]
    if (out / files.CONFIG).exists():
        raise ValueError(f"{out} already holds a run: go on with 'posterity resume {out}', or give another --out")
    out.mkdir(parents=True, exist_ok=True)
    with files.locked(out):
        _begin(config, setup, out)
        return Voyage([Journey(config, setup, out)], watch).go()[0]


def resume_run(out: Path, watch: Watch = silent, federation: Federation | None = None, model: Any = None) -> Result:
    """Go on with a run where its last checkpoint was written; a finished run is only read."""
    if not (out / files.CONFIG).exists():
        raise ValueError(f"{out} holds no run (there is no {files.CONFIG} in it)")
    config = from_table(read_toml(out / files.CONFIG))
    with files.locked(out) if started_first() else nullcontext():
        facts = files.read_json(out / files.RUN)
        if facts.get("together") and facts.get("status") != "finished":
            seeds = ", ".join(map(str, facts["together"]))
            raise ValueError(f"{out} runs at once with the seeds {seeds}: go on with all of them "
                             f"(posterity resume {out.parent.parent})")  # fmt: skip
        setup = set_up(_as_before(config, facts), federation, model)
        _check_same(facts.get("federation", {}), setup, out)
        return Voyage([Journey(config, setup, out)], watch).go()[0]


def run_seeds(
    configs: Sequence[Config],
    outs: Sequence[Path] | None = None,
    watch: Watch = silent,
    federation: Federation | None = None,
    model: Any = None,
) -> list[Result]:
    """Runs that differ in nothing but their seed, all at once; those in folders that were begun before go on."""
    if len({out.parent for out in outs or ()}) > 1:
        raise ValueError("the folders of seeds that run at once must stand side by side in one folder")
    begun = [out for out in outs or () if (out / files.CONFIG).exists()]
    facts = files.read_json(begun[0] / files.RUN) if begun else None
    setups: list[Setup] = []
    for config in configs:  # trials choose for the first, and so for all
        fixed = _as_before(config, facts) if facts else _like(config, setups[0]) if setups else config
        setups.append(set_up(fixed, federation, model))
    if outs is None:
        return Voyage([Journey(c, s, None) for c, s in zip(configs, setups, strict=True)], watch).go()
    with ExitStack() as stack:
        for out, config, setup in zip(outs, configs, setups, strict=True):
            out.mkdir(parents=True, exist_ok=True)
            stack.enter_context(files.locked(out))
            if out in begun:
                _check_same(files.read_json(out / files.RUN).get("federation", {}), setup, out)
            else:
                _begin(config, setup, out, [c.seed for c in configs])
        files.keep_pledge(outs)
        journeys = [Journey(*each) for each in zip(configs, setups, outs, strict=True)]
        return Voyage(journeys, watch).go()


def _begin(config: Config, setup: Setup, out: Path, together: Sequence[int] = ()) -> None:
    """The files of a new run."""
    facts = describe(config, setup, " ".join(sys.argv))
    (out / files.METRICS).write_bytes(b"")
    files.write_json(out / files.RUN, {**facts, **({"together": list(together)} if len(together) > 1 else {})})
    files.write_atomic(out / files.CONFIG, to_toml(config).encode())  # last: now the folder is a run


def _as_before(config: Config, facts: dict[str, Any]) -> Config:
    """The configuration with what was measured when the run began; sums in other pieces would round otherwise."""
    torch.set_num_threads(facts["threads"])
    return replace(config, engine=facts["engine"], convolution=facts.get("convolution") or "auto",
                   onednn=facts.get("onednn", "on"), memory=facts.get("memory", config.memory))  # fmt: skip


def _like(config: Config, setup: Setup) -> Config:
    """The configuration with what was chosen for another seed."""
    choice = setup.choice
    way, onednn = choice.model.way or "auto", "on" if choice.onednn else "off"
    return replace(config, engine=choice.engine.name, convolution=way, onednn=onednn)


def _check_same(before: dict[str, Any], setup: Setup, out: Path) -> None:
    """Refuse to go on with other data than the run began with."""
    now = setup.world.federation
    if before.get("name") == now.name:
        check_rule(before, now.partition, out)
    if (before.get("name"), before.get("train")) != (now.name, now.train.counts.tolist()):
        was = f"{before.get('name')!r} with {before.get('clients')} clients"
        raise ValueError(
            f"{out} was run on {was}, but its configuration gives {now.name!r} with {now.clients}: if the federation "
            "was an object of yours, hand it in again (posterity.load(folder, federation=..., model=...)); if a data "
            "file changed, put the old one back"
        )


def check_rule(before: dict[str, Any], rule: Partition | None, out: Path) -> None:
    """Refuse a run whose clients came from another version of the partition than the rule has now.

    A folder from before versions were written down says nothing: its was the first. Clients put together by hand
    (null) have none.
    """
    told = before.get("partition", {"version": 1})
    if rule is not None and told is not None and told["version"] != rule.version:
        raise ValueError(
            f"{out} was begun with version {told['version']} of the partition {rule.name!r}; here it has version "
            f"{rule.version}, which gives other clients for the same seed: read the run with 'posterity report {out}', "
            "go on with the posterity that began it, or begin again in another folder"
        )


class Voyage:
    """Journeys that go together, round by round: one run, or several seeds of it."""

    def __init__(self, journeys: Sequence[Journey], watch: Watch) -> None:
        self.journeys, self.watch = journeys, watch
        self.fleet = Fleet.of([journey.world for journey in journeys])
        self.engine = journeys[0].setup.engine
        self.spent = self.since = 0.0
        rounds = {journey.round for journey in journeys}
        if len(rounds) > 1:
            raise ValueError(f"these seeds have come to different rounds ({sorted(rounds)}) and cannot go on at once: "
                             "go on with each of them alone, or start again in another folder")  # fmt: skip

    @property
    def round(self) -> int:
        return self.journeys[0].round

    def go(self) -> list[Result]:
        rounds, begun = self.journeys[0].config.rounds, time.perf_counter()
        while self.round < rounds:
            lines = self._step(self.round + 1, rounds)
            self._keep(time.perf_counter() - begun, self.round == rounds)
            self.watch(self.round, rounds, lines)
        return [journey.finish() for journey in self.journeys]

    def _step(self, round: int, rounds: int) -> list[dict[str, Any]]:
        """One round of training of all, with scores if this is a round that is evaluated; the lines of the first."""
        before, journeys = time.perf_counter(), self.journeys
        scores = self._score([journey.ask_before(round) for journey in journeys], round)
        states, stores = [j.state for j in journeys], [j.store for j in journeys]
        cohorts = [journey.cohort(round) for journey in journeys]
        for journey in journeys:
            journey.announce(round + 1)
        ends = train_rounds(self.fleet, self.engine, states, stores, cohorts, round, rounds)
        for journey, (state, _) in zip(journeys, ends, strict=True):
            journey.state = state
        later = self._score([journey.ask_after(round) for journey in journeys], round)
        seconds = (time.perf_counter() - before) / len(journeys)  # each has its share
        told = [journey.arrive(log, first + second, seconds)
                for journey, (_, log), first, second in zip(journeys, ends, scores, later, strict=True)]  # fmt: skip
        return told[0]

    def _score(self, asked: Sequence[Sequence[Asked]], round: int) -> list[list[dict[str, Any]]]:
        """The lines that answer the questions of each journey: as many in all, one after the other."""
        lines: list[list[dict[str, Any]]] = [[] for _ in self.journeys]
        states, stores = [j.state for j in self.journeys], [j.store for j in self.journeys]
        for some in zip(*asked, strict=True):
            outputs = answer_all(self.fleet, self.engine, states, stores, [each.question for each in some], round)
            for told, journey, each, output in zip(lines, self.journeys, some, outputs, strict=True):
                if journey.world.ranks.leads:  # what the others computed is scored by the first
                    told += score_lines(journey.world, round, each, output)
        return lines

    def _keep(self, elapsed: float, last: bool) -> None:
        """Write a checkpoint when writing has become cheap enough, and at the end."""
        first = self.journeys[0]
        worth = first.writes and self.spent <= WRITING * (elapsed - self.since)
        if not first.world.ranks.tell(float(worth))[0] and not last:
            return
        begun = time.perf_counter()
        for journey in self.journeys:
            journey.bring_home()
        if not first.writes:
            return
        folders = [journey.out for journey in self.journeys if journey.out is not None]
        files.save_checkpoints(folders, [journey.pack() for journey in self.journeys])
        for journey in self.journeys:
            journey.packed()
        self.spent, self.since = time.perf_counter() - begun, elapsed
