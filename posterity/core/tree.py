"""Records that `torch.func` sees as trees.

`torch.utils._pytree` is private, so this is the only file that imports it. A *tree* is a tensor, a record, or a
tuple, list or dict of trees; a *leaf* is a tensor. Leaves have path names ("params/head.weight"), which is how they
are stored and sent: names survive a reordering, positions do not.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, TypeVar, dataclass_transform

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


def is_registered(cls: type) -> bool:
    """Whether `vmap` and `grad` look into objects of a class: those of a `record`, dicts, tuples and lists."""
    return cls in pytree.SUPPORTED_NODES


def tree_map(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply `function` to the leaves of `tree` and the leaves at the same names of `others`.

    Dicts are matched by key and not by position, so a dict built in another order cannot pair the wrong tensors.
    """
    if isinstance(tree, dict):
        return {k: tree_map(function, v, *[o[k] for o in others]) for k, v in tree.items()}
    if not is_node(tree):
        return function(tree, *others)
    groups = zip(*map(_children, (tree, *others)), strict=True)
    return tree_with_parts(tree, [tree_map(function, *group) for group in groups])


def tree_leaves(tree: Tree) -> list[Any]:
    """All leaves, in the tree's own order."""
    if not is_node(tree):
        return [tree]
    return [leaf for child in _children(tree) for leaf in tree_leaves(child)]


def tree_named(tree: Tree, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Pairs of path name and leaf: `{"a": (x, y)}` gives `a/0`, `a/1`."""
    if not is_node(tree):
        yield prefix, tree
        return
    for name, child in tree_parts(tree):
        yield from tree_named(child, f"{prefix}/{name}" if prefix else name)


def is_node(tree: Tree) -> bool:
    """Whether this is a dict, a tuple, a list or a record, and not a leaf."""
    return isinstance(tree, (dict, tuple, list)) or _is_record(tree)


def tree_parts(tree: Tree) -> list[tuple[str, Any]]:
    """What a node holds, by its name there."""
    names: Iterable[str]
    if isinstance(tree, dict):
        names = map(str, tree)
    elif isinstance(tree, (tuple, list)):
        names = getattr(tree, "_fields", map(str, range(len(tree))))
    else:
        names = _field_names(tree.__class__)
    return list(zip(names, _children(tree), strict=True))


def tree_with_parts(tree: Tree, parts: Iterable[Any]) -> Tree:
    """A node like `tree` that holds other things, in the order of `tree_parts`; what is static stays."""
    if isinstance(tree, dict):
        return dict(zip(tree, parts, strict=True))
    if isinstance(tree, (tuple, list)):
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    made = object.__new__(tree.__class__)
    vars(made).update({n: getattr(tree, n) for n in _field_names(tree.__class__, True)})
    vars(made).update(zip(_field_names(tree.__class__), parts, strict=True))
    return made


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


def unshared(leaves: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same leaves, of which none lies in the memory of another one: safetensors refuses those that do.

    `State(params, anchor=params)` is nothing unusual.
    """
    found, taken = dict[str, Tensor](), set[int]()
    for name, leaf in leaves.items():
        place = leaf.untyped_storage().data_ptr()
        found[name] = leaf.clone() if place in taken else leaf
        taken.add(place)
    return found


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
    rows = [finite_rows(leaf) for leaf in tree_leaves(tree)]
    return torch.stack(rows).all(0) if rows else torch.ones(0, dtype=torch.bool)


def finite_rows(leaf: Tensor) -> Tensor:
    """Which rows of the first axis are finite throughout: a NaN or an infinity is their largest or smallest number."""
    flat = leaf.flatten(1) if leaf.dim() > 1 else leaf[:, None]
    if not flat.numel():
        return torch.ones(len(leaf), dtype=torch.bool, device=leaf.device)
    return flat.amax(1).isfinite() & flat.amin(1).isfinite()


def _is_record(value: Any) -> bool:
    return hasattr(value, "__dataclass_fields__") and not isinstance(value, type)


def _children(tree: Tree) -> Sequence[Any]:
    if isinstance(tree, dict):
        return list(tree.values())
    return tree if isinstance(tree, (tuple, list)) else [getattr(tree, n) for n in _field_names(tree.__class__)]


@cache  # asked at every step for every record
def _field_names(cls: Any, static: bool = False) -> tuple[str, ...]:
    """The fields of a record that hold trees, or the static ones."""
    return tuple(f.name for f in fields(cls) if bool(f.metadata.get(STATIC)) == static)
