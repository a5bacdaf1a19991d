"""Several datasets in one federation."""

import pytest
import torch

from posterity.data import DataError, Pool, load
from posterity.data.assemble import assemble
from posterity.data.federation import FederationSpec
from posterity.data.registry import mix


def pool(name: str, shape: tuple[int, int, int], classes: int, rows: int = 300, owners: int = 0) -> Pool:
    x = torch.rand((rows, *shape), generator=torch.Generator().manual_seed(rows))
    return Pool(
        name,
        x,
        torch.arange(rows) % classes,
        classes,
        tuple(map(str, range(classes))),
        owner=torch.arange(rows) % owners if owners else None,
        owner_names=tuple(f"o{k}" for k in range(owners)),
        official_test=torch.arange(rows) < 50,
    )


def test_labels_side_by_side_and_pictures_of_one_shape() -> None:
    a, b = pool("a", (3, 16, 16), 4), pool("b", (1, 8, 8), 3, 200)
    both = mix([a, b])
    assert both.name == "a+b"
    assert both.x.shape == (500, 3, 16, 16)
    assert torch.equal(both.x[:300], a.x)
    assert torch.equal(both.x[300:, 0], both.x[300:, 2])  # grey, repeated
    assert torch.equal(both.y[300:], b.y + 4)
    assert (both.classes, both.class_names[4]) == (7, "b: 0")
    assert both.official_test is not None
    assert int(both.official_test.sum()) == 100
    assert mix([b, a]).x.shape == (500, 3, 8, 8)
    assert mix([a, b], size=12).x.shape == (500, 3, 12, 12)


def test_clients_may_have_several_datasets() -> None:
    a, b = pool("a", (1, 8, 8), 4), pool("b", (1, 8, 8), 3)
    f = assemble(mix([a, b]), FederationSpec("mine", "dirichlet:5:1", clients=6))
    assert max(len((f.y[f.train.client(k)] < 4).unique()) for k in range(6)) == 2
    assert f.clients == 6


def test_owners_are_kept_where_all_have_them() -> None:
    both = mix([pool("a", (1, 8, 8), 4, owners=3), pool("b", (1, 8, 8), 4, owners=2)])
    assert both.owner is not None
    assert torch.bincount(both.owner).tolist() == [100, 100, 100, 150, 150]
    assert both.owner_names[3] == "b: o0"
    half = mix([pool("a", (1, 8, 8), 4, owners=3), pool("b", (1, 8, 8), 4)])
    assert half.owner is None


def test_only_pictures_mix() -> None:
    with pytest.raises(DataError, match="synthetic holds no labelled pictures"):
        load("digits+synthetic")
    with pytest.raises(DataError, match="no part of the mix has the option labels"):
        load("digits+digits", options={"labels": "fine"})
    assert load("digits+digits", options={"size": "10"}).shape == (1, 10, 10)
