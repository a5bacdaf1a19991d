"""The server update that most methods share: the mean of what clients send, weighted by their samples."""

from __future__ import annotations

from posterity.core.messages import Mean, Message
from posterity.core.protocol import Here, Params
from posterity.core.tree import tree_map


def weighted(params: Params, here: Here) -> Message:
    """A client's leaves, weighted by its number of training samples."""
    return {"params": Mean(here.n, params)}


def averaged(params: Params, total: Message, server_lr: float = 1.0) -> Params:
    """`params` moved towards the mean by `server_lr`; leaves that nobody sent stay as they are."""
    mean = total["params"].mean()
    old = {n: params[n] for n in mean}
    moved = mean if server_lr == 1 else tree_map(lambda p, m: p + server_lr * (m - p), old, mean)
    return {**params, **moved}
