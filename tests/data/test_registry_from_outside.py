"""A dataset and a partition in one file outside of the package: what works, and every way in which it can be wrong."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from posterity.data import DataError, Federation, Partition, load, parse_partition

COUNT = itertools.count()

DATASET = """
import torch

from posterity.data import Federation, Part, Pool

number = 3


def pool(data_dir, seed, *, rows: int = 60, clients: int = 4, shift=0.5):
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(rows) % 3
    owner = torch.arange(rows) % clients
    x = torch.randn(rows, 5, generator=rng) + y[:, None] * shift
    return Pool("mine", x, y, 3, owner=owner, owner_names=tuple(f"site {k}" for k in range(clients)))


def plain(data_dir, seed):
    return Pool("plain", torch.randn(90, 5), torch.arange(90) % 3, 3)


def pictures(data_dir, seed):
    return Pool("pictures", torch.randn(90, 1, 8, 8), torch.arange(90) % 3, 3, ("a", "b", "c"))


def federation(data_dir, seed):
    rows = torch.arange(60).reshape(3, 20)
    parts = (Part.of([r[a:b] for r in rows]) for a, b in ((0, 14), (14, 17), (17, 20)))
    x, y = torch.randn(60, 5), torch.arange(60) % 3
    return Federation("whole", "classification", x, y, 3, *parts, 3, ("a", "b", "c"))


def table(data_dir, seed):
    return {"x": 1}


class Broken:
    import not_there_either  # noqa
"""

RULES = '''
import numpy as np
import torch


def stripes(y, clients, rng, width: int = 1, *, skip: float = 0.0):
    """Client by client, `width` rows at a time; the first share `skip` belongs to nobody."""
    rows = torch.arange(int(skip * len(y)), len(y))
    return [rows[(rows // width) % clients == k] for k in range(clients)]


def shuffled(y, clients, rng, minimum: int):
    assert isinstance(minimum, int)
    return np.array_split(rng.permutation(len(y)), clients)


shuffled.version = 7


def one_too_few(y, clients, rng):
    return [torch.arange(len(y))]


def twice(y, clients, rng):
    return [torch.arange(len(y))] * clients


def far(y, clients, rng):
    return [torch.tensor([len(y) + k]) for k in range(clients)]


def halves(y, clients, rng):
    return [torch.tensor([0.5 + k]) for k in range(clients)]


def nothing(y, clients, rng):
    pass


def strange(labels, clients):
    pass
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write a file with a fresh name into a folder of the path; its name."""

    def write(text: str) -> str:
        name = f"my_file_{next(COUNT)}"
        (tmp_path / f"{name}.py").write_text(text)
        return name

    monkeypatch.syspath_prepend(tmp_path)
    return write


@pytest.fixture
def data(module) -> str:
    return module(DATASET.replace("    import not_there_either  # noqa", "    pass"))


@pytest.fixture
def rules(module) -> str:
    return module(RULES)


def test_a_pool_of_yours_with_options(data: str) -> None:
    f = load(f"{data}:pool", options={"rows": "80", "shift": "2"}, clients=5, split="50/50", seed=3)
    assert (f.name, f.clients, len(f.y), f.names[0]) == ("mine", 5, 80, "site 0")
    assert f.partition == Partition("natural")
    again = load(f"{data}:pool", options={"rows": 80, "shift": 2}, clients=5, split="50/50", seed=3)
    assert torch.equal(f.x, again.x)
    assert torch.equal(f.train.rows, again.train.rows)


def test_a_pool_of_yours_is_divided_like_any_other(data: str) -> None:
    f = load(f"{data}:plain", partition="iid", clients=6, newcomers=3, test_partition="common")
    assert (f.clients, f.members) == (6, 3)
    assert f.common is not None


def test_a_dataset_of_yours_in_a_mix(data: str) -> None:
    f = load(f"digits+{data}:pictures", partition="iid", clients=4)
    assert (f.classes, len(f.y)) == (13, 1887)


def test_a_federation_of_yours(data: str) -> None:
    f = load(f"{data}:federation")
    assert isinstance(f, Federation)
    assert f.names == ("a", "b", "c")
    assert load(f"{data}:federation", newcomers="0", public="0", split="80/20").names == f.names
    with pytest.raises(DataError, match=r"divided already; expected no partition, clients, newcomers; leave them out"):
        load(f"{data}:federation", partition="iid", clients=3, newcomers=1)
    with pytest.raises(DataError, match="expected a Pool in a mix"):
        load(f"digits+{data}:federation")


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("no_such_file:load", {}, "there is no module 'no_such_file' to take the dataset 'no_such_file:load' from"),
        (":load", {}, "there is no module ''"),
        ("{}:pol", {}, "is nothing, not a function that makes a dataset: did you mean 'pool'"),
        ("{}:number", {}, "is of type int, not a function that makes a dataset"),
        ("{}:table", {}, "returned a dict; expected a Pool or a Federation"),
        ("{}:pool", {"row": 3}, "unknown option 'row'; did you mean 'rows'"),
        ("{}:pool", {"rows": "many"}, "option rows is 'many'; expected a value like 60"),
        ("{}:plain", {"rows": 3}, "unknown option 'rows'; it has none"),
    ],
)
def test_what_is_wrong_with_a_dataset_is_said(data: str, path: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(path.format(data), options=options)


def test_a_file_that_cannot_import_something_says_what(module) -> None:
    with pytest.raises(ModuleNotFoundError, match="not_there_either"):
        load(f"{module(DATASET)}:pool")


def test_a_rule_of_yours(rules: str) -> None:
    f = load("digits", partition=f"{rules}:stripes:2", clients=3, split="100/0")
    assert f.train.client(1)[:4].tolist() == [2, 3, 8, 9]
    assert f.partition is not None
    assert f.partition.facts() == {"rule": f"{rules}:stripes", "version": 1, "width": 2}
    f = load("digits", partition=f"{rules}:stripes:1:0.5", clients=3)
    assert any("898 of 1797 rows are given to no client" in note for note in f.notes)
    f = load("digits", partition=f"{rules}:shuffled:5", clients=3, test_partition="independent")
    assert f.partition == parse_partition(f"{rules}:shuffled:5")
    assert f.partition.facts() == {"rule": f"{rules}:shuffled", "version": 7, "minimum": 5}
    assert len(f.train.rows) + len(f.validation.rows) + len(f.test.rows) == 1797


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no_such_file:rule", "there is no module 'no_such_file' to take the partition 'no_such_file:rule' from"),
        ("dirichelt:alpha", "did you mean 'dirichlet'"),
        ("{}:strips:2", "is nothing, not a function that makes a partition: did you mean 'stripes'"),
        ("{}:stripes:1:2:3", r"3 numbers after the name; expected the form \w+:stripes\[:WIDTH\]\[:SKIP\]"),
        ("{}:shuffled", r"0 numbers after the name; expected the form \w+:shuffled:MINIMUM"),
        ("{}:stripes:wide", r"invalid literal .*; expected the form \w+:stripes\[:WIDTH\]\[:SKIP\] with numbers in it"),
        ("{}:strange", r"has no parameter y, rng; expected strange\(y, clients, rng, "),
        (
            "{}:one_too_few",
            "returned a list, and not one entry a client; expected a list with the rows of each of the 3",
        ),
        ("{}:nothing", "returned a NoneType, and not one entry a client"),
        ("{}:twice", "gives out row 0; expected .*, each at most once"),
        ("{}:far", "gives out row 1797; expected .* whole numbers from 0 to 1796"),
        ("{}:halves", "gives out row 0.5; expected"),
    ],
)
def test_what_is_wrong_with_a_rule_is_said(rules: str, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load("digits", partition=text.format(rules), clients=3)
