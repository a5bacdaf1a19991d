"""Optimisers as functions, against torch.optim."""

import pytest
import torch
from torch.func import grad, vmap

from posterity.core.optim import SGD, Adam, Groups, RMSprop, clipped, norm

PAIRS = [
    (SGD(0.1), torch.optim.SGD, {"lr": 0.1}),
    (SGD(0.1, momentum=0.9), torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    (SGD(0.1, momentum=0.5, weight_decay=0.03), torch.optim.SGD, {"lr": 0.1, "momentum": 0.5, "weight_decay": 0.03}),
    (Adam(0.05), torch.optim.Adam, {"lr": 0.05}),
    (Adam(0.05, weight_decay=0.1), torch.optim.Adam, {"lr": 0.05, "weight_decay": 0.1}),
    (RMSprop(0.02), torch.optim.RMSprop, {"lr": 0.02}),
    (RMSprop(0.02, weight_decay=0.1), torch.optim.RMSprop, {"lr": 0.02, "weight_decay": 0.1}),
]


def start(seed=0):
    g = torch.Generator().manual_seed(seed)
    return {
        "w": torch.randn(3, 2, generator=g, dtype=torch.float64),
        "b": torch.randn(2, generator=g, dtype=torch.float64),
    }


def loss(params):
    """Neither quadratic nor symmetric, so that no mistake cancels."""
    return (params["w"] ** 4).sum() / 4 + (params["w"].sum(0) * params["b"]).sum() + params["b"].cos().sum()


def run(optimiser, params, steps=12):
    state = optimiser.open(params)
    for _ in range(steps):
        params, state = optimiser.update(grad(loss)(params), state, params)
    return params


def reference(kind, how, params, steps=12, clip=None):
    leaves = {n: p.clone().requires_grad_() for n, p in params.items()}
    optimiser = kind(leaves.values(), **how)
    for _ in range(steps):
        optimiser.zero_grad()
        loss(leaves).backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(leaves.values(), clip)
        optimiser.step()
    return leaves


@pytest.mark.parametrize(("ours", "theirs", "how"), PAIRS)
@pytest.mark.parametrize("clip", [None, 0.3, 1e3])
def test_equals_torch(ours, theirs, how, clip):
    ours = type(ours)(**{**ours.__dict__, "clip": clip})
    found, expected = run(ours, start()), reference(theirs, how, start(), clip=clip)
    for name, leaf in expected.items():
        assert torch.allclose(found[name], leaf, rtol=1e-12, atol=1e-12), name


@pytest.mark.parametrize(("ours", "theirs", "how"), PAIRS)
def test_stacked_equals_alone_and_nothing_is_written_to(ours, theirs, how):
    del theirs, how
    starts = [start(s) for s in range(3)]
    stack = {n: torch.stack([s[n] for s in starts]) for n in starts[0]}
    before = {n: v.clone() for n, v in stack.items()}
    found = vmap(lambda p: run(ours, p, 4))(stack)
    assert all(torch.equal(before[n], stack[n]) for n in stack)
    for k, alone in enumerate(run(ours, s, 4) for s in starts):
        assert all(torch.allclose(found[n][k], alone[n], rtol=1e-13, atol=1e-14) for n in alone)


def test_clipping_keeps_the_direction():
    tree = {"a": torch.tensor([3.0, 0.0]).double(), "b": torch.tensor([4.0]).double()}
    assert float(norm(tree)) == 5
    short = clipped(tree, 1.0)
    assert float(norm(short)) == pytest.approx(1.0, abs=1e-6)
    assert torch.allclose(short["a"] / short["b"][0], torch.tensor([0.75, 0.0]).double())
    assert clipped(tree, None) is tree
    assert torch.equal(clipped(tree, 10.0)["a"], tree["a"])


def test_a_zero_gradient_can_be_clipped_and_differentiated():
    zero = {"a": torch.zeros(2, dtype=torch.float64)}
    assert not clipped(zero, 1.0)["a"].any()
    assert not grad(lambda t: norm(t))(zero)["a"].isnan().any()


@pytest.mark.parametrize("make", [lambda: SGD(0.1, 0.9, 0.01, 0.5), lambda: Adam(0.1, clip=0.5)], ids=["sgd", "adam"])
def test_groups_are_as_many_optimisers(make):
    """Each group moves as if it were alone, its clip included; an optimiser without leaves is not asked."""
    draw = torch.Generator().manual_seed(3)
    params = {n: torch.randn(4, generator=draw, dtype=torch.float64) for n in ("b/x", "a/x", "b/y")}
    grouped = Groups(lambda name: "ab".index(name[0]), (make(), make(), make()))
    alone = {letter: {n: p for n, p in params.items() if n[0] == letter} for letter in "ab"}
    opts, state = {letter: make().open(some) for letter, some in alone.items()}, grouped.open(params)
    for _ in range(3):
        gradient = {n: torch.randn(4, generator=draw, dtype=torch.float64) for n in params}
        params, state = grouped.update(gradient, state, params)
        for letter, some in alone.items():
            own = {n: gradient[n] for n in some}
            alone[letter], opts[letter] = make().update(own, opts[letter], some)
    assert list(params) == ["b/x", "a/x", "b/y"]
    assert all(torch.equal(params[n], p) for some in alone.values() for n, p in some.items())
