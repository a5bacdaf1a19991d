"""Federations from the embedded datasets: splits, subsets, newcomers, public rows, and independent streams."""

import itertools
import os
import subprocess
import sys

import pytest
import torch

from posterity.data import DataError, Federation, Part, available, load
from posterity.data.rng import stream


def owned(federation: Federation) -> list[set[int]]:
    """All rows of each client."""
    parts = (federation.train, federation.validation, federation.test)
    return [set().union(*(p.client(k).tolist() for p in parts)) for k in range(federation.clients)]


def same(a: Part, b: Part) -> bool:
    return torch.equal(a.rows, b.rows) and torch.equal(a.offsets, b.offsets)


def test_digits_needs_nothing_and_has_the_known_shape() -> None:
    f = load("digits")
    assert f.shape == (1, 8, 8)
    assert f.x.dtype == torch.float32
    assert f.y.dtype == torch.int64
    assert (f.x.min(), f.x.max()) == (-1, 1)
    assert f.classes == len(f.class_names) == 10
    assert (f.clients, f.members) == (20, 20)
    assert torch.bincount(f.y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_digits_loads_without_scikit_learn_or_pillow() -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['sklearn', 'PIL', 'pyarrow']));"
        "from posterity.data import load; print(load('digits').clients)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=False)
    assert done.stdout.strip() == "20", done.stderr


def test_parts_are_disjoint_and_cover_the_pool() -> None:
    f = load("digits", clients=7)
    rows = torch.cat([f.train.rows, f.validation.rows, f.test.rows])
    assert sorted(rows.tolist()) == list(range(len(f.y)))
    held = f.validation.counts + f.test.counts
    total = f.train.counts + held
    assert ((held - 0.2 * total).abs() <= 0.5).all()
    assert ((f.test.counts - f.validation.counts) >= 0).all()
    assert ((f.test.counts - f.validation.counts) <= 1).all()


def test_the_seed_decides_everything_and_nothing_else_does() -> None:
    a, b, c = (load("digits", seed=s) for s in (0, 0, 1))
    assert all(same(getattr(a, n), getattr(b, n)) for n in ("train", "validation", "test"))
    assert not same(a.train, c.train)


def test_streams_of_purposes_and_clients_differ() -> None:
    first = [stream(0, "split"), *(stream(0, "split", k) for k in range(3)), stream(0, "halve"), stream(1, "split")]
    assert len({rng.integers(2**62) for rng in first}) == 6


def test_each_decision_has_its_own_stream() -> None:
    plain, other = load("digits"), load("digits", split="50/50")
    assert owned(plain) == owned(other)
    assert not same(plain.train, other.train)
    late = load("digits", newcomers=5)
    assert sorted(map(sorted, owned(plain))) == sorted(map(sorted, owned(late)))
    assert sorted(late.train.rows.tolist()) == sorted(plain.train.rows.tolist())
    public = load("digits", public="10%")
    assert same(plain.test, public.test)


def test_newcomers_come_last_and_keep_their_data() -> None:
    plain, late = load("digits"), load("digits", newcomers="20%")
    assert (late.clients, late.members) == (20, 16)
    assert {late.names[-1], *late.names[:-1]} == set(plain.names)
    assert late.names != plain.names
    for k, name in enumerate(late.names):
        assert torch.equal(late.train.client(k), plain.train.client(plain.names.index(name)))
    with pytest.raises(DataError, match=r"newcomers is 20; expected.*up to 19"):
        load("digits", newcomers=20)


def test_public_rows_leave_the_members_training_data() -> None:
    plain, f = load("digits", newcomers=4), load("digits", newcomers=4, public=0.1)
    assert f.public is not None
    given = set(f.public.tolist())
    assert given.isdisjoint(torch.cat([f.train.rows, f.validation.rows, f.test.rows]).tolist())
    assert given | set(f.train.rows.tolist()) == set(plain.train.rows.tolist())
    assert torch.equal(f.train.counts[16:], plain.train.counts[16:])  # newcomers give nothing
    assert abs(len(given) - 0.1 * int(plain.train.counts[:16].sum())) < 10
    assert any("public" in note for note in f.notes)


def test_a_subset_is_drawn_before_the_partition() -> None:
    assert len(load("digits", subset="25%").y) == 449
    f = load("digits", subset=500, clients=5)
    assert sum(map(len, owned(f))) == 500
    assert any("500 of 1797" in note for note in f.notes)


def test_independent_test_part_is_another_draw() -> None:
    f = load("digits", clients=5, test_partition="independent", partition="dirichlet:0.1:1", split="70/30")
    assert len(f.validation.rows) + len(f.test.rows) == round(0.3 * 1797)
    train = f.histogram(f.train) / f.train.counts[:, None]
    held = f.histogram(f.validation) + f.histogram(f.test)
    far = (train - held / held.sum(1, keepdim=True)).abs().sum(1) / 2
    same_law = load("digits", clients=5, partition="dirichlet:0.1:1", split="70/30")
    a, b = (same_law.histogram(p) / p.counts[:, None] for p in (same_law.train, same_law.test))
    assert far.mean() > 0.4 > 2 * ((a - b).abs().sum(1) / 2).mean()
    with pytest.raises(DataError, match="not natural clients"):
        load("synthetic", options={"samples": 40}, test_partition="independent")


def test_a_common_test_set_belongs_to_nobody() -> None:
    f = load("digits", clients=5, test_partition="common")
    assert f.common is not None
    assert len(f.common) == round(0.2 * 1797)
    assert set(f.common.tolist()).isdisjoint(itertools.chain(*owned(f)))
    with pytest.raises(DataError, match="expected one scale"):
        load("synthetic", test_partition="common")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dataset": "digit"}, "did you mean 'digits'"),
        ({"dataset": "digits+zzzz"}, "'zzzz' is not known and is not a path"),
        ({"dataset": "digits", "split": "80/30"}, 'split is .80/30.; expected .* such as "80/20"'),
        ({"dataset": "digits", "subset": "lots"}, "subset is 'lots'; expected a percentage"),
        ({"dataset": "digits", "subset": 0}, "leaves no row"),
        ({"dataset": "digits", "public": 2}, "public is 2; expected a share below 1"),
        ({"dataset": "digits", "partition": "natural"}, "digits has no clients of its own"),
        ({"dataset": "digits", "test_partition": "indep"}, "did you mean 'independent'"),
        ({"dataset": "digits", "options": {"skew": "label"}}, "unknown option 'skew'; it has none"),
        ({"dataset": "digits", "seed": -1}, "seed is -1"),
        ({"dataset": "digits", "subset": "nan"}, "subset is 'nan'; expected a percentage"),
        ({"dataset": "digits", "group": "writer"}, "only with the path of your own data"),
        ({"dataset": ""}, "'' is not known"),
        ({"dataset": "synthetic", "options": {"skw": "label"}}, "did you mean 'skew'"),
        ({"dataset": "synthetic", "options": {"samples": "many"}}, "samples is 'many'; expected a value like 2000"),
        ({"dataset": "polynomial", "clients": 4}, "4 clients asked for; expected 1 to 3"),
        ({"dataset": "polynomial", "partition": "dirichlet:1"}, "iid or natural for regression"),
        ({"dataset": "cifar10", "data_dir": "nowhere"}, r"files found: none \(looked in nowhere.*POSTERITY_DATA"),
    ],
)
def test_a_wrong_request_says_what_to_do(arguments: dict[str, str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(**arguments)  # type: ignore[arg-type]


def test_files_are_looked_for_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POSTERITY_DATA", raising=False)
    with pytest.raises(DataError, match=r"no data folder given.*set POSTERITY_DATA"):
        load("mnist")
    monkeypatch.setenv("POSTERITY_DATA", "somewhere")
    with pytest.raises(DataError, match="somewhere"):
        load("mnist")


def test_every_dataset_describes_itself() -> None:
    found = {d.name: d for d in available()}
    assert {d for d in found if found[d].embedded} == {"digits", "polynomial", "synthetic"}
    assert len(found) == 19
    assert all((d.source is None) == d.embedded for d in found.values())
    assert all(d.description.endswith(".") and len(d.description) < 120 for d in found.values())
    assert found["chars74k"].natural
    assert not found["mnist"].natural
