"""A run's folder: written so that a kill at any instant loses nothing but time.

    config.toml              the resolved configuration
    run.json                 versions, federation, status
    metrics.jsonl            one line per round and per score
    checkpoint.safetensors   State, personal records, and how far metrics.jsonl belonged to them
    personal/                memory-mapped personal records (`store = "disk"`)

Whole files are written beside their place and moved over it. Lines are appended and forced to disk before the
checkpoint that counts them; what lies behind that count is cut off when the run is resumed. Runs that go together
write their checkpoints together: each beside its place, then a pledge in the folder above, then all are moved over.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save

from posterity.core.tree import Tree, tree_filled, tree_named

CHECKPOINT, METRICS, CONFIG, RUN = "checkpoint.safetensors", "metrics.jsonl", "config.toml", "run.json"
NEXT, PLEDGE = "checkpoint.next.safetensors", "together.json"
FORMAT = "1"


def write_atomic(path: Path, data: bytes) -> None:
    """All of `data` at `path`, or what was there before."""
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, (json.dumps(clean(value), indent=1, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text())
    return value


def clean(value: Any) -> Any:
    """`value` as JSON allows it: numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(k): clean(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def append_lines(path: Path, lines: list[dict[str, Any]]) -> int:
    """Append JSON lines, force them to disk, and return the file's length."""
    with path.open("ab") as file:
        file.write("".join(json.dumps(clean(line)) + "\n" for line in lines).encode())
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def save_checkpoint(folder: Path, trees: Mapping[str, Tree], facts: Mapping[str, Any], name: str = CHECKPOINT) -> None:
    """Named trees and facts in one file."""
    leaves = {f"{top}/{name}": leaf for top, tree in trees.items() for name, leaf in tree_named(tree)}
    flat = {n: leaf.detach().cpu().contiguous() for n, leaf in leaves.items()}
    meta = {"format": FORMAT, "facts": json.dumps(facts)}
    write_atomic(folder / name, save(flat, meta))


def save_checkpoints(folders: Sequence[Path], packs: Sequence[tuple[Mapping[str, Tree], Mapping[str, Any]]]) -> None:
    """The checkpoints of runs that go together: after a kill at any instant, all are the new ones or none is."""
    if len(folders) == 1:
        save_checkpoint(folders[0], *packs[0])
        return
    for folder, pack in zip(folders, packs, strict=True):
        save_checkpoint(folder, *pack, NEXT)
    write_json(_pledge(folders), {"commit": packs[0][1]["commit"], "runs": [folder.name for folder in folders]})
    for folder in folders:
        os.replace(folder / NEXT, folder / CHECKPOINT)


def keep_pledge(folders: Sequence[Path]) -> None:
    """End what a kill interrupted: checkpoints that were pledged come to their places, others are dropped."""
    path = _pledge(folders)
    pledged = read_json(path) if path.exists() else {}
    commit = pledged["commit"] if pledged.get("runs") == [folder.name for folder in folders] else 0
    for folder in folders:
        found = _read(folder / NEXT) if (folder / NEXT).exists() else None
        if found is not None and found[1]["commit"] == commit:
            os.replace(folder / NEXT, folder / CHECKPOINT)
        else:
            (folder / NEXT).unlink(missing_ok=True)


def _pledge(folders: Sequence[Path]) -> Path:
    """Where runs that go together pledge to; their folders stand side by side."""
    return folders[0].parent / PLEDGE


def read_checkpoint(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
    """Leaves by name and facts of the last checkpoint; None if there is none yet."""
    path = folder / CHECKPOINT
    return _read(path) if path.exists() else None


def read_leaves(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Leaves by name and facts of any file that `save_checkpoint` wrote."""
    return _read(path)


def _read(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    with safe_open(path, framework="pt") as file:
        meta = file.metadata() or {}
        if meta.get("format") != FORMAT:
            raise ValueError(f"{path} has format {meta.get('format')!r}; this version of posterity reads {FORMAT!r}")
        return {name: file.get_tensor(name) for name in file.keys()}, json.loads(meta["facts"])  # noqa: SIM118


def restore(template: Tree, leaves: Mapping[str, torch.Tensor], top: str) -> Tree:
    """The tree saved under `top`, in the shape of `template`; leaves that do not fit are named."""
    for name, leaf in tree_named(template, top):
        if name not in leaves or leaves[name].shape != leaf.shape:
            got = tuple(leaves[name].shape) if name in leaves else "nothing"
            raise ValueError(
                f"the checkpoint has {got} at {name}, but {tuple(leaf.shape)} is expected: it belongs to another "
                "method, model or federation"
            )
    return tree_filled(template, {n: t for n, t in leaves.items() if n.startswith(f"{top}/")}, top)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Refuse a second process on the same run; the lock goes with the process, however it ends."""
    try:
        import fcntl
    except ImportError:  # no such lock on this system
        yield
        return
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(f"{folder} is being written by another process; wait for it or stop it") from None
        yield
