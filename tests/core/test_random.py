"""Keyed draws: known answers, distributions, and that they are functions of the key and the position alone."""

import math

import pytest
import torch
from scipy import stats
from torch.func import vmap

from posterity.core.random import bits, categorical, fold, make_key, normal, permutation, threefry, uniform

KEY = make_key(2024)
MANY = 100_000


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_known_answers(counter, key, expected):
    """The vectors for threefry2x32-20 of the Random123 distribution."""
    low, high = (torch.tensor(c) for c in counter)
    assert tuple(int(w) for w in threefry(torch.tensor(key), low, high)) == expected


def test_seeds():
    assert make_key(2**32 * 5 + 7).tolist() == [7, 5]
    for bad in (-1, 2**63):
        with pytest.raises(ValueError, match="a seed is a whole number"):
            make_key(bad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uniform(dtype):
    u = uniform(KEY, (MANY,), dtype)
    assert u.dtype == dtype
    assert float(u.min()) >= 0
    assert float(u.max()) < 1
    assert float(u.mean()) == pytest.approx(0.5, abs=5 / math.sqrt(12 * MANY))
    assert float(u.var()) == pytest.approx(1 / 12, rel=0.02)
    assert stats.kstest(u.double().numpy(), "uniform").pvalue > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uniform_never_reaches_one(dtype, monkeypatch):
    """At the largest words a generator can give."""
    ones = torch.full((3,), 0xFFFFFFFF)
    monkeypatch.setattr("posterity.core.random.bits", lambda key, count: (ones, ones))
    assert float(uniform(KEY, (3,), dtype).max()) < 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_uniform_never_reaches_one_in_half_precision(dtype):
    assert float(uniform(KEY, (MANY,), dtype).max()) < 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normal(dtype):
    z = normal(KEY, (MANY,), dtype)
    assert z.dtype == dtype
    assert bool(z.isfinite().all())
    assert float(z.mean()) == pytest.approx(0, abs=5 / math.sqrt(MANY))
    assert float(z.var()) == pytest.approx(1, abs=5 * math.sqrt(2 / MANY))
    assert stats.kstest(z.double().numpy(), "norm").pvalue > 1e-3
    assert abs(float((z[0::2] * z[1::2]).mean())) < 5 / math.sqrt(MANY / 2)  # the halves of a pair are uncorrelated


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_normal_in_half_precision(dtype):
    z = normal(KEY, (1000,), dtype)
    assert z.dtype == dtype
    assert torch.equal(z, normal(KEY, (1000,), torch.float32).to(dtype))


def test_normal_is_finite_at_the_extreme_words(monkeypatch):
    words = torch.tensor([0, 0xFFFFFFFF])
    monkeypatch.setattr("posterity.core.random.bits", lambda key, count: (words, words.flip(0)))
    for dtype in (torch.float32, torch.float64):
        assert bool(normal(KEY, (4,), dtype).isfinite().all())


@pytest.mark.parametrize("draw", [uniform, normal])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_more_rows_do_not_change_the_first(draw, dtype):
    assert torch.equal(draw(KEY, (9, 3), dtype)[:4], draw(KEY, (4, 3), dtype))
    assert torch.equal(draw(KEY, (7,), dtype)[:5], draw(KEY, (5,), dtype))  # odd lengths: half of a pair


def test_shapes():
    assert normal(KEY, ()).shape == ()
    assert uniform(KEY, (2, 0, 3)).shape == (2, 0, 3)
    assert normal(KEY, (0,)).shape == (0,)


def test_folded_keys_are_independent():
    """Draws of neighbouring keys, of the same number under other keys, and of a key and its child: no correlation."""
    keys = fold(KEY, torch.arange(200))
    assert keys.shape == (200, 2)
    assert len({tuple(k) for k in keys.tolist()}) == 200
    assert torch.equal(keys[17], fold(KEY, 17))
    assert not torch.equal(fold(fold(KEY, 1), 2), fold(fold(KEY, 2), 1))
    assert not torch.equal(fold(KEY, 1), fold(KEY, 1 + 2**32))
    rows = vmap(lambda k: normal(k, (500,), torch.float64))(keys)
    correlation = torch.corrcoef(rows) - torch.eye(200, dtype=torch.float64)
    assert float(correlation.abs().max()) < 6 / math.sqrt(500)
    columns = torch.corrcoef(rows.T[:50])  # the same position over keys
    assert float((columns - torch.eye(50, dtype=torch.float64)).abs().max()) < 6 / math.sqrt(200)


def test_stacking_changes_nothing():
    keys = fold(KEY, torch.arange(5))
    logits = torch.linspace(-1, 1, 4).expand(5, 4)
    counts = torch.tensor([3, 8, 1, 8, 0])
    for name, stacked, alone in (
        ("uniform", vmap(lambda k: uniform(k, (3, 2)))(keys), [uniform(k, (3, 2)) for k in keys]),
        ("normal", vmap(lambda k: normal(k, (7,)))(keys), [normal(k, (7,)) for k in keys]),
        ("permutation", vmap(lambda k, c: permutation(k, 8, c))(keys, counts),
         [permutation(k, 8, c) for k, c in zip(keys, counts, strict=True)]),
        ("categorical", vmap(categorical)(keys, logits), [categorical(k, logits[0]) for k in keys]),
        ("fold", vmap(lambda k: fold(k, 3))(keys), [fold(k, 3) for k in keys]),
    ):  # fmt: skip
        assert torch.equal(stacked, torch.stack(alone)), name


@pytest.mark.parametrize("count", [None, 0, 1, 5, 12])
def test_permutation(count):
    order = permutation(KEY, 12, count)
    real = 12 if count is None else count
    assert sorted(order[:real].tolist()) == list(range(real))
    assert order[real:].tolist() == list(range(real, 12))  # a ragged tail stays behind


def test_every_order_is_equally_likely():
    keys = fold(KEY, torch.arange(6000))
    orders = vmap(lambda k: permutation(k, 3))(keys)
    code = orders[:, 0] * 3 + orders[:, 1]
    seen = torch.unique(code, return_counts=True)[1]
    assert len(seen) == 6
    assert stats.chisquare(seen.numpy()).pvalue > 1e-3


def test_permutation_of_real_rows_does_not_depend_on_padding():
    assert torch.equal(permutation(KEY, 20, 6)[:6], permutation(KEY, 6))


def test_categorical():
    """Frequencies against softmax; an impossible class (−∞) never occurs."""
    logits = torch.tensor([0.0, 1.0, -1.0, -torch.inf], dtype=torch.float64)
    drawn = categorical(KEY, logits.expand(20_000, 4))
    seen = torch.bincount(drawn, minlength=4)
    assert seen[3] == 0
    expected = torch.softmax(logits, -1)[:3] * 20_000
    assert stats.chisquare(seen[:3].numpy(), expected.numpy()).pvalue > 1e-3


def test_the_two_words_of_a_position_differ():
    x0, x1 = bits(KEY, 1000)
    assert int((x0 == x1).sum()) == 0
    assert int(x0.max()) <= 0xFFFFFFFF
    assert int(x0.min()) >= 0
