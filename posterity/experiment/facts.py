"""What `run.json` says of any run, wherever its clients are: its network, the software, and the method."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from posterity import methods
from posterity.core.network import held
from posterity.core.protocol import Method
from posterity.data.preprocess import fingerprint
from posterity.engine.simulation import Simulation
from posterity.experiment.fingerprint import fields_of
from posterity.settings.config import Config
from posterity.version import __version__


def network_facts(sim: Simulation) -> dict[str, Any]:
    """Its name, its size, and a fingerprint of weights that no seed could make again, or that no checkpoint holds."""
    still = held(sim.model)
    kept, leaves = not getattr(sim.model, "fresh", True), {**sim.initial, **still}
    facts = {
        "name": sim.model.name,
        "numbers": sum(leaf.numel() for leaf in leaves.values()),
        "weights": fingerprint(tuple(leaves.values())) if kept else None,
    }
    frozen = {"numbers": sum(leaf.numel() for leaf in still.values()), "weights": fingerprint(tuple(still.values()))}
    return {**facts, "frozen": frozen} if still else facts


COMMIT = "POSTERITY_COMMIT"  # environment: the commit of a copy that has no history of its own


def software_facts() -> dict[str, Any]:
    """Which versions run, and since when."""
    return {
        "posterity": __version__,
        "commit": source_commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "status": "running",
        "seconds": 0.0,
    }


def method_facts(config: Config, method: Method, fitted: bool) -> dict[str, Any]:
    """The method as it is in force; `fitted`: something is fitted on the validation part before it is scored."""
    return {"name": config.method, "label": methods.title(config.method, method), "scored": method.scored,
            "reference": method.reference, "absent": method.absent, "fields": fields_of(method),
            "outside": method.outside, "fitted": fitted}  # fmt: skip


def source_commit() -> str:
    """The commit of the checkout that this package lies in, with `-dirty` if it was changed; empty if there is none."""
    if (told := os.environ.get(COMMIT)) is not None:
        return told
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():  # an installed package may lie below somebody else's checkout
        return ""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:  # no git here
        return ""
    return asked.stdout.strip() if asked.returncode == 0 else ""
