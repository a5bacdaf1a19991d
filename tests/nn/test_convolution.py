"""Convolution by patches against PyTorch's own, stacked and not, to second order; what `with_conv_backend` refuses."""

import pytest
import torch
from torch.func import grad, vmap
from torch.nn import functional as F

from posterity import models
from posterity.nn import convolution
from posterity.nn.convolution import WAYS, Convolution, by_kernel, by_patches

CLIENTS = 3
SHAPES = {  # B, C, H, W, O, h, w, stride, padding
    "cnn": (2, 3, 9, 9, 4, 5, 5, (1, 1), (0, 0)),
    "residual": (2, 2, 6, 7, 3, 3, 3, (2, 2), (1, 1)),
    "oblong": (3, 2, 7, 5, 2, 3, 2, (2, 1), (1, 0)),
    "shortcut": (2, 3, 5, 6, 2, 1, 1, (2, 2), (0, 0)),
}
NEAR = {"rtol": 1e-11, "atol": 1e-11}


@pytest.fixture(params=SHAPES)
def case(request):
    batch, channels, height, width, outputs, h, w, stride, pad = SHAPES[request.param]
    draw = torch.Generator().manual_seed(0)
    sizes = (batch, channels, height, width), (outputs, channels, h, w), (outputs,)
    tensors = [torch.randn(CLIENTS, *s, generator=draw, dtype=torch.float64) for s in sizes]
    return (*tensors, stride, pad)


def _both(case):
    """The tensors, PyTorch's function and ours."""
    *tensors, stride, pad = case
    return tensors, lambda x, w, b: F.conv2d(x, w, b, stride, pad), lambda x, w, b: by_patches(x, w, b, stride, pad)


def _loss(compute):
    return lambda w, b, x: (compute(x, w, b).sin() ** 2).sum()


def _each(function, *stacks):
    """One client after another."""
    found = [function(*(s[k] for s in stacks)) for k in range(CLIENTS)]
    return [torch.stack(list(column)) for column in zip(*found, strict=True)]


def test_values(case):
    (x, w, b), native, ours = _both(case)
    torch.testing.assert_close(ours(x[0], w[0], b[0]), native(x[0], w[0], b[0]), **NEAR)
    torch.testing.assert_close(ours(x[0], w[0], None), native(x[0], w[0], None), **NEAR)
    torch.testing.assert_close(vmap(ours)(x, w, b), torch.stack([native(x[k], w[k], b[k]) for k in range(3)]), **NEAR)


def test_one_network_for_all_clients_and_one_batch_for_all(case):
    (x, w, b), native, ours = _both(case)
    shared = vmap(ours, (0, None, None))(x, w[0], b[0])
    torch.testing.assert_close(shared, torch.stack([native(x[k], w[0], b[0]) for k in range(3)]), **NEAR)
    same = vmap(ours, (None, 0, 0))(x[0], w, b)
    torch.testing.assert_close(same, torch.stack([native(x[0], w[k], b[k]) for k in range(3)]), **NEAR)


def test_gradients(case):
    (x, w, b), native, ours = _both(case)
    wanted = _each(grad(_loss(native), (0, 1, 2)), w, b, x)
    torch.testing.assert_close(list(vmap(grad(_loss(ours), (0, 1, 2)))(w, b, x)), wanted, **NEAR)


def test_gradients_through_a_gradient(case):
    (x, w, b), native, ours = _both(case)

    def adapted(compute):
        def after(w, b, x):
            slope_w, slope_b = grad(_loss(compute), (0, 1))(w, b, x)
            return _loss(compute)(w - 0.1 * slope_w, b - 0.1 * slope_b, x.flip(0))

        return grad(after, (0, 1, 2))

    wanted = _each(adapted(native), w, b, x)
    torch.testing.assert_close(list(vmap(adapted(ours))(w, b, x)), wanted, **NEAR)


def test_float64_and_nothing_to_do_never_reach_a_kernel(case, monkeypatch):
    def fail(*_):
        raise AssertionError

    monkeypatch.setattr(convolution.Convolve, "apply", fail)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    x, w, b, stride, pad = case
    torch.testing.assert_close(by_kernel(x[0], w[0], b[0], stride, pad), F.conv2d(x[0], w[0], b[0], stride, pad))
    none = x[0, :0].float()
    assert by_kernel(none, w[0].float(), b[0].float(), stride, pad).shape[0] == 0
    with pytest.raises(AssertionError):  # the guard of this test works
        by_kernel(x[0].float(), w[0].float(), b[0].float(), stride, pad)


def test_tensors_of_the_host_never_reach_a_kernel(case, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(convolution.Convolve, "apply", lambda *_: pytest.fail("a kernel was called"))
    *tensors, stride, pad = case
    x, w, b = (t[0].float() for t in tensors)
    torch.testing.assert_close(by_kernel(x, w, b, stride, pad), F.conv2d(x, w, b, stride, pad), rtol=1e-4, atol=1e-4)


def test_every_convolution_is_rewired_and_the_original_left_alone():
    model = models.build("cnn", (3, 32, 32), 10)
    other = model.with_conv_backend("patches")
    for made, way in ((model, "native"), (other, "patches")):
        assert [m.way for m in made.module.modules() if isinstance(m, Convolution)] == [way, way]


def test_refusals(monkeypatch):
    model = models.build("cnn", (3, 32, 32), 10)
    with pytest.raises(ValueError, match="patches"):
        model.with_conv_backend("pathces")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(convolution, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="package triton"):
        model.with_conv_backend("triton")
    monkeypatch.setattr(convolution, "find_spec", lambda name: name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="CUDA device"):
        model.with_conv_backend("triton")
    assert WAYS == ("native", "patches", "triton", "last")
