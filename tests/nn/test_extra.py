"""Layers of a method's own: names, first values from a key, and many clients at once."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import vmap

from posterity.core.random import fold, make_key
from posterity.nn.extra import Extra
from posterity.nn.model import global_generators

LIKE = torch.zeros((), dtype=torch.float64)


def extra():
    return Extra("valve", nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 2)))


def test_first_values_are_those_of_the_key():
    made = extra()
    before = global_generators()
    one, again, other = (made.init(fold(make_key(0), i), LIKE) for i in (1, 1, 2))
    assert global_generators() == before
    assert list(one) == list(made.leaves)
    assert next(iter(one)) == "valve/0.weight"
    assert all(torch.equal(one[n], again[n]) and one[n].dtype == torch.float64 for n in one)
    assert not torch.equal(one["valve/0.weight"], other["valve/0.weight"])


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(3), nn.Dropout(), nn.Dropout2d()], ids=lambda m: type(m).__name__)
def test_layers_with_state_or_draws_are_refused(layer):
    with pytest.raises(ValueError, match=f"the extra module 'valve' holds {type(layer).__name__}; only layers without"):
        Extra("valve", nn.Sequential(nn.Linear(3, 3), layer))


def test_many_clients_at_once_are_each_alone():
    made, x = extra(), torch.linspace(-1, 1, 2 * 5 * 3, dtype=torch.float64).reshape(2, 5, 3)
    each = [{**made.init(make_key(k), LIKE), "other": LIKE} for k in (0, 1)]
    stack = {n: torch.stack([p[n] for p in each]) for n in each[0]}
    together = vmap(made)(stack, x)
    for k in (0, 1):
        own = made.of(each[k])
        h = torch.nn.functional.layer_norm(x[k] @ own["valve/0.weight"].T + own["valve/0.bias"], (4,))
        expected = h.relu() @ own["valve/3.weight"].T + own["valve/3.bias"]
        torch.testing.assert_close(together[k], expected, atol=1e-12, rtol=0)
    assert "other" not in made.of(each[0])
