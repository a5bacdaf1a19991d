"""What a run leaves: scores by rule and point, per-client numbers, and personal models that predict.

`run.py` makes it; `run_folder.py` writes it; `report/` reads the folder, and needs nothing of this.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posterity.core.tree import Tree
from posterity.engine.round import personal_model
from posterity.engine.store import Store
from posterity.evaluate import bytes_to, goal_of, rounds_to, select
from posterity.experiment import run_folder
from posterity.experiment.config import Config, to_toml
from posterity.experiment.setup import Setup, describe
from posterity.experiment.verify import Lines, write_run


@dataclass(frozen=True)
class Result:
    config: Config
    setup: Setup = field(repr=False)
    state: Tree = field(repr=False)
    store: Store = field(repr=False)
    lines: list[dict[str, Any]] = field(repr=False)  # as in metrics.jsonl
    round: int
    folder: Path | None = None

    @property
    def federation(self) -> Any:
        return self.setup.sim.federation

    @property
    def method(self) -> Any:
        return self.setup.sim.method

    def history(self, metric: str = "accuracy", rule: str = "pooled", point: str | None = None,
                group: str = "members", epochs: int | None = None) -> list[dict[str, Any]]:  # fmt: skip
        """One entry per evaluated round: {"round", "validation", "test", "held"}.

        `epochs` says after how many epochs on the client's own data, where several numbers were scored (newcomers).
        """
        entries: dict[int, dict[str, Any]] = {}
        for line in self._scores(point, group, epochs):
            entry = entries.setdefault(line["round"], {"round": line["round"]})
            entry[line["part"]] = line["metrics"].get(metric, {}).get(rule)
        return list(entries.values())

    def _scores(self, point: str | None, group: str, epochs: int | None) -> list[dict[str, Any]]:
        """The lines of one kind: a group at an evaluation point, after one number of epochs."""
        point = point or self.method.scored
        mine = [x for x in self.lines if x["kind"] == "score" and (x["point"], x["group"]) == (point, group)]
        known = sorted({x["epochs"] for x in mine})
        if not known:
            raise ValueError(f"no scores of {group!r} at the point {point!r} in this run")
        if epochs is None and len(known) > 1:
            raise ValueError(f"{group!r} were scored at the point {point!r} after several numbers of epochs: "
                             f"{', '.join(map(str, known))}. Say which, e.g. epochs={known[0]}")  # fmt: skip
        if epochs is not None and epochs not in known:
            raise ValueError(f"no scores of {group!r} at the point {point!r} after {epochs} epochs in this run; "
                             f"scored after: {', '.join(map(str, known))}")  # fmt: skip
        return [x for x in mine if epochs is None or x["epochs"] == epochs]

    def metric(self, name: str = "accuracy", rule: str = "pooled", show: str = "validated",
               point: str | None = None, epochs: int | None = None) -> float:  # fmt: skip
        """One number: the metric under an aggregation rule, at the round that the selection rule `show` chooses.

        `validated` chooses the round by accuracy (regression: by MSE) on the validation half, whatever is shown.
        """
        chosen = self.chosen_round(show, point, epochs)
        part = "held" if show == "paper" else "test"
        entries = self.history(name, rule, point, epochs=epochs)
        value = next(e for e in entries if e["round"] == chosen)[part]
        return float("nan") if value is None else float(value)

    def chosen_round(self, show: str = "validated", point: str | None = None, epochs: int | None = None) -> int:
        """The round that a selection rule settles on."""
        goal = goal_of(self.federation.task)
        selected = select(self.history(goal.name, "pooled", point, epochs=epochs), show, goal.higher)
        return self.round if selected.round is None else selected.round

    def clients(self, show: str = "validated", point: str | None = None,
                epochs: int | None = None) -> dict[str, list[Any]]:  # fmt: skip
        """Every member's numbers at the chosen round, with its name."""
        want = self.chosen_round(show, point, epochs), "held" if show == "paper" else "test"
        scores = self._scores(point, "members", epochs)
        line = next(x for x in scores if (x["round"], x["part"]) == want)
        return {"name": list(self.federation.names[: self.federation.members]), **line["clients"]}

    def cost_to(self, accuracy: float, point: str | None = None, epochs: int | None = None) -> dict[str, int | None]:
        """Rounds, and bytes in both directions, until the accuracy on all held-out data reaches a value."""
        total, spent = 0, {}
        for line in (x for x in self.lines if x["kind"] == "round"):
            total += line["bytes_up"] + line["bytes_down"]
            spent[line["round"]] = total
        entries = [{"round": e["round"], "accuracy": e["held"], "bytes_up": spent[e["round"]], "bytes_down": 0}
                   for e in self.history("accuracy", "pooled", point, epochs=epochs)]  # fmt: skip
        return {"rounds": rounds_to(entries, accuracy), "bytes": bytes_to(entries, accuracy)}

    def predict_proba(self, client: int | str, x: Any, point: str | None = None) -> Tensor:
        """Class probabilities (B, classes) of a client's model after the last round; (B, 2) mean and variance for
        regression. A newcomer's client number works too: it gets what the server would give it.

        Without `point`, a method scored right after training (Local, FedMAP) predicts with the model that the client
        holds since then; `point="trained"` would train it once more, from the last broadcast."""
        sim = self.setup.sim
        index = self._client(client)
        inputs = torch.as_tensor(x).to(sim.root.device, sim.dtype)
        shape = sim.federation.shape
        if tuple(inputs.shape[1:]) != shape:
            raise ValueError(f"x has shape {tuple(inputs.shape)}; expected (samples, {', '.join(map(str, shape))})")
        held = "adapted" if self.method.scored == "adapted" else "received"
        with self.setup.settings.applied():
            carry, here = personal_model(sim, self.state, self.store, index, max(self.round, 1), point or held)
            output = sim.method.predict(carry, inputs, here)
        return output if sim.federation.task == "regression" else output.exp()

    def _client(self, client: int | str) -> int:
        names = self.federation.names
        if isinstance(client, str) and client in names:
            return int(names.index(client))
        if isinstance(client, int) and 0 <= client < len(names):
            return client
        raise ValueError(f"there is no client {client!r}: give a number from 0 to {len(names) - 1}, or a name "
                         f"such as {names[0]!r}")  # fmt: skip

    def save(self, folder: str | Path) -> Path:
        """Write the run as a folder that `posterity report`, `resume` and `load` understand."""
        out = Path(folder)
        if (out / run_folder.CONFIG).exists():
            raise ValueError(f"{out} already holds a run; give another folder")
        out.mkdir(parents=True, exist_ok=True)
        (out / run_folder.METRICS).unlink(missing_ok=True)
        length = run_folder.append_lines(out / run_folder.METRICS, self.lines)
        trees = {"state": self.state, "known": {"clients": self.store.known}}
        personal = self.store.prepare()
        if personal is not None:
            trees["personal"] = personal
        seconds = sum(line.get("seconds", 0.0) for line in self.lines if line["kind"] == "round")
        lines = {"length": length, "lines": Lines(out / run_folder.METRICS).checksum(length)}
        run_folder.save_checkpoint(out, trees, {"round": self.round, "commit": 1, "seconds": seconds, **lines})
        facts = describe(self.config, self.setup, "posterity.run(...)")
        facts |= {"status": "finished", "seconds": seconds, "checksums": {run_folder.METRICS: lines["lines"]}}
        write_run(out, facts, to_toml(self.config))
        return out
