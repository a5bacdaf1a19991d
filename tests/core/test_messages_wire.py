"""What travels: bytes of sparse messages and broadcasts, what they fold to, and patterns in bits."""

import pytest
import torch
from torch.func import vmap

from posterity.core.messages import (
    Bag,
    Mean,
    Sparse,
    Sum,
    fold_stack,
    merge,
    packed,
    unpacked,
    wire_bytes,
)
from posterity.core.tree import tree_bytes


def stack(unsent):
    """Two clients' means of six float32 numbers."""
    return Mean(torch.ones(2), {"w": torch.arange(12.0).reshape(2, 6)}), torch.tensor(unsent)


def test_bytes_less_what_is_not_sent():
    """2·(6 + 1) numbers of 4 bytes; client 0 leaves out two of them, client 1 one."""
    mean, unsent = stack([8, 4])
    assert wire_bytes(mean) == tree_bytes(mean) == 56
    assert wire_bytes(Sparse(mean, unsent)) == 44
    assert wire_bytes({"params": Sparse(mean, unsent), "n": Sum(torch.ones(2))}) == 44 + 8


def test_layers_of_sparsity_add_up():
    mean, unsent = stack([8, 4])
    assert wire_bytes(Sparse(Sparse(mean, unsent), torch.tensor([4, 0]))) == 40


def test_a_stack_folds_to_the_kind_within():
    mean, unsent = stack([8, 4])
    bag = Bag(torch.tensor([5, 2]), mean.value)
    thin = fold_stack({"params": Sparse(mean, unsent), "bag": Sparse(bag, unsent)})
    dense = fold_stack({"params": mean, "bag": bag})
    assert isinstance(thin["params"], Mean)
    assert torch.equal(thin["params"].value["w"], dense["params"].value["w"])
    assert thin["bag"].client.tolist() == [2, 5]
    assert torch.equal(merge(thin, dense)["params"].value["w"], dense["params"].value["w"])


@pytest.mark.parametrize("shape", [(1,), (8,), (3, 5), (2, 4, 2)])
def test_patterns_survive_packing(shape):
    masks = torch.rand(4, *shape, generator=torch.Generator().manual_seed(0)) > 0.5
    small = vmap(packed)(masks)
    assert small.dtype == torch.uint8
    assert small.shape == (4, -(-masks[0].numel() // 8))
    assert torch.equal(vmap(lambda bits: unpacked(bits, shape))(small), masks)


def test_bits_by_hand():
    assert packed(torch.tensor([1, 0, 1, 1, 0, 0, 0, 0, 1]).bool()).tolist() == [1 + 4 + 8, 1]
