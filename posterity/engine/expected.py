"""What a server without data can know of a client's message before it arrives: its structure, from the method."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from posterity.core.messages import Message
from posterity.core.network import Task
from posterity.core.protocol import Own, Shared
from posterity.engine.client import Setting, Site, visit_client


def site_without_data(
    setting: Setting, visits: Tensor, client: Tensor, shape: Sequence[int], task: Task, integers: bool = False
) -> Site:
    """The machine of a client that has no samples.

    `shape` is that of a sample; `integers` if samples are whole numbers (words).
    """
    like = next(iter(setting.initial.values()))
    x = like.new_zeros((1, *shape), dtype=torch.int64 if integers else like.dtype)
    y = like.new_zeros(1, dtype=torch.int64 if task == "classification" else like.dtype)
    none = torch.zeros(0, dtype=torch.int64, device=like.device)
    rows = {"train": none, "validation": none}
    return Site(setting.method, setting.model, setting.initial, visits, client, x, y, rows)


def message_like(site: Site, shared: Shared, own: Own, round: int) -> Message:
    """The kinds, names, shapes and types of the message that answers an offer, by a site without data.

    They do not depend on a client's samples, or clients could not be stacked. The numbers that a client leaves out
    because the server knows them (`Sparse`) are right; others mean nothing.
    """
    return visit_client(site, shared, own, None, round).message


__all__ = ["message_like", "site_without_data"]
