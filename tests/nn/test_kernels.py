"""The Triton kernels against PyTorch in float64: values, derivatives, the same bits again, and inside a CUDA graph.

They run on a GPU, or with TRITON_INTERPRET=1 (and Triton installed) on the host: there only small, ragged shapes.
"""

import os
from importlib.util import find_spec

import pytest
import torch
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from posterity import models
from posterity.core.random import fold, make_key, uniform
from posterity.nn import convolution as bilinear
from posterity.nn.convolution import Convolution, by_kernel
from posterity.nn.kernels.grid import WindowGrid
from posterity.nn.pooling import MaxPool

GPU, HOST = torch.cuda.is_available(), os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = pytest.mark.skipif(
    find_spec("triton") is None or not (GPU or HOST), reason="needs Triton, and a GPU or TRITON_INTERPRET=1"
)
on_gpu = pytest.mark.skipif(not GPU or HOST, reason="needs a GPU")
DEVICE = "cuda" if GPU and not HOST else "cpu"
CLIENTS = 3
RAGGED = [  # B, C, H, W, O, h, w, stride, padding
    (3, 3, 9, 8, 5, 5, 5, (1, 1), (0, 0)),
    (2, 4, 7, 6, 6, 3, 2, (2, 1), (1, 0)),
    (1, 17, 5, 5, 33, 3, 3, (1, 1), (1, 1)),
    (2, 2, 7, 8, 3, 1, 1, (2, 2), (0, 0)),
    (2, 2, 5, 5, 3, 1, 1, (1, 2), (1, 1)),
    (2, 1, 11, 9, 65, 4, 3, (3, 2), (2, 2)),
    (1, 2, 3, 3, 2, 3, 3, (1, 1), (3, 3)),
    (3, 1, 17, 17, 2, 2, 2, (1, 1), (0, 0)),  # two slices of the weight gradient
]
NETWORKS = {"cnn": (3, 32, 32), "lenet5": (1, 28, 28), "metavd_cnn": (3, 32, 32), "resnet20": (3, 32, 32),
            "office_cnn": (3, 224, 224)}  # fmt: skip
# of two factors cut to 10 bits after the point, of a result rounded to 7 or 10
ROUNDING = {"float32": 0.0, "tf32": 2.0**-9, "bfloat16": 2.0**-8, "float16": 2.0**-11}


def _layers() -> list[tuple]:
    """Every kind of convolution that the networks have, as a row of `RAGGED` with ten images."""
    found = {}
    for name, shape in NETWORKS.items():
        module = models.build(name, shape, 10).module

        def look(layer, inputs, output):
            size = (10, *inputs[0].shape[1:], layer.out_channels, *layer.kernel_size, layer.stride, layer.padding)
            found[size] = True

        hooks = [m.register_forward_hook(look) for m in module.modules() if isinstance(m, Convolution)]
        functional_call(module.eval(), {}, (torch.zeros(2, *shape),))
        for hook in hooks:
            hook.remove()
    return list(found)


def _draw(case, kind=torch.float32, clients=CLIENTS):
    """Stacks of x, weight, bias and a gradient of the images; stride and padding."""
    batch, channels, height, width, outputs, h, w, stride, pad = case
    grid = WindowGrid((batch, channels, height, width), (h, w), stride, pad)
    draw = torch.Generator().manual_seed(0)
    sizes = (batch, channels, height, width), (outputs, channels, h, w), (outputs,), (batch, outputs, *grid.places)
    return [torch.randn(clients, *s, generator=draw).to(DEVICE, kind) for s in sizes], grid


def _wanted(tensors, grid):
    """The three maps in float64, one client after another: images, gradients of x, weight and bias."""
    found = []
    for x, w, b, g in zip(*(t.double() for t in tensors), strict=True):
        leaves = [t.clone().requires_grad_() for t in (x, w, b)]
        y = F.conv2d(*leaves, grid.stride, grid.pad)
        found.append((y.detach(), *torch.autograd.grad(y, leaves, g)))
    return [torch.stack(list(column)) for column in zip(*found, strict=True)]


def _compute(tensors, grid):
    from posterity.nn.kernels import _convolution

    x, w, b, g = tensors
    return [_convolution.convolve(x, w, b, grid), _convolution.spread(w, g, grid), *_convolution.weigh(x, g, grid)]


def _check(case, kind):
    tensors, grid = _draw(case, torch.float32 if kind == "tf32" else getattr(torch, kind))
    wanted, scale = _wanted(tensors, grid), _wanted([t.abs() for t in tensors], grid)
    (batch, channels, *_), outputs = grid.shape, tensors[1].shape[1]
    window, places = grid.window[0] * grid.window[1], batch * grid.places[0] * grid.places[1]
    terms = (channels * window, outputs * window, places, places)
    for found, value, size, count in zip(_compute(tensors, grid), wanted, scale, terms, strict=True):
        bound = ROUNDING[kind] + 4 * (count + 1) ** 0.5 * 2.0**-24  # float32 sums round as a random walk does
        assert found.dtype == tensors[0].dtype
        assert ((found.double() - value).abs() <= bound * size).all()


@pytest.fixture
def kind(request):
    if request.param == "bfloat16" and DEVICE == "cpu":
        pytest.skip("Triton's interpreter does not multiply bfloat16")
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = request.param == "tf32"
    yield request.param
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize("kind", ["float32"], indirect=True)
@pytest.mark.parametrize("case", RAGGED, ids=str)
def test_ragged_shapes(case, kind):
    _check(case, kind)


@pytest.mark.parametrize("kind", ["tf32", "bfloat16", "float16"], indirect=True)
@pytest.mark.parametrize("case", RAGGED[:2], ids=str)
def test_ragged_shapes_with_fewer_bits(case, kind):
    _check(case, kind)


@on_gpu
@pytest.mark.parametrize("kind", ["float32", "tf32"], indirect=True)
def test_all_layers_of_the_networks(kind):
    layers = _layers()
    assert len(layers) >= 16
    for case in layers:
        _check(case, kind)


@on_gpu
@pytest.mark.parametrize("kind", ["tf32", "bfloat16"], indirect=True)
def test_the_papers_network_with_fewer_bits(kind):
    for case in ((10, 3, 32, 32, 32, 5, 5, (1, 1), (0, 0)), (10, 32, 14, 14, 64, 5, 5, (1, 1), (0, 0))):
        _check(case, kind)


@pytest.mark.parametrize("case", [(10, 3, 32, 32, 32, 5, 5, (1, 1), (0, 0)) if GPU else RAGGED[0], RAGGED[1]], ids=str)
def test_the_same_bits_again_and_in_any_stack(case):
    tensors, grid = _draw(case)
    first, again = _compute(tensors, grid), _compute(tensors, grid)
    alone = _compute([t[1:2] for t in tensors], grid)
    for a, b, c in zip(first, again, alone, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a[1:2], c)


def _loss(compute):
    return lambda w, b, x: (compute(x, w, b).sin() ** 2).sum()


def _adapted(compute):
    def after(w, b, x):
        slope_w, slope_b = grad(_loss(compute), (0, 1))(w, b, x)
        return _loss(compute)(w - 0.01 * slope_w, b - 0.01 * slope_b, x.flip(0))

    return grad(after, (0, 1, 2))


def _sample(compute):
    one = grad(lambda w, b, x: _loss(compute)(w, b, x[None]), (0, 1))
    return lambda w, b, x: vmap(one, (None, None, 0))(w, b, x)


USES = {
    "values": lambda c, w, b, x: vmap(c)(x, w, b),
    "without bias": lambda c, w, b, x: vmap(grad(lambda w, x: _loss(c)(w, None, x)))(w, x),
    "one network": lambda c, w, b, x: vmap(c, (0, None, None))(x, w[0], b[0]),
    "one batch": lambda c, w, b, x: vmap(c, (None, 0, 0))(x[0], w, b),
    "other axes": lambda c, w, b, x: vmap(c, (1, 2, 1))(x.movedim(0, 1), w.movedim(0, 2), b.movedim(0, 1)),
    "plain gradient": lambda c, w, b, x: grad(_loss(c), (0, 1, 2))(w[0], b[0], x[0]),
    "gradients": lambda c, w, b, x: vmap(grad(_loss(c), (0, 1, 2)))(w, b, x),
    "gradients of one network": lambda c, w, b, x: vmap(grad(_loss(c), (0, 1)), (None, None, 0))(w[0], b[0], x),
    "gradient of a sum over clients": lambda c, w, b, x: grad(
        lambda w, b: vmap(_loss(c), (None, None, 0))(w, b, x).sum(), (0, 1)
    )(w[0], b[0]),
    "gradients per sample": lambda c, w, b, x: vmap(_sample(c))(w, b, x),
    "gradients through a gradient": lambda c, w, b, x: vmap(_adapted(c))(w, b, x),
}


@pytest.mark.parametrize("use", USES)
def test_derivatives(use):
    (x, w, b, _), grid = _draw(RAGGED[1])
    ours = USES[use](lambda x, w, b: by_kernel(x, w, b, grid.stride, grid.pad), w, b, x)
    native = USES[use](lambda x, w, b: F.conv2d(x, w, b, grid.stride, grid.pad), *(t.double() for t in (w, b, x)))
    for found, wanted in zip(*(r if isinstance(r, tuple) else (r,) for r in (ours, native)), strict=True):
        assert found.shape == wanted.shape
        assert (found.double() - wanted).abs().max() <= 1e-5 * wanted.abs().max()


def test_the_first_layers_input_gets_no_gradient(monkeypatch):
    called = []
    spread, weigh = bilinear.InputGradient.forward, bilinear.WeightGradient.forward
    monkeypatch.setattr(
        bilinear.InputGradient, "forward", staticmethod(lambda *a: called.append("spread") or spread(*a))
    )
    monkeypatch.setattr(
        bilinear.WeightGradient, "forward", staticmethod(lambda *a: called.append("weigh") or weigh(*a))
    )
    (x, w, b, _), grid = _draw(RAGGED[1])

    def two(leaves, x):
        h = by_kernel(x, leaves[0], leaves[1], grid.stride, grid.pad).tanh()
        return by_kernel(h, leaves[2], None, (1, 1), (0, 0)).square().sum()

    second = torch.ones(CLIENTS, 2, w.shape[1], 2, 2, device=DEVICE)
    vmap(grad(two))((w, b, second), x)
    assert called == ["spread", "weigh", "weigh"]


@on_gpu
def test_a_network_inside_a_cuda_graph():
    model = models.build("cnn", (3, 32, 32), 10).with_conv_backend("triton")
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(5, 10, 3, 32, 32, generator=draw).to(DEVICE)
    y = torch.randint(0, 10, (5, 10), generator=draw).to(DEVICE)
    params = {n: torch.stack([model.init(k)[n] for k in range(5)]).to(DEVICE) for n in model.leaves}

    def slopes():
        return vmap(grad(lambda p, x, y: F.cross_entropy(model.logits(p, x), y)))(params, x, y)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        slopes()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = slopes()
    x.normal_(generator=torch.Generator(DEVICE).manual_seed(1))
    graph.replay()
    wanted = slopes()
    assert all(torch.equal(found[n], wanted[n]) for n in model.leaves)


POOLED = [(3, 4, 6, 6), (2, 33, 7, 5), (1, 1, 2, 3), (2, 64, 28, 28) if GPU else (2, 5, 4, 8)]
POOLS = {
    "values": lambda pool, x: vmap(pool)(x),
    "gradients": lambda pool, x: vmap(grad(lambda x: (pool(x).sin() ** 2).sum()))(x),
    "twice": lambda pool, x: vmap(grad(lambda x: grad(lambda x: (pool(x) ** 3).sum())(x).square().sum()))(x),
}


@pytest.mark.parametrize("use", POOLS)
@pytest.mark.parametrize("shape", POOLED, ids=str)
def test_pooling_is_pytorchs(shape, use):
    """Equal pixels too: the first of them is taken. The same bits, however the images lie in memory."""
    x = torch.randn(CLIENTS, *shape, generator=torch.Generator().manual_seed(0)).mul(2).round().to(DEVICE)
    wanted = POOLS[use](lambda x: F.max_pool2d(x, 2), x)
    last = x.movedim(-3, -1).contiguous().movedim(-1, -3)
    for images in (x, last):
        assert torch.equal(POOLS[use](lambda x: MaxPool.apply(x)[0], images), wanted)


@on_gpu
def test_keys_have_the_bits_of_the_host():
    key, number = make_key(7, "cuda"), torch.arange(1000, device="cuda")[:, None] * 3_000_000_019
    keys = fold(key, torch.arange(5, device="cuda"))
    assert torch.equal(fold(keys, number).cpu(), fold(keys.cpu(), number.cpu()))
    drawn = vmap(lambda k: uniform(k, (3, 2)))(keys)
    assert torch.equal(drawn.cpu(), vmap(lambda k: uniform(k, (3, 2)))(keys.cpu()))


def test_wide_indices_change_no_bit(monkeypatch):
    from posterity.nn.kernels import _convolution, _pooling

    tensors, grid = _draw(RAGGED[2])
    images = tensors[0]
    narrow = [*_compute(tensors, grid), *_pooled(images)]
    for module in (_convolution, _pooling):
        monkeypatch.setattr(module, "LARGEST", 0)
    for one, other in zip(narrow, [*_compute(tensors, grid), *_pooled(images)], strict=True):
        assert torch.equal(one, other)


def _pooled(images):
    from posterity.nn.kernels import _pooling

    large, place = _pooling.pool(images)
    return large, place, _pooling.take(images, place), _pooling.put(large, place, tuple(images.shape[-2:]))


@on_gpu
def test_more_numbers_than_32_bits_can_name():
    """130 clients of three seeds are scored at once: 3.3 billion numbers behind the first layer of MetaVD's network."""
    from posterity.nn.kernels import _convolution

    batch = 2**31 // (64 * 32 * 32) + 100
    grid = WindowGrid((batch, 1, 32, 32), (3, 3), (1, 1), (1, 1))
    draw = torch.Generator("cuda").manual_seed(0)
    kind = {"generator": draw, "device": "cuda", "dtype": torch.bfloat16}
    x, w = torch.randn(1, batch, 1, 32, 32, **kind), torch.randn(1, 64, 1, 3, 3, **kind)
    y = _convolution.convolve(x, w, None, grid)
    for part in (slice(0, 50), slice(batch - 50, batch)):
        small = WindowGrid((50, 1, 32, 32), (3, 3), (1, 1), (1, 1))
        assert torch.equal(y[:, part], _convolution.convolve(x[:, part].contiguous(), w, None, small))
        large, place, taken, back = _pooled(y[:, part].contiguous())
        for found, wanted in zip(_pooled(y), (large, place, taken, back), strict=True):
            assert torch.equal(found[:, part], wanted)
    weight = _convolution.weigh(x, y, grid)[0][0, :, 0].double()  # (64, 3, 3)
    pieces = zip(torch.split(x[0].double(), 2000), torch.split(y[0], 2000), strict=True)
    wanted = sum(torch.einsum("bhwrq,bohw->orq", F.pad(a[:, 0], (1, 1, 1, 1)).unfold(1, 3, 1).unfold(2, 3, 1),
                              b.double()) for a, b in pieces)  # fmt: skip
    assert torch.allclose(weight, wanted, rtol=1e-2, atol=1e-2 * float(wanted.abs().max()))
