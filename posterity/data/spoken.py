"""Spoken digits in files `DIGIT_SPEAKER_TAKE.wav`, out of a folder or an archive: one log-mel picture each."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

import numpy as np

from posterity.data.archive import Array
from posterity.data.audio import log_mel, read_wav
from posterity.data.files import integers, pictures
from posterity.data.members import walk_members
from posterity.data.pool import DataError, Pool

CLIP = re.compile(r"([0-9])_(\w+?)_([0-9]{1,4})\.wav")
DIGITS = tuple("0123456789")


def read_spoken(name: str, path: Path, published: int) -> Pool:
    """A pool in which every speaker is a client, in the order of speakers, digits and takes."""
    clips: dict[tuple[str, int, int], Array] = {}
    for member, data in walk_members(path, lambda member: bool(_clip(member))):
        match = _clip(member)
        assert match is not None
        clips[(match[2], int(match[1]), int(match[3]))] = log_mel(read_wav(f"{path}: {member}", data))
    if not clips:
        raise DataError(f"{path}: no files such as 7_george_32.wav (digit, speaker, take); expected {published:,} of "
                        "them; fetch it again")  # fmt: skip
    rows = sorted(clips)
    people = tuple(dict.fromkeys(speaker for speaker, _, _ in rows))
    owner = np.array([people.index(speaker) for speaker, _, _ in rows])
    y = np.array([digit for _, digit, _ in rows])
    notes = (f"{name}: {len(rows):,} of {published:,} clips",) * (len(rows) != published)
    return Pool(
        name,
        pictures(np.stack([clips[row] for row in rows])),
        integers(y),
        len(DIGITS),
        DIGITS,
        owner=integers(owner),
        owner_names=people,
        notes=notes,
        published=published,
    )


def _clip(member: str) -> re.Match[str] | None:
    return CLIP.fullmatch(PurePosixPath(member).name)


__all__ = ["DIGITS", "read_spoken"]
