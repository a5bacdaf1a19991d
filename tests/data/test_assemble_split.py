"""The smallest clients, where rounding decides."""

import numpy as np
import pytest
import torch

from posterity.data.assemble import fit_scaling, give_public, halve, hold_out, part_off, standardise


@pytest.mark.parametrize(
    ("rows", "train", "validation", "test"),
    [(0, 0, 0, 0), (1, 1, 0, 0), (2, 1, 0, 1), (3, 2, 0, 1), (8, 6, 1, 1), (10, 8, 1, 1), (100, 80, 10, 10)],
)
def test_sizes(rows: int, train: int, validation: int, test: int) -> None:
    kept, held = hold_out([torch.arange(rows)], 0.2, seed=0)
    first, second = halve(held, seed=0)
    assert [len(kept[0]), len(first[0]), len(second[0])] == [train, validation, test]
    assert sorted(torch.cat([kept[0], first[0], second[0]]).tolist()) == list(range(rows))


def test_nothing_held_out_when_not_asked_for() -> None:
    kept, held = hold_out([torch.arange(9)], 0.0, seed=0)
    assert (len(kept[0]), len(held[0])) == (9, 0)


def test_every_client_has_its_own_draw() -> None:
    _, held = hold_out([torch.arange(50)] * 2, 0.2, seed=0)
    assert not torch.equal(held[0], held[1])


@pytest.mark.parametrize("amount", [0, 1, 5, 9])
def test_groups_are_whole_and_something_is_left(amount: int) -> None:
    group = torch.tensor([0] * 6 + [1] * 3 + [2])
    for seed in range(20):
        taken, rest = part_off(torch.arange(10), amount, np.random.default_rng(seed), group)
        assert len(taken) + len(rest) == 10
        assert set(group[taken].tolist()).isdisjoint(group[rest].tolist())
        assert len(rest) > 0
        assert (len(taken) > 0) == (amount > 0)


def test_a_single_group_is_not_divided() -> None:
    taken, rest = part_off(torch.arange(4), 2, np.random.default_rng(0), torch.zeros(4, dtype=torch.int64))
    assert (len(taken), len(rest)) == (0, 4)


def test_public_rows_never_empty_a_client() -> None:
    kept, public = give_public([torch.tensor([0]), torch.arange(1, 11), torch.arange(11, 21)], 2, 0.9, seed=0)
    assert [len(k) for k in kept] == [1, 1, 10]
    assert len(public) == 9


def test_constant_features_are_only_centred() -> None:
    x = torch.tensor([[3.0, 1.0], [3.0, 2.0], [4.0, 9.0]])
    train = [torch.tensor([0, 1])]
    out = standardise(x, train, [torch.tensor([2])], fit_scaling(x, train, 1, "client"))
    assert torch.equal(out, torch.tensor([[0.0, -1.0], [0.0, 1.0], [1.0, 15.0]]))
    assert torch.equal(x[0], torch.tensor([3.0, 1.0]))  # the pool itself is not touched
