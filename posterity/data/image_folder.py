"""A user's image folder, `client/class/*.png`, as one table per client: `data/user_files.py` joins them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from posterity.data.archive import Array, check_file, list_folder
from posterity.data.files import decode
from posterity.data.pool import DataError, tell_option
from posterity.data.tables import Table

KINDS = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
LARGEST = 4096  # pixels, when pictures are resized


def read_image_folder(path: Path, size: int) -> list[Table]:
    """A table per client folder; pictures are resized to size×size unless size is 0; grey ones stay grey."""
    if size > LARGEST:
        raise DataError(f"{path}: option size is {size}; expected at most {LARGEST} pixels; lower it")
    clients = list_folders(path)
    files = {
        client: [(f, kind.name) for kind in list_folders(client) for f in list_pictures(kind)] for client in clients
    }
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
            shot = read_picture(file, size, path)
            shape = shape or shot.shape
            if shot.shape != shape:
                raise DataError(
                    f"{file}: {shot.shape[1]}×{shot.shape[0]} pixels; expected {shape[1]}×{shape[0]} as in the first "
                    f"picture; give {tell_option('size', 32)} to resize all"
                )
            shots.append(shot)
        tables[client] = shots
    grey = all((shot == shot[..., :1]).all() for shots in tables.values() for shot in shots)
    notes = _left_out(clients)
    return [
        _table(client, shots, [kind for _, kind in files[client]], shape, grey, notes)
        for client, shots in tables.items()
    ]


def _table(
    client: Path,
    shots: list[Array],
    kinds: list[str],
    shape: tuple[int, ...] | None,
    grey: bool,
    notes: tuple[str, ...],
) -> Table:
    x = np.stack(shots) if shots else np.zeros((0, *(shape or ())), dtype=np.uint8)
    return Table(client, x[..., :1] if grey else x, np.array(kinds, dtype=np.str_), notes=notes)


def read_picture(file: Path, size: int, root: Path) -> Array:
    """A picture (height, width, 3), which must lie inside of `root`."""
    check_file(file, "a picture", root)
    try:
        return decode(file.read_bytes(), size)
    except OSError as error:
        raise DataError(
            f"{file}: cannot be read as a picture ({error}); expected {', '.join(KINDS)}; remove it"
        ) from None


def list_folders(path: Path) -> list[Path]:
    """The folders in a folder, by name."""
    found = [p for p in list_folder(path) if p.is_dir()]
    for folder in found:
        if not folder.name.isprintable() and any("\ud800" <= c <= "\udfff" for c in folder.name):
            raise DataError(f"{folder}: a name that is not UTF-8; expected one that can be written; rename the folder")
    return found


def list_pictures(path: Path) -> list[Path]:
    """The files in a folder that are pictures by their suffix."""
    return [p for p in list_folder(path) if p.suffix.lower() in KINDS]


def _left_out(clients: list[Path]) -> tuple[str, ...]:
    """A remark on files that stand where pictures are expected, and are none."""
    kinds = [kind for client in clients for kind in list_folders(client)]
    others = [p for kind in kinds for p in list_folder(kind) if p.suffix.lower() not in KINDS and not p.is_dir()]
    if not others:
        return ()
    shown = ", ".join(str(p.relative_to(p.parents[2])) for p in others[:3]) + (", …" if len(others) > 3 else "")
    return (
        f"{len(others)} files in the class folders are left out, since they are none of {', '.join(KINDS)}: {shown}",
    )
