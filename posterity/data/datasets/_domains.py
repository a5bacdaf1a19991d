"""Pictures of several domains, each a client: folders `domain/class/*.jpg`, or `domain/images/class/*.jpg`."""

from pathlib import Path

import numpy as np

from posterity.data.files import labelled
from posterity.data.pool import DataError, Pool
from posterity.data.user_files import check_side, list_folders, list_pictures, read_picture


def read_domains(name: str, domains: dict[str, Path], size: int, classes: int, published: int) -> Pool:
    """A pool of all pictures, resized to size×size, domain by domain and class by class."""
    check_side(name, size)
    kinds = {domain: _class_folders(path) for domain, path in domains.items()}
    names = tuple(sorted({folder.name for folders in kinds.values() for folder in folders}))
    if len(names) != classes:
        given = f"{len(names)} classes ({', '.join(names[:5])}) in {', '.join(map(str, domains.values()))}"
        raise DataError(f"{name}: {given}; expected {classes} folders of pictures in each; fetch the archive again")
    shots, y, owner = [], [], []
    for number, (domain, folders) in enumerate(kinds.items()):
        for folder in folders:
            for file in list_pictures(folder):
                shots.append(read_picture(file, size, domains[domain]))
                y.append(names.index(folder.name))
                owner.append(number)
        if number not in owner[-1:]:
            raise DataError(f"{domains[domain]}: no pictures; expected some in class folders; fetch the archive again")
    notes = (f"{name}: pictures resized to {size}×{size} without keeping their aspect ratio",)
    return labelled(name, np.stack(shots), y, names, owner=owner, people=domains, published=published, notes=notes)


def _class_folders(path: Path) -> list[Path]:
    if not path.is_dir():
        raise DataError(f"{path}: is no folder; expected one of class folders; unpack the archive")
    inner = path / "images"  # as Office-31 has them
    return list_folders(inner if inner.is_dir() else path)
