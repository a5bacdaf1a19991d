"""What figures draw equals what the files say: means, bands, bytes, dots, boxes, bars and bubbles."""

from __future__ import annotations

import re
import statistics
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from posterity.report import load_runs
from posterity.report.charts import (
    Dot,
    by_traffic,
    client_dots,
    learning_curves,
    line_chart,
    partition,
    pooled_bins,
    reliability,
    sparks,
    strip_chart,
    thin,
)
from posterity.report.table import arms
from posterity.runs.read import FederationFacts

from .handmade import everywhere, run_of, scored, trained


def drawn(svg: str, tag: str, css: str) -> list[dict[str, str]]:
    """The elements of one kind, in order."""
    return [e.attrib for e in ElementTree.fromstring(svg).iter(tag) if e.get("class", "").split(" ")[0] == css]


def curves(tmp_path: Path, *seeds: dict[int, float]):
    """One method, whose accuracy on all parts is that of each seed by round; a round costs 150 bytes."""
    for seed, values in enumerate(seeds):
        lines = [trained(r, loss=1.0 + seed, report={"spread": 4.0 * seed}) for r in range(1, max(values) + 1)]
        told = [line for r, v in values.items() for line in everywhere(r, v)]
        run_of(tmp_path / str(seed), lines + told, seed=seed)
    return arms(load_runs(tmp_path))


def test_a_line_is_the_mean_and_its_band_the_sd_over_seeds(tmp_path: Path) -> None:
    (line,) = learning_curves(curves(tmp_path, {2: 0.2, 4: 0.5}, {2: 0.3, 4: 0.9}, {2: 0.7, 4: 0.4}), "test")
    assert line.x == (2.0, 4.0)
    assert line.y == pytest.approx((0.4, 0.6))
    assert line.band == pytest.approx([statistics.stdev(v) for v in ((0.2, 0.3, 0.7), (0.5, 0.9, 0.4))])


def test_a_mean_is_over_rounds_that_all_seeds_have(tmp_path: Path) -> None:
    (line,) = learning_curves(curves(tmp_path, {2: 0.2, 4: 0.5, 6: 0.6}, {2: 0.3, 4: 0.9}), "test")
    assert line.x == (2.0, 4.0)


def test_bytes_are_all_that_was_sent_until_then(tmp_path: Path) -> None:
    (line,) = by_traffic(learning_curves(curves(tmp_path, {2: 0.2, 4: 0.5}), "test"))
    assert line.x == (300.0, 600.0)
    assert line.band == ()


def test_a_chart_has_a_line_and_a_band_of_one_sd(tmp_path: Path) -> None:
    lines = learning_curves(curves(tmp_path, {2: 0.2, 4: 0.4}, {2: 0.4, 4: 0.6}), "test")
    svg = line_chart(lines, 800, "Accuracy")
    numbers = [float(n) for n in drawn(svg, "path", "line")[0]["d"][1:].replace("L", " ").split()]
    around = [float(n) for n in drawn(svg, "path", "band")[0]["d"][1:-1].replace("L", " ").split()]
    (x0, y0, x1, y1), (top, _, _, low) = numbers, around[1::2]
    assert x0 < x1
    assert y0 > y1  # up is more
    assert (y0 - y1) / (low - top) == pytest.approx(0.2 / (2 * statistics.stdev((0.2, 0.4))), rel=0.02)


def test_a_single_scored_round_is_the_last_of_the_axis(tmp_path):
    """And no round is drawn that was never run."""
    svg = line_chart(learning_curves(curves(tmp_path, {3: 0.2}), "test"), 800, "Accuracy")
    across = re.findall(r'<text class="tick"[^>]*text-anchor="middle">(\d+)</text>', svg)
    assert across == ["0", "1", "2", "3"]


@pytest.mark.parametrize(("size", "most"), [(1000, 160), (161, 160), (7, 3), (5, 5)])
def test_thinning_keeps_the_ends_and_the_order(size: int, most: int) -> None:
    kept = thin(range(size), most)
    assert (kept[0], kept[-1], len(kept)) == (0, size - 1, min(size, most))
    assert kept == sorted(set(kept))
    dots = [Dot(float(i), "") for i in range(size)]
    assert [d.value for d in thin(dots, most)] == kept


def test_a_spark_is_the_mean_over_seeds(tmp_path: Path) -> None:
    found = {spark.name: (spark.first, spark.last) for spark in sparks(curves(tmp_path, {3: 0.2}, {3: 0.4}))}
    assert found == {"training loss": ("1.5", "1.5"), "spread": ("2", "2")}


def served(tmp_path: Path):
    """Two seeds of three clients; round 2 is chosen, round 4 would tell another story."""
    for seed, values in enumerate(([0.9, 0.1, 0.5], [0.2, None, 0.7])):
        mine = {"clients": {"n": [10, 20, 30], "accuracy": values}, "bins": [[4, 1.0, 2.0], [6 + seed, 5.0, 3.0]]}
        other = {"clients": {"n": [1, 1, 1], "accuracy": [0.0, 0.0, 0.0]}, "bins": [[1, 1.0, 1.0], [1, 1.0, 1.0]]}
        lines = [scored(2, 0.9, "validation"), scored(2, 0.5, **mine), scored(4, 0.1, "validation"),
                 scored(4, 0.9, **other)]  # fmt: skip
        run_of(tmp_path / str(seed), lines, seed=seed)
    return arms(load_runs(tmp_path))[0]


def test_a_dot_for_every_client_of_every_seed_at_the_chosen_round(tmp_path: Path) -> None:
    dots = client_dots(served(tmp_path), "validated")
    assert [d.value for d in dots] == [0.1, 0.2, 0.5, 0.7, 0.9]
    assert dots[0].told == "hospital 1, seed 0: 10.0 %, 20 samples"


def test_bins_are_added_over_seeds_at_the_chosen_round(tmp_path: Path) -> None:
    assert pooled_bins(served(tmp_path), "validated") == [(8.0, 2.0, 4.0), (13.0, 10.0, 6.0)]


def test_reliability_by_hand(tmp_path: Path) -> None:
    svg = reliability(served(tmp_path), [(10.0, 2.0, 5.0), (0.0, 0.0, 0.0), (40.0, 32.0, 12.0)])
    (ideal,) = drawn(svg, "line", "ideal")
    x0, y0, x1, y1 = (float(ideal[name]) for name in ("x1", "y1", "x2", "y2"))
    places = [(float(dot["cx"]), float(dot["cy"])) for dot in drawn(svg, "circle", "dot")]
    expected = [(x0 + c * (x1 - x0), y0 + a * (y1 - y0)) for c, a in ((0.2, 0.5), (0.8, 0.3))]
    assert places == [pytest.approx(place, abs=0.06) for place in expected]  # confidence across, accuracy up
    bars = drawn(svg, "rect", "count")
    assert float(bars[1]["height"]) / float(bars[0]["height"]) == pytest.approx(4, rel=0.01)
    assert (float(bars[1]["x"]) - float(bars[0]["x"])) / (x1 - x0) == pytest.approx(2 / 3, abs=0.01)


def whiskers(svg: str) -> list[tuple[float, float]]:
    """The accuracies between which each whisker runs, lower first."""
    (ideal,) = drawn(svg, "line", "ideal")
    low, high = float(ideal["y1"]), float(ideal["y2"])
    found = []
    for whisker in drawn(svg, "path", "whisker"):
        levels = [float(n) for n in whisker["d"][1:].replace("L", " ").split()][1::2]
        found.append(tuple(sorted((y - low) / (high - low) for y in {min(levels), max(levels)})))
    return found


def test_a_whisker_is_the_interval_of_its_bins_accuracy(tmp_path: Path) -> None:
    arm = served(tmp_path)
    svg = reliability(arm, [(10.0, 2.0, 5.0), (0.0, 0.0, 0.0), (40.0, 32.0, 12.0)])
    few, many = whiskers(svg)
    assert few == pytest.approx((0.2366, 0.7634), abs=0.001)  # Wilson, 5 of 10
    assert many == pytest.approx((0.1807, 0.4543), abs=0.001)  # 12 of 40
    assert "10 of 50 predictions; confidence 0.200, accuracy 0.500, 95 % interval 0.237 to 0.763" in svg


def test_seeds_that_predict_the_same_rows_are_not_more_evidence(tmp_path: Path) -> None:
    (alone,) = whiskers(reliability(served(tmp_path), [(10.0, 2.0, 5.0)]))
    (together,) = whiskers(reliability(served(tmp_path), [(40.0, 8.0, 20.0)], seeds=4))
    assert together == pytest.approx(alone, abs=1e-3)


def told(svg: str, css: str) -> list[str]:
    return [e.text or "" for e in ElementTree.fromstring(svg).iter("text") if e.get("class", "").split()[0] == css]


def test_a_box_has_quartiles_and_whiskers_at_ten_and_ninety_percent(tmp_path: Path) -> None:
    dots = [Dot(i / 20, "") for i in range(21)]
    svg = strip_chart([(served(tmp_path), dots)])
    places = [float(e.get("cx", "")) for e in ElementTree.fromstring(svg).iter("circle")]
    left, right = drawn(svg, "line", "box")
    (box,) = drawn(svg, "rect", "box")
    (median,) = drawn(svg, "line", "median")
    ends = [float(v) for v in (left["x1"], left["x2"], median["x1"], right["x1"], right["x2"])]
    assert ends == pytest.approx([places[i] for i in (2, 5, 10, 15, 18)], abs=0.15)
    assert float(box["width"]) == pytest.approx(places[15] - places[5], abs=0.15)


FEDERATION = FederationFacts("digits", "classification", 2, 2, 0, 3, (), ("one", "two"), (5, 16), (2, 4), (1, 8),
                        ((4, 1, 0), (0, 0, 16)), ())  # fmt: skip


def test_the_area_of_a_bubble_is_its_samples() -> None:
    svg = partition(FEDERATION, 800)
    bubbles = {e[0].text: float(e.get("r", "")) for e in ElementTree.fromstring(svg).iter("circle")}
    most = bubbles["two, class 2: 16 samples"]
    assert bubbles["one, class 0: 4 samples"] == pytest.approx(most / 2, abs=0.06)
    assert bubbles["one, class 1: 1 samples"] == pytest.approx(most / 4, abs=0.06)
    assert len(bubbles) == 3


def test_clients_are_named_below_their_bars() -> None:
    assert told(partition(FEDERATION, 800), "tick")[-2:] == ["one", "two"]
    numbered = replace(FEDERATION, names=("client 4", "client 0"))  # newcomers are put last: place is not number
    assert told(partition(numbered, 800), "tick")[-2:] == ["4", "0"]


def test_bars_are_stacked_in_the_order_of_their_parts() -> None:
    bars = drawn(partition(FEDERATION, 800), "rect", "part")
    heights = [float(bar["height"]) for bar in bars]
    assert [bar["class"] for bar in bars] == ["part train", "part validation", "part test"] * 2
    assert [h / heights[0] for h in heights] == pytest.approx([1, 0.4, 0.2, 3.2, 0.8, 1.6], abs=0.02)
    for below, above in ((0, 1), (1, 2), (3, 4), (4, 5)):
        assert float(bars[above]["y"]) + heights[above] == pytest.approx(float(bars[below]["y"]), abs=0.15)
