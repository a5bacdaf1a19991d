"""What a comparison has to do, piece by piece: one run, or several seeds of it at once."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posterity.core.network import Network
from posterity.data.federation import Federation
from posterity.experiment import run_folder
from posterity.experiment.config import Config, from_table, to_toml
from posterity.experiment.result import Result
from posterity.experiment.run import Watch, resume_run, run_seeds, start_run

Run = tuple[Path, Config]


@dataclass(frozen=True)
class Task:
    """One run of a comparison, and the other seeds that run at once with it."""

    title: str
    path: Path
    config: Config
    others: tuple[Run, ...] = ()

    @staticmethod
    def of(runs: Sequence[Run], name: str = "") -> Task:
        """The task of one run, or of several seeds at once; `name` is the method's in this comparison."""
        seeds = ", ".join(str(config.seed) for _, config in runs)
        title = f"{name or runs[0][1].method} seed{'s' * (len(runs) > 1)} {seeds}"
        return Task(title, *runs[0], tuple(runs[1:]))

    @property
    def runs(self) -> tuple[Run, ...]:
        return ((self.path, self.config), *self.others)

    def do(self, watch: Watch, federation: Federation | None = None, model: Network | None = None) -> list[Result]:
        """Start it, or go on with it; with a federation or a network of the caller's own where they are given."""
        if self.others:
            paths, configs = zip(*self.runs, strict=True)
            return run_seeds(configs, paths, watch, federation, model)
        if (self.path / run_folder.CONFIG).exists():
            return [resume_run(self.path, watch, federation, model)]
        return [start_run(self.config, self.path, watch, federation, model)]

    def plain(self) -> dict[str, Any]:
        """The task as JSON allows it, for another process."""
        return {"title": self.title, "runs": [[str(path), to_toml(config)] for path, config in self.runs]}

    @staticmethod
    def from_plain(plain: dict[str, Any]) -> Task:
        runs = [(Path(path), from_table(tomllib.loads(text))) for path, text in plain["runs"]]
        return Task(plain["title"], *runs[0], tuple(runs[1:]))


__all__ = ["Run", "Task"]
