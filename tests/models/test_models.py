"""The networks of the folder: sizes, options, and how they are found."""

import pytest
import torch
from nn import nets

from posterity.models import available, build

SIZES = [
    ("cnn", (3, 32, 32), 10, {}, 873_408, 512 * 10 + 10),  # 2,432 + 51,264 + 819,712
    ("cnn", (1, 28, 28), 10, {}, 576_896, 512 * 10 + 10),  # 832 + 51,264 + 524,800
    ("cnn", (1, 28, 28), 62, {"feature_dim": 128}, 832 + 51_264 + 1024 * 128 + 128, 128 * 62 + 62),
    ("lenet5", (1, 28, 28), 10, {}, 44_426 - 850, 850),
    ("lenet5", (1, 28, 28), 10, {"padding": [2, 0]}, 61_706 - 850, 850),
    ("lenet_wide", (3, 32, 32), 10, {}, 4_864 + 102_464 + 1600 * 384 + 384 + 384 * 192 + 192, 1930),
    ("mlp", (30,), 2, {"hidden": [32, 16], "unit": True}, 992 + 528, 17),
    ("linear", (1, 8, 8), 10, {}, 0, 650),
    ("cubic", (1,), 1, {}, 0, 4),
]


@pytest.mark.parametrize(("name", "shape", "classes", "options", "base", "head"), SIZES)
def test_numbers_of_parameters(name, shape, classes, options, base, head):
    model = build(name, shape, classes, "regression" if name == "cubic" else "classification", **options)
    params = model.init(0)
    assert sum(params[n].numel() for n in model.base_names) == base
    assert sum(params[n].numel() for n in model.head_names) == head
    assert model.size == base + head
    assert model.name == name


def test_features_are_after_the_activation():
    model = build("cnn", (1, 28, 28), 10)
    params, x = model.init(0), torch.randn(3, 1, 28, 28)
    _, _, seen = model(params, x, want=("base.act3",))
    expected = torch.nn.functional.leaky_relu(seen["base.act3"], 0.1)
    torch.testing.assert_close(model.features(params, x)[0], expected)
    assert model.feature_dim == 512


@pytest.mark.parametrize("name", ["cnn", "lenet5", "lenet_wide"])
def test_small_images_are_padded_by_default_and_refused_without(name):
    model = build(name, (1, 8, 8), 10)
    assert model.logits(model.init(0), torch.randn(2, 1, 8, 8)).shape == (2, 10)
    assert model.module.base.conv1.padding == (2, 2)
    assert build(name, (1, 16, 16), 10).module.base.conv1.padding == (0, 0)
    with pytest.raises(ValueError, match="8×8 are too small"):
        build(name, (1, 8, 8), 10, padding=0)
    with pytest.raises(ValueError, match="3×3 are too small"):
        build(name, (1, 3, 3), 10)
    with pytest.raises(ValueError, match="images"):
        build(name, (64,), 10)


def test_one_unit_is_two_logits():
    model = build("mlp", (4,), 2, hidden=(3,), unit=True)
    params, x = model.init(0), torch.randn(5, 4)
    logits = model.logits(params, x)
    z, _ = model.features(params, x)
    o = z @ params["head.weight"].T + params["head.bias"]
    assert params["head.weight"].shape == (1, 3)
    torch.testing.assert_close(logits.softmax(-1)[:, 1:], o.sigmoid())
    torch.testing.assert_close(model.classify(params, z), logits)
    with pytest.raises(ValueError, match="two classes"):
        build("mlp", (4,), 3, unit=True)


def test_cubic_is_the_polynomial():
    model = build("cubic", (1,), 1, "regression", scale=2.0)
    params = {"head.weight": torch.tensor([[1.0, 2.0, 3.0]]), "head.bias": torch.tensor([0.5])}
    x = torch.tensor([[-2.0], [0.0], [4.0]])
    assert model.logits(params, x).tolist() == [0.5 - 1 + 2 - 3, 0.5, 0.5 + 2 + 8 + 24]
    with pytest.raises(ValueError, match="one number"):
        build("cubic", (2,), 1, "regression")
    with pytest.raises(ValueError, match="positive"):
        build("cubic", (1,), 1, "regression", scale=0.0)


@pytest.mark.parametrize("name", ["cnn", "mlp_bn", "linear"])
def test_regression_gives_one_value_per_row(name):
    shape = (1, 16, 16) if name == "cnn" else (4,)
    model = build(name, shape, 1, "regression")
    params, x = model.init(0), torch.randn(3, *shape)
    assert model.logits(params, x).shape == (3,)
    assert model.classify(params, model.features(params, x)[0]).shape == (3,)


def test_available_lists_files_options_and_defaults():
    found = {e.name: e for e in available()}
    assert set(found) >= {"cnn", "cubic", "lenet5", "lenet_wide", "linear", "mlp", "mlp_bn"}
    assert found["mlp"].options == {"hidden": (64,), "norm": False, "eps": 1e-5, "dropout": 0.0, "unit": False}
    assert all(e.summary.endswith(".") for e in found.values())


def test_dotted_paths():
    for attribute in ("Own", "own"):
        model = build(f"{nets.__name__}:{attribute}", (2, 5, 5), 3, head="fc", width=4)
        assert model.head_names == {"fc.weight", "fc.bias"}
        assert model.name == attribute
        assert model.init(0)["fc.weight"].shape == (3, 4)


def test_unknown_names_come_with_the_nearest():
    with pytest.raises(ValueError, match=r"'lenet'.*'lenet5'"):
        build("lenet", (1, 28, 28), 10)
    with pytest.raises(ValueError, match=r"option of mlp 'hiden'.*'hidden'"):
        build("mlp", (4,), 2, hiden=(3,))
    with pytest.raises(ValueError, match=r"option of .*Own 'widht'.*'width'"):
        build(f"{nets.__name__}:Own", (1, 4, 4), 2, head="fc", widht=3)
    with pytest.raises(ValueError, match=r"no module 'nowhere\.net'"):
        build("nowhere.net:make", (4,), 2)
    with pytest.raises(ValueError, match=r"Owm'.*'Own'"):
        build(f"{nets.__name__}:Owm", (4,), 2)
    assert build(f"{nets.__name__}:Own", (1, 4, 4), 2).heads == ("fc",)  # its last linear layer
    with pytest.raises(ValueError, match="task 'ranking'"):
        build("mlp", (4,), 2, "ranking")
