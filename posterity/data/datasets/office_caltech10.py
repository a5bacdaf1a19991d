"""Office-Caltech-10: 2,533 pictures of ten things from four sources, 64×64 (stand-in for Office-31).

K. Saenko et al. 2010, G. Griffin et al. 2007, B. Gong et al. 2012. A client is a domain: Amazon, Caltech, DSLR, Webcam.
Read from the folders domain/class/picture as they are distributed (option `size`: pixels), or from a compact file.
"""

from dataclasses import replace
from pathlib import Path

from posterity.data.archives import read_npz
from posterity.data.datasets._domains import read_domains
from posterity.data.files import labelled, unsheet
from posterity.data.official import DataSource, form, locate_form
from posterity.data.pool import Pool

NATURAL = True
DOMAINS = ("amazon", "caltech10", "dslr", "webcam")
SOURCE = DataSource(
    "https://github.com/jindongwang/transferlearning/tree/master/data (Office-Caltech10)",
    ("office_caltech10", "office_caltech_10", "OfficeCaltech10", "Office-Caltech-10"),
    (
        form("compact", "compact file of ours", "office_caltech10_64.npz"),
        form("folders", "class folders of four domains", *DOMAINS),
        form("folders", "the same, other name of Caltech", "amazon", "caltech", "dslr", "webcam"),
    ),
)


def load(data_dir: Path | None, seed: int, *, size: int = 64) -> Pool:
    source = SOURCE if size == 64 else replace(SOURCE, forms=SOURCE.forms[1:])
    found = locate_form("office_caltech10", source, data_dir)
    if found.form.key == "folders":
        return read_domains("office_caltech10", dict(zip(DOMAINS, found.paths, strict=True)), size, 10, 2_533)
    stored = read_npz(found.paths[0], "class_names", "domain", "domain_names", "labels", "offsets", "webp")
    x, y = unsheet(stored["webp"], stored["offsets"], 64, len(stored["labels"])), stored["labels"]
    owner, people = stored["domain"], stored["domain_names"]
    return labelled("office_caltech10", x, y, stored["class_names"], owner=owner, people=people)
