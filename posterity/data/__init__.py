"""Data: datasets by name, the user's own files, and every way the papers divide them among clients.

The way to a federation: `registry.py` reads a `Pool` (a file of `datasets/`, several of them, or a path by
`user_files.py`), `assemble.py` divides it by a rule of `partition.py` and splits it into a `Federation`.

To add a dataset, put a file into `datasets/` (its `__init__.py` says what is in one). To add a partition, write its
function in `partition.py` and declare it in `RULES` there. Outside of this package a function of the same arguments
will do: `--dataset my_module:load` (it may also return a `Federation`) and `--partition my_module:rule:0.5`, where
`rule(y, clients, rng, alpha)` returns the rows of each client.
"""

from pathlib import Path

from posterity.data.assemble import assemble
from posterity.data.federation import Federation, FederationSpec, Options, Part
from posterity.data.partition import Partition, parse_partition
from posterity.data.pool import DataError, Pool
from posterity.data.registry import Dataset, available, read_dataset

__all__ = [
    "DataError",
    "Dataset",
    "Federation",
    "FederationSpec",
    "Part",
    "Partition",
    "Pool",
    "available",
    "build",
    "load",
    "parse_partition",
]


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
    return build(
        FederationSpec(
            dataset, partition, clients, split, subset, test_partition, newcomers, public, seed,
            data_dir, target, client_column, group, options or {},
        )
    )  # fmt: skip


def build(spec: FederationSpec) -> Federation:
    """The federation that was asked for."""
    if spec.seed < 0:
        raise DataError(f"seed is {spec.seed}; expected a whole number from 0 on; drop the sign")
    found = read_dataset(spec)
    return assemble(found, spec) if isinstance(found, Pool) else found
