"""A client whose training labels are shuffled: that client's, those only, and the same ones every time."""

import pytest
import torch

from posterity.data import DataError, load

CLEAN = {"samples": 200}


def federation(seed=0, **options):
    return load("synthetic", clients=4, split="70/30", seed=seed, options={**CLEAN, **options})


@pytest.mark.parametrize("outlier", [0, 3])
def test_only_its_training_labels_change(outlier):
    clean, spoilt = federation(), federation(outlier=outlier)
    mine = spoilt.train.client(outlier)
    moved = (clean.y != spoilt.y).nonzero()[:, 0]
    assert set(moved.tolist()) <= set(mine.tolist())
    assert 0.35 < len(moved) / len(mine) < 0.65  # half of the labels of a balanced client come to another class
    assert clean.y[mine].sum() == spoilt.y[mine].sum()  # as many of each class
    assert torch.equal(clean.x, spoilt.x)
    for part in ("train", "validation", "test"):
        assert torch.equal(getattr(clean, part).rows, getattr(spoilt, part).rows)


def test_the_seed_decides():
    assert torch.equal(federation(outlier=1).y, federation(outlier=1).y)
    mine = federation(outlier=1).train.client(1)
    orders = [(federation(outlier=1).y != federation().y)[mine], (federation(1, outlier=1).y != federation(1).y)]
    assert not torch.equal(orders[0], orders[1][federation(1).train.client(1)])


def test_the_report_says_so():
    assert "outlier: the training labels of client 1 are shuffled" in federation(outlier="1").notes
    assert not any("outlier" in note for note in federation().notes)


def test_a_newcomer_may_be_the_outlier():
    """Clients are reordered when some come late; the outlier is found by its name."""
    f = load("synthetic", clients=4, split="70/30", newcomers=2, options={**CLEAN, "outlier": 0})
    clean = load("synthetic", clients=4, split="70/30", newcomers=2, options=CLEAN)
    place = f.names.index("client 0")
    moved = (clean.y != f.y).nonzero()[:, 0]
    assert set(moved.tolist()) <= set(f.train.client(place).tolist())
    assert len(moved)


@pytest.mark.parametrize("outlier", [4, -2])
def test_there_must_be_such_a_client(outlier):
    with pytest.raises(DataError, match=f"outlier={outlier}; expected a client from 0 to 3, or -1"):
        federation(outlier=outlier)


def test_one_that_takes_no_part_is_refused():
    with pytest.raises(DataError, match="outlier 'client 3' is none of the clients"):
        load("synthetic", clients=2, options={**CLEAN, "clients": 4, "outlier": 3})
