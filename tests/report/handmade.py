"""Runs whose every number a test has written down itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .fake_runs import write_run


def scored(round: int, value: float, part: str = "test", point: str = "received", epochs: int = 0,
           group: str = "members", **more: Any) -> dict[str, Any]:  # fmt: skip
    """One line of scores whose pooled accuracy is `value`."""
    line = {"kind": "score", "round": round, "point": point, "epochs": epochs, "group": group, "part": part}
    return line | {"metrics": {"accuracy": {"pooled": value}}} | more


def everywhere(round: int, value: float, **more: Any) -> list[dict[str, Any]]:
    """The same accuracy on validation, test and both."""
    return [scored(round, value, part, **more) for part in ("validation", "test", "held")]


def trained(round: int, up: int = 100, down: int = 50, loss: float = 1.0, **more: Any) -> dict[str, Any]:
    return {"kind": "round", "round": round, "cohort": 3, "loss": loss, "bytes_up": up, "bytes_down": down,
            "seconds": 0.25} | more  # fmt: skip


def run_of(folder: Path, lines: list[dict[str, Any]], method: str = "fedavg", seed: int = 0, **options: Any) -> Path:
    """A run folder that tells `lines` and nothing else."""
    write_run(folder, method, 0.5, seed, **{"clients": 3, "rounds": 6, **options})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def edited(folder: Path, name: str, old: str, new: str) -> None:
    """A file of a run folder with one text replaced."""
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new))
