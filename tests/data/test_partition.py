"""What every partition keeps: nobody shares a row, nothing promised is missing, and the papers' statistics."""

from pathlib import Path

import numpy as np
import pytest
import torch

from posterity.data import DataError, parse_partition
from posterity.data.partition import RULES, cut, natural
from posterity.settings.config import Config
from posterity.settings.hyperparameters import knobs

LABELS = torch.arange(10).repeat_interleave(200)[torch.randperm(2000, generator=torch.Generator().manual_seed(0))]
EVERYTHING = ("dirichlet:0.5", "balanced:0.5", "capped:0.5", "quantity:0.8", "iid")
SOME = ("pathological:3:20", "pathological:2", "major:2:0.2", "major-literal:2:0.5")


def divided(text: str, clients: int = 12, seed: int = 0, y: torch.Tensor = LABELS) -> list[torch.Tensor]:
    return parse_partition(text).divide(y, clients, np.random.default_rng(seed))


def histogram(owned: list[torch.Tensor], y: torch.Tensor) -> torch.Tensor:
    classes = int(y.max()) + 1
    return torch.stack([torch.bincount(y[rows], minlength=classes) for rows in owned])


@pytest.mark.parametrize("text", EVERYTHING + SOME)
def test_no_row_is_given_twice_and_the_seed_decides(text: str) -> None:
    owned = divided(text)
    rows = torch.cat(owned)
    assert len(owned) == 12
    assert len(set(rows.tolist())) == len(rows)
    assert all(torch.equal(a, b) for a, b in zip(owned, divided(text), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(owned, divided(text, seed=1), strict=True))


@pytest.mark.parametrize("text", EVERYTHING)
def test_covers_every_row_with_a_minimum(text: str) -> None:
    owned = divided(text)
    assert sum(map(len, owned)) == len(LABELS)
    assert min(map(len, owned)) >= 10


def test_resampling_is_bounded_and_says_what_to_do() -> None:
    with pytest.raises(DataError, match=r"at least 10 rows.*best of 100 draws left a client with \d.*fewer clients"):
        divided("dirichlet:0.005")
    with pytest.raises(DataError, match="at least 300 rows"):
        divided("dirichlet:5:300")
    assert min(map(len, divided("dirichlet:0.1:1"))) >= 1


def test_a_larger_alpha_is_closer_to_uniform() -> None:
    spread = [histogram(divided(f"dirichlet:{a}:1"), LABELS).float().std().item() for a in (0.1, 1, 100)]
    assert spread[0] > spread[1] > spread[2]


def test_balanced_is_more_even_in_size_but_not_in_classes() -> None:
    sizes = {name: np.std([len(r) for r in divided(f"{name}:0.5")]) for name in ("dirichlet", "balanced")}
    assert sizes["balanced"] < 0.5 * sizes["dirichlet"]
    assert (histogram(divided("balanced:0.5"), LABELS) == 0).any()


def sizes_by_position(text: str, draws: int, y: torch.Tensor, clients: int, first: int = 0) -> np.ndarray:
    """The sizes of clients 0, 1, … in many draws (draws, clients)."""
    rule = parse_partition(text)
    return np.array([[len(rows) for rows in rule.divide(y, clients, np.random.default_rng(first + seed))]
                     for seed in range(draws)])  # fmt: skip


MANY = torch.arange(100).repeat_interleave(61)  # 6,100 rows: no class and no client comes out even
SMALL_POOL = torch.arange(5).repeat_interleave(9)  # 45 rows: half a row is a lot


@pytest.mark.parametrize(
    "text", ["dirichlet:1:1", "dirichlet:0.3:1", "balanced:1:1", "capped:1:1", "quantity:20:1", "iid"]
)
@pytest.mark.parametrize(("y", "clients", "draws"), [(MANY, 20, 60), (SMALL_POOL, 7, 300)])
def test_no_client_is_favoured_by_its_number(text: str, y: torch.Tensor, clients: int, draws: int) -> None:
    """Before anything is drawn each client expects N/K rows: 305 here, where flooring gave the first 255 of them."""
    sizes = sizes_by_position(text, draws, y, clients)
    mean, error = sizes.mean(0), sizes.std(0, ddof=1) / draws**0.5
    assert (sizes.sum(1) == len(y)).all()
    assert (np.abs(mean - len(y) / clients) <= 4.5 * error).all()  # of 160 numbers in all, once in 1,000 times


@pytest.mark.parametrize("name", ["balanced", "capped"])
def test_no_client_is_favoured_within_a_class(name: str) -> None:
    """The first class goes to clients that all hold nothing: equals are put in a random order."""
    y = torch.arange(4).repeat_interleave(50)
    rule, draws = parse_partition(f"{name}:0.5:1"), 200
    found = np.stack([histogram(rule.divide(y, 6, np.random.default_rng(s)), y).numpy() for s in range(draws)])
    error = found.std(0, ddof=1) / draws**0.5
    assert (np.abs(found.mean(0) - 50 / 6) <= 4.5 * error).all()  # 24 numbers


@pytest.mark.parametrize("share", [(0.03, 0.07, 0.4, 0.5), (0.25, 0.25, 0.25, 0.25), (0.9, 0.04, 0.03, 0.03), (1.0,)])
def test_whole_numbers_from_shares_are_right_on_average(share: tuple[float, ...]) -> None:
    rng, p, n = np.random.default_rng(1), np.array(share), 13
    found = np.array([cut(p, n, rng) for _ in range(2000)])
    assert (found.sum(1) == n).all()
    assert np.abs(found - p * n).max() < 1  # rounded up or down
    part = p * n - np.floor(p * n)  # rounded up with this chance
    assert np.abs(found.mean(0) - p * n).max() <= 4.5 * np.sqrt(part * (1 - part) / 2000).max() + 1e-12


def test_shares_that_come_out_even_stay_even() -> None:
    assert {len(rows) for seed in range(20) for rows in divided("iid", 40, seed)} == {50}


def niid_bench(y: np.ndarray, clients: int, alpha: float, minimum: int, rng: np.random.Generator) -> np.ndarray:
    """Counts (clients, classes) of the loop that PFNM, NIID-Bench and PFLlib print, rounding included."""
    smallest = 0
    while smallest < minimum:
        counts = np.zeros((clients, y.max() + 1), dtype=int)
        for k in range(y.max() + 1):
            n = (y == k).sum()
            p = rng.dirichlet(np.repeat(alpha, clients))
            p = np.array([q * (held < len(y) / clients) for q, held in zip(p, counts.sum(1), strict=True)])
            ends = (np.cumsum(p / p.sum()) * n).astype(int)[:-1]
            counts[:, k] = np.diff(np.concatenate([[0], ends, [n]]))
        smallest = counts.sum(1).min()
    return counts


def concentration(counts: np.ndarray) -> tuple[float, float]:
    """Classes per client, and the share of a client's rows that its largest class has, on average."""
    return (counts > 0).sum(1).mean(), (counts.max(1) / counts.sum(1)).mean()


def test_a_capped_client_gets_nothing_more() -> None:
    for seed in range(5):
        counts = histogram(divided("capped:0.3:1", 12, seed), LABELS)
        before = counts.cumsum(1) - counts  # rows of the classes that came before
        full = before * 12 >= len(LABELS)
        assert full.any()
        assert (counts[full] == 0).all()


def test_capped_is_the_loop_of_niid_bench() -> None:
    """15,000 labels of ten classes, 50 clients, alpha 0.3, at least 50 rows: fewer classes than without the cap."""
    y = torch.arange(10).repeat_interleave(1500)
    theirs = np.array([concentration(niid_bench(y.numpy(), 50, 0.3, 50, np.random.default_rng(s))) for s in range(15)])
    ours = np.array([concentration(histogram(divided("capped:0.3:50", 50, s, y), y).numpy()) for s in range(15)])
    plain = np.array([concentration(histogram(divided("dirichlet:0.3:1", 50, s, y), y).numpy()) for s in range(15)])
    assert ours.mean(0) == pytest.approx([6.8, 0.50], rel=0.03)
    assert plain.mean(0) == pytest.approx([7.9, 0.44], rel=0.03)
    assert ours.mean(0) == pytest.approx(theirs.mean(0), rel=0.03)


@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_balanced_is_its_own_loop(alpha: float) -> None:
    """Shares in falling order to clients in rising order of size: written once more, without rounding."""
    y, rng, found = torch.arange(10).repeat_interleave(1000), np.random.default_rng(5), []
    for _ in range(200):
        held, largest = np.zeros(10), np.zeros(10)
        for _ in range(10):
            share = sorted(rng.gamma(alpha, size=10), reverse=True)
            for client, part in zip(sorted(range(10), key=lambda k: held[k]), share, strict=True):
                held[client] += 1000 * part / sum(share)
                largest[client] = max(largest[client], 1000 * part / sum(share))
        found.append([held.std(), (largest / held).mean()])
    counts = [histogram(divided(f"balanced:{alpha}:1", 10, s, y), y).numpy() for s in range(200)]
    ours = np.array([[c.sum(1).std(), (c.max(1) / c.sum(1)).mean()] for c in counts])
    theirs, error = np.array(found), np.array(found).std(0) * (2 / 200) ** 0.5
    assert (np.abs(ours.mean(0) - theirs.mean(0)) < 4.5 * error).all()


def test_pathological_gives_so_many_classes_and_rows() -> None:
    counts = histogram(divided("pathological:3:20"), LABELS)
    assert counts.unique().tolist() == [0, 20]
    assert (counts > 0).sum(1).tolist() == [3] * 12
    uses = (counts > 0).sum(0)
    assert uses.max() - uses.min() <= 1
    with pytest.raises(DataError, match="at most 50 rows of a class per client"):
        divided("pathological:3:51")


@pytest.mark.parametrize("clients", [10, 20, 7])
def test_major_classes_follow_fedbps_o14(clients: int) -> None:
    y = torch.arange(10).repeat_interleave(600)
    counts = histogram(divided("major:2:0.2", clients, y=y), y)
    n = int(counts[0].sum())
    assert (counts.sum(1) == n).all()  # equal sizes
    expected = torch.tensor([0.42] * 2 + [0.02] * 8) * n
    assert (counts.sort(1, descending=True).values - expected).abs().max() <= 1
    if clients != 7:  # major classes can be handed out evenly: nothing is wasted but rounding
        assert n >= 0.97 * len(y) / clients


def test_the_literal_reading_of_fedbps_is_iid() -> None:
    y = torch.arange(10).repeat_interleave(600)
    rule = histogram(divided("major-literal:2:0.2", 10, y=y), y).float() / 600
    assert (rule - 0.1).abs().max() < 0.002  # B5: total variation 0


def test_quantity_changes_sizes_only() -> None:
    counts = histogram(divided("quantity:0.5", 5), LABELS).double()
    large = counts[counts.sum(1) > 300]
    assert counts.sum(1).max() > 2 * counts.sum(1).min()
    assert (large / large.sum(1, keepdim=True) - 0.1).abs().max() < 0.05


def test_natural_ignores_rows_without_an_owner() -> None:
    assert [r.tolist() for r in natural(torch.tensor([1, -1, 0, 1]), 2)] == [[2], [0, 3]]


@pytest.mark.parametrize(
    ("classes", "alpha", "paper", "reference", "sd"),
    [
        (100, 5, 99.78, 99.8, 0.04),
        (100, 0.5, 73.18, 74.1, 0.30),
        (100, 0.1, 33.78, 34.2, 0.41),
        (10, 5, 10.0, 10.0, 0.0),
        (10, 0.5, 9.10, 9.13, 0.06),
        (10, 0.1, 4.65, 4.62, 0.14),
    ],
)
def test_classes_per_client_of_metavd_table_9(
    classes: int, alpha: float, paper: float, reference: float, sd: float
) -> None:
    """Both numbers are one draw over 130 clients; `sd` is how much such a mean varies from draw to draw."""
    y = torch.arange(classes).repeat_interleave(50_000 // classes)
    means = [
        (histogram(divided(f"dirichlet:{alpha}:1", 130, seed, y), y) > 0).sum(1).double().mean().item()
        for seed in range(3)
    ]
    for one_draw in (paper, reference):
        assert abs(np.mean(means) - one_draw) <= 3 * sd


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dirichelt:0.3", "did you mean 'dirichlet'"),
        ("zzz", "possible: balanced, capped, dirichlet"),
        ("dirichlet", r"0 numbers after the name; expected the form dirichlet:ALPHA"),
        ("dirichlet:much", "could not convert.*expected the form dirichlet:ALPHA"),
        ("capped", "expected the form capped:ALPHA"),
        ("major:2", "expected the form major:KINDS:SHARE"),
        ("iid:3", "expected the form iid"),
    ],
)
def test_a_wrong_word_gets_a_hint(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse_partition(text)


@pytest.mark.parametrize(
    ("text", "clients", "message"),
    [
        ("dirichlet:0", 5, "alpha is 0.0; expected a number above 0"),
        ("dirichlet:inf", 5, "alpha is inf; expected a number above 0"),
        ("dirichlet:1:0", 5, "minimum 0; expected at least 1 row a client"),
        ("pathological:11:1", 5, "11 classes per client; expected 1 to 10"),
        ("major:2:1.5", 5, "share 1.5; expected a number from 0 to 1"),
        ("iid", 2001, "2001 clients and 2000 rows"),
        ("iid", 0, "0 clients"),
    ],
)
def test_a_rule_that_cannot_hold_says_so(text: str, clients: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        divided(text, clients)


def test_rules_about_classes_refuse_regression() -> None:
    with pytest.raises(DataError, match="iid or natural for regression"):
        divided("dirichlet:1", y=torch.randn(100))
    assert len(divided("iid", y=torch.randn(100))) == 12
    assert len(divided("quantity:5:1", y=torch.randn(100))) == 12


def test_every_rule_is_declared_once_and_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    for name, rule in RULES.items():
        assert f"`{name}" in page
        assert rule.usage.startswith(name)
    doc = next(knob.doc for knob in knobs(Config) if knob.name == "partition")
    examples = [word.strip(",.;") for word in doc.split() if word.split(":")[0].strip(",.;") in RULES]
    assert len({parse_partition(example).name for example in examples}) >= 7
    assert all(f"`{example}`" in page for example in examples)
