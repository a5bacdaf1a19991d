"""A model is a pure function of its parameters: under vmap and grad, split at its head, started from a seed."""

import copy
import threading

import pytest
import torch
from torch import nn
from torch.func import grad, vmap

from posterity.core import random
from posterity.models import build, wrap
from posterity.nn.model import Model

from . import nets

NETWORKS = {
    "cnn": ((1, 8, 8), {"feature_dim": 16}),
    "lenet5": ((1, 16, 16), {}),
    "lenet_wide": ((3, 8, 8), {"width": 4}),
    "mlp": ((5,), {"hidden": (8, 6), "dropout": 0.3}),
    "mlp_bn": ((2, 3), {"hidden": (8,), "eps": 1e-2}),
    "linear": ((4,), {}),
    "cubic": ((1,), {}),
    "own": ((2, 5, 5), {}),
}
CLIENTS, ROWS, CLASSES = 3, 6, 3


def _model(name) -> Model:
    shape, options = NETWORKS[name]
    if name == "own":
        return build(f"{nets.__name__}:Own", shape, CLASSES, head="fc")
    if name == "cubic":
        return build("cubic", shape, 1, "regression", **options)
    return build(name, shape, CLASSES, **options)


def _stacked(model, dtype=torch.float64):
    starts = [model.init(seed, dtype) for seed in range(CLIENTS)]
    params = {n: torch.stack([s[n] for s in starts]) for n in model.leaves}
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(CLIENTS, ROWS, *model.shape, dtype=dtype, generator=generator)
    y = torch.randint(CLASSES, (CLIENTS, ROWS), generator=generator)
    mask = (torch.arange(ROWS) < torch.tensor([[6], [4], [5]])).to(dtype)
    keys = torch.stack([random.make_key(k) for k in range(CLIENTS)])
    return params, x, y, mask, keys


def _loss(model):
    def loss(params, x, y, mask, key):
        out, buffers = model(params, x, mask=mask, train=True, key=key)
        if model.task == "regression":
            each = (out - y) ** 2
        else:
            each = -out.log_softmax(-1).gather(1, y[:, None])[:, 0]
        return (each * mask).sum() / mask.sum(), buffers

    return loss


@pytest.mark.parametrize("name", NETWORKS)
def test_stacked_gradients_equal_a_loop(name):
    model = _model(name)
    data = _stacked(model)
    step = grad(_loss(model), has_aux=True)
    before = copy.deepcopy(model.module.state_dict())
    grads, buffers = vmap(step)(*data)
    assert set(buffers) == model.buffers
    for k in range(CLIENTS):
        one, new = step({n: p[k] for n, p in data[0].items()}, *(d[k] for d in data[1:]))
        for n in model.trainable:
            torch.testing.assert_close(grads[n][k], one[n], rtol=1e-12, atol=1e-12)
        for n in model.buffers:
            torch.testing.assert_close(buffers[n][k], new[n], rtol=1e-12, atol=1e-12)
    after = model.module.state_dict()
    assert all(torch.equal(before[n], after[n]) for n in before)


@pytest.mark.parametrize("name", NETWORKS)
def test_head_after_base_is_the_whole(name):
    model = _model(name)
    params, x = model.init(1, torch.float64), _stacked(model)[1][0]
    z, _ = model.features(params, x)
    assert z.shape == (ROWS, model.feature_dim)
    torch.testing.assert_close(model.classify(params, z), model.logits(params, x), rtol=1e-12, atol=1e-12)
    assert model.head_names | model.base_names == set(model.leaves)
    assert not model.head_names & model.base_names
    assert model.logits(params, x).shape == ((ROWS,) if model.task == "regression" else (ROWS, CLASSES))


@pytest.mark.parametrize("name", NETWORKS)
def test_padding_changes_nothing_and_dtype_stays(name):
    model = _model(name)
    params, x, y, mask, keys = _stacked(model, torch.float32)
    p, loss = {n: v[1] for n, v in params.items()}, _loss(model)
    junk = torch.where(mask[1].reshape(-1, *[1] * (x.dim() - 2)) > 0, x[1], 1e6)
    a, b = loss(p, x[1], y[1], mask[1], keys[1]), loss(p, x[1, :4], y[1, :4], mask[1, :4], keys[1])
    torch.testing.assert_close(a, b)
    far = model(p, junk, mask=mask[1], train=True, key=keys[1])
    torch.testing.assert_close(far[0][:4], model(p, x[1, :4], train=True, key=keys[1])[0])
    assert a[0].dtype == torch.float32
    assert all(v.dtype == torch.float32 for v in a[1].values())


@pytest.mark.parametrize("name", ["own", "mlp"])
def test_gradients_per_sample(name):
    model = _model(name)
    params, x, y, mask, keys = _stacked(model)
    loss = _loss(model)

    def each(p, x, y, m, k):
        return vmap(grad(lambda p, x, y, m: loss(p, x[None], y[None], m[None], k)[0]), (None, 0, 0, 0))(p, x, y, m)

    full = mask * 0 + 1
    eaches = vmap(each)(params, x, y, full, keys)
    for k in range(CLIENTS):
        one = ({n: p[k] for n, p in params.items()}, x[k], y[k], full[k], keys[k])
        third = grad(lambda p, x, y, m, key: loss(p, x, y, m, key)[0])(one[0], *(v[2:3] for v in one[1:4]), one[4])
        for n in model.trainable:
            torch.testing.assert_close(eaches[n][k, 2], third[n], rtol=1e-12, atol=1e-12)


def test_want_and_around_under_vmap_and_grad():
    model = _model("mlp_bn")
    params, x, *_ = _stacked(model)

    def loss(p, s, x):
        out, _, seen = model(p, x, around={"base.fc1": lambda i, o: o + s * i.sum(1, keepdim=True)}, want=("head",))
        return out.square().mean() + seen["head"].mean(), seen["head"]

    s = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    grads, seen = vmap(grad(loss, argnums=1, has_aux=True))(params, s, x)
    for k in range(CLIENTS):
        one = {n: p[k] for n, p in params.items()}
        g, z = grad(loss, argnums=1, has_aux=True)(one, s[k], x[k])
        torch.testing.assert_close((grads[k], seen[k]), (g, z), rtol=1e-12, atol=1e-12)
    assert (grads != 0).all()
    torch.testing.assert_close(seen[0], model.features({n: p[0] for n, p in params.items()}, x[0])[0])
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.module.modules())


def test_module_is_given_back_even_after_an_error():
    model = _model("own")
    params = model.init(0)
    state = copy.deepcopy(model.module.state_dict())

    def fail(i, o):
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        model(params, torch.zeros(2, 2, 5, 5), train=True, key=random.make_key(0), around={"fc": fail})
    assert all(torch.equal(state[n], t) for n, t in model.module.state_dict().items())
    assert model.module.bn.mask is None
    assert model.module.drop.key is None
    assert not any(m._forward_hooks for m in model.module.modules())


def test_threads_do_not_disturb_each_other():
    model = _model("own")
    starts, x = [model.init(s) for s in range(4)], torch.randn(4, 2, 5, 5)
    right = [model(p, x)[0] for p in starts]
    wrong = []

    def work(k):
        wrong.extend(k for _ in range(20) if not torch.equal(model(starts[k], x)[0], right[k]))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong


def test_a_layer_used_twice_drops_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop, self.fc = nn.Dropout(0.5), nn.Linear(40, 2)

        def forward(self, x):
            return self.fc(torch.cat([self.drop(x), self.drop(x)], 1))

    model = wrap(Twice(), "fc", 2)
    z, _ = model.features(model.init(0), torch.ones(8, 20), train=True, key=random.make_key(0))
    assert not torch.equal(z[:, :20], z[:, 20:])
    again, _ = model.features(model.init(0), torch.ones(8, 20), train=True, key=random.make_key(0))
    assert torch.equal(z, again)


@pytest.mark.parametrize("name", NETWORKS)
def test_init_is_a_function_of_the_seed_alone(name):
    torch.manual_seed(1)
    state = torch.get_rng_state()
    a = _model(name).init(7)
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(2)
    torch.randn(3)
    b, c, d = _model(name).init(7), _model(name).init(8), _model(name).init(7, torch.float64)
    assert list(a) == list(b) == list(_model(name).leaves)
    assert all(torch.equal(a[n], b[n]) for n in a)
    assert any(not torch.equal(a[n], c[n]) for n in a)
    assert all(d[n].dtype == torch.float64 and torch.equal(d[n].float(), a[n]) for n in a)


def test_init_of_a_wrapped_network_is_fresh_or_as_given():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    fresh, given = wrap(net, "2", 2), wrap(net, "2", 2, fresh=False)
    assert not torch.equal(fresh.init(0)["0.weight"], net[0].weight)
    assert torch.equal(fresh.init(0)["0.weight"], fresh.init(0)["0.weight"])
    assert torch.equal(given.init(0)["0.weight"], net[0].weight)
    params = given.init(0)
    params["0.weight"].zero_()
    assert not (net[0].weight == 0).all()
    assert (given.init(0)["0.weight"] == net[0].weight).all()


def test_name_sets_of_a_users_network():
    model = _model("own")
    stats = {"bn.running_mean", "bn.running_var"}
    assert model.buffers == stats
    assert model.norms == stats | {"bn.weight", "bn.bias"}
    assert model.head_names == {"fc.weight", "fc.bias"}
    assert model.trainable == set(model.leaves) - stats
    assert "table" not in model.leaves
    assert all(p.is_floating_point() for p in model.init(0).values())
    assert model == model
    assert model != _model("own")
    assert hash(model) == hash(model)
    assert model.unstackable == ()


def test_head_in_the_middle_of_nested_sequentials():
    base = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU())
    model = wrap(nn.Sequential(base, nn.Linear(4, 2)), "0.2", 2, shape=(3,))
    params, x = model.init(0), torch.randn(6, 3)
    assert model.head_names == {"0.2.weight", "0.2.bias", "1.weight", "1.bias"}
    torch.testing.assert_close(model.classify(params, model.features(params, x)[0]), model.logits(params, x))


def test_head_that_begins_before_the_flattening():
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sequential(nn.Conv2d(2, 2, 2), nn.Flatten(), nn.Linear(2 * 9, 3)))
    model = wrap(net, "1", 3, shape=(1, 6, 6))
    params, x = model.init(0), torch.randn(4, 1, 6, 6)
    z, _ = model.features(params, x)
    assert z.shape == (4, model.feature_dim) == (4, 32)
    torch.testing.assert_close(model.classify(params, z), model.logits(params, x))


def test_tied_weights_are_one_leaf_in_base_and_head():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(torch.relu(self.a(x)))

    model = wrap(Tied(), "b", 3)
    params, x = {"a.weight": torch.full((3, 3), 2.0)}, torch.ones(1, 3)
    assert model.leaves == ("a.weight",)
    torch.testing.assert_close(model.logits(params, x), torch.full((1, 3), 36.0))
    torch.testing.assert_close(model.classify(params, torch.full((1, 3), 6.0)), torch.full((1, 3), 36.0))


def test_frozen_parameters_are_leaves_but_not_trainable():
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    net[0].requires_grad_(False)
    model = wrap(net, "1", 2)
    assert model.trainable == {"1.weight", "1.bias"}
    assert len(model.leaves) == 4


def test_other_entries_are_ignored_and_missing_ones_are_named():
    model = _model("linear")
    params, x = model.init(0), torch.ones(1, 4)
    assert torch.equal(model.logits(params | {"rho": torch.ones(2)}, x), model.logits(params, x))
    with pytest.raises(KeyError, match=r"head\.bias"):
        model({"head.weight": params["head.weight"]}, x)


def test_errors_name_what_there_is():
    with pytest.raises(ValueError, match=r"'fx'.*mean 'fc'.*bn, conv, drop, fc"):
        wrap(nets.Own((1, 4, 4), 2), "fx", 2)
    with pytest.raises(ValueError, match=r"base\.fc1"):
        _model("mlp")(_model("mlp").init(0), torch.ones(1, 5), want=("base.fc",))
    with pytest.raises(ValueError, match="needs a head"):
        wrap(nn.Linear(2, 2), (), 2)
    with pytest.raises(ValueError, match="after the head"):
        build(f"{nets.__name__}:Softened", (2, 5, 5), 3)
    with pytest.raises(ValueError, match=r"outputs of shape \(4,\) for 3 classes"):
        wrap(nn.Sequential(nn.Linear(2, 4)), "0", 3, shape=(2,))
    with pytest.raises(ValueError, match="does not run on inputs of shape"):
        wrap(nn.Sequential(nn.Linear(2, 4)), "0", 4, shape=(3,))
    two = wrap(nets.Own((1, 4, 4), 2), ("bn", "fc"), 2)
    with pytest.raises(ValueError, match="several sub-modules"):
        two.classify(two.init(0), torch.ones(1, 6))
    with pytest.raises(ValueError, match=r"train=True and no key"):
        _model("own")(_model("own").init(0), torch.zeros(2, 2, 5, 5), train=True)
