"""Finding and reading stored arrays and pictures, without pickles: what the files of `data/datasets` are made of."""

from __future__ import annotations

import io
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from posterity.data.pool import DataError

VARIABLE = "POSTERITY_DATA"
Array = NDArray[Any]


def locate(data_dir: Path | None, name: str, dataset: str) -> Path:
    """The file `name` under the data folder."""
    if data_dir is None:
        raise DataError(
            f"dataset {dataset}: no data folder given; expected one that holds {name}; "
            f"set the environment variable {VARIABLE} or pass data_dir"
        )
    if not (data_dir / name).is_file():
        raise DataError(
            f"dataset {dataset}: {data_dir / name} does not exist; expected the file {name} in the data folder; "
            f"point {VARIABLE} or data_dir to the folder that holds it"
        )
    return data_dir / name


def read_npz(path: Path) -> dict[str, Array]:
    """All arrays of an .npz file."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (ValueError, OSError, EOFError, AttributeError) as error:
        raise DataError(
            f"{path}: cannot be read ({error}); expected an .npz of plain arrays (no objects, no pickles); "
            "write it with numpy.savez"
        ) from None


def decode(data: bytes, size: int = 0) -> Array:
    """A picture (height, width, 3) uint8 from its stored bytes, resized to size×size unless size is 0."""
    try:
        from PIL import Image
    except ImportError:
        raise DataError('pictures need Pillow, which is not installed; pip install "posterity[images]"') from None
    with Image.open(io.BytesIO(data)) as picture:
        colour = picture.convert("RGB")
        return np.asarray(colour.resize((size, size)) if size else colour)


def decode_all(stored: Array, offsets: Array) -> list[Array]:
    """The pictures stored one after the other in one array of bytes."""
    data = stored.tobytes()
    return [decode(data[a:b]) for a, b in pairwise(offsets)]


def unsheet(stored: Array, offsets: Array, side: int, count: int) -> Array:
    """`count` square pictures (count, side, side, 3) from sheets that hold them row by row."""
    tiles = [
        sheet.reshape(-1, side, sheet.shape[1] // side, side, 3).swapaxes(1, 2).reshape(-1, side, side, 3)
        for sheet in decode_all(stored, offsets)
    ]
    return np.concatenate(tiles)[:count]


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
