"""What to try next, by Optuna's tree-structured Parzen estimator (`pip install 'posterity[tune]'`).

The estimator is made anew for every trial, from the seed, the number of the trial and the trials before it: a search
that was killed and goes on tries what it would have tried.
"""

from __future__ import annotations

import hashlib
import importlib
import math
from collections.abc import Sequence
from typing import Any

from posterity.experiment.search_space import Dimension, Values
from posterity.experiment.tune import Suggest, Tried


def library() -> Any:
    """Optuna, or a sentence."""
    try:
        found = importlib.import_module("optuna")
    except ImportError:
        raise ValueError("posterity tune searches with Optuna, which is not installed: "
                         "pip install 'posterity[tune]'") from None  # fmt: skip
    found.logging.set_verbosity(found.logging.WARNING)
    return found


def parzen(seeds: Sequence[int], search_seed: int) -> Suggest:
    """The estimator as a function of the space, of what was found and of the number of the trial."""
    optuna = library()

    def suggest(space: list[Dimension], before: Sequence[Tried], number: int) -> Values:
        kinds = {each.name: _kind(optuna, each) for each in space}
        higher = all(trial.higher for trial in before)
        sampler = optuna.samplers.TPESampler(seed=_seed(search_seed, number), multivariate=True)
        study = optuna.create_study(sampler=sampler, direction="maximize" if higher else "minimize")
        for trial in before:
            if not math.isnan(value := trial.value(seeds)) and _inside(space, trial.values):
                study.add_trial(optuna.trial.create_trial(params=trial.values, distributions=kinds, value=value))
        asked = study.ask(kinds)
        return {each.name: asked.params[each.name] if each.choices else each.rounded(asked.params[each.name])
                for each in space}  # fmt: skip

    return suggest


def _seed(search_seed: int, number: int) -> int:
    """The estimator's seed for one trial: neighbours have nothing in common."""
    return int.from_bytes(hashlib.sha256(f"{search_seed}/{number}".encode()).digest()[:4], "big")


def _inside(space: list[Dimension], values: Values) -> bool:
    return all(each.holds(values.get(each.name)) for each in space)


def _kind(optuna: Any, each: Dimension) -> Any:
    """A dimension as Optuna calls it."""
    if each.choices:
        return optuna.distributions.CategoricalDistribution(each.choices)
    log = each.scale == "log"
    if each.integer:
        return optuna.distributions.IntDistribution(int(each.low), int(each.high), log=log)
    return optuna.distributions.FloatDistribution(each.low, each.high, log=log)
