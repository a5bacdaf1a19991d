"""The operators of our kernels promise the shape and layout that their results have."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest
import torch
from torch import library

GPU, HOST = torch.cuda.is_available(), os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = pytest.mark.skipif(
    find_spec("triton") is None or not (GPU or HOST), reason="needs Triton, and a GPU or TRITON_INTERPRET=1"
)
DEVICE = "cuda" if GPU and not HOST else "cpu"
GRID = [2, 3, 7, 6, 3, 2, 2, 1, 1, 0]  # 2 images of 3 x 7 x 6, windows 3 x 2, strides 2 and 1, padding 1 and 0
PLACES = (4, 5)


def _some(*shape, last=False):
    """Numbers of that shape; with the channel last in memory if asked."""
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    return made.movedim(-3, -1).contiguous().movedim(-1, -3) if last else made


def _cases():
    """Name of the operator and arguments, for a stack of clients and for what they share."""
    x, weight, bias, grad = _some(4, 2, 3, 7, 6), _some(4, 5, 3, 3, 2), _some(4, 5), _some(4, 2, 5, *PLACES)
    yield "convolve", (x, weight, bias, GRID)
    yield "convolve", (_some(4, 2, 3, 7, 6, last=True), weight[:1], None, GRID)
    yield "convolve", (x[0], weight[0], bias[0], GRID)
    yield "spread", (weight, grad, GRID)
    yield "spread", (weight[:1], _some(4, 2, 5, *PLACES, last=True), GRID)
    yield "weigh", (x, grad, GRID)
    yield "weigh", (x[:1], grad, GRID)
    place = torch.zeros(4, 2, 3, 3, 3, dtype=torch.int8, device=DEVICE)
    for last in (False, True):
        image = _some(4, 2, 3, 7, 6, last=last)
        yield "pool", (image,)
        yield "take", (image, place)
        yield "put", (_some(4, 2, 3, 3, 3, last=last), place, [7, 6])
    b = _some(4, 40, 50)
    for each in (b, b.mT.contiguous().mT, b[:1].expand(4, 40, 50)):
        yield "strips", (_some(4, 10, 40), each)
    key, count = torch.arange(8, device=DEVICE).reshape(4, 2), torch.arange(5, device=DEVICE)
    yield "threefry", (key[:, :1], key[:, 1:], count, torch.zeros_like(count))
    yield "threefry", (key[..., 0], key[..., 1], count[:1], count[0])
    yield "threefry", (key[:, None, :1], key[:, None, 1:], count.reshape(1, 5, 1), count.reshape(1, 1, 5))


@pytest.mark.parametrize("number", range(19))
def test_results_are_as_promised(number):
    from posterity.core import _random_triton  # noqa: F401  where the operators are made; they need Triton
    from posterity.nn.kernels import operators  # noqa: F401
    from posterity.nn.kernels import products as _products  # noqa: F401

    cases = list(_cases())
    assert len(cases) == 19
    name, arguments = cases[number]
    operator = getattr(torch.ops.posterity, name).default
    library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))
    made, told = operator(*arguments), _told(operator, arguments)
    for a, b in zip(*((t if isinstance(t, tuple) else (t,)) for t in (made, told)), strict=True):
        assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)


def _told(operator, arguments):
    """What the operator says of its result when its arguments have no content."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        return operator(*(mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in arguments))
