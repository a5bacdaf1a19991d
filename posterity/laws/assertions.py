"""Comparing trees, and saying where and by how much they differ."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from posterity.core.tree import Tree, tree_named


class Broken(Exception):
    """What a law found: where, and by how much. `law` turns it into a `LawBroken` with the law's name and remedy."""


def gap(left: Tensor, right: Tensor) -> float:
    """Largest difference, as a share of the largest number in `right` (at least 1); infinite if one is not finite."""
    if left.numel() == 0 or (left.dtype == right.dtype and torch.equal(left, right)):
        return 0.0
    same = (left == right) | (left.isnan() & right.isnan())
    difference = torch.where(same, 0.0, (left.double() - right.double()).abs())
    size = torch.where(right.double().isfinite(), right.double().abs(), 0.0).max()
    largest = float((difference / size.clamp(min=1)).max())
    return largest if largest == largest else float("inf")


def shapes(tree: Tree) -> list[tuple[str, tuple[int, ...], torch.dtype]]:
    """Names, shapes and kinds of all leaves, in the tree's order."""
    return [(name, tuple(leaf.shape), leaf.dtype) for name, leaf in tree_named(tree)]


def largest_gap(left: Tree, right: Tree) -> tuple[float, str]:
    """The largest gap of two trees and the leaf that has it; leaves are paired by name."""
    ours, theirs = dict(tree_named(left)), dict(tree_named(right))
    if ours.keys() != theirs.keys():
        return float("inf"), f"(names differ: {sorted(ours.keys() ^ theirs.keys())})"
    found = (0.0, "")
    for name, leaf in ours.items():
        if leaf.shape != theirs[name].shape:
            return float("inf"), f"{name} (shapes {tuple(leaf.shape)} and {tuple(theirs[name].shape)})"
        found = max(found, (gap(leaf, theirs[name]), name))
    return found


def assert_same_bits(left: Tree, right: Tree, where: str) -> None:
    """Both trees are equal in every bit (a NaN equals a NaN)."""
    size, leaf = largest_gap(left, right)
    if size > 0:
        raise Broken(f"{where}: {_leaf(leaf)}differs by {size:.1e} where every bit must be equal")


def assert_close(left: Tree, right: Tree, where: str, slack: Callable[[], float], tolerance: float = 1e-9) -> None:
    """Both trees are equal to `tolerance`, or to `slack()` if that is more; `slack` is only asked when it matters."""
    size, leaf = largest_gap(left, right)
    if size > tolerance and size > slack():
        raise Broken(f"{where}: {_leaf(leaf)}differs by {size:.1e}; allowed is {max(tolerance, slack()):.1e}")


def _leaf(name: str) -> str:
    return f"leaf {name!r} " if name else ""
