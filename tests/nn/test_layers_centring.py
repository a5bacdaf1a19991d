"""Batch norm in fewer passes: its parts, their derivatives of any order, and the way past the mask."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from posterity import models
from posterity.nn.layers import Norm, centre, squares

SHAPES = [(4, 3), (4, 3, 2), (4, 3, 2, 2)]
REAL = torch.tensor([True, True, False, True])


def direct(x, real):
    """`centre`, written out."""
    mean = x[real].transpose(0, 1).flatten(1).mean(1)
    wide = real.reshape(-1, *[1] * (x.dim() - 1))
    return torch.where(wide, x - mean.reshape(-1, *[1] * (x.dim() - 2)), 0.0), mean


@pytest.mark.parametrize("shape", SHAPES)
def test_centre_and_squares_are_what_they_say(shape):
    x = torch.randn(shape, dtype=torch.float64)
    torch.testing.assert_close(centre(x, REAL), direct(x, REAL), rtol=0, atol=1e-14)
    torch.testing.assert_close(squares(x), x.reshape(4, 3, -1).square().sum(-1), rtol=0, atol=1e-14)


@pytest.mark.parametrize("shape", SHAPES)
def test_derivatives_of_both_orders(shape):
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    for function in (lambda x: centre(x, REAL), squares, lambda x: squares(centre(x, REAL)[0])):
        assert torch.autograd.gradcheck(function, x)
        assert torch.autograd.gradgradcheck(function, x)


def test_stacked():
    x = torch.randn(5, 4, 3, 2, dtype=torch.float64)
    real = torch.rand(5, 4) > 0.3
    real[:, 0] = True
    torch.testing.assert_close(vmap(centre)(x, real), tuple(map(torch.stack, zip(*map(centre, x, real), strict=True))))
    torch.testing.assert_close(vmap(squares)(x), torch.stack([squares(each) for each in x]))


def step(norm, mask):
    """A function of a batch: the output's gradient with respect to everything, and new running statistics."""
    state = {n: p.detach() for n, p in norm.state_dict().items()}

    def run(given, x):
        lent = {**state, **given, **({} if mask is None else {"mask": mask})}
        output = functional_call(norm, lent, (x,))
        return (output**3).sum(), {n: lent[n] for n in state if n.startswith("running")}

    given = {n: p.detach() for n, p in norm.named_parameters()}
    return lambda x: grad(run, argnums=(0, 1), has_aux=True)(given, x)


@pytest.mark.parametrize("options", [{}, {"affine": False}, {"track": False}])
@pytest.mark.parametrize("shape", [(6, 3), (6, 3, 2, 2)])
def test_no_mask_is_a_mask_of_ones(shape, options):
    torch.manual_seed(2)
    norm, x = Norm(3, **options).double(), torch.randn(shape, dtype=torch.float64)
    for p in norm.parameters():
        nn.init.normal_(p)
    ones = torch.ones(6, dtype=torch.float64)
    torch.testing.assert_close(step(norm, None)(x), step(norm, ones)(x), rtol=1e-11, atol=1e-11)


def test_one_value_goes_by_the_running_statistics_whatever_the_mask_says():
    norm, x = Norm(3), torch.randn(1, 3)
    lent = [dict(norm.state_dict()) | more for more in ({"mask": torch.ones(1)}, {})]
    outputs = [functional_call(norm, each, (x,)) for each in lent]
    assert torch.equal(*outputs)
    assert torch.equal(lent[1]["running_var"], norm.running_var)


@pytest.mark.parametrize("name", ["cnn", "lenet5", "resnet20"])
def test_channels_last_computes_the_same(name):
    model = models.build(name, (3, 16, 16), 5)
    last, params, x = (
        model.with_conv_backend("last"),
        model.init(0, torch.float64),
        torch.randn(2, 4, 3, 16, 16).double(),
    )

    def slope(network):
        def one(params, x):
            return grad(lambda p: network(p, x, mask=x.new_ones(len(x)), train=True)[0].square().sum())(params)

        return one

    many = {n: torch.stack((p, p)) for n, p in params.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # stacks of such images are slow, and nobody makes them
        stacks = [vmap(slope(network))(many, x) for network in (last, model)]
    for mine, theirs in ((slope(last)(params, x[0]), slope(model)(params, x[0])), stacks):
        for leaf, value in theirs.items():
            torch.testing.assert_close(mine[leaf], value, rtol=1e-9, atol=1e-9)


def test_channels_last_reaches_the_pooling():
    model = models.build("cnn", (3, 32, 32), 5)
    seen = []
    for network in (model, model.with_conv_backend("last")):
        params, x = network.init(0), torch.randn(2, 3, 32, 32)
        network(params, x, around={"base.pool1": lambda x, y: seen.append(x) or y})
    assert [x.is_contiguous(memory_format=torch.channels_last) for x in seen] == [False, True]
