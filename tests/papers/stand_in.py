"""A table of a paper on next to nothing: noise in the place of its pictures, a small network in that of its own.

Columns, rows and settings, and everything that the command does with them, stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from posterity.data import Pool
from posterity.data.registry import available
from posterity.papers.recipe import Recipe

EMBEDDED = {each.name for each in available() if each.embedded}
NATURAL = {each.name for each in available() if each.natural}
CLASSES, TEST = 4, 5  # a picture in five is of the official test split
SIDE = {"office_cnn": 35}  # pixels; others take 8
FEW = {"pathological:3:100": "pathological:3:10", "capped:0.3:50": "capped:0.3:1", "capped:0.1:50": "capped:0.1:1"}
"""Partitions that ask for more rows than there are."""
PLAIN = ("mlp", "cubic")  # networks that are small already
QUICK = {"model.hidden": "12,8"}  # of the one that takes the place of the others
WRITERS = " ".join(f"w{k}" for k in range(8))


def pictures(data_dir: object, seed: int, *, side: int = 8, owners: str = "", each: int = 30) -> Pool:
    """Noise with a class in it, `each` pictures for each of eight clients, or of each owner."""
    names = tuple(owners.split(" ")) if owners else ()
    rows = each * (len(names) or 8)
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(rows) // 2 % CLASSES
    x = torch.randn(rows, 3, side, side, generator=draw) + y[:, None, None, None]
    owner = torch.arange(rows) % len(names) if names else None
    test = torch.arange(rows) % TEST == 0
    return Pool("noise", x, y, CLASSES, owner=owner, owner_names=names, official_test=test)


def stand_in(recipe: Recipe, small: bool) -> Recipe:
    """The recipe on pictures of noise; with `small`, also with a quick network, unless the table is about its own."""
    chosen = [name for each in (recipe, *recipe.cells) for name in each.settings.get("set", {})]
    small = small and not any(name.startswith("model.") for name in chosen)
    first = {**recipe.cells[0].settings, **recipe.settings}
    cells = [
        replace(each, settings=_changed(each.settings, {**recipe.settings, **each.settings}, small))
        for each in recipe.cells
    ]
    return replace(recipe, settings=_changed(recipe.settings, first, small), cells=tuple(cells))


def _changed(some: Mapping[str, Any], every: Mapping[str, Any], small: bool) -> dict[str, Any]:
    """Some of the settings of a column, which has `every` one of these."""
    made, chosen, model = dict(some), dict(some.get("set") or {}), every.get("model")
    if some.get("dataset", "digits") not in EMBEDDED:
        made["dataset"] = f"{__name__}:pictures"
        chosen["data.side"] = SIDE.get(str(model), 8)
        if some["dataset"] in NATURAL:
            chosen["data.owners"] = "amazon dslr webcam" if some["dataset"] == "office31" else WRITERS
    if every["dataset"] not in EMBEDDED:
        chosen.pop("data.size", None)
    if small and "model" in some and model not in PLAIN:
        made["model"] = "mlp"
        chosen |= QUICK
    return {**made, **({"partition": FEW[some["partition"]]} if some.get("partition") in FEW else {}), "set": chosen}
