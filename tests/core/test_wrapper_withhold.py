"""Classes of too few samples are taken out of what a method gathered, whatever form that has."""

from __future__ import annotations

import pytest
import torch

from posterity import methods
from posterity.core.common import sum_classes
from posterity.core.wrapper import Withholding, without_rare

Y = torch.tensor([0, 1, 1, 2, 2, 2])
Z, MASK = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([1.0, 1, 1, 1, 1, 0])


def test_sums_are_those_of_the_other_classes():
    """Class 2 has two samples beside padding."""
    found = without_rare(sum_classes(Z, Y, MASK, 4), 2, 4)
    few = MASK * (Y > 0)
    for name, expected in sum_classes(Z, Y, few, 4).items():
        assert torch.equal(found[name], expected)


def test_rows_of_a_rare_class_become_padding():
    found = without_rare({"z": Z, "y": Y, "mask": MASK}, 2, 4)
    assert found["mask"].tolist() == [0, 1, 1, 1, 1, 0]
    assert found["z"] is Z


def test_counts_below_are_0():
    assert without_rare(torch.tensor([4.0, 5.0, 0.0]), 5, 3).tolist() == [0, 5, 0]


@pytest.mark.parametrize("spec", ["pfedvmp", "fedproto+ft", "fedavg"])
def test_only_a_count_above_1_makes_another_method(spec):
    assert not isinstance(methods.build(spec), Withholding)
    made = methods.build(spec, min_count=3)
    assert isinstance(made, Withholding)
    assert made.class_statistics == methods.build(spec).class_statistics
    assert bool(made.class_statistics) == (spec != "fedavg")
