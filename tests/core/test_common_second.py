"""A second network beside the first: names, partitions, and a loss that sees nothing but it."""

from types import SimpleNamespace

import torch
from oracles.sims import DOUBLE, points
from torch.func import grad

from posterity import models
from posterity.core.common import as_second, first_network, first_of, on_second, second_network, second_of
from posterity.core.passes import fit
from posterity.core.protocol import Batch
from posterity.core.random import make_key

FEDERATION = points((7,)).to("cpu", DOUBLE)
MODEL = models.build("mlp_bn", FEDERATION.shape, 3, hidden=(4,))
FIRST, SECOND = MODEL.init(0, DOUBLE), MODEL.init(1, DOUBLE)
BOTH = {**FIRST, "own": torch.ones(2), **as_second(SECOND)}
ROWS = FEDERATION.train.client(0)
BATCH = Batch(FEDERATION.x[ROWS], FEDERATION.y[ROWS], torch.ones(7, dtype=DOUBLE))
HERE = SimpleNamespace(model=MODEL, key=make_key(0))


def same(left, right):
    return list(left) == list(right) and all(left[n] is right[n] for n in left)


def test_both_are_found_again():
    assert same(second_of(BOTH), SECOND)
    assert same(first_of(BOTH), {**FIRST, "own": BOTH["own"]})


def test_partitions_name_what_gradients_move():
    assert first_network(BOTH, MODEL) == [*(n for n in FIRST if n in MODEL.trainable), "own"]
    assert second_network(BOTH, MODEL) == [f"second/{n}" for n in SECOND if n in MODEL.trainable]
    assert MODEL.buffers  # so that some are left out


def test_a_loss_of_the_second_is_the_loss_and_does_not_see_the_first():
    value, buffers = on_second(fit)(BOTH, BATCH, HERE)
    expected, moved = fit(SECOND, BATCH, HERE)
    assert torch.equal(value, expected)
    assert all(torch.equal(buffers[f"second/{n}"], b) for n, b in moved.items())
    assert len(buffers) == len(moved) == len(MODEL.buffers)
    slope = grad(lambda p: on_second(fit)(p, BATCH, HERE)[0])(BOTH)
    assert not any(bool(slope[n].any()) for n in first_network(BOTH, MODEL))
    assert any(bool(slope[n].any()) for n in second_network(BOTH, MODEL))
