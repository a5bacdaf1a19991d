"""What happens to a pool on its way to a federation: rows of nobody, official and common test rows, labels."""

from pathlib import Path

import numpy as np
import pytest
import torch

from posterity.data import DataError, Pool, load
from posterity.data.assemble import assemble, choose_newcomers, shuffle_labels
from posterity.data.federation import FederationSpec
from posterity.data.registry import mix

ROWS = 120


def pool(name: str = "a", **changes: object) -> Pool:
    draw = torch.Generator().manual_seed(len(name))
    values = {"x": 5 + 3 * torch.randn(ROWS, 2, generator=draw), "y": torch.arange(ROWS) % 3, "classes": 3, **changes}
    return Pool(name, **values)  # type: ignore[arg-type]


def pictures(name: str, **changes: object) -> Pool:
    return pool(name, x=torch.rand(ROWS, 1, 4, 4, generator=torch.Generator().manual_seed(0)), **changes)


OFFICIAL = torch.arange(ROWS) % 4 == 1


def test_the_official_test_rows_are_the_common_test_set() -> None:
    f = assemble(pool(official_test=OFFICIAL), FederationSpec("mine", "iid", clients=3, test_partition="common"))
    assert f.common is not None
    assert f.common.tolist() == torch.nonzero(OFFICIAL)[:, 0].tolist()
    owned = torch.cat([f.train.rows, f.validation.rows, f.test.rows])
    assert sorted(owned.tolist()) == torch.nonzero(~OFFICIAL)[:, 0].tolist()


def test_common_test_rows_are_scaled_by_the_members_training_rows() -> None:
    raw = pool(official_test=OFFICIAL, scale="all")
    f = assemble(raw, FederationSpec("mine", "iid", clients=4, test_partition="common", newcomers=1))
    members = torch.cat([f.train.client(k) for k in range(3)]).numpy()
    x = raw.x.double().numpy()
    mean, sd = x[members].mean(0), x[members].std(0)
    for rows in (f.common, f.train.client(3), f.test.client(0)):
        assert rows is not None
        np.testing.assert_allclose(f.x[rows].numpy(), (x[rows.numpy()] - mean) / sd, atol=1e-5)


def test_a_subset_of_the_common_rows_stays_what_it_was() -> None:
    common = torch.arange(0, ROWS, 3)
    marked = pool(common=common, x=torch.arange(ROWS).float()[:, None], owner=torch.arange(ROWS) % 2,
                  owner_names=("one", "two"))  # fmt: skip
    f = assemble(marked, FederationSpec("mine", subset="50%"))
    assert f.common is not None
    left = set(f.x[:, 0].int().tolist())
    assert f.x[f.common, 0].int().tolist() == [row for row in common.tolist() if row in left]


def test_a_held_out_part_of_its_own_needs_no_minimum() -> None:
    f = load("digits", partition="dirichlet:0.5:90", clients=4, test_partition="independent")
    assert int((f.train.counts).min()) >= 90
    assert int((f.validation.counts + f.test.counts).sum()) == round(0.2 * 1797)


def test_rows_of_nobody_stay_nobodys_in_a_mix() -> None:
    owner = torch.arange(ROWS) % 3 - 1  # a third belongs to nobody
    parts = [pictures(name, owner=owner, owner_names=("one", "two")) for name in ("a", "b")]
    both = mix(parts)
    assert both.owner is not None
    assert torch.bincount(both.owner + 1).tolist() == [80, 40, 40, 40, 40]


def test_clients_of_three_datasets_have_different_numbers() -> None:
    parts = [pictures(name, owner=torch.arange(ROWS) % n, owner_names=tuple(map(str, range(n))))
             for name, n in (("a", 3), ("b", 1), ("c", 2))]  # fmt: skip
    both = mix(parts)
    assert both.owner is not None
    assert torch.bincount(both.owner).tolist() == [40, 40, 40, 120, 60, 60]
    assert both.owner_names == ("a: 0", "a: 1", "a: 2", "b: 0", "c: 0", "c: 1")


def test_a_mix_has_an_official_test_split_only_where_all_have_one() -> None:
    assert mix([pictures("a", official_test=OFFICIAL), pictures("b")]).official_test is None
    whole = mix([pictures("a", official_test=OFFICIAL), pictures("b", official_test=~OFFICIAL)]).official_test
    assert whole is not None
    assert torch.equal(whole, torch.cat([OFFICIAL, ~OFFICIAL]))


def test_every_client_is_a_newcomer_sometimes_and_the_members_keep_their_order() -> None:
    orders = [choose_newcomers(10, 3, seed) for seed in range(60)]
    late = [k for order in orders for k in order[7:]]
    assert all(6 <= late.count(k) <= 32 for k in range(10))  # 18 on average, sd 3.5
    assert all(order[:7] == sorted(order[:7]) and sorted(order) == list(range(10)) for order in orders)


def test_nobody_is_called_unscored_where_nothing_is_held_out() -> None:
    assert not any("not scored" in note for note in load("digits", split="100/0").notes)
    tiny = pool(owner=torch.arange(ROWS).clamp(max=1), owner_names=("one row", "the rest"))
    assert any("which are not scored: 1" in note for note in assemble(tiny, FederationSpec("mine")).notes)


def test_shuffled_labels_are_a_copy() -> None:
    y = torch.arange(ROWS) % 3
    before = y.clone()
    assert not torch.equal(shuffle_labels(y, torch.arange(60), 0), before)
    assert torch.equal(y, before)


def test_every_name_has_its_own_rows(tmp_path: Path) -> None:
    client = np.repeat(np.arange(12), 5)  # as words, 10 and 11 come before 2
    x = np.stack([client, np.arange(60)], 1).astype(float)
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(60) % 2, client=client)
    f = load(str(tmp_path / "a.npz"))
    for k, name in enumerate(f.names):
        assert f.x[f.train.client(k), 0].unique().tolist() == [float(name)]


@pytest.mark.parametrize("word", ["NaN", "NA", "Null", ""])
def test_a_missing_label_is_no_class(tmp_path: Path, word: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"client,target,age\n0,ill,3\n0,well,4\n1,{word},5\n1,ill,6\n")
    said = f"'{word}', which is read as a missing value"
    with pytest.raises(DataError, match=f"line 4, column target: {said}; expected a value"):
        load(str(path))


@pytest.mark.parametrize("word", ["inf", "-Infinity", "1e999"])
def test_an_infinite_feature_is_refused(tmp_path: Path, word: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"client,target,age\n0,1,3\n0,0,{word}\n")
    with pytest.raises(DataError, match=f"line 3, column age: '{word}' .*; expected numbers"):
        load(str(path))


def test_one_feature_may_be_a_plain_list(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(40.0), y=np.arange(40) % 2, client=np.arange(40) // 20)
    assert load(str(tmp_path / "a.npz")).shape == (1,)
