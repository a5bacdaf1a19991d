"""Pictures and labels, and a pool of them: what the files of `data/datasets` are made of.

Files and arrays are read by `data/archives.py`; `data/official.py` finds them.
"""

import io
import struct
import warnings
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posterity.data.archives import Array, check_arrays
from posterity.data.pool import DataError, Pool

PARTS = ("x_train", "y_train", "x_test", "y_test")  # arrays, as Keras names them
FORMATS = ("PNG", "JPEG", "WEBP", "BMP")  # what Pillow may try: others start programs (EPS) or are seldom looked after
PIXELS = 2**30 // 12  # of one picture, a quarter of a GiB in colour; beyond, a few bytes may stand for a great many


def decode(data: bytes, size: int = 0) -> Array:
    """A picture (height, width, 3) uint8 from its stored bytes, resized to size×size unless size is 0.

    What cannot be read, or is too large to be read, is an OSError that says why.
    """
    pillow = import_pillow()
    if not data:
        raise OSError("the file is empty")
    try:
        opened = warnings.catch_warnings(action="ignore", category=pillow.DecompressionBombWarning)
        with opened, pillow.open(io.BytesIO(data), formats=FORMATS) as picture:
            if picture.width * picture.height > PIXELS:
                raise OSError(f"{picture.width}×{picture.height} pixels; at most {PIXELS:,} are opened")
            if picture.mode.startswith(("I", "F")):  # converted, whatever is above 255 would be white
                raise OSError("more than 8 bits a pixel: scale it to 0 to 255, or put the values into an .npz file")
            colour = picture.convert("RGB")
            return np.asarray(colour.resize((size, size)) if size else colour)
    except pillow.UnidentifiedImageError:
        raise OSError("it is no picture that is known here") from None
    except (ValueError, SyntaxError, MemoryError, struct.error, pillow.DecompressionBombError) as error:
        raise OSError(str(error) or type(error).__name__) from None


def import_pillow() -> Any:
    """The module `PIL.Image`."""
    try:
        from PIL import Image
    except ImportError:
        raise DataError('pictures need Pillow, which is not installed; pip install "posterity[images]"') from None
    return Image


def decode_member(where: str, data: bytes | None, size: int = 0) -> Array:
    """A picture of an archive, as `decode` has it, or a sentence about it; None stands for one that is missing."""
    try:
        return decode(data or b"", size)
    except OSError as error:
        why = "it is missing" if data is None else error
        given = f"{where} cannot be read as a picture ({why})"
        raise DataError(f"{given}; expected {', '.join(FORMATS)}; fetch the archive again") from None


def decode_all(stored: Array, offsets: Array) -> list[Array]:
    """The pictures stored one after the other in one array of bytes."""
    data, last = stored.tobytes(), len(offsets) - 2
    return [decode_member(f"picture {k} of {last}", data[a:b]) for k, (a, b) in enumerate(pairwise(offsets))]


def unsheet(stored: Array, offsets: Array, side: int, count: int) -> Array:
    """`count` square pictures (count, side, side, 3) from sheets that hold them row by row."""
    tiles = [
        sheet.reshape(-1, side, sheet.shape[1] // side, side, 3).swapaxes(1, 2).reshape(-1, side, side, 3)
        for sheet in decode_all(stored, offsets)
    ]
    return np.concatenate(tiles)[:count]


def join_parts(path: Path, stored: dict[str, Array]) -> tuple[Array, Array, Array]:
    """Samples, labels and which are for testing, from x_train, y_train, x_test and y_test (the form of Keras)."""
    check_arrays(path, stored, PARTS)
    x_train, y_train, x_test, y_test = (stored[name] for name in PARTS)
    y_train, y_test = (y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y for y in (y_train, y_test))
    for name, x, y in (("train", x_train, y_train), ("test", x_test, y_test)):
        if x.ndim < 1 or y.shape != x.shape[:1]:
            raise DataError(f"{path}: x_{name} {x.shape} and y_{name} {y.shape}; expected as many labels as samples")
    if x_train.shape[1:] != x_test.shape[1:] or x_train.dtype != x_test.dtype:
        kinds = f"x_train {x_train.dtype} {x_train.shape[1:]} and x_test {x_test.dtype} {x_test.shape[1:]}"
        raise DataError(f"{path}: {kinds}; expected the same; convert them")
    test = np.arange(len(y_train) + len(y_test)) >= len(y_train)
    return np.concatenate([x_train, x_test]), np.concatenate([y_train, y_test]), test


def pictures(x: Array) -> Tensor:
    """Pictures uint8 (N, H, W) or (N, H, W, channels) as float32 (N, channels, H, W) in [-1, 1]."""
    pixels = torch.from_numpy(np.ascontiguousarray(x))
    pixels = pixels[:, None] if pixels.ndim == 3 else pixels.permute(0, 3, 1, 2)
    return pixels.to(torch.float32, memory_format=torch.contiguous_format).div_(127.5).sub_(1.0)


def integers(values: Any) -> Tensor:
    """Stored labels or ids as int64."""
    return torch.from_numpy(np.asarray(values).astype(np.int64))


def check_labels(where: object, y: Array, first: int, classes: int) -> None:
    """Refuse labels that no class has."""
    if not len(y):
        raise DataError(f"{where}: no rows at all; expected labelled pictures; fetch the files again")
    low, high, last = int(y.min()), int(y.max()), first + classes - 1
    if low < first or high > last:
        raise DataError(f"{where}: labels from {low} to {high}; expected {first} to {last}; another dataset, or "
                        "damaged? fetch it again")  # fmt: skip


def labelled(
    name: str,
    x: Array | Tensor,
    y: Any,
    classes: Iterable[object],
    *,
    owner: Any = None,
    people: Iterable[object] = (),
    test: Any = None,
    published: int = 0,
    what: str = "pictures",
    notes: tuple[str, ...] = (),
) -> Pool:
    """A pool of labelled pictures x, bytes or a finished tensor; a note where these are not all that are published.

    `owner` numbers the `people` (clients), `test` marks the official test split.
    """
    if len(y) != published > 0:
        notes = (f"{name}: {len(y):,} of {published:,} {what}", *notes)
    kinds = tuple(map(str, classes))
    return Pool(
        name,
        x if isinstance(x, Tensor) else pictures(x),
        integers(y),
        len(kinds),
        kinds,
        owner=None if owner is None else integers(owner),
        owner_names=tuple(map(str, people)),
        official_test=None if test is None else torch.from_numpy(np.asarray(test).astype(bool)),
        notes=notes,
    )
