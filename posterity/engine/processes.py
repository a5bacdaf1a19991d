"""Several processes, GPUs or machines as one: each works for its share of the clients, messages are added on the way.

Started by `torchrun`, every process runs the same program. A client belongs to one process for good, so its record
never travels; clients are dealt out by their samples, so that no process waits long for another. After a round the
totals are added along a binary tree, the process at its root combines them and sends the new state to all. What is
exchanged are tensors in the safetensors format.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heapreplace
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import Tensor

from posterity.core.messages import Message, merge
from posterity.core.tree import Tree, tree_filled, tree_named, unshared


class PeerLost(ValueError):
    """Another process ended or cannot be reached."""


@contextmanager
def _exchanging() -> Iterator[None]:
    """Say in a sentence that an exchange failed; PyTorch says on which line of its own."""
    try:
        yield
    except RuntimeError as error:
        said = (str(error).strip().splitlines() or [""])[0]
        raise PeerLost("another of the processes that share the clients has ended or cannot be reached, so this one "
                       f"cannot go on; start all of them again with 'posterity resume' (PyTorch says: {said})"
                       ) from error  # fmt: skip


@dataclass(frozen=True)
class Processes:
    """This process among all; alone by default."""

    rank: int = 0
    size: int = 1
    device: str = "cpu"  # where tensors must lie to be exchanged: nccl takes none of the host's
    owners: Tensor | None = field(default=None, repr=False, compare=False)  # (clients,) their processes, see `dealt`

    @property
    def leads(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def share(self, clients: Tensor) -> Tensor:
        return clients if self.size == 1 else clients[self.owner(clients) == self.rank]

    def owner(self, clients: Tensor) -> Tensor:
        """The process of each client: client k is at process k mod size unless clients were dealt out."""
        return clients % self.size if self.owners is None else self.owners[clients]

    def dealt(self, counts: Tensor, members: int) -> Processes:
        """With clients dealt out by their samples: the members, who train, and then the newcomers."""
        if self.size == 1:
            return self
        owners = torch.cat([deal(some.tolist(), self.size) for some in (counts[:members], counts[members:])])
        return replace(self, owners=owners.to(counts.device))

    def total(self, mine: Message | None) -> tuple[Message | None, int]:
        """The sum of what all processes hold, and the process that has it (the others get None)."""
        if self.size == 1:
            return mine, 0
        holders = [r for r, has in enumerate(self.all_gather(float(mine is not None))) if has]
        if not holders:
            return None, 0
        if mine is None:
            return None, holders[0]
        place, reach = holders.index(self.rank), 1
        while reach < len(holders):  # at each level half of those that are left hand over what they have
            if place % (2 * reach):
                self._send(mine, holders[place - reach])
                return None, holders[0]
            if place + reach < len(holders):
                named = self._receive(holders[place + reach])
                mine = merge(mine, tree_filled(mine, named))
            reach *= 2
        return mine, holders[0]

    def broadcast_tree(self, tree: Tree, source: int) -> Tree:
        """The tree of the process `source`, at all of them; `tree` is a template elsewhere."""
        if self.size == 1:
            return tree
        like = dict(tree_named(tree))
        named = self._exchange(partial(dist.broadcast, src=source), like if self.rank == source else None)
        return tree_filled(tree, {n: t.to(like[n]) for n, t in named.items()})

    def all_gather(self, number: float) -> list[float]:
        return [mine for (mine,) in self._of_all([number])]

    def all_reduce(self, numbers: list[float]) -> list[float]:
        """Each of the numbers, added up over all processes."""
        return [sum(column) for column in zip(*self._of_all(numbers), strict=True)]

    def _of_all(self, numbers: list[float]) -> list[list[float]]:
        if self.size == 1:
            return [numbers]
        mine = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        found = [torch.zeros_like(mine) for _ in range(self.size)]
        with _exchanging():
            dist.all_gather(found, mine)
        return [each.tolist() for each in found]

    def broadcast(self, text: str, source: int) -> str:
        if self.size == 1:
            return text
        mine = {"text": _as_bytes(text)} if self.rank == source else None
        return _as_text(self._exchange(partial(dist.broadcast, src=source), mine)["text"])

    def gather(self, text: str) -> list[str]:
        """At process 0 what every process says, in their order; elsewhere only what this one says."""
        return [_as_text(found["text"]) for found in self.collect({"text": _as_bytes(text)})]

    def collect(self, named: dict[str, Tensor]) -> list[dict[str, Tensor]]:
        """At process 0 what every process has, in their order; elsewhere only one's own."""
        if self.size == 1:
            return [named]
        if self.rank:
            self._send(named, 0)
            return [named]
        return [named, *(self._receive(r) for r in range(1, self.size))]

    def joined(self, outputs: list[Tensor], clients: Tensor) -> list[Tensor]:
        """At process 0 the outputs of all `clients`, each of which has been computed where the client belongs."""
        if self.size == 1:
            return outputs
        owner = self.owner(clients).tolist()
        mine = {str(i): outputs[i] for i, rank in enumerate(owner) if rank == self.rank}
        found = self.collect(mine)
        return [found[rank][str(i)] for i, rank in enumerate(owner)] if self.leads else outputs

    def _send(self, tree: Tree, to: int) -> None:
        self._exchange(partial(dist.send, dst=to), dict(tree_named(tree)))

    def _receive(self, source: int) -> dict[str, Tensor]:
        return self._exchange(partial(dist.recv, src=source))

    def _exchange(self, call: Callable[[Tensor], Any], named: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Send `named` by `call`, or receive what another sends; how long it is goes first."""
        data = None if named is None else _packed(named, self.device)
        size = torch.tensor([0 if data is None else len(data)], device=self.device)
        with _exchanging():
            call(size)
            data = torch.zeros(int(size), dtype=torch.uint8, device=self.device) if data is None else data
            call(data)
        return {n: t.to(self.device) for n, t in load(data.cpu().numpy().tobytes()).items()}


def deal(counts: list[int], size: int) -> Tensor:
    """The process of each client (clients,): the largest first, each to the process that has least to do so far."""
    loads = [(0, rank) for rank in range(size)]  # a heap
    owners = [0] * len(counts)
    for client in sorted(range(len(counts)), key=lambda k: -counts[k]):  # equal ones by their number
        load, rank = loads[0]
        owners[client] = rank
        heapreplace(loads, (load + counts[client] + 1, rank))  # a client without data is scored all the same
    return torch.tensor(owners, dtype=torch.int64)


def _as_bytes(text: str) -> Tensor:
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def _as_text(data: Tensor) -> str:
    return data.cpu().numpy().tobytes().decode()


def _packed(named: dict[str, Tensor], device: str) -> Tensor:
    data = save(unshared({n: t.detach().cpu().contiguous() for n, t in named.items()}))
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)


def started_first() -> bool:
    """Whether this process is the only one, or the first of those that `torchrun` started."""
    return os.environ.get("RANK", "0") == "0"


def find_processes(device: str) -> tuple[Processes, str]:
    """This process among those that `torchrun` started, and its own device; alone if it was not started so."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return Processes(), device
    if device == "cuda":
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        with _exchanging():
            dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
        atexit.register(dist.destroy_process_group)
    return Processes(int(os.environ["RANK"]), size, device), device
