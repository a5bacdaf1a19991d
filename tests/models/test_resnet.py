"""Residual networks and the Office network: sizes, work, shortcuts, and many clients at once."""

import pytest
import torch
from oracles.sims import DOUBLE, ENGINES, Run, federate, worst
from torch import nn
from torch.func import grad, vmap

from posterity.core.passes import Training
from posterity.core.tree import tree_rows, tree_stack
from posterity.methods.fedavg import FedAvg
from posterity.models import available, build

NAMES = ("resnet18", "resnet20", "resnet32", "resnet44", "resnet56", "office_cnn")
SMALL = {  # well-conditioned, and cheap enough for float64
    "resnet18": ((1, 8, 8), {"width": 2, "eps": 1e-2}),
    "resnet18-imagenet": ((1, 16, 16), {"width": 2, "eps": 1e-2, "stem": "imagenet"}),
    "resnet20": ((1, 8, 8), {"width": 2, "eps": 1e-2}),
    "resnet20-B": ((1, 7, 9), {"width": 2, "eps": 1e-2, "shortcut": "B"}),
    "resnet56": ((1, 6, 6), {"width": 2, "eps": 1e-2}),
    "office_cnn": ((1, 35, 35), {"width": 1, "eps": 1e-2}),
}
each_small = pytest.mark.parametrize("case", SMALL)


def small(case, classes=3):
    shape, options = SMALL[case]
    return build(case.partition("-")[0], shape, classes, **options)


def macs(model, shape):
    """Multiplications of the convolutions and linear layers for one sample."""
    found = []

    def count(layer, inputs, output):
        found.append(layer.weight[0].numel() * output[0].numel())

    handles = [m.register_forward_hook(count) for m in model.module.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    model.logits({n: t.detach() for n, t in model.module.state_dict().items()}, torch.zeros(1, *shape))
    for handle in handles:
        handle.remove()
    return sum(found)


@pytest.mark.parametrize(
    ("name", "classes", "options", "base", "head"),
    [
        ("resnet18", 100, {}, 11_168_832, 51_300),
        ("resnet20", 10, {}, 269_722 - 650, 650),
        ("resnet20", 10, {"shortcut": "B"}, 269_722 - 650 + 16 * 32 + 64 + 32 * 64 + 128, 650),
        ("resnet32", 10, {}, 464_154 - 650, 650),
        ("resnet44", 10, {}, 658_586 - 650, 650),
        ("resnet56", 10, {}, 853_018 - 650, 650),
    ],
)
def test_numbers_of_parameters(name, classes, options, base, head):
    """Those that He et al. (Table 6) and FedNP round to 0.27, 0.46, 0.66, 0.85 M and 11.17 M."""
    model = build(name, (3, 32, 32), classes, **options)
    sizes = {n: p.numel() for n, p in model.module.named_parameters()}
    assert sum(s for n, s in sizes.items() if n in model.head_names) == head
    assert model.size == base + head
    assert model.head_names == {"head.weight", "head.bias"}
    assert model.name == name
    assert model.unstackable == ()


@pytest.mark.parametrize(
    ("name", "side", "options", "millions"),
    [
        ("resnet18", 32, {}, 555),
        ("resnet18", 64, {}, 2220),
        ("resnet18", 64, {"stem": "halved"}, 555),
        ("resnet20", 32, {}, 40.6),
        ("resnet32", 32, {}, 68.9),
        ("resnet44", 32, {}, 97.2),
        ("resnet56", 32, {}, 125.5),
    ],
)
def test_work_per_sample(name, side, options, millions):
    shape = (3, side, side)
    assert macs(build(name, shape, 10, **options), shape) / 1e6 == pytest.approx(millions, rel=2e-3)


def test_numbers_of_parameters_of_the_office_network():
    """Per width 8 by hand; at 256×256 its proportions are FedBN's AlexNet: 64 … 256 channels, 6×6 pixels, 4096."""
    convolutions = 3 * 8 * 121 + 8 * 24 * 25 + 24 * 48 * 9 + 48 * 32 * 9 + 32 * 32 * 9
    norms = 3 * (8 + 24 + 48 + 32 + 32)  # and the biases of the convolutions
    for side, pixels in ((256, 36), (224, 36), (64, 4)):
        model = build("office_cnn", (3, side, side), 31, width=8)
        dense = pixels * 32 * 512 + 512 * 512 + 2 * 3 * 512
        assert model.size == convolutions + norms + dense + 512 * 31 + 31
        assert model.head_names == {"head.weight", "head.bias"}
        assert model.feature_dim == 512
    channels = [
        m.out_channels for m in build("office_cnn", (3, 64, 64), 31).module.modules() if isinstance(m, nn.Conv2d)
    ]
    assert channels == [64, 192, 384, 256, 256]
    assert build("office_cnn", (3, 64, 64), 31).feature_dim == 4096
    assert sum(isinstance(m, nn.Linear) for m in model.module.modules()) == 3
    assert len({n.rpartition(".")[0] for n in model.norms}) == 7
    pools = [n for n, m in model.module.base.named_children() if isinstance(m, nn.MaxPool2d)]
    assert pools == ["pool1", "pool2", "pool5"]


def test_shortcut_a_by_hand():
    """With silent convolutions a block is relu of its shortcut: every other pixel, new channels zero, no parameter."""
    model = build("resnet20", (1, 8, 8), 3, width=2)
    params = {n: p * 0 if "conv2" in n else p for n, p in model.init(0, DOUBLE).items()}
    x = torch.rand(2, 1, 8, 8, dtype=DOUBLE)
    _, _, seen = model(params, x, want=("base.stage2.0", "base.stage2.1"))
    before, after = seen["base.stage2.0"], seen["base.stage2.1"]
    assert torch.equal(after[:, :2], before[:, :, ::2, ::2])
    assert after.shape == (2, 4, 4, 4)
    assert float(after[:, 2:].abs().max()) == 0
    assert float(before.abs().max()) > 0
    assert not any("shortcut" in n for n in model.leaves)
    assert any("shortcut" in n for n in build("resnet20", (1, 8, 8), 3, width=2, shortcut="B").leaves)


def test_resnet18_is_the_usual_one():
    """Against the same network written out by hand from PyTorch's functions, in evaluation mode."""
    model = build("resnet18", (3, 16, 16), 5, width=4)
    p, x = model.init(1, DOUBLE), torch.randn(2, 3, 16, 16, dtype=DOUBLE)
    p = {n: t + 0.1 * torch.rand_like(t) for n, t in p.items()}

    def norm(h, name):
        weights = [p[f"{name}.{n}"] for n in ("running_mean", "running_var", "weight", "bias")]
        return nn.functional.batch_norm(h, *weights)

    h = norm(nn.functional.conv2d(x, p["base.conv.weight"], padding=1), "base.norm").relu()
    for stage in (1, 2, 3, 4):
        for block in (0, 1):
            at, stride = f"base.stage{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            side = h
            if stride == 2:
                side = norm(nn.functional.conv2d(h, p[f"{at}.shortcut.conv.weight"], stride=2), f"{at}.shortcut.norm")
            inner = norm(nn.functional.conv2d(h, p[f"{at}.conv1.weight"], stride=stride, padding=1), f"{at}.norm1")
            inner = nn.functional.conv2d(inner.relu(), p[f"{at}.conv2.weight"], padding=1)
            h = (norm(inner, f"{at}.norm2") + side).relu()
    expected = h.mean((2, 3)) @ p["head.weight"].T + p["head.bias"]
    assert worst(model.logits(p, x), expected) < 1e-12 * float(expected.abs().max())
    assert h.shape == (2, 32, 2, 2)


def test_convolutions_begin_as_in_the_paper():
    """He's initialisation: standard deviation √(2 / (9 · output channels)); the same seed, the same weights."""
    model = build("resnet20", (3, 32, 32), 10)
    params, again = model.init(3), model.init(3)
    assert float(params["base.stage3.0.conv1.weight"].std()) == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.02)
    assert all(torch.equal(p, again[n]) for n, p in params.items())
    assert not torch.equal(params["base.conv.weight"], model.init(4)["base.conv.weight"])


@each_small
def test_stacked_gradients_are_those_of_a_loop(case):
    """Two clients, five rows of which the second has four: gradients and new statistics."""
    model = small(case)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, *SMALL[case][0], generator=generator, dtype=DOUBLE)
    y, mask = torch.tensor([[0, 1, 2, 0, 1], [2, 2, 0, 1, 0]]), torch.ones(2, 5, dtype=DOUBLE)
    mask[1, 4] = 0

    def loss(params, x, y, mask):
        output, buffers = model(params, x, mask=mask, train=True)
        each = nn.functional.cross_entropy(output, y, reduction="none")
        return (each * mask).sum() / mask.sum(), buffers

    each = [model.init(seed, DOUBLE) for seed in (0, 1)]
    together, buffers = vmap(_slope(loss, model))(tree_stack(each), x, y, mask)
    for i, rows in ((0, 5), (1, 4)):
        alone, kept = _slope(loss, model)(each[i], x[i, :rows], y[i, :rows], mask[i, :rows])
        assert worst(tree_rows(together, i), alone) < 1e-9
        assert worst(tree_rows(buffers, i), kept) < 1e-9
        assert all(float(alone[n].abs().max()) > 0 for n in ("head.weight", "base.conv.weight") if n in alone)


def _slope(loss, model):
    def slope(params, *batch):
        still = {n: p for n, p in params.items() if n in model.buffers}
        moving = {n: p for n, p in params.items() if n not in model.buffers}
        return grad(lambda m: loss({**still, **m}, *batch), has_aux=True)(moving)

    return slope


@each_small
def test_one_round_in_both_engines(case):
    shape, model = SMALL[case][0], small(case)
    generator = torch.Generator().manual_seed(1)
    data = [
        (torch.randn(n, *shape, generator=generator, dtype=DOUBLE), torch.randint(0, 3, (n,), generator=generator))
        for n in (9, 4)
    ]
    method = FedAvg(Training(lr=0.05, batch=5))
    loop, stacked = (Run(method, federate(data, 3), model, engine).rounds(1) for engine in ENGINES)
    assert worst(loop.state.params, stacked.state.params) < 1e-9
    assert loop.logs[0].accepted == 2
    moved = [n for n, p in stacked.sim.initial.items() if float((stacked.state.params[n] - p).abs().max()) > 0]
    assert set(model.buffers) <= set(moved)
    assert {"head.weight", "head.bias"} <= set(moved)


def test_the_file_says_what_it_offers():
    found = {e.name: e for e in available()}
    assert set(NAMES) <= set(found)
    assert found["resnet18"].options == {"stem": "cifar", "width": 64, "shortcut": "B", "eps": 1e-5}
    assert found["resnet56"].options == {"width": 16, "shortcut": "A", "eps": 1e-5}
    assert found["office_cnn"].options == {"width": 64, "stride": None, "eps": 1e-5}
    assert all(found[n].summary.endswith(".") for n in NAMES)


@pytest.mark.parametrize("name", ["resnet18", "resnet20", "office_cnn"])
def test_regression_and_other_shapes(name):
    model = build(name, (1, 40, 36), 1, "regression", width=2)
    assert model.logits(model.init(0), torch.randn(3, 1, 40, 36)).shape == (3,)
    with pytest.raises(ValueError, match="takes images"):
        build(name, (64,), 10)


def test_bad_options_are_named():
    with pytest.raises(ValueError, match=r"stem 'cfar'.*'cifar'"):
        build("resnet18", (3, 8, 8), 10, stem="cfar")
    with pytest.raises(ValueError, match=r"shortcut 'C'"):
        build("resnet20", (3, 8, 8), 10, shortcut="C")
    with pytest.raises(ValueError, match=r"34×40 are too small for office_cnn with stride 2: .* at least 35"):
        build("office_cnn", (3, 34, 40), 10, width=2)
    build("office_cnn", (3, 63, 63), 10, width=2, stride=4)
    with pytest.raises(ValueError, match=r"stride 4: .* at least 63"):
        build("office_cnn", (3, 62, 62), 10, width=2, stride=4)
