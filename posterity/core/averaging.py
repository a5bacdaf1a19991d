"""The server update that most methods share: the mean of what clients send, weighted by their samples."""

from __future__ import annotations

from posterity.core.messages import Mean, Message
from posterity.core.network import Network
from posterity.core.protocol import Here, Params
from posterity.core.tree import tree_map


def weighted(params: Params, here: Here) -> Message:
    """A client's leaves, weighted by its number of training samples."""
    return {"params": Mean(here.n, params)}


def averaged(params: Params, total: Message, server_lr: float = 1.0, model: Network | None = None) -> Params:
    """`params` moved towards the mean by `server_lr`; leaves that nobody sent stay as they are.

    The `model`'s running statistics are the mean, whatever `server_lr` is: a step beyond it may end below 0, which is
    no variance.
    """
    mean = total["params"].mean()
    if server_lr == 1:
        return {**params, **mean}
    moving = {n: m for n, m in mean.items() if model is None or n not in model.buffers}
    moved = tree_map(lambda p, m: p + server_lr * (m - p), {n: params[n] for n in moving}, moving)
    return {**params, **mean, **moved}
