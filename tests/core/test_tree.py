"""Trees of tensors: records under torch.func, matching by name, path names."""

from dataclasses import FrozenInstanceError, field
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from posterity.core.tree import (
    STATIC,
    record,
    tree_bytes,
    tree_cast,
    tree_cat,
    tree_filled,
    tree_finite,
    tree_leaves,
    tree_like,
    tree_map,
    tree_named,
    tree_rows,
    tree_stack,
    tree_with_parts,
)


@record
class Pair:
    first: Tensor
    rest: dict
    label: str = field(default="plain", metadata={STATIC: True})


def pair(scale=1.0, label="plain"):
    return Pair(scale * torch.arange(3.0), {"b": scale * torch.ones(2), "a": (scale * torch.zeros(()),)}, label)


class Named(NamedTuple):
    params: dict
    count: Tensor


def test_a_named_tuple_is_a_tuple_whose_parts_have_names():
    tree = Named({"w": torch.arange(2.0)}, torch.tensor(3))
    assert [name for name, _ in tree_named(tree)] == ["params/w", "count"]
    for made in (tree_map(lambda leaf: leaf + 1, tree), tree_map(torch.add, tree, tree_map(torch.ones_like, tree)),
                 tree_filled(tree, {"params/w": torch.arange(1.0, 3.0), "count": torch.tensor(4)}),
                 tree_with_parts(tree, [{"w": torch.arange(1.0, 3.0)}, torch.tensor(4)])):  # fmt: skip
        assert type(made) is Named
        assert made.params["w"].tolist() == [1.0, 2.0]
        assert int(made.count) == 4


def test_records_are_frozen():
    with pytest.raises(FrozenInstanceError):
        pair().first = torch.ones(3)


def test_records_pass_through_vmap_and_grad():
    stack = tree_stack([pair(1.0, "x"), pair(2.0, "x")])
    out = vmap(lambda p: Pair(p.first * 2, p.rest, p.label))(stack)
    assert out.label == "x"
    assert torch.equal(out.first[1], 4 * torch.arange(3.0))
    slope = grad(lambda p: (p.first**2).sum() + p.rest["b"].sum())(pair())
    assert torch.equal(slope.first, 2 * torch.arange(3.0))
    assert torch.equal(slope.rest["b"], torch.ones(2))
    assert not slope.rest["a"][0]


def test_other_static_fields_do_not_meet_under_vmap():
    with pytest.raises(ValueError):
        vmap(lambda p: p.first, in_dims=(Pair(0, {"b": 0, "a": (0,)}, "other"),))(tree_stack([pair(), pair()]))


def test_leaves_are_matched_by_name_and_not_by_position():
    left = {"a": torch.tensor(1.0), "b": torch.tensor(10.0)}
    right = {"b": torch.tensor(20.0), "a": torch.tensor(2.0)}
    out = tree_map(torch.add, left, right)
    assert list(out) == ["a", "b"]
    assert (float(out["a"]), float(out["b"])) == (3.0, 30.0)
    assert list(tree_like(right, left)) == ["a", "b"]


def test_a_missing_name_or_length_is_an_error():
    with pytest.raises(KeyError):
        tree_map(torch.add, {"a": torch.ones(1)}, {"b": torch.ones(1)})
    with pytest.raises(ValueError):
        tree_map(torch.add, (torch.ones(1),), (torch.ones(1), torch.ones(1)))


def test_names_and_back():
    tree = {"p": pair(), "list": [torch.ones(1), torch.zeros(2)]}
    named = dict(tree_named(tree))
    assert list(named) == ["p/first", "p/rest/b", "p/rest/a/0", "list/0", "list/1"]
    shuffled = {n: named[n] + 1 for n in reversed(named)}
    again = tree_filled(tree, shuffled)
    assert dict(tree_named(again)).keys() == named.keys()
    assert all(torch.equal(leaf, named[n] + 1) for n, leaf in tree_named(again))
    assert again["p"].label == "plain"
    assert len(tree_leaves(tree)) == 5
    with pytest.raises(KeyError):
        tree_filled(tree, {"p/first": torch.ones(3)})


def test_a_bare_leaf_and_empty_trees():
    leaf = torch.ones(2)
    assert next(tree_named(leaf, "x"))[0] == "x"
    assert tree_leaves(()) == []
    assert tree_map(torch.neg, ()) == ()
    assert tree_bytes({}) == 0


def test_stack_cat_rows():
    stack = tree_stack([pair(1.0), pair(2.0), pair(3.0)])
    assert stack.first.shape == (3, 3)
    assert torch.equal(tree_rows(stack, 1).first, 2 * torch.arange(3.0))
    joined = tree_cat([tree_rows(stack, slice(0, 1)), tree_rows(stack, slice(1, 3))])
    assert all(torch.equal(a, b) for a, b in zip(tree_leaves(joined), tree_leaves(stack), strict=True))


def test_cast_bytes_finite():
    tree = {"w": torch.ones(2, 3), "i": torch.arange(2)}
    wide = tree_cast(tree, torch.float64)
    assert (wide["w"].dtype, wide["i"].dtype) == (torch.float64, torch.int64)
    assert tree_bytes(tree) == 6 * 4 + 2 * 8
    tree["w"][1, 2] = torch.nan
    assert tree_finite(tree).tolist() == [True, False]
    assert tree_like(wide, tree)["w"].dtype == torch.float32
