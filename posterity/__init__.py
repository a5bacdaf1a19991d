"""Personalised federated learning with honest uncertainty.

import posterity
result = posterity.run("pfedvmp", dataset="digits", partition="dirichlet:0.3", rounds=30, set={"xi": 10})
result                                     # its table, in a notebook
result.metric("accuracy"), result.metric("ece")
result.predict_proba(client=3, x=images)
posterity.compare(["local", "fedavg+ft", "pfedvmp"], seeds=[0, 1, 2], dataset="digits", rounds=30)

Names are looked up when they are first asked for: PyTorch takes seconds to import.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posterity.runs.files import check_out
from posterity.settings.config import check_seeds, documented, from_table
from posterity.settings.plugins import name_method
from posterity.version import __version__

if TYPE_CHECKING:
    from posterity.core.protocol import Method
    from posterity.data.federation import Federation
    from posterity.experiment.result import Result
    from posterity.experiment.results import Results
    from posterity.laws import check
    from posterity.models import wrap

PLACES = {
    "Federation": "data.federation",
    "Method": "core.protocol",
    "Result": "experiment.result",
    "Results": "experiment.results",
    "check": "laws",
    "wrap": "models",
}  # where the names live that are looked up

__all__ = ["Federation", "Method", "Result", "Results", "__version__", "check", "compare", "load", "run", "run_seeds",
           "wrap"]  # fmt: skip


@documented
def run(
    method: str | type = "pfedvmp",
    *,
    out: str | Path | None = None,
    federation: Federation | None = None,
    model: Any = "mlp",
    **settings: Any,
) -> Result:
    """Run a method on a federation and return the result.

    method: by name, with suffixes (`fedavg+ft`, `pfedvmp@paper`), `package.module:Class`, or that class
    out: folder to write to as it happens; None keeps everything in memory (`result.save(folder)` writes it later)
    federation: clients of your own (`posterity.Federation`) instead of `dataset`
    model: a network by name, `package.module:Net`, or your own: an nn.Module, its class, a function that makes one
    """
    from posterity.experiment.run import start_run

    name, network = _named(model)
    config = from_table({**settings, "method": name_method(method), **name})
    if out is not None:
        check_out(Path(out))
    return start_run(config, None if out is None else Path(out), federation=federation, model=network)


@documented
def run_seeds(
    seeds: Sequence[int],
    method: str | type = "pfedvmp",
    *,
    out: str | Path | None = None,
    federation: Federation | None = None,
    model: Any = "mlp",
    **settings: Any,
) -> list[Result]:
    """Run a method with several seeds at once, their clients stacked: the results, one a seed.

    With `out`, seed k is written to `out/seed-k`; seeds that were interrupted there go on. A `federation` of your own
    is the same for all seeds; by default the seed moves the partition, too. The rest is as in `run`.
    """
    from posterity.experiment.run import run_seeds as start

    name, network = _named(model)
    spec, each = name_method(method), check_seeds(seeds)
    configs = [from_table({**settings, "method": spec, **name, "seed": seed}) for seed in each]
    outs = None if out is None else [Path(out) / f"seed-{seed}" for seed in each]
    return start(configs, outs, federation=federation, model=network)


@documented
def compare(
    methods: str | type | Sequence[str | type],
    seeds: Sequence[int] = (0, 1, 2),
    *,
    out: str | Path | None = None,
    federation: Federation | None = None,
    model: Any = "mlp",
    show: str = "validated",
    jobs: int = 1,
    together: bool = False,
    **settings: Any,
) -> Results:
    """Run several methods with several seeds on the same federations: a table, a report, a finding.

    methods: names as in `run`, in a list or comma separated; "all" stands for those not named; one may appear twice
        with settings of its own (`["fedprox[mu=0.1]", "fedprox[mu=1]"]`)
    out: folder to write to; finished runs there are not repeated. None keeps everything in memory
    show: the selection rule of the table: validated, paper or last
    jobs: runs at once, in processes of their own (with `out`, and without objects of your own)
    together: all seeds of a method at once, as more clients
    """
    from posterity.experiment.results import compare_all

    name, network = _named(model)
    config = from_table({**settings, **name})
    place = None if out is None else Path(out)
    names = name_method(methods) if isinstance(methods, (str, type)) else [name_method(each) for each in methods]
    return compare_all(config, names, seeds, place, federation, network, show, jobs, together)


def _named(model: Any) -> tuple[dict[str, str], Any]:
    """The setting of a network's name if it has one, and the network if it is an object."""
    return ({"model": model}, None) if isinstance(model, str) else ({}, model)


def load(folder: str | Path, *, federation: Federation | None = None, model: Any = None, trust: bool = False) -> Result:
    """The result of a run's folder; an unfinished run is taken to its end first.

    A federation or model of your own that the run was given must be handed in again: a run's folder holds no data.
    Code that the folder names (`package.module:attribute`) is imported only with `trust`.
    """
    from posterity.experiment.resume import check_trusted
    from posterity.experiment.run import resume_run

    check_trusted(Path(folder), trust)
    return resume_run(Path(folder), federation=federation, model=model)


def __getattr__(name: str) -> Any:
    if name in PLACES:
        return globals().setdefault(name, getattr(import_module(f"{__name__}.{PLACES[name]}"), name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
