"""Several datasets in one pool (MetaVD, multi-domain): labels side by side, pictures of one shape.

`data/registry.py` calls it for `--dataset a+b`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from posterity.data.pool import DataError, Pool


def mix(pools: list[Pool], mixing: str = "joint", size: int = 0) -> Pool:
    """One pool of all rows, the labels of each dataset after those of the one before.

    With `mixing="joint"` a partition sees one set of classes, so a client may have data of several datasets; with
    "apart" each dataset is divided among its own share of the clients. Pictures take the number of pixels of the
    first dataset unless `size` is given; grey pictures are repeated over the channels.
    """
    name = "+".join(pool.name for pool in pools)
    if mixing not in ("joint", "apart"):
        raise DataError(f'mix {name}: mixing is {mixing!r}; expected "joint" or "apart"; pick one')
    for pool in pools:
        if pool.task != "classification" or pool.x.ndim != 4:
            raise DataError(f"mix {name}: {pool.name} holds no labelled pictures; expected pictures only; leave it out")
    side = (size, size) if size else tuple(pools[0].x.shape[2:])
    channels = max(pool.x.shape[1] for pool in pools)
    starts = [sum(pool.classes for pool in pools[:i]) for i in range(len(pools))]
    domain = torch.cat([torch.full((len(pool),), i) for i, pool in enumerate(pools)])
    owners = [pool.owner for pool in pools]
    return Pool(
        name,
        torch.cat([_shaped(pool.x, channels, side) for pool in pools]),
        torch.cat([pool.y + start for pool, start in zip(pools, starts, strict=True)]),
        sum(pool.classes for pool in pools),
        tuple(f"{pool.name}: {c}" for pool in pools for c in pool.class_names),
        owner=_shifted(owners, [len(pool.owner_names) for pool in pools]),
        owner_names=tuple(f"{pool.name}: {o}" for pool in pools for o in pool.owner_names),
        official_test=_joined([pool.official_test for pool in pools]),
        domain=domain if mixing == "apart" else None,
        notes=(
            *dict.fromkeys(note for pool in pools for note in pool.notes),
            f"mix of {name} ({mixing}): labels side by side, pictures {channels}×{side[0]}×{side[1]}",
        ),
    )


def _shaped(x: Tensor, channels: int, side: tuple[int, ...]) -> Tensor:
    if tuple(x.shape[2:]) != side:
        x = F.interpolate(x, size=list(side), mode="bilinear", antialias=True)
    return x if x.shape[1] == channels else x.expand(-1, channels, -1, -1)


def _shifted(owners: list[Tensor | None], counts: list[int]) -> Tensor | None:
    """Owners of all pools with distinct numbers, where every pool has owners."""
    shifted, start = [], 0
    for owner, count in zip(owners, counts, strict=True):
        if owner is None:
            return None
        shifted.append(torch.where(owner < 0, owner, owner + start))
        start += count
    return torch.cat(shifted)


def _joined(masks: list[Tensor | None]) -> Tensor | None:
    """The official test splits together, where every pool has one."""
    present = [mask for mask in masks if mask is not None]
    return torch.cat(present) if len(present) == len(masks) else None
