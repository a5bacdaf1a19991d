"""The twins of batch norm and dropout against PyTorch's own, and against what padding and stacking may not change."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from posterity.core import random
from posterity.nn.convolution import Convolution
from posterity.nn.layers import KeyedDropout, Norm, twin, unstackable
from posterity.nn.pooling import GlobalMean, Pooling

SHAPES = {nn.BatchNorm1d: (7, 4), nn.BatchNorm2d: (5, 4, 3, 2), nn.BatchNorm3d: (3, 4, 2, 2, 2)}


def _pair(kind, **options):
    torch.manual_seed(1)
    plain = kind(4, **options).double()
    if plain.affine:
        nn.init.normal_(plain.weight)
        nn.init.normal_(plain.bias)
    return plain, twin(plain)


@pytest.mark.parametrize(
    "options", [{}, {"affine": False}, {"track_running_stats": False}, {"momentum": 0.3, "eps": 0.1}]
)
@pytest.mark.parametrize("kind", SHAPES)
def test_twin_equals_batch_norm_on_full_batches(kind, options):
    plain, ours = _pair(kind, **options)
    assert isinstance(ours, Norm)
    for step in range(4):  # several steps: running statistics accumulate; the last one in eval mode
        plain.train(step < 3), ours.train(step < 3)
        x = (torch.randn(SHAPES[kind], dtype=torch.float64) * 3 + 1).requires_grad_()
        x2 = x.detach().clone().requires_grad_()
        weight = torch.randn(SHAPES[kind], dtype=torch.float64)
        a, b = plain(x), ours(x2)
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
        ga = torch.autograd.grad((a * weight).sum(), [x, *plain.parameters()])
        gb = torch.autograd.grad((b * weight).sum(), [x2, *ours.parameters()])
        torch.testing.assert_close(ga, gb, rtol=1e-12, atol=1e-12)
    for name, value in ours.state_dict().items():
        torch.testing.assert_close(plain.state_dict()[name], value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("junk", [1e6, float("inf"), float("nan")])
def test_padding_behind_the_mask_changes_nothing(junk):
    norm = Norm(3).double()
    real = torch.randn(4, 3, 2, 2, dtype=torch.float64)
    wide = torch.cat([real, torch.full((3, 3, 2, 2), junk, dtype=torch.float64)])
    mask = torch.tensor([1.0] * 4 + [0.0] * 3, dtype=torch.float64)

    def run(x, m):
        lent = dict(norm.state_dict()) | {"mask": m}
        out = functional_call(norm, lent, (x,))[:4]
        return (out**3).sum(), (out, lent["running_mean"], lent["running_var"])

    g1, a = grad(run, has_aux=True)(real, mask[:4])
    g2, b = grad(run, has_aux=True)(wide, mask)
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(g1, g2[:4], rtol=1e-12, atol=1e-12)
    assert (g2[4:] == 0).all()


@pytest.mark.parametrize("shape", [(12,), (12, 5), (12, 3, 2)])
@pytest.mark.parametrize("seed", range(7))
def test_equal_rows_are_centred_exactly(shape, seed):
    """Masked or not, among padding or not: equal values of a channel become its bias, to the last bit."""
    source = torch.Generator().manual_seed(seed)
    value, bias, weight = (torch.randn(12, generator=source) for _ in range(3))
    wide = [12, *[1] * (len(shape) - 1)]
    masks = [[1] * 9, [1] * 3 + [0] * 6, [0, 1, 1, 0, 1, 1, 1, 0, 1]]
    for given in (*(torch.tensor(m, dtype=torch.float32) for m in masks), None):
        norm, mask = Norm(12).train(), torch.ones(9) if given is None else given
        norm.bias.data, norm.weight.data, norm.mask = bias, weight, given
        junk = 1e6 * torch.randn(9, *shape, generator=source)
        x = torch.where(mask.reshape(-1, *[1] * len(shape)) > 0, 10 * value.reshape(wide), junk)
        assert torch.equal(norm(x)[mask > 0], bias.reshape(wide).expand(int(mask.sum()), *shape))
        torch.testing.assert_close(norm.running_mean, value, rtol=1e-6, atol=0)
        torch.testing.assert_close(norm.running_var, torch.full((12,), 0.9), rtol=1e-6, atol=0)


@pytest.mark.parametrize("rows", [0, 1])
def test_one_real_value_uses_running_statistics_and_leaves_them(rows):
    norm = Norm(3).double()
    state = dict(norm.state_dict()) | {
        "running_mean": torch.arange(3.0).double(),
        "running_var": torch.full((3,), 4.0).double(),
    }
    x = torch.randn(2, 3, dtype=torch.float64)
    mask = (torch.arange(2) < rows).double()
    lent = state | {"mask": mask}
    out = functional_call(norm, lent, (x,))
    expected = (x - state["running_mean"]) / (4 + 1e-5) ** 0.5
    torch.testing.assert_close(out[:rows], expected[:rows], rtol=1e-12, atol=1e-12)
    assert out.isfinite().all()
    assert torch.equal(lent["running_mean"], state["running_mean"])
    assert torch.equal(lent["running_var"], state["running_var"])


def test_one_real_value_without_running_statistics_is_passed_on():
    x = torch.randn(1, 3)
    torch.testing.assert_close(Norm(3, track=False)(x), x / (1 + 1e-5) ** 0.5)


def test_norm_writes_nothing_in_place_and_keeps_float32():
    norm = Norm(3)
    state = {n: t.clone() for n, t in norm.state_dict().items()}
    lent = dict(state)
    out = functional_call(norm, lent, (torch.randn(5, 3),))
    assert out.dtype == torch.float32
    assert lent["running_mean"].dtype == torch.float32
    assert not torch.equal(lent["running_mean"], state["running_mean"])
    assert all(torch.equal(t, state[n]) for n, t in norm.state_dict().items())


def test_norm_refuses_what_it_cannot_do():
    with pytest.raises(ValueError, match="momentum=None"):
        twin(nn.BatchNorm1d(3, momentum=None))
    with pytest.raises(ValueError, match="3 channels"):
        Norm(3)(torch.zeros(2, 4))


def _drop(layer, key, x):
    return functional_call(layer, {"key": key}, (x,))


def test_dropout_is_a_function_of_key_and_layer():
    key, x = random.make_key(3), torch.ones(50, 20, dtype=torch.float64)
    layer = KeyedDropout(0.3)
    a = _drop(layer, key, x)
    layer.uses = 0
    b = _drop(layer, key, x)
    assert torch.equal(a, b)
    layer.uses = 0
    assert not torch.equal(a, _drop(layer, random.fold(key, 1), x))
    assert not torch.equal(a, _drop(KeyedDropout(0.3, index=1), key, x))
    assert not torch.equal(a, _drop(layer, key, x))  # a second use in the same call draws anew
    assert set(a.unique().tolist()) == {0.0, 1 / 0.7}


def test_dropout_keeps_the_right_share():
    out = _drop(KeyedDropout(0.3), random.make_key(0), torch.ones(1000, 100))
    kept = (out > 0).double().mean().item()
    assert abs(kept - 0.7) < 5 * (0.3 * 0.7 / 100_000) ** 0.5  # five standard errors


@pytest.mark.parametrize("channels", [False, True])
def test_dropout_is_prefix_stable(channels):
    x = torch.ones(9, 4, 3, 3)
    long = _drop(KeyedDropout(0.5, channels), random.make_key(5), x)
    short = _drop(KeyedDropout(0.5, channels), random.make_key(5), x[:4])
    assert torch.equal(long[:4], short)


@pytest.mark.parametrize("kind", [nn.Dropout1d, nn.Dropout2d, nn.Dropout3d])
def test_channel_dropout_drops_whole_channels(kind):
    dims = {nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}[kind]
    layer = twin(kind(0.5))
    out = _drop(layer, random.make_key(1), torch.ones(6, 8, *[3] * dims)).flatten(2)
    assert (out == out[..., :1]).all()
    assert 0 < (out > 0).double().mean() < 1


def test_dropout_in_eval_p_zero_p_one_and_without_key():
    x = torch.randn(4, 3)
    assert KeyedDropout(0.5).eval()(x) is x
    assert KeyedDropout(0.0)(x) is x
    assert (KeyedDropout(1.0)(x) == 0).all()
    with pytest.raises(ValueError, match="key"):
        KeyedDropout(0.5)(x)


def test_dropout_under_vmap_equals_a_loop():
    keys = torch.stack([random.make_key(i) for i in range(3)])
    x = torch.randn(3, 5, 4)
    layer = KeyedDropout(0.5)

    def run(key, x):
        layer.uses = 0
        return _drop(layer, key, x)

    assert torch.equal(vmap(run)(keys, x), torch.stack([run(k, v) for k, v in zip(keys, x, strict=True)]))


def test_twin_replaces_by_type_everywhere_and_shares_what_was_shared():
    shared = nn.BatchNorm1d(4)
    net = nn.Sequential(
        nn.Linear(4, 4), shared, nn.Sequential(nn.Dropout(0.1), nn.ModuleDict({"n": shared})), nn.Dropout(0.2)
    )
    new = twin(net)
    kinds = [type(m) for m in new.modules()]
    assert nn.BatchNorm1d not in kinds
    assert nn.Dropout not in kinds
    assert new[1] is new[2][1]["n"]
    assert [m.index for m in new.modules() if isinstance(m, KeyedDropout)] == [0, 1]
    assert isinstance(net[1], nn.BatchNorm1d)  # the original is untouched
    assert new[1].weight is not net[1].weight


def test_unstackable_names_the_layer_and_the_reason():
    class Odd(nn.BatchNorm1d):
        def forward(self, x):
            return super().forward(x)

    net = nn.ModuleDict({
        "sync": nn.SyncBatchNorm(3), "lstm": nn.LSTM(2, 3), "gru": nn.GRU(2, 3), "bag": nn.EmbeddingBag(3, 2),
        "inst": nn.InstanceNorm2d(3, track_running_stats=True), "alpha": nn.AlphaDropout(),
        "old": nn.utils.spectral_norm(nn.Linear(2, 2)), "new": nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)),
        "mha": nn.MultiheadAttention(4, 2, dropout=0.1), "lazy": nn.LazyLinear(3), "odd": Odd(3),
        "fine": nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(), nn.InstanceNorm2d(3)),
    })  # fmt: skip
    reasons = unstackable(twin(net))
    named = {r.partition(":")[0] for r in reasons}
    assert named == set(net) - {"fine"}
    assert unstackable(twin(net["fine"])) == ()


class Aliased(nn.Module):
    """A network that keeps a layer in a list of its own, too."""

    def __init__(self):
        super().__init__()
        self.conv, self.pool = nn.Conv2d(2, 3, 2), nn.MaxPool2d(2)
        self.steps = [self.conv, self.pool]

    def forward(self, x):
        for step in self.steps:
            x = step(x)
        return x.flatten(1)


def test_convolutions_and_pools_are_replaced_by_layers_with_the_same_contents():
    """The same names, weights and hooks; nothing is drawn; a layer that is known by a second way sees lent weights."""
    torch.manual_seed(0)
    plain, seen = Aliased().eval(), []
    plain.conv.weight.requires_grad_(False)
    plain.conv.register_forward_hook(lambda layer, *_: seen.append(type(layer)))
    before = torch.get_rng_state()
    made = twin(plain)
    assert torch.equal(torch.get_rng_state(), before)
    assert [type(made.conv), type(made.pool)] == [Convolution, Pooling]
    assert [type(plain.conv), type(plain.pool)] == [nn.Conv2d, nn.MaxPool2d]
    assert list(made.state_dict()) == list(plain.state_dict())
    assert not made.conv.weight.requires_grad
    assert not made.conv.training
    x = torch.randn(2, 2, 5, 5)
    assert torch.equal(made(x), plain(x))
    assert len(seen) == 2
    lent = {n: torch.ones_like(p) for n, p in made.state_dict().items()}
    assert torch.equal(functional_call(made, lent, (x,)), functional_call(plain, lent, (x,)))
    again = copy.deepcopy(twin(nn.Sequential(nn.Conv2d(2, 3, 2))))
    assert isinstance(again[0], Convolution)


def test_a_mean_over_all_pixels_is_taken_of_all_clients_at_once(recwarn):
    """PyTorch's operator warns that it goes from client to client, if channels come last."""
    plain = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.AdaptiveAvgPool2d((1, 2)))
    made = twin(plain)
    assert [type(layer) for layer in made] == [GlobalMean, nn.AdaptiveAvgPool2d]
    x = torch.randn(3, 4, 6, 5, 2, dtype=torch.float64).permute(0, 1, 4, 2, 3)  # (clients, rows, channels, 6, 5)
    for_all = vmap(made[0])(x)
    assert not [str(warning.message) for warning in recwarn if "performance drop" in str(warning.message)]
    torch.testing.assert_close(for_all, torch.stack([plain[0](each) for each in x]), rtol=1e-14, atol=1e-14)
