"""Records that `torch.func` sees as trees.

`torch.utils._pytree` is private, so this is the only file that imports it. A *tree* is a tensor, a record, or a
tuple, list or dict of trees; a *leaf* is a tensor. Leaves have path names ("params/head.weight"), which is how they
are stored and sent: names survive a reordering, positions do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, TypeVar, cast, dataclass_transform

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Tree = Any
"""A nested structure of tensors: the type checker cannot say more than this."""

T = TypeVar("T")
STATIC = "static"


@dataclass_transform(frozen_default=True)
def record(cls: type[T]) -> type[T]:
    """Make `cls` a frozen dataclass that `vmap` and `grad` look into.

    Fields with `metadata={"static": True}` are carried along untouched and must be equal wherever two trees meet.
    """
    made = dataclass(frozen=True)(cls)
    names = [f.name for f in fields(made) if not f.metadata.get(STATIC)]  # type: ignore[arg-type]
    fixed = [f.name for f in fields(made) if f.metadata.get(STATIC)]  # type: ignore[arg-type]

    def flatten(value: T) -> tuple[list[Any], tuple[Any, ...]]:
        return [getattr(value, n) for n in names], tuple(getattr(value, n) for n in fixed)

    def unflatten(children: Any, context: Any) -> T:
        value = object.__new__(made)  # no __init__: vmap also fills records with plain numbers (axis indices)
        for name, child in zip([*names, *fixed], [*children, *context], strict=True):
            object.__setattr__(value, name, child)
        return value

    pytree.register_pytree_node(made, flatten, unflatten)
    return made


def tree_map(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply `function` to the leaves of `tree` and the leaves at the same names of `others`.

    Dicts are matched by key and not by position, so a dict built in another order cannot pair the wrong tensors.
    """
    if isinstance(tree, dict):
        return {k: tree_map(function, v, *(o[k] for o in others)) for k, v in tree.items()}
    if isinstance(tree, (tuple, list)):
        return type(tree)(tree_map(function, *vs) for vs in zip(tree, *others, strict=True))
    if _is_record(tree):
        children, context = _children(tree)
        rest = [_children(o)[0] for o in others]
        return _rebuild(tree, [tree_map(function, *vs) for vs in zip(children, *rest, strict=True)], context)
    return function(tree, *others)


def tree_leaves(tree: Tree) -> list[Any]:
    """All leaves, in the tree's own order."""
    return [leaf for _, leaf in tree_named(tree)]


def tree_named(tree: Tree, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Pairs of path name and leaf: `{"a": (x, y)}` gives `a/0`, `a/1`."""
    if isinstance(tree, dict):
        parts: Iterator[tuple[str, Any]] = iter((str(k), v) for k, v in tree.items())
    elif isinstance(tree, (tuple, list)):
        parts = iter((str(i), v) for i, v in enumerate(tree))
    elif _is_record(tree):
        parts = iter((f.name, getattr(tree, f.name)) for f in fields(tree) if not f.metadata.get(STATIC))
    else:
        yield prefix, tree
        return
    for name, child in parts:
        yield from tree_named(child, f"{prefix}/{name}" if prefix else name)


def tree_filled(template: Tree, named: dict[str, Any], prefix: str = "") -> Tree:
    """`template` with the leaf at each path name taken from `named`; the inverse of `dict(tree_named(...))`."""
    paths = iter([name for name, _ in tree_named(template, prefix)])
    return tree_map(lambda _: named[next(paths)], template)


def tree_rebuilt(template: Tree, leaves: Iterable[Any]) -> Tree:
    """`template` with its leaves replaced one after the other; the inverse of `tree_leaves`."""
    supply = iter(leaves)
    return tree_map(lambda _: next(supply), template)


def tree_stack(trees: list[Tree]) -> Tree:
    """One tree whose leaves have a new first axis over `trees`."""
    return tree_map(lambda *leaves: torch.stack(leaves), trees[0], *trees[1:])


def tree_cat(trees: list[Tree]) -> Tree:
    """One tree whose leaves are those of `trees` joined along their first axis."""
    return trees[0] if len(trees) == 1 else tree_map(lambda *leaves: torch.cat(leaves), trees[0], *trees[1:])


def tree_rows(tree: Tree, index: Any) -> Tree:
    """`leaf[index]` for every leaf: one client, a slice or a list of clients of a stacked tree."""
    return tree_map(lambda leaf: leaf[index], tree)


def tree_cast(tree: Tree, dtype: torch.dtype) -> Tree:
    """Floating leaves in `dtype`; integer leaves as they are."""
    return tree_map(lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf, tree)


def tree_like(tree: Tree, template: Tree) -> Tree:
    """Leaves of `tree` with the dtype and device of `template`'s, in `template`'s key order."""
    return tree_map(lambda t, leaf: leaf.to(t), template, tree)


def tree_bytes(tree: Tree) -> int:
    """Bytes that the leaves hold."""
    return sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(tree))


def tree_finite(tree: Tree) -> Tensor:
    """Whether each client of a stacked tree is finite throughout: one boolean per row of the first axis."""
    rows = [leaf.isfinite().reshape(len(leaf), -1).all(1) for leaf in tree_leaves(tree) if leaf.is_floating_point()]
    return torch.stack(rows).all(0) if rows else torch.ones(0, dtype=torch.bool)


def _is_record(value: Any) -> bool:
    return hasattr(value, "__dataclass_fields__") and not isinstance(value, type)


def _children(value: Any) -> tuple[list[Any], list[Any]]:
    every = fields(value)
    kept = [getattr(value, f.name) for f in every if not f.metadata.get(STATIC)]
    return kept, [getattr(value, f.name) for f in every if f.metadata.get(STATIC)]


def _rebuild(like: Any, children: list[Any], context: list[Any]) -> Any:
    names = [f.name for f in fields(like) if not f.metadata.get(STATIC)]
    fixed = [f.name for f in fields(like) if f.metadata.get(STATIC)]
    value = object.__new__(type(like))
    for name, child in zip([*names, *fixed], [*children, *context], strict=True):
        object.__setattr__(value, name, child)
    return cast(Any, value)
