"""Office-Caltech-10: 2,533 pictures of ten things from four sources, 64×64 (stand-in for Office-31).

K. Saenko et al. 2010, G. Griffin et al. 2007, B. Gong et al. 2012. A client is a domain: Amazon, Caltech, DSLR, Webcam.
Read from the folders domain/class/picture as they are distributed (option `size`: pixels), or from a compact file.
"""

from __future__ import annotations

from pathlib import Path

from posterity.data.archives import read_npz
from posterity.data.datasets._domains import read_domains
from posterity.data.files import integers, names, pictures, unsheet
from posterity.data.official import DataSource, File, Form, locate_form
from posterity.data.pool import Pool

FILES = ("office_caltech10/office_caltech10_64.npz",)
NATURAL = True
DOMAINS = ("amazon", "caltech10", "dslr", "webcam")
FOLDERS = tuple(File(domain) for domain in DOMAINS)
SOURCE = DataSource(
    "https://github.com/jindongwang/transferlearning/tree/master/data (Office-Caltech10)",
    ("office_caltech10", "office_caltech_10", "OfficeCaltech10", "Office-Caltech-10"),
    (
        Form("compact", "compact file of ours", (File("office_caltech10_64.npz"),)),
        Form("folders", "class folders of four domains", FOLDERS),
        Form("folders", "the same, other name of Caltech", (FOLDERS[0], File("caltech"), *FOLDERS[2:])),
    ),
)


def load(data_dir: Path | None, seed: int, *, size: int = 64) -> Pool:
    found = locate_form("office_caltech10", SOURCE, data_dir, () if size == 64 else ("folders",))
    if found.form.key == "folders":
        return read_domains("office_caltech10", dict(zip(DOMAINS, found.paths, strict=True)), size, 10, 2_533)
    stored = read_npz(found.paths[0], "class_names", "domain", "domain_names", "labels", "offsets", "webp")
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
