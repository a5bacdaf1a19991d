"""What runs wrote, as files: a run folder, or what `posterity pack` made of many (`packing.py`).

`experiment/run_folder.py` writes run folders; `read_runs.py` makes records of what is read here.
"""

from __future__ import annotations

import gzip
import json
import os
import stat
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posterity.report.aside import is_aside

UNPACKED = 2**29  # bytes that a file of packed runs may expand to: the largest published one has 8 MB


class ReportError(ValueError):
    """A folder that cannot be reported on; the message says which, and what to do."""


@dataclass(frozen=True)
class RunLog:
    """What a run wrote, as it stands in its folder or in a file of packed runs."""

    folder: Path
    facts: Mapping[str, Any]  # run.json
    config: str  # config.toml
    lines: Sequence[Mapping[str, Any]]  # metrics.jsonl


def write_atomic(path: Path, data: bytes) -> None:
    """All of `data` at `path`, or what was there before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        draft.unlink(missing_ok=True)
        with draft.open("xb") as file:  # a new file: nothing is written through a link that somebody put there
            file.write(data)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def find_runs(folder: Path) -> list[Path]:
    """The run folders at or below `folder`."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ReportError(
            f"{folder} is neither a folder nor a file of packed runs. Give a run folder, a folder that contains run "
            "folders, or a file that `posterity pack` wrote."
        )
    found = sorted({p.parent for p in folder.rglob("run.json") if not is_aside(p.parent, folder)})
    if not found:
        raise ReportError(f"No run folder in {folder}: none of its folders has a run.json. Start one: posterity run …")
    return found


def read_log(folder: Path) -> RunLog:
    """What a run folder holds."""
    config, facts, metrics = (_text(folder / name) for name in ("config.toml", "run.json", "metrics.jsonl"))
    return RunLog(
        folder, _json(folder / "run.json", facts or ""), config or "", _lines(folder / "metrics.jsonl", metrics)
    )


def _text(path: Path) -> str | None:
    """A file of a run folder, None if it is not there. What lies elsewhere is not read: the folder may be anybody's."""
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(kind):  # a link leads out of the folder, a pipe never ends
        what = "a symbolic link" if stat.S_ISLNK(kind) else "no regular file"
        raise ReportError(f"{path} is {what}, and a report reads only what a run wrote. Put the file itself there.")
    return path.read_text(encoding="utf-8", errors="replace")


def read_packed(path: Path) -> list[RunLog]:
    """The runs of a file that `posterity pack` wrote."""
    try:
        raws = [json.loads(line) for line in _unpacked(path).decode().split("\n") if line]
        if not raws:
            raise ValueError("it is empty")
        return [RunLog(Path(raw["folder"]), raw["facts"], raw["config"], raw["lines"]) for raw in raws]
    except (OSError, EOFError, ValueError, KeyError, TypeError, RecursionError, zlib.error) as error:
        raise ReportError(f"{path} is no file of packed runs ({error}). `posterity pack FOLDER` writes one.") from error


def _unpacked(path: Path) -> bytes:
    """All of a packed file, unless it expands beyond what any table needs."""
    with gzip.open(path) as file:
        data = file.read(UNPACKED + 1)
    if len(data) > UNPACKED:
        raise ValueError(f"it expands to more than {UNPACKED // 2**20} MiB")
    return data


def _json(path: Path, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ReportError(f"{path} is not valid JSON: {error}. Was it edited by hand?") from error
    if not isinstance(value, dict):
        raise ReportError(f"{path} should hold a JSON object, not a {type(value).__name__}.")
    return value


def _lines(path: Path, text: str | None) -> list[dict[str, Any]]:
    """The lines of a log, without the half line at the end of a log whose writer was stopped."""
    lines = (text or "").removesuffix("\n").split("\n")
    found = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                break
            raise ReportError(f"{path}, line {number} is not valid JSON: {error}. Restore it or delete it.") from error
    return found
