"""Data: datasets by name, the user's own files, and every way the papers divide them among clients."""

from __future__ import annotations

import os
from pathlib import Path

from posterity.data.assemble import assemble
from posterity.data.clients import Request
from posterity.data.federation import Federation, Part
from posterity.data.files import VARIABLE
from posterity.data.pool import DataError, Pool
from posterity.data.registry import Dataset, Options, available, read_pool
from posterity.data.scheme import Partition, parse_partition
from posterity.data.tables import Columns

__all__ = ["DataError", "Dataset", "Federation", "Part", "Partition", "Pool", "available", "load", "parse_partition"]


def load(
    dataset: str,
    *,
    partition: str | None = None,
    clients: int | None = None,
    split: str = "80/20",
    subset: str | int | float | None = None,
    test_partition: str = "same",
    newcomers: str | int | float = 0,
    public: str | float = 0,
    seed: int = 0,
    data_dir: str | Path | None = None,
    target: str | None = None,
    client_column: str | None = None,
    group: str | None = None,
    options: Options | None = None,
) -> Federation:
    """A federation from a dataset's name, a mix of names (`cifar100+chars74k`) or the path of your own data.

    Datasets with clients of their own use them; others are divided by `dirichlet:0.3` among 20 clients. What is held
    out (20 %) is halved into validation and test. `test_partition` is "same" (held out of each client's own rows),
    "independent" (another draw of the partition over the official test split) or "common" (one test set that belongs
    to no client). Files are looked for in `data_dir`, or in the folder that POSTERITY_DATA names.

    >>> load("digits", partition="dirichlet:0.3", clients=5).clients
    5
    """
    folder = data_dir or os.environ.get(VARIABLE)
    columns = Columns(target, client_column, group)
    if seed < 0:
        raise DataError(f"seed is {seed}; expected a whole number from 0 on; drop the sign")
    pool = read_pool(dataset, Path(folder) if folder else None, seed, clients, columns, options or {})
    return assemble(pool, Request(partition, clients, split, subset, test_partition, newcomers, public, seed))
