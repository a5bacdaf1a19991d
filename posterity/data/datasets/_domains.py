"""Pictures of several domains, each a client: folders `domain/class/*.jpg`, or `domain/images/class/*.jpg`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from posterity.data.files import integers, pictures
from posterity.data.pool import DataError, Pool
from posterity.data.user_files import LARGEST_SIDE, list_folders, list_pictures, read_picture


def read_domains(name: str, domains: dict[str, Path], size: int, classes: int, published: int) -> Pool:
    """A pool of all pictures, resized to size×size, domain by domain and class by class."""
    if not 1 <= size <= LARGEST_SIDE:
        raise DataError(f"{name}: size={size}; expected 1 to {LARGEST_SIDE} pixels; change it")
    kinds = {domain: _class_folders(path) for domain, path in domains.items()}
    names = tuple(sorted({folder.name for folders in kinds.values() for folder in folders}))
    if len(names) != classes:
        shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
        raise DataError(
            f"{name}: {len(names)} classes ({shown or 'none'}) in {', '.join(str(p) for p in domains.values())}; "
            f"expected {classes} folders of pictures in each; fetch the archive again"
        )
    shots, y, owner = [], [], []
    for number, (domain, folders) in enumerate(kinds.items()):
        for folder in folders:
            for file in list_pictures(folder):
                shots.append(read_picture(file, size, domains[domain]))
                y.append(names.index(folder.name))
                owner.append(number)
        if number not in owner[-1:]:
            raise DataError(f"{domains[domain]}: no pictures; expected some in class folders; fetch the archive again")
    notes = [f"{name}: pictures resized to {size}×{size} without keeping their aspect ratio"]
    if len(y) != published:
        notes.append(f"{name}: {len(y):,} pictures; the official folders hold {published:,}")
    return Pool(
        name,
        pictures(np.stack(shots)),
        integers(np.array(y)),
        classes,
        names,
        owner=integers(np.array(owner)),
        owner_names=tuple(domains),
        notes=tuple(notes),
        published=published,
    )


def _class_folders(path: Path) -> list[Path]:
    if not path.is_dir():
        raise DataError(f"{path}: is no folder; expected one of class folders; unpack the archive")
    inner = path / "images"  # as Office-31 has them
    return list_folders(inner if inner.is_dir() else path)
