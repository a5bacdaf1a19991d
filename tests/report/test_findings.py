"""Who is called better: pairs against scipy on the files, the words of every case, the picture and the page."""

from __future__ import annotations

import json
import math
import re
import tomllib
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from posterity.cli import terminal as show
from posterity.report import finding, headline, load_runs, main_comparison, write_report
from posterity.report import findings as verdict
from posterity.report.findings import compare_methods
from posterity.report.sections import at, by_point
from posterity.report.show import caption
from posterity.report.table import table_columns
from posterity.runs.lines import ScoreLine

from .fake_runs import comparison, write_exact, write_run

METHODS = {"fedavg": 0.71, "fedper": 0.74, "pfedvmp": 0.78, "local": 0.775}


def read(folder: Path, rule: str = "validated") -> tuple[int, str, float, np.ndarray, np.ndarray]:
    """Seed, label, accuracy, clients and rows at the round chosen on validation: by none of the code under test."""
    facts, config = json.loads((folder / "run.json").read_text()), tomllib.loads((folder / "config.toml").read_text())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    mine = [x for x in lines if x["kind"] == "score" and x["group"] == "members" and x["point"] == config["scored"]]
    by = {"validated": "validation", "paper": "held"}[rule]
    best = max((x for x in mine if x["part"] == by), key=lambda x: x["metrics"]["accuracy"]["pooled"])["round"]
    part = {"validated": "test", "paper": "held"}[rule]
    shown = next(x for x in mine if (x["part"], x["round"]) == (part, best))
    clients, rows = (np.array(shown["clients"][k], dtype=float) for k in ("accuracy", "n"))
    return config["seed"], facts["method"]["label"], shown["metrics"]["accuracy"]["pooled"], clients, rows


def spread(d: np.ndarray, n: np.ndarray) -> float:
    w = n / n.sum()
    return float(np.sum(w**2 * (d - np.sum(w * d)) ** 2 / (1 - w)))


def gather(root: Path, rule: str = "validated") -> dict[str, dict[int, tuple[float, np.ndarray, np.ndarray]]]:
    found: dict[str, dict[int, tuple[float, np.ndarray, np.ndarray]]] = {}
    for path in root.rglob("metrics.jsonl"):
        seed, label, value, clients, rows = read(path.parent, rule)
        found.setdefault(label, {})[seed] = (value, clients, rows)
    return found


@pytest.mark.parametrize("rule", ["validated", "paper"])
def test_pairs_of_a_folder_equal_scipy(tmp_path: Path, rule: str) -> None:
    """Ten seeds with clients of their own: all six pairs; some where the clients' variance is the larger one."""
    comparison(tmp_path, METHODS, 10, noise=0.12, rounds=12)
    held, seen = main_comparison(headline(load_runs(tmp_path), rule)), gather(tmp_path, rule)
    larger = set()
    for (i, j), pair in held.pairs.items():
        first, second = (seen[held.rows[k].label] for k in (i, j))
        a, b = ([runs[s][0] for s in range(10)] for runs in (first, second))
        inside = np.mean([spread(first[s][1] - second[s][1], first[s][2]) for s in range(10)])
        d = np.subtract(a, b)
        error = math.sqrt(max(d.var(ddof=1), inside) / 10)
        larger.add(bool(inside > d.var(ddof=1)))
        assert pair.design == "nested"
        assert pair.interval == pytest.approx(
            stats.t.interval(0.95, 9, d.mean(), error), rel=1e-9
        )  # SciPys differ by 6e-11
        assert pair.p == pytest.approx(2 * stats.t.sf(abs(d.mean()) / error, 9), rel=1e-9)
        if inside <= d.var(ddof=1):
            assert pair.p == pytest.approx(stats.ttest_rel(a, b).pvalue, rel=1e-9)
    assert larger == {True, False} or rule == "paper", "the case of each variance"
    ps = [pair.p for pair in held.pairs.values()]
    order = np.argsort(ps)
    adjusted = np.maximum.accumulate([min(1.0, (6 - r) * ps[k]) for r, k in enumerate(order)])
    assert [list(held.pairs.values())[k].holm for k in order] == pytest.approx(list(adjusted))


def test_clients_that_last_are_crossed_with_seeds(tmp_path: Path) -> None:
    comparison(tmp_path, {"fedavg": 0.7, "fedper": 0.75}, 4, noise=0.05, data_seed=3, named=False)
    held, seen = main_comparison(headline(load_runs(tmp_path))), gather(tmp_path)
    pair = held.pairs[0, 1]
    first, second = (seen[row.label] for row in held.rows)
    d = np.stack([first[s][1] - second[s][1] for s in range(4)])
    n = first[0][2]
    each = np.array([first[s][0] - second[s][0] for s in range(4)])
    by_seed = d @ n / n.sum()
    rest = d - d.mean(0) - by_seed[:, None] + by_seed.mean()
    v1, v2, v12 = each.var(ddof=1) / 4, spread(d.mean(0), n), sum(spread(row, n) for row in rest) / 12
    assert pair.design == "crossed"
    assert pair.error == pytest.approx(math.sqrt(max(v1, v2, v1 + v2 - v12)))
    said = " ".join(verdict.explained(held, "validated"))
    assert "other clients like these" in said
    assert "other partitions" not in said


def test_drawn_clients_of_equal_sizes_are_not_the_same_clients(tmp_path: Path) -> None:
    values = {s: [0.5 + 0.01 * s, 0.7, 0.6] for s in range(3)}
    write_exact(tmp_path, "fedavg", values)
    write_exact(tmp_path, "fedper", {s: [v + 0.1 for v in each] for s, each in values.items()})
    for path in tmp_path.rglob("run.json"):  # the sizes that an even partition gives with every seed
        facts = json.loads(path.read_text())
        facts["federation"] |= {"train": [40] * 3, "validation": [10] * 3, "test": [10] * 3}
        path.write_text(json.dumps(facts))
    assert main_comparison(headline(load_runs(tmp_path))).pairs[0, 1].design == "nested"


def test_only_means_over_clients_use_clients(tmp_path: Path) -> None:
    comparison(tmp_path, {"fedavg": 0.7, "fedper": 0.75}, 3)
    rows = headline(load_runs(tmp_path))
    designs = {
        c.key: compare_methods(rows, c).pairs[0, 1].design
        for c in table_columns([])
        if c.key in rows[0].cells and c.better
    }
    assert {k for k, d in designs.items() if d == "nested"} == {"accuracy", "nll"}
    assert designs["ece"] == designs["worst10"] == designs["balanced_accuracy"] == "seeds"


def test_other_points_are_shown_at_the_chosen_round(tmp_path: Path) -> None:
    """The best validation round is 6 of 40, and what other points have there is unlike the last round."""
    folder = write_run(tmp_path / "a", "fedavg", 0.8, 0)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if line["kind"] == "score":
            line["metrics"]["accuracy"]["pooled"] = 0.9 if line["round"] == 6 else 0.3 + line["round"] / 1000
            if line["point"] == "trained":
                line["metrics"]["accuracy"]["pooled"] -= 0.25
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run,) = load_runs(tmp_path)
    score = at(run, "validated", "trained", 0, "members")
    assert isinstance(score, ScoreLine)
    assert (score.round, score.part, score.value("accuracy")) == (6, "test", 0.65)
    rows = headline([run])
    assert rows[0].rounds == (6,)
    grid = by_point(rows)
    assert dict(zip(grid.heads, grid.rows[0][1], strict=True))["trained"] == "65.0"
    last = at(run, "last", "trained", 0, "members")
    assert last is not None
    assert last.round == 40


def four(*values: float) -> dict[int, list[float]]:
    """Four clients that all have the seed's value, give or take: without bias, but not all alike."""
    return {s: [v - 0.03, v + 0.03, v - 0.01, v + 0.01] for s, v in enumerate(values)}


def test_ahead_counts_better_seeds_only(tmp_path: Path) -> None:
    """Ahead with two of four seeds, level with one, behind with one: level is not ahead."""
    write_exact(tmp_path, "fedavg", four(0.50, 0.50, 0.50, 0.50))
    write_exact(tmp_path, "fedper", four(0.75, 0.75, 0.50, 0.25))
    held = main_comparison(headline(load_runs(tmp_path)))
    (line,) = verdict.lines(held, [(0, 1)])
    assert (line.first.label, line.ahead) == ("FedPer", "2 of 4")
    assert line.difference == "+6.2"


def test_lower_is_better_in_a_regression(tmp_path: Path) -> None:
    write_exact(tmp_path, "fedavg", four(2.0, 2.1, 2.2, 2.3), "mse")
    write_exact(tmp_path, "fedper", four(1.0, 1.11, 1.19, 2.3), "mse")
    rows = headline(load_runs(tmp_path))
    held = main_comparison(rows)
    (line,) = verdict.lines(held, [(0, 1)])
    assert (line.first.label, line.ahead, line.difference) == ("FedPer", "3 of 4", "−0.750")
    assert "FedPer has the lowest mean squared error, 1.400 ± 0.605, 0.750 below FedAvg" in finding(rows)
    assert "95 % interval of the gap −0.0" in finding(rows), "in the words of the sentence a gap is above zero"


def test_winner_only_when_separated_from_all(tmp_path: Path) -> None:
    write_exact(tmp_path, "fedper", four(0.90, 0.91, 0.92, 0.90, 0.93, 0.91))
    write_exact(tmp_path, "fedrep", four(0.895, 0.92, 0.905, 0.91, 0.92, 0.91))
    write_exact(tmp_path, "fedavg", four(0.50, 0.52, 0.51, 0.49, 0.53, 0.50))
    rows = headline(load_runs(tmp_path))
    held = main_comparison(rows)
    assert {r.label: r.cells["accuracy"].best for r in rows} == {"FedPer": True, "FedRep": True, "FedAvg": False}
    assert held.winner is None
    said = finding(rows)
    assert said.startswith("No method is separated from all others. FedPer has the highest accuracy, 91.2 ± 1.2 %, ")
    assert "FedRep is not separated from it." in said
    assert "With 6 seeds and 3 pairs only a gap of about" in said
    without = [r for r in rows if r.label != "FedRep"]
    assert main_comparison(without).winner is rows[0]
    assert finding(without).endswith("p < 0.001 by Holm over 1 pair); it is separated from it.")


def test_winner_is_named_with_its_interval(tmp_path: Path) -> None:
    comparison(tmp_path, {"fedavg": 0.5, "fedper": 0.7, "pfedvmp": 0.9}, 6, rounds=12)
    rows = headline(load_runs(tmp_path))
    held = main_comparison(rows)
    pair = held.pairs[0, 1]
    assert pair.interval is not None
    low, high = (f"{100 * x:.1f}" for x in pair.interval)
    top = rows[0].cells["accuracy"]
    said = finding(rows)
    assert said.startswith(
        f"pFedVMP has the highest accuracy, {top.text} %, {100 * pair.difference:.1f} percentage points"
    )
    assert f"ahead of FedPer over the 6 seeds that both ran ({rows[1].cells['accuracy'].text} %; " in said
    assert f"95 % interval of the gap +{low} to +{high}" in said
    assert said.endswith("by Holm over 3 pairs); it is separated from the 2 other methods.")


def test_three_seeds_are_told_what_they_can_show(trio: Path) -> None:
    rows = headline(load_runs(trio))
    held = main_comparison(rows)
    errors = sorted(pair.error for pair in held.pairs.values() if pair.error)
    gap = held.detectable
    assert gap is not None
    shift = gap / errors[1]
    cut = stats.t.isf(0.05 / 3 / 2, 2)
    assert stats.nct.sf(cut, 2, shift) == pytest.approx(0.8, abs=1e-4)
    told = f"With 3 seeds and 3 pairs only a gap of about {100 * gap:.1f} percentage points would have shown"
    assert verdict.reach(held).startswith(told)


def test_one_seed_is_no_test(tmp_path: Path) -> None:
    comparison(tmp_path, {"fedper": 0.85, "fedavg": 0.5}, 1)
    rows = headline(load_runs(tmp_path))
    assert [r.cells["accuracy"].best for r in rows] == [True, False]
    assert rows[0].cells["accuracy"].sd is None
    assert "±" not in rows[0].cells["accuracy"].text
    assert finding(rows).startswith("No method is called better. FedPer has the highest accuracy, ")
    assert "over the single seed that both ran" in finding(rows)
    assert "no spread to test against" in finding(rows)
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert 'id="differences"' not in page
    assert "nothing is tested, because no two methods share two seeds" in page


def test_where_nothing_is_tested_a_table_does_not_say_that_others_are_worse(tmp_path: Path) -> None:
    """What is not bold is separated from the best only where somebody has looked."""
    comparison(tmp_path, {"fedper": 0.85, "fedavg": 0.5}, 1)
    rows = headline(load_runs(tmp_path))
    assert caption(rows).endswith(
        "bold: the best of its column; nothing is tested, because no two methods share two seeds."
    )
    write_run(tmp_path / "fedper" / "seed-1", "fedper", 0.85, 1)
    write_run(tmp_path / "fedavg" / "seed-1", "fedavg", 0.5, 1)
    assert caption(headline(load_runs(tmp_path))).endswith(
        "bold: the best of its column, and what is not separated from it."
    )


def test_the_same_difference_with_each_seed_is_told_as_it_is(tmp_path: Path) -> None:
    """One client, eight rows: both methods have three seeds, and the second has one row more with each."""
    write_exact(tmp_path, "fedavg", {0: [0.5], 1: [0.625], 2: [0.75]})
    write_exact(tmp_path, "fedper", {0: [0.625], 1: [0.75], 2: [0.875]})
    said = finding(headline(load_runs(tmp_path)))
    assert "the same with each seed, so there is no spread to test" in said
    assert said.endswith(". No difference varies from seed to seed, so there is no spread to test against.")
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "nothing is tested, because no difference varies from seed to seed" in page
    assert "no two methods share two seeds" not in page


def test_a_rival_that_diverged_is_not_left_unsaid(tmp_path: Path) -> None:
    """One of two methods has no result, then both, by a single seed each; then one of them goes on still."""

    def diverge(folder: Path) -> None:
        facts = json.loads((folder / "run.json").read_text())
        (folder / "run.json").write_text(json.dumps({**facts, "diverged": "the run has exploded"}))

    for method in ("fedavg", "fedper"):
        write_exact(tmp_path, method, four(0.70, 0.72, 0.71))
    diverge(tmp_path / "fedavg" / "seed-0")
    rows = headline(load_runs(tmp_path))
    assert finding(rows).endswith("over 3 seeds; no other method here has a result to compare it with.")
    assert caption(rows).endswith("nothing is tested, because no two methods here have results to compare.")
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "nothing is tested, because no two methods here have results to compare" in page
    diverge(tmp_path / "fedper" / "seed-0")
    none = "No method has a result (runs diverged), so nothing is compared"
    assert finding(headline(load_runs(tmp_path))).startswith(none)
    facts = json.loads((tmp_path / "fedper" / "seed-1" / "run.json").read_text())
    for seed in range(3):
        (tmp_path / "fedper" / f"seed-{seed}" / "run.json").write_text(json.dumps({**facts, "status": "running"}))
    assert finding(headline(load_runs(tmp_path))).startswith(none)


def test_methods_without_a_shared_seed(tmp_path: Path) -> None:
    write_exact(tmp_path, "fedavg", {0: [0.5, 0.6], 1: [0.5, 0.6]})
    write_exact(tmp_path, "fedper", {2: [0.8, 0.9], 3: [0.8, 0.9]})
    rows = headline(load_runs(tmp_path))
    assert "shares no seed with FedAvg" in finding(rows)
    assert main_comparison(rows).winner is None
    write_report(tmp_path)


def test_partly_shared_seeds_use_the_shared_ones(tmp_path: Path) -> None:
    """FedPer has the higher mean, by a seed that FedAvg never ran; with the seeds of both it is behind."""
    write_exact(tmp_path, "fedavg", four(0.70, 0.72, 0.71))
    write_exact(tmp_path, "fedper", {**four(0.69, 0.70, 0.70), 7: [0.97, 0.99, 0.98, 0.98]})
    held = main_comparison(headline(load_runs(tmp_path)))
    assert held.rows[0].label == "FedPer"
    assert held.pairs[0, 1].each == pytest.approx((-0.01, -0.02, -0.01))
    assert "1.3 percentage points behind FedAvg over the 3 seeds that both ran" in verdict.describe(held, held.rows)
    assert held.winner is None
    assert [r.cells["accuracy"].best for r in headline(load_runs(tmp_path))] == [True, True]


def test_a_higher_mean_by_other_seeds_beats_nobody(tmp_path: Path) -> None:
    """As above, with enough seeds for FedAvg to be separated from FedPer: the first of the ranking has not won."""
    write_exact(tmp_path, "fedavg", four(0.70, 0.72, 0.71, 0.70, 0.73))
    behind = four(0.68, 0.701, 0.69, 0.679, 0.71)
    write_exact(tmp_path, "fedper", {**behind, 7: [0.97, 0.99, 0.98, 0.98]})
    held = main_comparison(headline(load_runs(tmp_path)))
    assert held.rows[0].label == "FedPer"
    assert held.pairs[0, 1].separated
    assert held.winner is None
    assert not held.beaten(1)


def test_winner_must_be_separated_from_a_noisy_third_too(tmp_path: Path) -> None:
    write_exact(tmp_path, "fedper", four(0.90, 0.90, 0.91, 0.89))
    write_exact(tmp_path, "fedavg", four(0.80, 0.801, 0.809, 0.79))
    write_exact(tmp_path, "local", four(0.95, 0.60, 0.88, 0.72))
    held = main_comparison(headline(load_runs(tmp_path)))
    assert [row.label for row in held.rows] == ["FedPer", "FedAvg", "Local"]
    assert (held.beaten(1), held.beaten(2)) == (True, False)
    assert held.winner is None
    assert "Local is not separated from it" in verdict.describe(held, held.rows)


def test_identical_methods_are_level(tmp_path: Path) -> None:
    for method in ("fedavg", "fedper", "local"):
        write_exact(tmp_path, method, four(0.7, 0.8, 0.75))
    rows = headline(load_runs(tmp_path))
    held = main_comparison(rows)
    assert {(pair.p, pair.holm) for pair in held.pairs.values()} == {(1.0, 1.0)}
    assert all(r.cells["accuracy"].best for r in rows)
    assert "level with" in finding(rows)
    assert [line.needed for line in verdict.lines(held, held.listed)] == ["> 1,000"] * 3
    write_report(tmp_path)


def test_scores_that_are_not_numbers(tmp_path: Path) -> None:
    """A seed whose accuracy is NaN is not shared; an infinite NLL is last, is never marked and breaks nothing."""
    nan = float("nan")
    write_exact(tmp_path, "fedavg", four(0.70, 0.72, 0.71, 0.70), nll=[0.9, 0.8, 0.9, 0.7])
    write_exact(tmp_path, "fedper", four(0.80, 0.81, 0.83, nan), nll=[math.inf, 0.3, 0.3, 0.3])
    write_exact(tmp_path, "local", four(0.60, 0.61, 0.60, 0.62), nll=[math.inf] * 4)
    rows = headline(load_runs(tmp_path))
    assert main_comparison(rows).pairs[0, 1].seeds == 3
    assert [(r.label, r.cells["nll"].text, r.cells["nll"].best) for r in rows[:1]] == [("FedPer", "∞", False)]
    assert {r.label: r.cells["nll"].best for r in rows} == {"FedPer": False, "FedAvg": True, "Local": False}
    assert not re.search(r"\bnan\b", write_report(tmp_path).read_text(encoding="utf-8"))


def test_a_difference_of_bytes_has_a_sign_and_its_unit() -> None:
    column = next(c for c in table_columns([]) if c.key == "bytes")
    assert [verdict.signed(x, column) for x in (-770_000.0, 0.0, 20.0)] == ["−770 kB", "0 B", "+20 B"]


def test_bytes_are_equal_or_not(tmp_path: Path) -> None:
    for method, cost in (("fedavg", 100), ("fedper", 100), ("local", 101)):
        write_exact(tmp_path, method, four(0.7, 0.8, 0.75), bytes=cost)
    assert {r.label: r.cells["bytes"].best for r in headline(load_runs(tmp_path))} == {
        "FedAvg": True, "FedPer": True, "Local": False
    }  # fmt: skip


def test_an_unfinished_method_is_in_no_pair(tmp_path: Path) -> None:
    comparison(tmp_path, {"fedavg": 0.7, "fedrep": 0.6}, 3)
    write_run(tmp_path / "fedper" / "seed-0", "fedper", 0.95, 0, status="running", stop=10)
    rows = headline(load_runs(tmp_path))
    assert [r.label for r in main_comparison(rows).rows] == ["FedAvg", "FedRep"]
    alone = [r for r in rows if r.mark]
    assert "No run has finished" in finding(alone)


def test_page_shows_the_pairs(trio: Path, tmp_path: Path) -> None:
    page = write_report(trio, tmp_path / "page.html").read_text(encoding="utf-8").replace("\u00a0", " ")
    held = main_comparison(headline(load_runs(trio)))
    section = page.split('<section id="differences">')[1].split("</section>")[0]
    assert section.count('<th scope="row">') == 3
    for line in verdict.lines(held, held.listed):
        for cell in (line.difference, line.interval, line.ahead, line.p, line.needed):
            assert f">{cell.replace('>', '&gt;').replace('<', '&lt;')}</td>" in section
    words = re.sub(r"\s+", " ", section).replace("&#39;", "'")
    assert "p is adjusted by Holm's method for all 3 pairs" in words
    assert "other partitions of this data" in words
    assert verdict.reach(held) in words


def test_many_methods_list_neighbours_and_the_best(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for k in range(50):
        write_exact(tmp_path, f"method-{k:02}", four(*(0.3 + 0.01 * k + random.normal(0, 0.002, 3))))
    held = main_comparison(headline(load_runs(tmp_path)))
    assert held.tested == 50 * 49 / 2
    assert len(held.listed) == 49 + 48
    assert write_report(tmp_path).stat().st_size < 1_000_000


def test_worst_tenth_says_its_rows(tmp_path: Path) -> None:
    """Of twenty clients the two worst."""
    comparison(tmp_path, {"fedavg": 0.7}, 2)
    rows = headline(load_runs(tmp_path))
    behind = []
    for seed in range(2):
        clients, n = read(tmp_path / "fedavg" / f"seed-{seed}")[3:]
        behind.append(int(n[np.argsort(clients, kind="stable")[:2]].sum()))
    low, high = sorted(behind)
    assert low != high
    told = "Worst 10 %: the mean accuracy of the 2 worst of 20 clients; "
    assert verdict.worst_note(rows) == f"{told}{low} to {high} test rows in all stand behind the figure of a run."
    assert verdict.worst_note(rows) in write_report(tmp_path).read_text(encoding="utf-8").replace("\u00a0", " ")
    score = rows[0].picked[0][1]
    assert verdict.worst_rows(score) == (2, 20, behind[0])
    known = ScoreLine(1, "received", 0, "members", "test", {}, {"clients": 35.0, "worst10_rows": 77.0}, {}, (), ())
    assert verdict.worst_rows(known) == (3, 35, 77)
    assert verdict.worst_rows(ScoreLine(1, "received", 0, "members", "test", {}, {"worst10": 0.5}, {}, (), ())) is None


def test_terminal_and_json_say_the_same(trio: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    held = main_comparison(headline(load_runs(trio)))
    monkeypatch.setattr(show.console, "_width", 200)
    monkeypatch.setattr(show.console, "_height", 60)
    show.print_table(trio, "validated")
    out = re.sub(r"\s+", " ", capsys.readouterr().out)
    for line in verdict.lines(held, [(0, 1), (1, 2)]):
        assert (
            f"{line.first.label} − {line.second.label} {line.difference} {line.interval} {line.p} {line.needed}" in out
        )
    assert "neighbours, paired over the same seeds and clients, in percentage points" in out
    assert "test rows in all stand behind the figure of a run" in out
    assert verdict.describe(held, held.rows) in out
    show.print_json(trio, "validated", None)
    facts = json.loads(capsys.readouterr().out)
    assert facts["finding"] == verdict.describe(held, held.rows)
    assert [(p["first"], p["second"]) for p in facts["pairs"]] == [
        (held.rows[i].label, held.rows[j].label) for i, j in combinations(range(3), 2)
    ]
    first = facts["pairs"][0]
    assert first["interval"] == pytest.approx(held.pairs[0, 1].interval)
    assert (first["p"], first["holm"], first["design"], first["seeds"]) == (
        held.pairs[0, 1].p, held.pairs[0, 1].holm, "nested", 3
    )  # fmt: skip
    assert len(facts["rows"][0]["worst10_rows"]) == 3


def test_narrow_terminals_lose_columns_not_digits(trio: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(show.console, "_width", 84)
    monkeypatch.setattr(show.console, "_height", 60)
    show.print_table(trio, "validated")
    out = capsys.readouterr().out
    assert "Worst" not in out
    assert "…" not in out
