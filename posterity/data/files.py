"""Finding files, pictures and labels: what the files of `data/datasets` are made of (arrays: `data/archives.py`,
forms of a distribution: `data/official.py`).
"""

from __future__ import annotations

import io
import struct
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from posterity.data.archives import Array
from posterity.data.official import VARIABLE
from posterity.data.pool import DataError

PARTS = ("x_train", "y_train", "x_test", "y_test")  # arrays, as Keras names them
FORMATS = ("PNG", "JPEG", "WEBP", "BMP")  # what Pillow may try: others start programs (EPS) or are seldom looked after
PIXELS = 2**30 // 12  # of one picture, a quarter of a GiB in colour; beyond, a few bytes may stand for a great many
BEGINNINGS = {b"GIF8": "GIF", b"%!PS": "PostScript", b"\xc5\xd0\xd3\xc6": "PostScript", b"%PDF": "PDF",
              b"<": "SVG or HTML", b"II*\0": "TIFF", b"MM\0*": "TIFF"}  # fmt: skip


def locate(data_dir: Path | None, name: str, dataset: str) -> Path:
    """The one file `name` under the data folder (several forms: `locate_form`)."""
    if data_dir is None:
        raise DataError(
            f"dataset {dataset}: no data folder given; expected one that holds {name}; "
            f"set the environment variable {VARIABLE} or pass data_dir"
        )
    if not (data_dir / name).is_file():
        folder = "" if data_dir.is_dir() else ", nor does the data folder itself"
        raise DataError(
            f"dataset {dataset}: {data_dir / name} does not exist{folder}; expected the file {name} in the data "
            f"folder; point {VARIABLE} or data_dir to the folder that holds it"
        )
    return data_dir / name


def decode(data: bytes, size: int = 0) -> Array:
    """A picture (height, width, 3) uint8 from its stored bytes, resized to size×size unless size is 0.

    What cannot be read, or is too large to be read, is an OSError that says why.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise DataError('pictures need Pillow, which is not installed; pip install "posterity[images]"') from None
    if not data:
        raise OSError("the file is empty")
    try:
        opened = warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning)
        with opened, Image.open(io.BytesIO(data), formats=FORMATS) as picture:
            if picture.width * picture.height > PIXELS:
                raise OSError(f"{picture.width}×{picture.height} pixels; at most {PIXELS:,} are opened")
            if picture.mode.startswith(("I", "F")):  # converted, whatever is above 255 would be white
                raise OSError("more than 8 bits a pixel; which values become 0 to 255 is yours to say: scale it, or "
                              "put the values into an .npz file")  # fmt: skip
            colour = picture.convert("RGB")
            return np.asarray(colour.resize((size, size)) if size else colour)
    except Image.DecompressionBombError:
        raise OSError(f"more than {PIXELS:,} pixels") from None
    except UnidentifiedImageError:
        kind = next((word for sign, word in BEGINNINGS.items() if data.lstrip().startswith(sign)), "")
        raise OSError(f"it is {kind}" if kind else "it is no picture that is known here") from None
    except (ValueError, SyntaxError, MemoryError, struct.error) as error:  # of a damaged file
        raise OSError(str(error) or type(error).__name__) from None


def decode_member(where: str, data: bytes | None, size: int = 0) -> Array:
    """A picture of an archive, as `decode` has it, or a sentence about it; None stands for one that is missing."""
    try:
        return decode(data or b"", size)
    except OSError as error:
        why = "it is missing" if data is None else error
        raise DataError(
            f"{where} cannot be read as a picture ({why}); expected {', '.join(FORMATS)}; fetch the archive again"
        ) from None


def decode_all(stored: Array, offsets: Array) -> list[Array]:
    """The pictures stored one after the other in one array of bytes."""
    data, found = stored.tobytes(), []
    for a, b in pairwise(offsets):
        try:
            found.append(decode(data[a:b]))
        except OSError as error:
            raise DataError(
                f"picture {len(found)} of {len(offsets) - 1} in an array cannot be read ({error}); expected "
                f"{', '.join(FORMATS)}; fetch the file again"
            ) from None
    return found


def unsheet(stored: Array, offsets: Array, side: int, count: int) -> Array:
    """`count` square pictures (count, side, side, 3) from sheets that hold them row by row."""
    tiles = [
        sheet.reshape(-1, side, sheet.shape[1] // side, side, 3).swapaxes(1, 2).reshape(-1, side, side, 3)
        for sheet in decode_all(stored, offsets)
    ]
    return np.concatenate(tiles)[:count]


def join_parts(path: Path, stored: dict[str, Array]) -> tuple[Array, Array, Array]:
    """Samples, labels and which are for testing, from x_train, y_train, x_test and y_test (the form of Keras)."""
    if missing := [name for name in PARTS if name not in stored]:
        raise DataError(
            f"{path}: arrays {', '.join(stored) or 'none'}; expected also {', '.join(missing)}; rename or add arrays"
        )
    x_train, y_train, x_test, y_test = (stored[name] for name in PARTS)
    y_train, y_test = (y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y for y in (y_train, y_test))
    for name, x, y in (("train", x_train, y_train), ("test", x_test, y_test)):
        if x.ndim < 1 or y.shape != x.shape[:1]:
            raise DataError(
                f"{path}: x_{name} has the shape {x.shape} and y_{name} {y.shape}; expected as many labels as samples; "
                "mend the arrays"
            )
    if x_train.shape[1:] != x_test.shape[1:] or x_train.dtype != x_test.dtype:
        raise DataError(
            f"{path}: samples are {x_train.dtype} {x_train.shape[1:]} in x_train and {x_test.dtype} "
            f"{x_test.shape[1:]} in x_test; expected the same; convert them"
        )
    test = np.arange(len(y_train) + len(y_test)) >= len(y_train)
    return np.concatenate([x_train, x_test]), np.concatenate([y_train, y_test]), test


def pictures(x: Array) -> Tensor:
    """Pictures uint8 (N, H, W) or (N, H, W, channels) as float32 (N, channels, H, W) in [-1, 1]."""
    pixels = torch.from_numpy(np.ascontiguousarray(x))
    pixels = pixels[:, None] if pixels.ndim == 3 else pixels.permute(0, 3, 1, 2)
    return pixels.to(torch.float32, memory_format=torch.contiguous_format).div_(127.5).sub_(1.0)


def integers(values: Array) -> Tensor:
    """Stored labels or ids as int64."""
    return torch.from_numpy(values.astype(np.int64))


def names(values: Array) -> tuple[str, ...]:
    return tuple(str(value) for value in values)
