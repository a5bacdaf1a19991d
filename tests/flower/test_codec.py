"""Bytes: what was written is read back bit for bit, has the counted length, and what is wrong is named."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from posterity.core import norm
from posterity.core.messages import Bag, LogMean, Mean, Moments, Offer, Rows, Sparse, Sum, packed, wire_bytes
from posterity.core.tree import tree_leaves, tree_map
from posterity.flower.codec import HEADER, CodecError, decode, encode, fingerprint, payload_bytes, read_facts
from posterity.methods.qlsd import Levels, code_bytes, coded, decoded, quantised

TYPES = (torch.float32, torch.float64, torch.int64, torch.int16, torch.int8, torch.uint8, torch.bool, torch.float16)


def numbers(seed, shape, dtype=torch.float32):
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 8
    return drawn > 0 if dtype == torch.bool else drawn.abs().to(dtype) if dtype == torch.uint8 else drawn.to(dtype)


def levels(seed=0, count=4):
    slope = {"w": numbers(seed, (3, 5)), "b": numbers(seed + 1, (4,)), "zero": torch.zeros(3)}
    found = {n: quantised(v, count, torch.tensor([seed, 1])) for n, v in slope.items()}
    unsent = sum((q.numel() - 1) * 4 - int(code_bytes(level, count)) for q, level in found.values())
    mean = Mean(torch.ones(()), {n: q for n, (q, _) in found.items()})
    return Levels(mean, torch.tensor(unsent), norms={n: norm(v) for n, v in slope.items()}, levels=count)


def sparse(seed=0, keep=None):
    keep = numbers(seed, (2, 5)) > 0 if keep is None else keep
    bag = Bag(torch.tensor(3), {"w": numbers(seed, (2, 5)), "tally": (~keep).sum()})
    return Sparse(bag, 4 * (~keep).sum() + 8, keep, ("value/w",), known=("value/tally",))


def offered(seed=0, keep=None):
    """A broadcast of which one client gets what its pattern keeps."""
    keep = numbers(seed, (3, 3)) > 0 if keep is None else keep
    gone = (~keep).sum()
    mine = {"host": {"rho": numbers(seed, (3, 3)), "n": torch.ones(())}, "keep": packed(keep)}
    unsent = torch.where(gone > 0, 8 * gone, 2)
    own = Sparse(mine, unsent, keep, ("host/rho",), ("params/w",), "keep")
    return Offer({"params": {"w": numbers(seed + 1, (3, 3)), "b": numbers(seed, (3,))}}, own)


def message(seed=0):
    """Every kind of message."""
    value = {"w": numbers(seed, (2, 3)), "b": numbers(seed + 1, (4,))}
    return {
        "sum": Sum(tree_map(torch.tanh, value)), "mean": Mean(torch.tensor(3.0), value),
        "each": Mean(tree_map(torch.abs, value), value), "log": LogMean(torch.tensor(-5000.001).double(), value),
        "moments": Moments(torch.tensor(2.0), value, value), "rows": Rows(torch.tensor(3), numbers(seed, (4,))),
        "bag": Bag(torch.tensor(3), {"w": numbers(seed, (2,))}), "sparse": sparse(seed),
        "levels": levels(seed), "nothing": Sum(torch.zeros(0, 3)),
    }  # fmt: skip


def blank(tree):
    """What a reader has before anything arrives: the structure, and what it knows itself."""
    empty = tree_map(torch.zeros_like, tree)
    known = {n: replace(empty[n], client=tree[n].client) for n in ("rows", "bag") if n in tree}
    if "sparse" in tree:
        part = replace(empty["sparse"].part, client=torch.tensor(3))
        part = replace(part, value={**part.value, "tally": tree["sparse"].part.value["tally"]})
        known["sparse"] = replace(tree["sparse"], part=part)
    return {**empty, **known}


def same(one, other):
    return all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(*map(tree_leaves, (one, other)), strict=True))


trees = st.recursive(
    st.builds(numbers, st.integers(0, 99), st.lists(st.integers(0, 4), max_size=3).map(tuple), st.sampled_from(TYPES)),
    lambda inner: (
        st.dictionaries(st.text("ab.é0", min_size=1, max_size=3), inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(trees)
def test_a_tree_comes_back_bit_for_bit(tree):
    data = encode(tree, "agreed", {"round": 1})
    assert same(decode(data, tree_map(torch.zeros_like, tree), "agreed"), tree)
    assert payload_bytes(data) == wire_bytes(tree)
    assert read_facts(data) == {"round": 1}


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**20))
def test_every_kind_of_message_comes_back_in_the_counted_length(seed):
    sent = message(seed)
    data = encode(sent)
    found = decode(data, blank(sent))
    assert payload_bytes(data) == sum(map(wire_bytes, sent.values()))
    for name in sent.keys() - {"sparse", "levels"}:
        assert same(found[name], sent[name]), name
    assert same(found["levels"].part, sent["levels"].part)
    keep = sent["sparse"].keep
    assert torch.equal(found["sparse"].part.value["w"], sent["sparse"].part.value["w"] * keep)
    assert int(found["sparse"].part.value["tally"]) == int((~keep).sum())


@pytest.mark.parametrize("keep", [None, torch.ones(3, 3).bool(), torch.zeros(3, 3).bool()])
def test_a_pattern_speaks_about_both_halves_of_an_offer(keep):
    offer = offered(keep=keep)
    data, keep = encode(offer), offer.own.keep
    found = decode(data, tree_map(torch.zeros_like, offer))
    assert payload_bytes(data) == wire_bytes(offer)
    assert torch.equal(found.shared["params"]["w"], offer.shared["params"]["w"] * keep)
    assert torch.equal(found.own.part["host"]["rho"], offer.own.part["host"]["rho"] * keep)
    assert torch.equal(found.own.part["keep"], packed(keep))
    assert torch.equal(found.shared["params"]["b"], offer.shared["params"]["b"])


def test_one_boolean_keeps_a_whole_mean_or_none_of_it():
    value = {"a": numbers(0, (3,)), "b": numbers(1, (2, 2))}
    for warm in (True, False):
        mean = Sparse(
            Mean(torch.ones(()), value), torch.tensor(0 if warm else 28), torch.tensor(warm), ("value/a", "value/b")
        )
        data = encode({"base": mean})
        like = {"base": replace(mean, part=tree_map(torch.zeros_like, mean.part))}
        found = decode(data, like)["base"].part
        assert payload_bytes(data) == wire_bytes(mean) == (32 if warm else 4)
        assert torch.equal(found.value["b"], value["b"] * warm)


def test_what_is_for_scoring_alone_travels_when_asked():
    part = {"w": numbers(0, (3,)), "average": {"w": numbers(1, (3,))}}
    offer = Sparse(part, torch.tensor(12), known=("average/w",))
    like = tree_map(torch.zeros_like, {"x": offer})
    for complete, length in ((False, 12), (True, 24)):
        data = encode({"x": offer}, complete=complete)
        found = decode(data, like)["x"].part
        assert payload_bytes(data) == length
        assert torch.equal(found["average"]["w"], part["average"]["w"] * complete)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(-2000, 2000), max_size=40))
def test_levels_in_elias_gamma_code(values):
    level = torch.tensor(values, dtype=torch.int64)
    code = coded(level)
    assert torch.equal(decoded(code, len(values), 2000), level)
    assert len(code) == (int(code_bytes(level.abs().float(), 2000)) if values else 0)


def test_a_shortened_gradient_goes_as_it_is():
    """`+clip` scales the leaves: they are multiples of the norm no more."""
    sent = levels()
    sent = replace(sent, part=Mean(sent.part.weight, tree_map(lambda v: v / 3.7, sent.part.value)))
    found = decode(encode({"slope": sent}), {"slope": levels(9)})["slope"]
    assert same(found.part, sent.part)


WRONG = {
    "names": ({"a": torch.ones(2), "b": torch.ones(1)}, "'b' is not expected; expected are a"),
    "missing": ({}, "'a' is missing"),
    "shape": ({"a": torch.ones(3)}, r"'a' has torch.float32 \[3\]; expected torch.float32 \[2\]"),
    "type": ({"a": torch.ones(2).double()}, r"'a' has torch.float64 \[2\]; expected torch.float32 \[2\]"),
    "nan": ({"a": torch.tensor([1.0, math.nan])}, "'a' holds a number that is not finite"),
    "infinite": ({"a": torch.tensor([1.0, math.inf])}, "'a' holds a number that is not finite"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named(case):
    tree, text = WRONG[case]
    with pytest.raises(CodecError, match=text):
        decode(encode(tree), {"a": torch.zeros(2)})


@pytest.mark.parametrize("weight", [torch.tensor(-1.0), torch.tensor([1.0, -1e-30])])
def test_nobody_counts_for_less_than_nothing(weight):
    sent = {"params": Mean(weight, torch.ones(2))}
    with pytest.raises(CodecError, match="params/weight is negative somewhere"):
        decode(encode(sent), tree_map(torch.zeros_like, sent))


@pytest.mark.parametrize("kind", [Bag, Rows])
def test_nobody_speaks_for_another(kind):
    sent = {"head": kind(torch.tensor(1), torch.ones(2))}
    with pytest.raises(CodecError, match=r"head/client is 1; this client is 2"):
        decode(encode(sent), {"head": kind(torch.tensor(2), torch.zeros(2))})


def test_another_fingerprint_and_other_bytes_are_named():
    data = encode({}, "one")
    with pytest.raises(CodecError, match="fingerprint 'one' was given, two is expected: server and site differ"):
        decode(data, {}, "two")
    for wrong in (b"", b"PSTY", b"PK" + data[2:], bytes(2000), save({"a": torch.ones(1)})):
        with pytest.raises(CodecError, match=f"{len(wrong)} bytes are no message of posterity's"):
            decode(wrong, {}, "one")


def test_a_fingerprint_is_of_what_was_agreed_and_of_shapes():
    first = fingerprint({"method": "fedavg"}, {"a": torch.zeros(2)})
    assert first == fingerprint({"method": "fedavg"}, {"a": torch.ones(2)})
    assert first != fingerprint({"method": "fedper"}, {"a": torch.zeros(2)})
    for other in ({"a": torch.zeros(3)}, {"b": torch.zeros(2)}, {"a": torch.zeros(2).double()}):
        assert first != fingerprint({"method": "fedavg"}, other)


def with_table(data, change):
    """The same bytes with another table of contents, whose header is an object here."""
    length = int.from_bytes(data[:8], "little")
    table = json.loads(data[8 : 8 + length])
    table = change(table, json.loads(table["__metadata__"][HEADER]))
    text = json.dumps(table).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


def headed(change):
    return lambda table, header: {**table, "__metadata__": {HEADER: json.dumps(change(header))}}


def with_header(data, change):
    """The same bytes with another header."""
    return with_table(data, headed(change))


def with_facts(data, **facts):
    """The same bytes with some other facts."""
    return with_header(data, lambda header: {**header, "facts": {**header["facts"], **facts}})


def placed(**changes):
    return lambda table, header: {**table, "a": {**table["a"], **changes}}


HEADERS = {
    "facts": (headed(lambda h: {**h, "facts": []}), "lacks its fingerprint or its facts"),
    "complete": (headed(lambda h: {**h, "complete": 1}), "lacks its fingerprint or its facts"),
    "list": (headed(lambda h: [h]), "they have no header"),
    "nan": (headed(lambda h: {**h, "facts": {"round": math.nan}}), "they have no header"),
    "table": (lambda table, header: [table], "they have no header"),
    "negative": (placed(shape=[-2]), "no message of posterity's"),
    "huge": (placed(shape=[2**39, 2**39]), "no message of posterity's"),
    "type": (placed(dtype="object"), "no message of posterity's"),
    "gap": (placed(data_offsets=[1, 9]), "no message of posterity's"),
    "other type": (placed(dtype="I32"), r"'a' has torch.int32 \[2\]; expected torch.float32"),
    "twice": (lambda table, header: {**table, "b": table["a"]}, "no message of posterity's"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_a_table_that_lies_is_named(case):
    change, text = HEADERS[case]
    with pytest.raises(CodecError, match=text):
        decode(with_table(encode({"a": torch.ones(2)}), change), {"a": torch.zeros(2)})


def test_a_boolean_is_0_or_1():
    data = encode({"a": torch.ones(2).bool()})
    with pytest.raises(CodecError, match="'a' holds a boolean that is neither"):
        decode(data[:-1] + b"\x02", {"a": torch.zeros(2).bool()})


def spoilt(data, draw):
    """Bytes that were cut, swapped, doubled, zeroed or overwritten somewhere."""
    place, other = (int(x) for x in torch.randint(len(data), (2,), generator=draw))
    first, last = sorted((place, other))
    junk = bytes(torch.randint(256, (int(torch.randint(1, 9, (1,), generator=draw)),), generator=draw).tolist())
    forms = (data[:place], data[:place] + junk + data[place + len(junk) :], data[:place] + junk + data[place:],
             data[:first] + data[last:], data[:last] + data[first:], data[:first] + bytes(last - first) + data[last:],
             junk)  # fmt: skip
    return forms[int(torch.randint(len(forms), (1,), generator=draw))]


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.everything)])
def test_spoilt_bytes_are_a_named_error_or_a_message_like_any_other(count):
    sent, draw = message(), torch.Generator().manual_seed(1)
    data, like, refused = encode(sent, "agreed", {"round": 3}), blank(sent), 0
    for _ in range(count):
        try:
            found = decode(spoilt(data, draw), like, "agreed")
        except CodecError:
            refused += 1
        else:
            assert all(a.shape == b.shape and a.dtype == b.dtype and bool(a.isfinite().all())
                       for a, b in zip(*map(tree_leaves, (found, like)), strict=True))  # fmt: skip
    assert 0.5 * count < refused < count
