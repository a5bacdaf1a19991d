"""What a reader should know about rows that are divided: repeated ones, classes that nobody learns, names alike.

`data/assemble.py` asks for `remarks`, `data/user_files.py` for `pool_remarks`.
"""

from __future__ import annotations

import re
import unicodedata

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


def _constant(pool: Pool, features: tuple[str, ...]) -> list[str]:
    if pool.x.dim() != 2 or len(pool) < 2:  # a picture's margin may be black
        return []
    same = torch.nonzero((pool.x == pool.x[:1]).all(0))[:, 0].tolist()
    if not same:
        return []
    names = listed([features[i] if features else i for i in same], 5)
    return [f"{len(same)} features have the same value in every row and can teach nothing: {names}"]


def alike(names: tuple[str, ...], what: str) -> list[str]:
    """Names that differ in capitals or spaces only, in how a number is written (7, 07, 7.0), or a character stored."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_sounds(name), []).append(name)
    found = []
    for same in (same for same in groups.values() if len(same) > 1):
        how, show = "capitals or spaces", repr
        if number := _number(same[0]):
            how = f"how the number {number} is written"
        elif len({"".join(name.split()).casefold() for name in same}) > 1:
            how, show = "capitals, spaces or how their characters are stored", ascii
        shown = " and ".join(map(show, same))
        found.append(f"the {what} {shown} differ in {how} only: write them alike if they are one")
    return found


def _sounds(name: str) -> str:
    """A name without what is easily written in another way: é may be one character, or e and an accent."""
    if not name.isascii():
        name = "".join(c for c in unicodedata.normalize("NFKC", name) if unicodedata.category(c) != "Cf")
    return _number(name) or "".join(name.split()).casefold()


def _number(name: str) -> str:
    """A whole number, with or without zeros around it, as it is usually written; empty if it is none."""
    found = INTEGER.fullmatch(name)
    return found[1] if found else ""


def _lonely(pool: Pool, names: tuple[str, ...], groups: list[Tensor]) -> list[str]:
    """A remark on clients whose rows are all of one class, in files of the user."""
    if not pool.may_repeat or pool.task == "regression":
        return []
    owner = torch.repeat_interleave(torch.arange(len(names)), torch.tensor([len(rows) for rows in groups]))
    cells = torch.unique(torch.stack([owner, pool.y[torch.cat(groups)]], 1), dim=0)  # (cells, 2)
    kinds = torch.bincount(cells[:, 0], minlength=len(names))
    lonely = [name for name, kind in zip(names, kinds.tolist(), strict=True) if kind == 1]
    if not lonely:
        return []
    shown = listed(lonely, 5)
    return [f"{len(lonely)} clients have one class only ({shown}): AUROC means nothing there, accuracy little"]


def _repeated(pool: Pool, trained: Tensor, kept: Tensor) -> list[str]:
    if not pool.may_repeat or not len(kept):
        return []
    x, y = pool.x.numpy(), pool.y.numpy()
    seen = {hash((x[row].tobytes(), y[row].item())) for row in trained.tolist()}
    again = [hash((x[row].tobytes(), y[row].item())) for row in kept.tolist()]
    copies = sum(row in seen for row in again)
    if not copies:
        return []
    advice = "drop copies, or keep what belongs together in one part (--group)"
    return [f"{copies} of {len(kept)} held-out rows equal a training row in all features and the target: {advice}"]


def _unlearnt(pool: Pool, trained: Tensor, kept: Tensor) -> list[str]:
    if pool.task != "classification" or not len(kept):
        return []
    there, asked = (torch.bincount(pool.y[rows], minlength=pool.classes) for rows in (trained, kept))
    found = torch.nonzero((there == 0) & (asked > 0))[:, 0].tolist()
    if not found:
        return []
    classes = listed([repr(pool.class_names[c]) if pool.class_names else c for c in found], 5)
    rows = int(asked[found].sum())
    return [f"no member trains on the class {classes}, which {rows} held-out rows have: nobody can learn it"]
