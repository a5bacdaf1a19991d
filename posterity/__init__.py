"""Personalised federated learning with honest uncertainty.

import posterity
result = posterity.run(method="pfedvmp", dataset="digits", partition="dirichlet:0.3", rounds=30)
result.metric("accuracy"), result.metric("ece")
result.predict_proba(client=3, x=images)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "load", "run", "run_seeds"]

if TYPE_CHECKING:
    from posterity.experiment.result import Result


def run(out: str | Path | None = None, *, federation: Any = None, model: Any = None, **settings: Any) -> Result:
    """Run an experiment and return its result; settings are those of the command line (`rounds=30`, `lr=0.05`).

    `federation` and `model` may be objects of your own (`posterity.data.Federation`, `posterity.models.wrap(...)`).
    """
    from posterity.experiment.config import from_table
    from posterity.experiment.run import start_run

    table, network = _split(settings, model)
    return start_run(from_table(table), None if out is None else Path(out), federation=federation, model=network)


def run_seeds(
    seeds: Sequence[int], out: str | Path | None = None, *, federation: Any = None, model: Any = None, **settings: Any
) -> list[Result]:
    """Run an experiment with several seeds at once, their clients stacked: the results, one a seed.

    With `out`, seed k is written to `out/seed-k`; seeds that were interrupted there go on. A `federation` of your own
    is the same for all seeds; by default the seed moves the partition, too.
    """
    from posterity.experiment.config import from_table
    from posterity.experiment.run import run_seeds as start

    table, network = _split(settings, model)
    configs = [from_table({**table, "seed": seed}) for seed in seeds]
    outs = None if out is None else [Path(out) / f"seed-{seed}" for seed in seeds]
    return start(configs, outs, federation=federation, model=network)


def _split(settings: dict[str, Any], model: Any) -> tuple[dict[str, Any], Any]:
    """Settings with the network's name if it has one, and the network if it is an object."""
    return ({**settings, "model": model}, None) if isinstance(model, str) else (settings, model)


def load(folder: str | Path, *, federation: Any = None, model: Any = None, trust: bool = False) -> Result:
    """The result of a run's folder; an unfinished run is taken to its end first.

    A federation or model of your own that the run was given must be handed in again: a run's folder holds no data.
    Code that the folder names (`package.module:attribute`) is imported only with `trust`.
    """
    from posterity.experiment.run import resume_run
    from posterity.experiment.trust import check_trusted

    check_trusted(Path(folder), trust)
    return resume_run(Path(folder), federation=federation, model=model)
