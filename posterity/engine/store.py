"""Personal records, one row per client, in memory.

`disk_store.py` has the same with rows in a file that may be larger than memory.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from posterity.core.tree import Tree, tree_filled, tree_map, tree_named, tree_rows
from posterity.engine.processes import Processes

Like = Callable[[], Tree]  # gives a stack of records of the right shape


class Store:
    """All rows in one tensor per leaf, allocated at the first write.

    Only clients that have a record are read; the others join first.
    """

    def __init__(self, clients: int, device: torch.device | str = "cpu") -> None:
        self.known = torch.zeros(clients, dtype=torch.bool)  # on the host: who has a record
        self.device = torch.device(device)
        self.rows: Tree = None

    @property
    def ready(self) -> bool:
        """Whether the shape of a record is known, so that one can be read."""
        return self.rows is not None

    def expect_like(self, rows: Tree) -> None:
        """Records look like these rows; in memory the first that are written show it."""

    def read(self, clients: Tensor) -> Tree:
        return tree_rows(self.rows, clients)

    def write(self, clients: Tensor, rows: Tree) -> None:
        self.rows = self._table(rows) if self.rows is None else self.rows
        tree_map(lambda table, leaf: table.index_copy_(0, clients, leaf.to(table)), self.rows, rows)
        self.known[clients.cpu()] = True

    # --- checkpoints
    def prepare(self) -> Tree:
        """Make sure that nothing is lost, and return what the checkpoint must hold itself; None if nothing."""
        return self.rows

    def facts(self) -> dict[str, Any]:
        """What the checkpoint must say about records that lie elsewhere."""
        return {}

    def commit(self, number: int) -> None:
        """The checkpoint of that number is on disk."""

    def recover(
        self, number: int, known: Tensor | None, restore: Callable[[Tree], Tree], like: Like, facts: Mapping[str, Any]
    ) -> None:
        """Go back to the checkpoint of that number: what it says is known, and `restore` fills a table from it."""
        if known is None:
            return
        self.known = known.cpu()
        if bool(known.any()):
            self.rows = restore(self._table(like()))

    def gather(self, processes: Processes, like: Like) -> None:
        """Fetch the records that other processes hold, for the one that writes the checkpoint."""
        if processes.size == 1:
            return
        mine = processes.share(torch.nonzero(self.known)[:, 0].to(self.device))
        named = {} if self.rows is None else dict(tree_named(tree_rows(self.rows, mine)))
        for found in processes.collect({**named, "clients": mine})[1:]:
            clients = found.pop("clients")
            if found:
                self.rows = self._table(like()) if self.rows is None else self.rows
                self.write(clients, tree_filled(self.rows, found))

    def _table(self, rows: Tree) -> Tree:
        return tree_map(lambda leaf: leaf.new_zeros(len(self.known), *leaf.shape[1:]), rows)
