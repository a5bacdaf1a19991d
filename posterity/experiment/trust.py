"""Modules that a run's folder names: importing one runs whatever stands in it, so the user must have named it, too.

`posterity run` and `compare` name theirs on the command line. A folder that is taken up again may be anybody's: what
its configuration names as `package.module:attribute` is imported only if the user says so.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

from posterity.core.parse import split_name
from posterity.data.partition import RULES
from posterity.data.user_files import looks_like_path
from posterity.experiment import run_folder
from posterity.experiment.compare import PLAN
from posterity.experiment.config import Config, from_table, read_toml


def outside_names(config: Config) -> dict[str, str]:
    """What a configuration takes from modules of the user's own: setting → `package.module:attribute`."""
    found = {
        "method": next((word for word in config.method.split("+") if ":" in word), ""),
        "dataset": config.dataset if ":" in config.dataset and not looks_like_path(config.dataset) else "",
        "partition": _user_rule(config.partition or ""),
        "model": config.model if ":" in config.model else "",
        "engine": config.engine if ":" in config.engine else "",
        "metrics": config.metrics or "",
    }
    return {setting: name for setting, name in found.items() if name}


def _user_rule(partition: str) -> str:
    """The partition if it is none of ours: these have numbers behind a colon, others a name."""
    return partition if ":" in partition and split_name(partition)[0] not in RULES else ""


def check_trusted(folder: Path, trust: bool) -> None:
    """Refuse to import what the configurations in or under a folder name, unless the user trusts them."""
    for path, setting, name in () if trust else _code(folder):
        raise ValueError(
            f"{path} names code of its own (the {setting} {name!r}), which would be imported and run: if you know "
            "who wrote the folder and the module, say so with --trust (in Python: trust=True)"
        )


def needs_trust(folder: Path) -> bool:
    """Whether `resume` will ask for `--trust`; not of a folder that cannot be read."""
    try:
        return next(_code(folder), None) is not None
    except (ValueError, OSError):
        return False


def _code(folder: Path) -> Iterator[tuple[Path, str, str]]:
    """What the configurations in or under a folder name as code: where, for which setting, what."""
    for path, config in _configs(folder):
        for setting, name in outside_names(config).items():
            yield path, setting, name


def _configs(folder: Path) -> Iterator[tuple[Path, Config]]:
    """Every configuration that `resume` would take up."""
    if (folder / PLAN).exists():
        plan = run_folder.read_json(folder / PLAN)
        for method in plan.get("methods", ()):
            table = {**tomllib.loads(str(plan.get("config", ""))), "method": str(method)}
            yield folder / PLAN, from_table(table)
    for path in sorted(folder.rglob(run_folder.CONFIG)):
        yield path, from_table(read_toml(path))


__all__ = ["check_trusted", "needs_trust", "outside_names"]
