"""Office-Caltech-10: 2,533 pictures of ten things from four sources, 64×64 (stand-in for Office-31).

K. Saenko et al. 2010, G. Griffin et al. 2007, B. Gong et al. 2012. A client is a domain: Amazon, Caltech, DSLR, Webcam.
"""

from __future__ import annotations

from pathlib import Path

from posterity.data.archive import read_npz
from posterity.data.files import integers, locate, names, pictures, unsheet
from posterity.data.pool import Pool

FILES = ("office_caltech10/office_caltech10_64.npz",)
NATURAL = True


def load(data_dir: Path | None, seed: int) -> Pool:
    stored = read_npz(
        locate(data_dir, FILES[0], "office_caltech10"),
        "class_names",
        "domain",
        "domain_names",
        "labels",
        "offsets",
        "webp",
    )
    y = integers(stored["labels"])
    return Pool(
        "office_caltech10",
        pictures(unsheet(stored["webp"], stored["offsets"], 64, len(y))),
        y,
        10,
        names(stored["class_names"]),
        owner=integers(stored["domain"]),
        owner_names=names(stored["domain_names"]),
    )
