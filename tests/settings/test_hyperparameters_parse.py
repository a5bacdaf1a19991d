"""From text to values: the forms that are typed, and what a function says about its parameters."""

from __future__ import annotations

from functools import partial
from typing import Literal, Optional

import pytest

from posterity.settings.hyperparameters import (
    Declared,
    convert,
    declared,
    guess,
    parse_amount,
    parse_percent,
    parse_ranges,
    parse_share,
    parse_split,
    split_list,
    split_name,
)
from posterity.settings.plugins import find_function, import_outside

OLD = Optional[int]  # noqa: UP045, as others may write it


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [("3", int, 3), ("3", float, 3.0), ("3", str, "3"), ("No", bool, False), ("1,2", tuple[int, ...], (1, 2)),
     ("none", int | None, None), ("4", OLD, 4), ("x", int | str, "x"), ("a", Literal["a", "b"], "a")],
)  # fmt: skip
def test_by_declared_type(text, kind, value):
    assert convert(text, kind) == value
    assert type(convert(text, kind)) is type(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [("3", 3), ("3.0", 3.0), ("1e-3", 0.001), ("TRUE", True), ("false", False), ("yes", "yes"), ("32,16", (32, 16)),
     ("32,", (32,)), ("a,1", ("a", 1)), ("", ""), (7, 7), ([1], [1])],
)  # fmt: skip
def test_without_a_declared_type(text, value):
    assert guess(text) == value
    assert type(guess(text)) is type(value)


def test_forms():
    assert [parse_percent(text) for text in ("20%", "20")] == [20.0, None]
    assert [parse_share(value) for value in ("20%", 0.2, " 0.2 ")] == [0.2, 0.2, 0.2]
    assert [parse_amount(value, 10) for value in ("25%", 0.25, "7", 7.0, 0)] == [2, 2, 7, 7, 0]
    assert parse_split("80/20") == (80.0, 20.0)
    assert parse_ranges("0-2, 7") == [0, 1, 2, 7]
    assert split_list("a, ,b,") == ["a", "b"]
    assert split_list("a[x=1,y=2],b (c, d),e)") == ["a[x=1,y=2]", "b (c, d)", "e)"]
    assert split_name(" name:1:b ") == ("name", ["1", "b"])


@pytest.mark.parametrize(
    ("read", "text"),
    [(parse_share, "a%"), (parse_split, "80"), (parse_split, "1/2/3"), (parse_ranges, ","), (parse_ranges, "1-")],
)
def test_what_has_another_form_is_a_value_error(read, text):
    with pytest.raises(ValueError):
        read(text)


@pytest.mark.parametrize("value", ["11", "-1", "-1%", "nan", "inf", "1.5", "110%", "x", ""])
def test_no_amount_of_ten(value):
    with pytest.raises(ValueError):
        parse_amount(value, 10)


def function(a, b: int, *rest, c=0.5, d: int | None = None, e: list[int] = (), **more):
    pass


def test_what_a_function_says_about_its_parameters():
    found = declared(function, ("a",))
    assert list(found) == ["b", "c", "d", "e"]
    assert [found[n].required for n in found] == [True, False, False, False]
    assert [found[n].read("3") for n in found] == [3, 3.0, 3, 3]
    assert found["d"].read("none") is None
    with pytest.raises(ValueError):
        found["d"].read_given("none")
    assert declared(partial(function, c=2.0))["c"] == Declared(float, 2.0) == declared(partial(function, c=2.0))["c"]
    assert declared(dict.fromkeys) == {} or "iterable" in declared(dict.fromkeys)


def test_names_outside_the_package(tmp_path, monkeypatch):
    assert [import_outside(name) for name in ("", ".", ".a", "no_such_module", "json.no_such_module")] == [None] * 5
    assert find_function("json:dumps", "thing")({}) == "{}"
    with pytest.raises(ValueError, match=r"no module 'no_such_module' to take the thing 'no_such_module:f' from"):
        find_function("no_such_module:f", "thing")
    with pytest.raises(ValueError, match=r"'json:dump_' is nothing, not a function that makes a thing: did you mean"):
        find_function("json:dump_", "thing")
    (tmp_path / "half_there.py").write_text("import not_there_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all"):
        find_function("half_there:f", "thing")
