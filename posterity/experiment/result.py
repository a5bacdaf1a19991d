"""What a run leaves: scores by rule and point, per-client numbers, and personal models that predict.

`run.py` makes it; `runs/folder.py` writes it; `report/` reads the folder, and needs nothing of this.
"""

import math
import shutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from posterity.core.protocol import POINTS
from posterity.core.tree import Tree
from posterity.data.federation import Federation
from posterity.data.preprocess import Preprocessing
from posterity.engine.store import Store
from posterity.evaluate import goal_of, select
from posterity.evaluate.selection import RULES
from posterity.experiment import resume
from posterity.experiment.divergence import why_diverged
from posterity.experiment.models import Delivery, Kept, read_kept, rules_of, save_models
from posterity.experiment.setup import Setup, describe, records_like
from posterity.report import Run, load_runs
from posterity.report.show import Plot, describe_result, plot, show_result
from posterity.runs import files
from posterity.runs.folder import METRICS, RUN, checksum_of_lines, make_folder, save_checkpoint, write_run
from posterity.runs.lines import Line, ScoreLine, from_json, rounds_of, scores_of, to_json, write_lines
from posterity.runs.read import RunLog, read_run
from posterity.settings.config import Config, to_toml
from posterity.settings.hyperparameters import nearest


def check_names(lines: Sequence[ScoreLine], metric: str, rule: str) -> None:
    """Refuse a metric or an aggregation rule that no line has, naming the nearest."""
    metrics = {name: rules for line in lines for name, rules in line.metrics.items()}
    if metric not in metrics:
        raise ValueError(f"there is no metric {metric!r} in this run: {nearest(metric, metrics)}")
    rules = [each for each in metrics[metric] if each != "clients"]  # that is how many were scored
    if rule not in rules:
        raise ValueError(f"there is no aggregation rule {rule!r} of {metric}: {nearest(rule, rules)}")


@dataclass(frozen=True)
class Result:
    config: Config
    setup: Setup = field(repr=False)
    state: Tree = field(repr=False)
    store: Store = field(repr=False)
    lines: list[Line] = field(repr=False)  # as in metrics.jsonl
    round: int
    folder: Path | None = None
    kept: Mapping[int, Kept] = field(default_factory=dict, repr=False)  # rounds that selection rules chose

    @cached_property
    def federation(self) -> Federation:
        """The clients and their data; of a run that was loaded without them, those of its file if they are there still.

        Names and counts are there in any case.
        """
        told, sim = self.setup.sim.federation, self.setup.sim
        if not told.absent or self.folder is None:
            return told
        facts = files.read_json(self.folder / RUN)
        try:
            found = resume.find_federation(self.config, self.folder, facts)
            resume.check_values(facts["federation"], found, self.folder)
        except (ValueError, OSError):  # gone, or edited: a finished run does not need them
            return told
        return found.to(sim.root.device, sim.dtype)

    @property
    def method(self) -> Any:
        return self.setup.sim.method

    @property
    def diverged(self) -> str:
        """Why this is no result (most rounds came to nothing, or it has exploded); empty if it is one."""
        return why_diverged(self.lines, self.federation, self.method.scored)

    def history(self, metric: str = "accuracy", rule: str = "pooled", point: str | None = None,
                group: str = "members", epochs: int | None = None) -> list[dict[str, Any]]:  # fmt: skip
        """One entry per evaluated round: {"round", "validation", "test", "held"}.

        `epochs` says after how many epochs on the client's own data, where several numbers were scored (newcomers).
        """
        entries: dict[int, dict[str, Any]] = {}
        lines = self._scores(point, group, epochs)
        check_names(lines, metric, rule)
        for line in lines:
            entries.setdefault(line.round, {"round": line.round})[line.part] = line.value(metric, rule)
        return list(entries.values())

    def _scores(self, point: str | None, group: str, epochs: int | None) -> list[ScoreLine]:
        """The lines of one kind: a group at an evaluation point, after one number of epochs."""
        point, scored = point or self.method.scored, scores_of(self.lines)
        points = {line.point for line in scored if line.group == group}
        missing = f"no scores of {group!r} at the point {point!r}"
        if point not in points:
            instead = nearest(point, points) if points else nearest(group, {line.group for line in scored})
            raise ValueError(f"{missing} in this run: {instead}")
        mine = [line for line in scored if (line.point, line.group) == (point, group)]
        known = sorted({line.epochs for line in mine})
        told = ", ".join(map(str, known))
        if epochs is None and len(known) > 1:
            raise ValueError(f"{group!r} were scored at the point {point!r} after several numbers of epochs: {told}. "
                             f"Say which, e.g. epochs={known[0]}")  # fmt: skip
        if epochs is not None and epochs not in known:
            raise ValueError(f"{missing} after {epochs} epochs in this run; scored after: {told}")
        return [line for line in mine if epochs is None or line.epochs == epochs]

    def to_dict(self, rule: str = "pooled") -> dict[str, list[Any]]:
        """Every score, column to list: `pandas.DataFrame(result.to_dict())`; None where it is undefined."""
        scored, names = scores_of(self.lines), ("round", "part", "point", "group", "epochs")
        made: dict[str, list[Any]] = {name: [getattr(line, name) for line in scored] for name in names}
        for name in dict.fromkeys(name for line in scored for name in line.metrics):
            made[name] = [line.value(name, rule) for line in scored]
        return made

    def plot(self, metric: str | None = None, part: str = "test") -> Plot:
        """A metric by round, drawn; a notebook shows it, `.save("curve.svg")` writes it."""
        return plot([as_run(self)], metric, part)

    def __repr__(self) -> str:
        return describe_result(as_run(self), self.round, self.folder)

    def _repr_html_(self) -> str:
        return show_result(as_run(self), self.round, self.folder)

    def metric(
        self, name: str = "accuracy", rule: str = "pooled", show: str = "validated", point: str | None = None
    ) -> float:
        """One number: the metric under an aggregation rule, at the round that the selection rule `show` chooses.

        `validated` chooses the round by accuracy (regression: by MSE) on the validation half, whatever is shown.
        """
        chosen = self.chosen_round(show, point)
        part = "held" if show == "paper" else "test"
        entries = self.history(name, rule, point)
        value = next(e for e in entries if e["round"] == chosen)[part]
        return float("nan") if value is None else float(value)

    def chosen_round(self, show: str = "validated", point: str | None = None) -> int:
        """The round that a selection rule settles on."""
        goal = goal_of(self.setup.sim.federation.task)
        if show == "validated" and (why := self._unvalidated):
            raise ValueError(f"{why}: ask for show='last', or hold more rows out for validation")
        selected = select(self.history(goal.name, "pooled", point), show, goal.higher)
        return self.round if selected.round is None else selected.round

    def clients(self, show: str = "validated", point: str | None = None) -> dict[str, list[Any]]:
        """Every member's numbers at the chosen round, with its name."""
        want = self.chosen_round(show, point), "held" if show == "paper" else "test"
        scores = self._scores(point, "members", None)
        line = next(line for line in scores if (line.round, line.part) == want)
        told = self.setup.sim.federation
        return {"name": list(told.names[: told.members]), **line.clients}

    def delivered(self, show: str = "validated") -> Delivery:
        """The models that `predict_proba` uses under a selection rule: their round, and a note if it is another one."""
        if show not in self._deliveries:  # models are read once
            self._deliveries[show] = self._deliver(show)
        return self._deliveries[show]

    @cached_property
    def _deliveries(self) -> dict[str, Delivery]:
        return {}

    def _deliver(self, show: str) -> Delivery:
        chosen, point = self._settled(show), self.method.scored
        about: dict[str, Any] = {"setup": self.setup, "folder": self.folder}
        why = self._unvalidated if show == "validated" else ""
        reason = why or f"round {chosen}, which {show!r} chooses, is not kept in this run"
        note = f"{reason}: these are the models after its last round, {self.round}"
        for round in (chosen, self.round):
            if (kept := self._kept(round)) is not None:
                said = "" if round == chosen and not why else note
                return Delivery(show, round, point, said, kept=kept, **about)
        return Delivery(show, max(self.round, 1), "received", note, kept=self._end, **about)

    def _kept(self, round: int) -> Kept | None:
        """A round as it was scored, if it is kept."""
        if round in self.kept:
            return self.kept[round]
        like, device = partial(records_like, self.setup, self.state), self.setup.sim.root.device
        if self.folder is not None and (found := read_kept(self.folder, round, self.state, like, device)):
            return found
        return self._end if round == self.round and self.method.scored != "trained" else None

    @cached_property
    def _end(self) -> Kept:
        """The run's end, which every run has."""
        if not self.store.ready and bool(self.store.known.any()):
            self.store.expect_like(records_like(self.setup, self.state))
        return Kept(max(self.round, 1), self.state, self.store, self.state)

    def _settled(self, show: str) -> int:
        """The round that a rule chooses, or the last one where what it needs was not scored in this process."""
        if show not in RULES:
            raise ValueError(f"there is no selection rule {show!r}: {nearest(show, RULES)}")
        scored = any(line.group == "members" for line in scores_of(self.lines))
        return self.chosen_round(show) if scored and not (show == "validated" and self._unvalidated) else self.round

    @property
    def _unvalidated(self) -> str:
        """Why no round can be chosen on validation; empty if one can.

        Who has fewer rows than may be told is not scored, and of many members only a sample is: what was scored counts.
        """
        sim, goal = self.setup.sim, goal_of(self.setup.sim.federation.task).name
        values = [line.value(goal) for line in scores_of(self.lines)
                  if (line.group, line.part) == ("members", "validation")]  # fmt: skip
        enough = bool((sim.federation.validation.sizes[: sim.federation.members] >= sim.min_count).any())
        if any(v is not None and not math.isnan(v) for v in values) or (enough and not values):
            return ""
        rows = "validation rows" if sim.min_count == 1 else f"{sim.min_count} validation rows (min_count)"
        return f"no member{' that was scored' if enough else ''} has {rows}, so 'validated' chooses no round"

    def predict_proba(self, client: int | str, x: Any, point: str | None = None, show: str = "validated",
                      scaled: bool = False) -> Tensor:  # fmt: skip
        """Class probabilities (B, classes) of a client's model; (B, 2) mean and variance for regression.

        The model is the one whose scores `metric(show=...)` reports: of the round that the selection rule chose, at the
        point where the method is scored. `delivered(show)` says which round that is. A newcomer gets what the server
        would give it.

        `x` is raw, as in the data's file: what was done to the training rows (each client's own means and deviations,
        bytes of pictures to [-1, 1]) is done here, too. `scaled=True` says that this has been done already, as it has
        for rows of `federation.x`.

        `point` asks for the model at another evaluation point: `trained` trains once more, from the round's broadcast.
        """
        sim, index, delivery = self.setup.sim, self._client(client), self.delivered(show)
        if delivery.note:
            warnings.warn(delivery.note, stacklevel=2)
        if point is not None and point not in POINTS:
            raise ValueError(f"there is no evaluation point {point!r}: {nearest(point, POINTS)}")
        if delivery.point == "trained" and point in ("received", "adapted") and index < sim.federation.members:
            if delivery.round != self.round:
                raise ValueError(f"this run keeps the models of round {delivery.round} at the point 'trained' only, "
                                 f"where its method is scored; ask for that, or for show='last'")  # fmt: skip
            delivery = replace(delivery, kept=self._end, point="received")
        told, way = sim.federation, Preprocessing() if scaled else sim.federation.preprocessing
        inputs = way.apply(x, index, told.shape, told.x.dtype).to(sim.root.device)
        with self.setup.settings.applied():
            output = delivery.predict(index, inputs, point)
        return output if sim.federation.task == "regression" else output.exp()

    def _client(self, client: int | str) -> int:
        names = self.setup.sim.federation.names
        if isinstance(client, str) and client in names:
            return int(names.index(client))
        if isinstance(client, (int, np.integer)) and not isinstance(client, bool) and 0 <= client < len(names):
            if str(client) in names and names[client] != str(client):
                told = f"client {client} is the one with this number, counted from 0, whose name is {names[client]!r}"
                warnings.warn(f"{told}; for the client called {client} give '{client}'", stacklevel=3)
            return int(client)
        raise ValueError(f"there is no client {client!r}: give a number from 0 to {len(names) - 1}, or a name "
                         f"such as {names[0]!r}")  # fmt: skip

    def save_models(self, folder: Path) -> str:
        """Write the models that are delivered and cannot be made again without data; what `run.json` says of them."""
        rules = dict.fromkeys((*rules_of(self.config), "last"))
        with self.setup.settings.applied():
            return save_models(folder, self.setup, [self.delivered(rule) for rule in rules])

    def save(self, folder: str | Path) -> Path:
        """Write the run as a folder that `posterity report`, `resume`, `predict` and `load` understand."""
        out = Path(folder)
        files.check_out(out)
        if any((out / mark).exists() for mark in files.RUN_MARKS):
            raise ValueError(f"{out} already holds a run; give another folder")
        make_folder(out)
        if self.folder is not None:
            shutil.copytree(self.folder, out, dirs_exist_ok=True)
            return out
        length, _ = write_lines(out / METRICS, self.lines)
        for rule in dict.fromkeys((*rules_of(self.config), "last")):
            delivery = self.delivered(rule)
            if not delivery.note and delivery.kept is not self._end:  # the end is in the checkpoint
                delivery.kept.save(out)
        trees = {"state": self.state, "known": {"clients": self.store.known}}
        personal = self.store.prepare()
        if personal is not None:
            trees["personal"] = personal
        seconds = sum(line.seconds or 0.0 for line in rounds_of(self.lines))
        lines = checksum_of_lines(out / METRICS, length)
        told = {"round": self.round, "commit": 1, "seconds": seconds, "length": length, "lines": lines}
        save_checkpoint(out, trees, told)
        resume.save_inputs(out, self.setup.sim.federation)
        facts = describe(self.config, self.setup, "posterity.run(...)")
        facts["federation"] |= resume.data_facts(self.config, self.setup.sim.federation)
        facts |= {"status": "finished", "seconds": seconds, "models": self.save_models(out)}
        facts["checksums"] = {METRICS: lines}
        write_run(out, facts, to_toml(self.config))
        return out


def as_run(result: Result) -> Run:
    """A result as the report reads it, from its folder or as its folder would be."""
    if result.folder is not None and (result.folder / RUN).exists():
        return load_runs(result.folder)[0]
    facts = describe(result.config, result.setup, "posterity.run(...)")
    told = [line for each in result.lines if (line := from_json(to_json(each))) is not None]
    return read_run(RunLog(Path(result.config.method), {**facts, "status": "finished"}, to_toml(result.config), told))
