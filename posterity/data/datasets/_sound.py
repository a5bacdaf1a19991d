"""Sound as pictures: WAV files, their samples at 8 kHz, and the log-mel picture of a short clip.

A clip is centred in 8,448 samples, or cut to them; 32 frames (Hann window of 512, every 256 samples) pass through 32
triangular mel bands from 60 to 4,000 Hz. A cell is the power in dB below the clip's loudest cell, from −80 (0) to 0
(255): how loud somebody speaks is gone, and silence is black. `read_spoken` reads the clips of a folder or an archive.
"""

import io
import re
import wave
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from posterity.data.archives import Array, demand, reading, walk_matching
from posterity.data.files import labelled
from posterity.data.pool import DataError, Pool

RATE = 8_000  # samples a second
LENGTH, WINDOW, HOP, BANDS = 8_448, 512, 256, 32  # 32 frames: (8,448 − 512) / 256 + 1
LOWEST, HIGHEST, FLOOR = 60.0, 4_000.0, -80.0
SECONDS = 60  # of a clip: what is longer is no spoken digit
REACH = 10  # of the filter before samples are left out: zero crossings on either side
CLIP = re.compile(r"([0-9])_(\w+?)_([0-9]{1,4})\.wav")  # digit, speaker, take
DIGITS = tuple("0123456789")


def read_wav(where: str, data: bytes) -> Array:
    """The samples (n,) of a WAV file at 8 kHz, as numbers from -1 to 1; several channels are averaged."""
    wanted = f"16 bits at a multiple of {RATE:,} Hz, at most {SECONDS} s, whole; fetch it again"
    with reading(where, wanted), wave.open(io.BytesIO(data)) as file:
        channels, width, rate, count = file.getparams()[:4]
        demand(width == 2 and not rate % RATE and 0 < rate <= 96_000, f"{8 * width} bits at {rate:,} Hz")
        demand(count <= SECONDS * rate, f"{count / rate:,.0f} s")
        raw = file.readframes(count)
        demand(len(raw) == count * channels * width > 0, f"{len(raw):,} bytes of sound")
    sound = np.frombuffer(raw, "<i2").reshape(-1, channels).mean(1) / 2**15
    return thinned(sound, rate // RATE)


def thinned(sound: Array, by: int) -> Array:
    """Every `by`-th sample after a low-pass filter, as scipy.signal.resample_poly(sound, 1, by) computes it."""
    if by == 1:
        return sound
    taps, half = _low_pass(by), REACH * by
    padded = np.pad(sound, (half, half + by))
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1)[::by]
    return (windows @ taps)[: -(-len(sound) // by)]


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
    return np.maximum(0, np.minimum(rising, falling))


def read_spoken(name: str, path: Path, published: int, person: Callable[[str], str] = str) -> Pool:
    """A pool in which every speaker is a client, in the order of speakers, digits and takes."""
    clips = {
        (match[2], int(match[1]), int(match[3])): log_mel(read_wav(where, data))
        for match, where, data in walk_matching(path, CLIP)
    }
    if not clips:
        given = f"{path}: no files such as 7_george_32.wav (digit, speaker, take)"
        raise DataError(f"{given}; expected {published:,} of them; fetch it again")
    rows = sorted(clips)
    people = list(dict.fromkeys(speaker for speaker, _, _ in rows))
    x, y = np.stack([clips[row] for row in rows]), [digit for _, digit, _ in rows]
    owner = [people.index(speaker) for speaker, _, _ in rows]
    return labelled(name, x, y, DIGITS, owner=owner, people=map(person, people), published=published, what="clips")
