"""Where a run or a comparison may be written: a new folder, an empty one, or one that holds what is to go on.

Nothing here imports PyTorch, and nothing writes: a mistake is told before anything is there to be cleaned away.
"""

from __future__ import annotations

from pathlib import Path

RUN_MARKS = ("config.toml", "lock")  # a run; and what it takes first, should a kill come before the configuration
COMPARISON_MARKS = ("comparison.json", "comparison.json.part")


def check_out(out: Path, comparison: bool = False) -> None:
    """Refuse a file, and a folder with other things in it: a run's files do not belong among them."""
    check_folder(out)
    if not out.exists():
        return
    if any((out / mark).exists() for mark in (COMPARISON_MARKS if comparison else RUN_MARKS)):
        return  # whoever begins or goes on there says what is wrong with it, if anything
    others = sorted(path.name for path in out.iterdir() if not path.name.startswith("."))
    if comparison and any(out.glob("*/seed-*/config.toml")):
        return  # runs of a comparison whose plan is gone: each is looked at by itself
    if others:
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        what = "comparison" if comparison else "run"
        raise ValueError(f"{out} holds other files ({', '.join(others[:3])}{more}) and no {what}: give an empty or a "
                         "new folder; nothing was written")  # fmt: skip


def check_folder(out: Path) -> None:
    """Refuse what is no folder, and cannot be made one."""
    if not out.exists():
        above = next(parent for parent in out.absolute().parents if parent.exists())
        if not above.is_dir():
            raise ValueError(f"{out} cannot be made, because {above} is a file: give another folder")
    elif not out.is_dir():
        raise ValueError(f"{out} is a file, and a folder is needed to write to: give another one")


def new_folder(name: str) -> Path:
    """`runs/name`, or `runs/name-2` and so on if that exists."""
    safe = "".join(c if c.isalnum() or c in "+-_." else "-" for c in name)
    for number in range(1, 10_000):
        path = Path("runs") / (safe if number == 1 else f"{safe}-{number}")
        if not path.exists():
            return path
    raise ValueError("there are 9,999 folders of this name under runs/; give --out")
