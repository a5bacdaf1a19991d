"""Office-31: 4,110 pictures of 31 things of an office from three sources, resized to 64×64.

K. Saenko, B. Kulis, M. Fritz, T. Darrell, "Adapting Visual Category Models to New Domains", ECCV 2010. A client is a
domain: Amazon, DSLR, Webcam. Read from the folders domain/images/class/picture as they are distributed, or without
`images`; option `size`: pixels.
"""

from pathlib import Path

from posterity.data.datasets._domains import read_domains
from posterity.data.official import DataSource, form, locate_form
from posterity.data.pool import Pool

NATURAL = True
DOMAINS = ("amazon", "dslr", "webcam")
SOURCE = DataSource(
    "https://faculty.cc.gatech.edu/~judy/domainadapt/",
    ("office31", "office31/domain_adaptation_images", "Office31", "office-31", "Office-31", "domain_adaptation_images"),
    (form("folders", "class folders of three domains", *DOMAINS),),
)


def load(data_dir: Path | None, seed: int, *, size: int = 64) -> Pool:
    found = locate_form("office31", SOURCE, data_dir)
    return read_domains("office31", dict(zip(DOMAINS, found.paths, strict=True)), size, 31, 4_110)
