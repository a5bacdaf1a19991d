"""A user's image folder, `client/class/*.png`, as one table per client: `data/user_files.py` joins them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from posterity.data.files import Array, decode
from posterity.data.pool import DataError
from posterity.data.tables import Table

KINDS = (".png", ".jpg", ".jpeg", ".webp", ".bmp")


def read_image_folder(path: Path, size: int) -> list[Table]:
    """A table per client folder; pictures are resized to size×size unless size is 0; grey ones stay grey."""
    clients = _folders(path)
    files = {client: [(f, kind.name) for kind in _folders(client) for f in _pictures(kind)] for client in clients}
    if not any(files.values()):
        raise DataError(
            f"{path}: neither .csv, .npz or .parquet files nor pictures in client/class/ folders; expected one of "
            f"these ({', '.join(KINDS)}); check the path"
        )
    shape: tuple[int, ...] | None = None
    tables = {}
    for client, listed in files.items():
        shots = []
        for file, _ in listed:
            shot = _picture(file, size)
            shape = shape or shot.shape
            if shot.shape != shape:
                raise DataError(
                    f"{file}: {shot.shape[1]}×{shot.shape[0]} pixels; expected {shape[1]}×{shape[0]} as in the first "
                    'picture; give options={"size": 32} to resize all'
                )
            shots.append(shot)
        tables[client] = shots
    grey = all((shot == shot[..., :1]).all() for shots in tables.values() for shot in shots)
    return [_table(client, shots, [kind for _, kind in files[client]], shape, grey) for client, shots in tables.items()]


def _table(client: Path, shots: list[Array], kinds: list[str], shape: tuple[int, ...] | None, grey: bool) -> Table:
    x = np.stack(shots) if shots else np.zeros((0, *(shape or ())), dtype=np.uint8)
    return Table(client, x[..., :1] if grey else x, np.array(kinds, dtype=np.str_))


def _picture(file: Path, size: int) -> Array:
    try:
        return decode(file.read_bytes(), size)
    except OSError as error:
        raise DataError(
            f"{file}: cannot be read as a picture ({error}); expected {', '.join(KINDS)}; remove it"
        ) from None


def _folders(path: Path) -> list[Path]:
    return sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))


def _pictures(path: Path) -> list[Path]:
    return sorted(p for p in path.iterdir() if p.suffix.lower() in KINDS and not p.name.startswith("."))
