"""What a reader should know about rows that are divided: repeated ones, classes that nobody learns, names alike.

`data/assemble.py` asks for `remarks`, `data/user_files.py` for `pool_remarks`.
"""

import re
import unicodedata
from collections.abc import Iterator

import torch
from torch import Tensor

from posterity.data.pool import Pool, listed

INTEGER = re.compile(r"0*(\d+)(?:\.0*)?")  # 7, 007, 7.0


def pool_remarks(pool: Pool, features: tuple[str, ...]) -> list[str]:
    """What a user may not know about the own rows: features that never vary, names that are nearly the same."""
    return [*_constant(pool, features), *alike(pool.class_names, "classes"), *alike(pool.owner_names, "clients")]


def remarks(pool: Pool, names: tuple[str, ...], train: list[Tensor], held: list[Tensor], members: int) -> list[str]:
    """What a reader of the scores should know about the rows: held-out ones that were trained on, unlearnt classes."""
    trained = torch.cat(train[:members]) if members else torch.zeros(0, dtype=torch.int64)
    kept = torch.cat(held) if held else trained[:0]
    owned = [torch.cat(pair) for pair in zip(train, held, strict=True)]
    return [*_lonely(pool, names, owned), *_repeated(pool, trained, kept), *_unlearnt(pool, trained, kept)]


def _constant(pool: Pool, features: tuple[str, ...]) -> Iterator[str]:
    if pool.x.dim() != 2 or len(pool) < 2:  # a picture's margin may be black
        return
    same = torch.nonzero((pool.x == pool.x[:1]).all(0))[:, 0].tolist()
    if same:
        names = listed([features[i] if features else i for i in same], 5)
        yield f"{len(same)} features have the same value in every row and can teach nothing: {names}"


def alike(names: tuple[str, ...], what: str) -> list[str]:
    """Names that differ in capitals or spaces only, in how a number is written (7, 07, 7.0), or a character stored."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_sounds(name), []).append(name)
    how = "in capitals, spaces, zeros or how a character is stored"
    return [
        f"the {what} {' and '.join(map(repr, same))} differ only {how}: write them alike if they are one"
        for same in groups.values()
        if len(same) > 1
    ]


def _sounds(name: str) -> str:
    """A name without what is easily written in another way: é may be one character, or e and an accent."""
    name = "".join(c for c in unicodedata.normalize("NFKC", name) if unicodedata.category(c) != "Cf")
    number = INTEGER.fullmatch(name)
    return number[1] if number else "".join(name.split()).casefold()


def _lonely(pool: Pool, names: tuple[str, ...], groups: list[Tensor]) -> Iterator[str]:
    """A remark on clients whose rows are all of one class, in files of the user."""
    if not pool.may_repeat or pool.task == "regression":
        return
    kinds = [len(torch.unique(pool.y[rows])) for rows in groups]
    lonely = [name for name, kind in zip(names, kinds, strict=True) if kind == 1]
    if lonely:
        shown = listed(lonely, 5)
        yield f"{len(lonely)} clients have one class only ({shown}): AUROC means nothing there, accuracy little"


def _repeated(pool: Pool, trained: Tensor, kept: Tensor) -> Iterator[str]:
    if not pool.may_repeat:
        return
    x, y = pool.x.numpy(), pool.y.numpy()
    seen = {hash((x[row].tobytes(), y[row].item())) for row in trained.tolist()}
    copies = sum(hash((x[row].tobytes(), y[row].item())) in seen for row in kept.tolist())
    if copies:
        advice = "drop copies, or keep what belongs together in one part (--group)"
        yield f"{copies} of {len(kept)} held-out rows equal a training row in all features and the target: {advice}"


def _unlearnt(pool: Pool, trained: Tensor, kept: Tensor) -> Iterator[str]:
    if pool.task != "classification":
        return
    there, asked = (torch.bincount(pool.y[rows], minlength=pool.classes) for rows in (trained, kept))
    found = torch.nonzero((there == 0) & (asked > 0))[:, 0].tolist()
    if found:
        classes = listed([repr(pool.class_names[c]) if pool.class_names else c for c in found], 5)
        rows = int(asked[found].sum())
        yield f"no member trains on the class {classes}, which {rows} held-out rows have: nobody can learn it"
