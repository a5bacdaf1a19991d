"""Random generators of `data/`: one independent stream per purpose (those of training are in `core/random.py`).

Because every purpose has its own stream, another split does not change the partition, and another number of
newcomers does not change anybody's split.
"""

from typing import Literal, get_args

import numpy as np

Purpose = Literal[
    "generate", "subset", "partition", "test partition", "held out", "split", "halve", "newcomers", "public", "clients",
    "outlier",
]  # fmt: skip


def stream(seed: int, purpose: Purpose, client: int | None = None) -> np.random.Generator:
    """The generator for one purpose, or for one purpose at one client."""
    tag = 1 + get_args(Purpose).index(purpose)
    # numpy pads short entropy with zeros, so client 0 has to be told from "no client": hence 1 + client.
    return np.random.default_rng([seed, tag] if client is None else [seed, tag, 1 + client])
