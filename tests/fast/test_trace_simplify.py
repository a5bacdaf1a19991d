"""A recording loses operators that compute nothing, and no bit of its results."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from posterity.fast._trace import drop_views, simplify


def recorded(function, *inputs):
    """The operators of `function` before and after, by name."""
    operators = make_fx(function)(*inputs)
    before = names(operators)
    simplify(operators, list(inputs))
    operators.recompile()
    return operators, before, names(operators)


def names(operators):
    return [str(n.target).removeprefix("aten.") for n in operators.graph.nodes if n.op == "call_function"]


def same(function, operators, *inputs):
    return all(torch.equal(a, b) for a, b in zip(function(*inputs), operators(*inputs), strict=True))


def test_views_of_what_is_there_go():
    def function(x):
        return [x.view(3, 4).expand(3, 4) * 2, x.t().t() + 1]

    x = torch.randn(3, 4)
    operators, before, after = recorded(function, x)
    assert len(before) == 6
    assert after == ["mul.Tensor", "add.Tensor"]
    assert same(function, operators, torch.randn(3, 4))


def test_views_that_change_something_stay():
    def function(x, y):
        return [x.view(4, 3) * 2, y[None].expand(2, 3) + 1, x.transpose(0, 1) * 3, y.expand(1, 3).expand(5, 3) * 2]

    x, y = torch.randn(3, 4), torch.randn(3)
    operators, _, after = recorded(function, x, y)
    assert [n for n in after if n.split(".")[0] in ("view", "expand", "transpose")] == [
        "view.default", "expand.default", "transpose.int", "expand.default", "expand.default"]  # fmt: skip
    assert same(function, operators, torch.randn(3, 4), torch.randn(3))


def test_the_same_is_computed_once_and_constants_are_held():
    def function(x):
        return [torch.where(x > 0, x, 0.0), torch.where(x > 0, 0.0, x) + torch.arange(3)]

    operators, before, after = recorded(function, torch.randn(3))
    assert before.count("gt.Scalar") == 2
    assert after.count("gt.Scalar") == 1
    assert "arange.default" not in after
    assert same(function, operators, torch.randn(3))


def test_a_constant_that_is_given_away_is_made_anew():
    def function(x):
        return [torch.zeros(2, 2), torch.zeros(3, 2).view(2, 3), x + torch.ones(2)]

    operators, _, after = recorded(function, torch.randn(2))
    assert [n for n in after if n.split(".")[0] in ("zeros", "ones")] == ["zeros.default", "zeros.default"]
    for result in operators(torch.randn(2))[:2]:
        result += 1
    assert not any(result.any() for result in operators(torch.randn(2))[:2])


def test_numbers_that_only_look_equal_are_kept_apart():
    def function(x):
        return [x * 1.0, x == 1, x == True, x + 1, x + 1.0]  # noqa: E712

    x = torch.tensor([1, 2])
    operators, _, _ = recorded(function, x)
    for a, b in zip(function(x), operators(x), strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


def test_operators_that_write_or_draw_are_left_alone():
    def writes(x):
        return [x.clone().add_(1), x.clone().add_(1)]

    def draws(x):
        return [torch.rand_like(x), torch.rand_like(x)]

    for function in (writes, draws):
        _, before, after = recorded(function, torch.randn(3))
        assert before == after


def test_views_go_from_what_was_recorded_without_content():
    def function(x, y):
        moved = x.t().t().view(3, 4) * 2
        y.copy_(moved.expand(3, 4))  # would keep `simplify` from doing anything
        return [x.t() + 1, x * 1]

    with FakeTensorMode():
        operators = make_fx(function)(torch.empty(3, 4), torch.empty(3, 4))
    drop_views(operators)
    operators.recompile()
    assert names(operators) == ["mul.Tensor", "copy_.default", "t.default", "add.Tensor", "mul.Tensor"]
    x, places = torch.randn(3, 4), [torch.zeros(3, 4), torch.zeros(3, 4)]
    assert all(torch.equal(a, b) for a, b in zip(function(x, places[0]), operators(x, places[1]), strict=True))
    assert torch.equal(*places)
