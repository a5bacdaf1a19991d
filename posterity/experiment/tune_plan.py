"""What a search was begun with (`tuning.json`): settings, seeds, the data's values, and the source of every method.

Trials made with other data or settings are not mixed with new ones: that is refused. A method that was edited since
begins again, as in a comparison (`begin_again.py`); its trials of before are kept beside the new ones.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Any

from posterity import methods
from posterity.experiment.begin_again import tell_user
from posterity.experiment.config import Config
from posterity.experiment.fingerprint import fields_of, sources, tell_changes
from posterity.experiment.run_folder import clean, write_atomic
from posterity.experiment.setup import load_federation
from posterity.experiment.verify import make_folder
from posterity.experiment.without_data import fingerprint_of
from posterity.report.aside import MARK

PLAN = "tuning.json"


def check_plan(config: Config, seeds: Sequence[int], search_seed: int, out: Path) -> None:
    """Refuse to go on with other data, settings or seeds; more trials or more methods may be asked for."""
    before, plan = _read(out), _plan(config, seeds, search_seed)
    if before:
        pairs = [(name, before["config"].get(name), plan["config"].get(name)) for name in
                 sorted({*before["config"], *plan["config"]})]  # fmt: skip
        pairs += [(name, before[name], plan[name]) for name in ("seeds", "search_seed")]
        for name, was, now in pairs:
            if was != now:
                raise ValueError(f"{out} was begun with {name} = {was}, and now it is {now}: give what was given "
                                 "before, or another --out")  # fmt: skip
        if before.get("data", plan["data"]) != plan["data"]:
            raise ValueError(f"{out} was begun with other values of {config.dataset}: rows were edited since, or moved "
                             "to other parts. Put the old data back to go on, or give another --out")  # fmt: skip
    make_folder(out)
    _write(out, {**plan, "methods": before.get("methods", {})})


def begin_method(config: Config, name: str, path: Path) -> None:
    """Move the trials of a method aside that was edited since they were made, and write down what it is now."""
    plan, key = _read(path.parent), path.stem
    before = plan.get("methods", {}).get(key)
    if path.exists() and before is None:
        tell_user(f"remark: the trials in {path} were made before the source of a method was written down with them: "
                  "it is taken to be the same")  # fmt: skip
    elif path.exists() and (changes := tell_changes(before, config)):
        place = next(free for n in count(1) if not (free := path.with_name(f"{path.name}{MARK}{n}")).exists())
        path.rename(place)
        tell_user(f"{name}: {'; '.join(changes)}. Its trials are kept as {place}, count no more, and are done again")
    method = methods.build(config.method, config.settings(), config.training(), config.least)
    now = {"sources": sources(config, method), "method": {"fields": clean(fields_of(method))}}
    _write(path.parent, {**plan, "methods": {**plan.get("methods", {}), key: now}})


def _plan(config: Config, seeds: Sequence[int], search_seed: int) -> dict[str, Any]:
    told = {n: v for n, v in asdict(config).items() if n not in ("method", "seed", "keep") and v is not None}
    values = fingerprint_of(load_federation(replace(config, seed=seeds[0])))
    found: dict[str, Any] = json.loads(
        json.dumps({"config": told, "seeds": list(seeds), "search_seed": search_seed, "data": values})
    )
    return found


def _read(out: Path) -> dict[str, Any]:
    path = out / PLAN
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def _write(out: Path, plan: dict[str, Any]) -> None:
    write_atomic(out / PLAN, json.dumps(plan, indent=1).encode())


__all__ = ["PLAN", "begin_method", "check_plan"]
