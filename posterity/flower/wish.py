"""A site's own wish to leave: a file beside its record, which the site finds at the next request.

    leave.json   the wish; it can be taken back
    left.json    the request that was answered with it; from then on the site has left

One becomes the other by being renamed, so that a wish is either taken back or answered, never both. A site that has
left answers every further request in the same way, for the first answer may be lost. Its record and its last offer
stay: it predicts as before.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from posterity.experiment.run_folder import read_json, write_json
from posterity.flower.sent import SENT

WISH, LEFT = "leave.json", "left.json"


# --- whoever keeps the site --------------------------------------------------------------------------------------
def find_place(folder: Path) -> Path:
    """The folder of the one client that has registered from `folder`: itself, or one or two levels below it."""
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}: give the one that this site's node configuration calls "
                         "'records', or RECORDS/EXPERIMENT/CLIENT in it")  # fmt: skip
    found = sorted({path.parent for depth in ("", "*/", "*/*/") for path in folder.glob(depth + SENT)})
    if not found:
        raise ValueError(f"{folder} holds no {SENT}: no client has registered from there, so there is nothing to "
                         "leave; give the folder that this site's node configuration calls 'records'")  # fmt: skip
    if len(found) > 1:
        raise ValueError(f"{folder} holds {len(found)} clients or experiments: give the folder of one of them, "
                         f"{' or '.join(map(str, found))}")  # fmt: skip
    return found[0]


def wish_to_leave(place: Path) -> None:
    """The client leaves at the next request."""
    _refuse_left(place)
    write_json(place / WISH, {"client": place.name, "experiment": place.parent.name})


def take_back(place: Path) -> None:
    """The client stays after all."""
    try:
        (place / WISH).unlink()
    except FileNotFoundError:
        _refuse_left(place)
        raise ValueError(f"{place} holds no wish to leave that could be taken back: this client takes part") from None


def _refuse_left(place: Path) -> None:
    if (place / LEFT).exists():
        factor = read_json(place / LEFT).get("factor")
        what = "its factor went along" if factor else "no factor went along: what it contributed stays"
        raise ValueError(f"{place} has left the experiment for good: it said so in round {left_in(place)} ({what}); "
                         "its own model is still here, for 'posterity flower predict'")  # fmt: skip


# --- the site ----------------------------------------------------------------------------------------------------
def is_leaving(place: Path, trial: bool) -> bool:
    """Whether a request is to be answered with the wish; a trial belongs to the round before, which is not over."""
    return (place / LEFT).exists() or ((place / WISH).exists() and not trial)


def seal_wish(place: Path) -> bool:
    """Make the wish one that cannot be taken back; False: it has been, a moment ago."""
    with suppress(FileNotFoundError):
        os.replace(place / WISH, place / LEFT)
    return (place / LEFT).exists()


def left_in(place: Path) -> int:
    """The round in which this client said that it leaves; 0: it has not."""
    return int(read_json(place / LEFT).get("round", 0)) if (place / LEFT).exists() else 0


def write_left(place: Path, round: int, factor: bool) -> None:
    """What the client said when it left, for whoever asks at the site."""
    write_json(place / LEFT, {"client": place.name, "experiment": place.parent.name, "round": round, "factor": factor})


__all__ = ["find_place", "is_leaving", "left_in", "seal_wish", "take_back", "wish_to_leave", "write_left"]
