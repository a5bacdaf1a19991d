"""Sound as pictures: WAV files, their samples at 8 kHz, and the log-mel picture of a short clip.

A clip is centred in 8,448 samples, or cut to them; 32 frames (Hann window of 512, every 256 samples) pass through 32
triangular mel bands from 60 to 4,000 Hz. A cell is the power in dB below the clip's loudest cell, from −80 (0) to 0
(255): how loud somebody speaks is gone, and silence is black.

Spoken digits in files `DIGIT_SPEAKER_TAKE.wav`, out of a folder or an archive: one log-mel picture each.
"""

from __future__ import annotations

import io
import re
import wave
from functools import cache
from pathlib import Path, PurePosixPath

import numpy as np

from posterity.data.archives import Array, walk_members
from posterity.data.files import integers, pictures
from posterity.data.pool import DataError, Pool

RATE = 8_000  # samples a second
LENGTH, WINDOW, HOP, BANDS = 8_448, 512, 256, 32  # 32 frames: (8,448 − 512) / 256 + 1
LOWEST, HIGHEST, FLOOR = 60.0, 4_000.0, -80.0
SECONDS = 60  # of a clip: what is longer is no spoken digit
REACH = 10  # of the filter before samples are left out: zero crossings on either side


def read_wav(where: str, data: bytes) -> Array:
    """The samples (n,) of a WAV file at 8 kHz, as numbers from -1 to 1; several channels are averaged."""
    try:
        with wave.open(io.BytesIO(data)) as file:
            channels, width, rate, count = file.getparams()[:4]
            _check_format(where, width, rate, count)
            raw = file.readframes(count)
    except (wave.Error, EOFError) as error:
        raise DataError(
            f"{where} cannot be read as a WAV file ({str(error) or 'it ends too early'}); expected one of 16 bits; "
            "fetch it again"
        ) from None
    if not raw or len(raw) != count * channels * width:
        raise DataError(f"{where} holds {len(raw):,} bytes of sound; expected {count * channels * width:,}; fetch it "
                        "again")  # fmt: skip
    sound = np.frombuffer(raw, "<i2").reshape(-1, channels).mean(1) / 2**15
    return thinned(sound, rate // RATE)


def _check_format(where: str, width: int, rate: int, count: int) -> None:
    if width != 2 or rate % RATE or not 0 < rate <= 96_000:
        raise DataError(
            f"{where} has {8 * width} bits at {rate:,} Hz; expected 16 at a multiple of {RATE:,} Hz; fetch it again"
        )
    if count > SECONDS * rate:
        raise DataError(f"{where} lasts {count / rate:,.0f} s; expected a clip of at most {SECONDS} s; remove it")


def thinned(sound: Array, by: int) -> Array:
    """Every `by`-th sample after a low-pass filter, as scipy.signal.resample_poly(sound, 1, by) computes it."""
    if by == 1:
        return sound
    taps, half = _low_pass(by), REACH * by
    padded = np.pad(sound, (half, half + by))
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1)[::by]
    found: Array = (windows @ taps)[: -(-len(sound) // by)]
    return found


@cache
def _low_pass(by: int) -> Array:
    """A sinc at the new rate's limit in a Kaiser window (β = 5), which leaves a constant as it is."""
    place = np.arange(-REACH * by, REACH * by + 1)
    taps: Array = np.sinc(place / by) * np.kaiser(len(place), 5.0)
    return taps / taps.sum()


def log_mel(sound: Array) -> Array:
    """The picture (32 bands from low to high, 32 frames) uint8 of a clip at 8 kHz."""
    frames = np.lib.stride_tricks.sliding_window_view(_centred(sound), WINDOW)[::HOP]  # (32, 512)
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
    power = np.abs(np.fft.rfft(frames * hann)) ** 2  # (32, 257)
    cells = _mel_bands() @ power.T  # (bands, frames)
    loudest = cells.max()
    if loudest <= 0:
        return np.zeros((BANDS, len(frames)), dtype=np.uint8)
    level = 10 * np.log10(np.maximum(cells / loudest, 10 ** (FLOOR / 10)))
    return np.rint(255 * (1 - level / FLOOR)).astype(np.uint8)


def _centred(sound: Array) -> Array:
    """The middle of a sound, with silence around it where it is short."""
    start = max(0, (len(sound) - LENGTH) // 2)
    middle = sound[start : start + LENGTH]
    before = (LENGTH - len(middle)) // 2
    return np.pad(middle, (before, LENGTH - len(middle) - before))


@cache
def _mel_bands() -> Array:
    """Triangles (bands, 257) over the frequencies of a frame, of height 1, evenly spaced in mel."""
    low, high = (2595 * np.log10(1 + f / 700) for f in (LOWEST, HIGHEST))
    corners = 700 * (10 ** (np.linspace(low, high, BANDS + 2) / 2595) - 1)
    frequency = np.fft.rfftfreq(WINDOW, 1 / RATE)
    left, middle, right = (corners[i : i + BANDS, None] for i in range(3))
    rising, falling = (frequency - left) / (middle - left), (right - frequency) / (right - middle)
    bands: Array = np.maximum(0, np.minimum(rising, falling))
    return bands


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
