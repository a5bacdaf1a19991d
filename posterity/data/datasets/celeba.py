"""CelebA: smiling or not, pictures of celebrities by person, resized to 84×84, as LEAF prepares them.

Z. Liu, P. Luo, X. Wang, X. Tang, "Deep Learning Face Attributes in the Wild", ICCV 2015 (non-commercial research);
S. Caldas et al., "LEAF", 2018. A client is a person with at least five pictures: 9,343 people, 200,288 pictures. Read
from CelebA's own files, which LEAF keeps in `data/celeba/data/raw`: the archive `img_align_celeba.zip` or its folder,
with `list_attr_celeba.txt` and `identity_CelebA.txt`; option `size`: pixels.
"""

from collections import Counter
from pathlib import Path, PurePosixPath

import numpy as np

from posterity.data.archives import Array, read_file, reading, walk_members
from posterity.data.files import decode_member, labelled
from posterity.data.official import DataSource, File, form, locate_form
from posterity.data.pool import DataError, Pool
from posterity.data.user_files import check_side

NATURAL = True
CLASSES = ("not smiling", "smiling")
LEAST, ROWS = 5, 200_288  # pictures of a person whom LEAF keeps, and of all of these
SHOTS = File("img_align_celeba.zip", 0, "md5 00d2c5bc6d35e252742224ab0c1e8fcb")
LISTS = (
    File("list_attr_celeba.txt", 0, "md5 75e246fa4810816ffd6ee81facbd244c"),
    File("identity_CelebA.txt", 0, "md5 32bd1bd63d3c78cd57e08160ec5ed1e2"),
)
SOURCE = DataSource(
    "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html",
    ("celeba", "CelebA", "celeba/data/raw", "leaf/data/celeba/data/raw"),
    (
        form("official", "CelebA's archive of aligned pictures, and its lists", SHOTS, *LISTS),
        form("official", "the same, unpacked", "img_align_celeba", *LISTS),
    ),
)


def load(data_dir: Path | None, seed: int, *, size: int = 84) -> Pool:
    """People in the order in which the list of identities first names them, and their pictures in its order."""
    check_side("celeba", size)
    shots, attributes, identities = locate_form("celeba", SOURCE, data_dir).paths
    with reading(identities, "lines of a picture and a person; fetch it again"):
        person = dict(_lines(identities))
        count = Counter(person.values())
        wanted = [name for name, who in person.items() if count[who] >= LEAST]
    with reading(attributes, f"1 or -1 for Smiling of all pictures of {identities}; fetch it again"):
        _, columns, *lines = _lines(attributes)
        marks = {name: dict(zip(columns, line, strict=True))["Smiling"] for name, *line in lines}
        smiling = {name: {"1": 1, "-1": 0}[marks[name]] for name in wanted}
    people = list(dict.fromkeys(person[name] for name in wanted))
    number = {who: k for k, who in enumerate(people)}
    rows = sorted(wanted, key=lambda name: number[person[name]])
    x = _decoded(shots, {name: row for row, name in enumerate(rows)}, size)
    y, owner = [smiling[name] for name in rows], [number[person[name]] for name in rows]
    what = f"pictures of people with {LEAST} or more"
    return labelled("celeba", x, y, CLASSES, owner=owner, people=people, published=ROWS, what=what)


def _lines(path: Path) -> list[list[str]]:
    """The words of each line."""
    return [line.split() for line in read_file(path).decode("latin-1").splitlines() if line.strip()]


def _decoded(shots: Path, place: dict[str, int], size: int) -> Array:
    """The pictures (n, size, size, 3) of the archive or folder, each in its place."""
    x, left = np.empty((len(place), size, size, 3), dtype=np.uint8), set(place)
    for member, data in walk_members(shots, lambda member: PurePosixPath(member).name in place):
        name = PurePosixPath(member).name
        x[place[name]] = decode_member(f"{shots}: {member}", data, size)
        left.discard(name)
    if left:
        raise DataError(f"{shots}: {len(left):,} pictures are missing, such as {min(left)}; fetch it again")
    return x
