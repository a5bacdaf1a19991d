"""Published tables are what their raw metrics give: numbers in README and docs, made again from docs/results/raw."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from statistics import fmean, median, stdev

import pytest
from kinds import everything

from posterity import data
from posterity.cli.listing import unseen_note
from posterity.evaluate.paired import Sample, compare_all, compare_pair
from posterity.papers.recipe import find
from posterity.papers.runs import gather, read_places
from posterity.papers.shown import Shown, read_samples
from posterity.report import Row, complete, headline, load_runs, main_comparison
from posterity.report import findings as verdict
from posterity.report.sections import by_point, newcomers
from posterity.report.table import select_round
from posterity.runs.read import read_packed

ROOT = Path(__file__).parents[2]
RAW = ROOT / "docs" / "results" / "raw"


@cache
def runs_of(table: str, *files: str):
    """The recipe, and by column and row the runs in these files, which the table shows."""
    recipe = find(table)
    return recipe, gather(recipe, read_places([RAW / f"{each}.jsonl.xz" for each in files])).runs


def row(page: str, first: str) -> str:
    """The first line of a page's tables that begins with this cell."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith(f"| {first} |"))


def cells(page: str, first: str) -> list[str]:
    """That line's cells."""
    return [cell.strip() for cell in row(page, first).strip("|").split("|")]


@pytest.mark.parametrize("page", ["README.md", "docs/results/demo.md"])
def test_the_demo(page):
    for found in headline(load_runs(RAW / "demo.jsonl.xz")):
        shown = row(page, found.label)
        for key in ("accuracy", "nll", "ece", "worst10", "sd"):
            assert found.cells[key].text in shown, (found.label, key)


NAMES = {
    ("pFedVMP", "isotropic"): "`isotropic`",
    ("pFedVMP", "count"): "`count`",
    ("FedAvg-FT", None): "FedAvg-FT",
    ("FedPer", None): "FedPer",
}
FULL = {"`isotropic`": "pFedVMP, `isotropic`", "`count`": "pFedVMP, `count` (no precision: plain averages)"}
CIFAR10 = "docs/results/cifar10.md"


def name(found: Row) -> str:
    run = found.arm.runs[0]
    return NAMES[run.label, run.fields.get("mode")]


def told(difference: float, interval: tuple[float, float], digits: int = 1) -> str:
    """A difference and its interval as the pages write them."""
    shown = [f"{x:+.{digits}f}".replace("-", "−") for x in (difference, *interval)]
    return f"{shown[0]} ({shown[1]} to {shown[2]})"


@pytest.mark.parametrize(("rule", "place"), [("plain", 0), ("capped", 1)])
def test_cifar10(rule, place):
    rows = headline(load_runs(RAW / f"cifar10-{rule}.jsonl.xz"))
    assert len(rows) == 4
    for found in rows:
        assert [run.seed for run in found.arm.runs] == [0, 1, 2, 3, 4]
        assert cells(CIFAR10, FULL.get(name(found), name(found)))[2 + place] == found.cells["accuracy"].text
        rest = [found.cells[key].text for key in ("nll", "ece", "worst10")]
        assert cells(CIFAR10, f"{name(found)}, {rule}")[1:] == [*rest, ", ".join(map(str, found.rounds))]
    held = main_comparison(rows)
    for line in verdict.lines(held, list(held.pairs)):
        pair = held.pairs[held.rows.index(line.first), held.rows.index(line.second)]
        shown, sign = pair_row(name(line.first), name(line.second))
        low, high = sorted(100 * sign * x for x in pair.interval)
        assert shown[1 + 2 * place] == told(100 * sign * pair.difference, (low, high))
        assert shown[2 + 2 * place] == line.p


def pair_row(first: str, second: str) -> tuple[list[str], int]:
    """A pair's line of the page, and -1 where the page has the pair the other way round."""
    try:
        return cells(CIFAR10, f"{first} − {second}"), 1
    except StopIteration:
        return cells(CIFAR10, f"{second} − {first}"), -1


@pytest.mark.parametrize("key", ["accuracy", "`count`"])
def test_the_readme_has_the_page_of_cifar10(key):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    names = {"accuracy": ["pFedVMP, `isotropic`", "FedAvg-FT", "FedPer"]}.get(key, [FULL["`count`"]])
    assert all(value in readme for each in names for value in cells(CIFAR10, each)[2:4])


TABLE1 = "docs/results/pfedvmp_table1.md"


@pytest.mark.parametrize(("file", "suffix", "place"), [("cifar10-skewed", "", 1), ("cifar100", ", CIFAR-100", 4)])
def test_more_of_table_1(file, suffix, place):
    rows = headline(load_runs(RAW / f"{file}.jsonl.xz"))
    assert len(rows) == (4 if place == 1 else 3)
    for found in rows:
        assert [run.seed for run in found.arm.runs] == [0, 1, 2]
        full = "pFedVMP, `isotropic`" if name(found) == "`isotropic`" else FULL.get(name(found), name(found))
        shown = cells(TABLE1, full + suffix)
        assert shown[2] == found.cells["accuracy"].text
        rest = [found.cells[key].text for key in ("nll", "ece", "worst10")]
        assert shown[4:] == [*rest, ", ".join(map(str, found.rounds))]
    held = main_comparison(rows)
    for line in verdict.lines(held, list(held.pairs)):
        names, pair = (
            (name(line.first), name(line.second)),
            held.pairs[held.rows.index(line.first), held.rows.index(line.second)],
        )
        if names in LEFT_OUT:
            continue
        shown, (low, high) = cells(TABLE1, " − ".join(names)), pair.interval
        assert shown[place] == told(100 * pair.difference, (100 * low, 100 * high))
        assert shown[place + 1] == line.p


LEFT_OUT = {("`count`", "FedAvg-FT"), ("`count`", "FedPer")}  # the page has `isotropic`'s, which differ by 0.1


METAVD = "docs/results/metavd.md"
FEDBPS = "docs/results/fedbps.md"
HOST = "Reptile (host)"


def beta(found: Row) -> str:
    run = found.arm.runs[0]
    if "beta" not in run.fields:
        return HOST
    value = f"β = {run.fields['beta']:g}"
    return value + (", no noise" if run.fields["draws"] == 0 else "")


def test_beta_at_the_chosen_round():
    rows = headline(load_runs(RAW / "metavd-beta.jsonl.xz"))
    assert len(rows) == 6
    late = dict(zip((arm.label for arm, _ in newcomers(rows).rows), newcomers(rows).rows, strict=True))
    held = main_comparison(rows)
    host = next(i for i, found in enumerate(held.rows) if beta(found) == HOST)
    for i, found in enumerate(held.rows):
        assert [run.seed for run in found.arm.runs] == [0, 1, 2]
        shown = cells(METAVD, beta(found) + (" (released)" if beta(found) == "β = 10" else ""))
        expected = [found.cells[key].text for key in ("accuracy", "ece", "nll")] + list(late[found.label][1][1:3])
        assert [shown[1], *shown[3:7]] == expected
        assert shown[7] == ", ".join(map(str, found.rounds))
        if i != host:
            pair, sign = held.pairs[min(i, host), max(i, host)], 1 if i < host else -1
            low, high = sorted(100 * sign * x for x in pair.interval)
            assert shown[2] == told(100 * sign * pair.difference, (low, high))


def test_beta_over_all_scored_rounds():
    rows = headline(load_runs(RAW / "metavd-beta.jsonl.xz"))
    rows.sort(key=lambda found: beta(found) != HOST)  # the host first
    samples = {key: [mean_of_rounds(found, key) for found in rows] for key in ("accuracy", "ece")}
    pairs = {key: compare_all(each) for key, each in samples.items()}
    for i, found in enumerate(rows):
        shown = cells(METAVD, f"{beta(found)}, all rounds")
        for key, place, scale, digits in (("accuracy", 1, 100, 1), ("ece", 4, 1, 3)):
            values = [scale * sample.value for sample in samples[key][i].values()]
            assert shown[place] == f"{fmean(values):.{digits}f} ± {stdev(values):.{digits}f}"
            if i:
                pair = pairs[key][0, i]
                low, high = sorted(-scale * x for x in pair.interval)
                assert shown[place + 1] == told(-scale * pair.difference, (low, high), digits)
        if i:
            assert f"p = {shown[3]}" == verdict.p_value(pairs["accuracy"][0, i].holm)


def mean_of_rounds(found: Row, key: str) -> dict[int, Sample]:
    """By seed, the mean over all scored rounds on the test half, after one step of adaptation."""
    made = {}
    for run in found.arm.runs:
        scores = run.index["test", "adapted", 1, "members"]
        assert sorted(scores) == list(range(20, 401, 20))
        made[run.seed] = Sample(fmean(score.value(key) for score in scores.values()))
    return made


TABLE_8 = {
    "α=0.1": ("FedAvg", "FedAvg+FT", "FedProx", "FedProx (µ = 0.01)", "FedBE", "pFedGP",
              "FedAvg+MetaVD (released defaults)", "Reptile", "Reptile+MetaVD (released defaults)",
              "Reptile+MetaVD (β = 1, our default)", "MAML", "MAML+MetaVD (released defaults)", "PerFedAvg (HF-MAML)",
              "PerFedAvg+MetaVD (released defaults)"),
    "α=0.5": ("FedAvg", "FedAvg+FT", "FedProx", "FedBE", "pFedGP", "FedAvg+MetaVD (released defaults)", "Reptile",
              "Reptile+MetaVD (released defaults)", "MAML", "MAML+MetaVD (released defaults)", "PerFedAvg (HF-MAML)",
              "PerFedAvg (steps of 0.02)", "PerFedAvg+MetaVD (released defaults)"),
}  # fmt: skip
HOSTS = ("FedAvg", "Reptile", "MAML", "PerFedAvg (HF-MAML)")


@pytest.mark.parametrize("alpha", TABLE_8)
def test_metavds_table_8_over_all_scored_rounds(alpha):
    """Each row, and its difference from the host above it."""
    recipe, runs = runs_of("M-T8", "M-T8")
    (folder,) = (cell.folder for cell in recipe.cells if cell.name == f"{alpha} Test")
    samples = [_table_8(runs[folder, name]) for name in TABLE_8[alpha]]
    pairs, host = compare_all(samples), 0
    for i, name in enumerate(TABLE_8[alpha]):
        shown, values = cells(METAVD, f"{name}, {alpha}"), [100 * sample.value for sample in samples[i].values()]
        assert shown[3] == f"{fmean(values):.1f} ± {stdev(values):.1f}"
        if name in HOSTS:
            host = i
            assert shown[4:6] == ["", ""]
            continue
        pair = pairs[host, i]
        low, high = sorted(-100 * x for x in pair.interval)
        assert shown[4] == told(-100 * pair.difference, (low, high))
        assert shown[5] == verdict.p_value(pair.holm).removeprefix("p = ")
    if alpha == "α=0.5":
        slow, fast = ([_part(runs[folder, name], part) for part in (slice(10), slice(15, 20))]
                      for name in ("FedAvg+MetaVD (released defaults)", "FedAvg"))  # fmt: skip
        told_so = f"first ten scored rounds {slow[0]} and {fast[0]} %, last five {slow[1]} and {fast[1]}"
        assert told_so in (ROOT / METAVD).read_text(encoding="utf-8")
    behind = []
    if alpha == "α=0.1":  # "with every seed"
        behind = [(host, _with_metavd(host)) for host in HOSTS]
    for pair in [("FedAvg", "FedBE"), *behind]:
        host, late = (samples[TABLE_8[alpha].index(each)].values() for each in pair)
        assert all(b.value < a.value for a, b in zip(host, late, strict=True))


def _with_metavd(host: str) -> str:
    return f"{host.partition(' ')[0]}+MetaVD (released defaults)"


def _part(runs, part):
    """The mean over some of the scored rounds, and over seeds."""
    seeds = [[score.value("accuracy", "train_weighted") for _, score in sorted(
        run.index["test", run.scored, int(run.scored == "adapted"), "members"].items())] for run in runs]  # fmt: skip
    return f"{100 * fmean(fmean(values[part]) for values in seeds):.1f}"


def test_what_runs_of_metavds_table_8_took():
    """All seconds, those of rounds longer than 3 s, and the mean of the others; a line has a seed's third of them."""
    (recipe, runs), page = runs_of("M-T8", "M-T8"), "docs/results/speed.md"
    rows = {
        "FedAvg": "FedAvg", "Reptile": "Reptile", "Reptile+MetaVD, β = 10": "Reptile+MetaVD (released defaults)",
        "Per-FedAvg": "PerFedAvg (clients count once, parts not clipped)",
        "Per-FedAvg+MetaVD": "PerFedAvg+MetaVD (released defaults, clients count once, parts not clipped)",
    }  # fmt: skip
    (folder, late) = ({cell.name: cell.folder for cell in recipe.cells}[f"{a} Test"] for a in ("α=0.1", "α=0.5"))
    lines = (ROOT / page).read_text(encoding="utf-8").partition("### What runs of M-T8 took")[2]
    for shown, name in rows.items():
        row = next(line for line in lines.splitlines() if line.startswith(f"| {shown} |"))
        whole, count, long, middle = _seconds(runs[folder, name])
        assert row == f"| {shown} | {whole:,.0f} | {count} | {long:,.0f} | {middle:.2f} |"
    again, maml = (_seconds(runs[folder, name]) for name in ("PerFedAvg+MetaVD (released defaults)", "MAML"))
    assert f"Per-FedAvg+MetaVD {again[0]:,.0f} s, of which {again[2]:.0f} in {again[1]} long rounds" in lines
    assert f"MAML {maml[0]:,.0f} and {maml[2]:.0f}" in lines
    names = ("FedAvg", "Reptile", "FedAvg+MetaVD (released defaults)", "Reptile+MetaVD (released defaults)")
    alone, *others = (_seconds(runs[late, name]) for name in names)
    assert (f"FedAvg {alone[0]:.0f} s (nearly alone at last: {alone[3]:.2f} s a round), Reptile {others[0][0]:.0f}, "
            f"FedAvg+MetaVD {others[1][0]:.0f}, Reptile+MetaVD {others[2][0]:,.0f}") in lines  # fmt: skip
    names = ("FedAvg+FT", "FedProx", "MAML", "MAML+MetaVD (released defaults)", "PerFedAvg+MetaVD (released defaults)")
    third = [_seconds(runs[late, name])[0] for name in (*names, "PerFedAvg (HF-MAML)")]
    assert ("FedAvg+FT {:.0f} s, FedProx {:.0f}, MAML {:.0f}, MAML+MetaVD {:.0f}, Per-FedAvg+MetaVD {:.0f}, "
            "Per-FedAvg {:,.0f}").format(*third) in lines  # fmt: skip
    again = [3 * each.seconds for each in runs[late, "PerFedAvg (HF-MAML)"][0].rounds[1:] if 3 * each.seconds > 20]
    lasted = f"{min(again):.0f} to {max(again):.0f} s ({sum(again):.0f} s of its {third[-1]:,.0f})"
    assert f"in {len(again)} rounds of {lasted}" in lines
    fourth = [_seconds(runs[place, name])[0] for place, name in (
        (folder, "FedBE"), (late, "FedBE"), (folder, "MAML+MetaVD (released defaults)"))]  # fmt: skip
    assert "FedBE {:.0f} s at α̂ = 0.1 and {:.0f} at 0.5, ".format(*fourth) in lines
    assert f"MAML+MetaVD at 0.1 {fourth[2]:,.0f} s." in lines
    (other, found), names = runs_of("M-T2", "M-T2"), ("Reptile", "Reptile+EnsembleVD", "Reptile+VD", "Reptile+MetaVD")
    spent = [_seconds(found[other.cells[0].folder, name if name == "Reptile" else f"{name} (released defaults)"])[0]
             for name in names]  # fmt: skip
    assert "Reptile took {:.0f} s, EnsembleVD {:.0f}, VD {:.0f}, MetaVD {:.0f}.".format(*spent) in lines
    (other, found) = runs_of("M-T16", "M-T16")
    place = next(cell.folder for cell in other.cells if cell.name == "α=0.1 Test")
    slow = [3 * each.seconds for each in found[place, "MAML+MetaVD+DP (released defaults)"][0].rounds[350:356]]
    assert f"{min(s for s in slow if s > 5):.0f} to {max(slow):.0f} s each from round 351 on" in lines
    kernels = [runs[where, "pFedGP"] for where in (folder, late)]
    assert "{:,.0f} s of rounds at α̂ = 0.1 and {:.0f} at 0.5".format(*(_seconds(each)[0] for each in kernels)) in lines
    dropping = [found[next(c.folder for c in other.cells if c.name == f"{a} Test"),
                      "PerFedAvg+MetaVD+DP (released defaults)"] for a in ("α=0.1", "α=0.5")]  # fmt: skip
    for which, first, last, words in (
        (kernels[0], 1, 80, "a round took {} s beside four or five others (rounds 1 to 80, median)"),
        (kernels[0], 241, 320, "{} alone (241 to 320"), (kernels[0], 641, 960, "{} beside one light program (641 to"),
        (kernels[1], 1, 80, "at 0.5 {} beside others (1 to 80)"), (kernels[1], 521, 960, "{} beside\nthe other pFedGP"),
        (dropping[1], 161, 960, "{} s a round at 0.5 (161 to 960)"), (dropping[1], 1, 80, "{} beside four or five"),
        (dropping[0], 241, 880, "({} s a round at 0.1, 241 to 880)"),
    ):  # fmt: skip
        assert words.format(f"{median(3 * each.seconds for each in which[0].rounds[first - 1 : last]):.2f}") in lines


def _seconds(runs):
    spent = [3 * each.seconds for each in runs[0].rounds]
    long = [each for each in spent if each > 3]
    return sum(spent), len(long), sum(long), fmean(each for each in spent if each <= 3)


def _table_8(runs):
    """By seed, the mean of all scored rounds at the method's own point."""
    made = {}
    for run in sorted(runs, key=lambda run: run.seed):
        scores = run.index["test", run.scored, int(run.scored == "adapted"), "members"]
        assert sorted(scores) == list(range(50, 1001, 50))
        made[run.seed] = Sample(fmean(score.value("accuracy", "train_weighted") for score in scores.values()))
    assert list(made) == [0, 1, 2]
    return made


@pytest.mark.parametrize("alpha", TABLE_8)
def test_metavds_table_8_is_the_stored_one(alpha):
    """Columns that the page takes from Tables 8 and 12."""
    stored = [_stored("M-T8", f"{alpha} Test"), _stored("M-T12", f"{alpha} ECE")]
    for name in TABLE_8[alpha]:
        shown = cells(METAVD, f"{name}, {alpha}")
        assert [shown[1:3], shown[6:8]] == [stored[0][name], stored[1][name]]


def _stored(table, section):
    """The first two numbers of each row of a stored table's section: the paper's and ours."""
    page = (ROOT / f"docs/results/tables/{table}/table.md").read_text(encoding="utf-8")
    found = {}
    for line in page.partition(f"\n### {section}\n")[2].partition("\n### ")[0].splitlines():
        if line.startswith("| "):
            first, *rest = (cell.strip() for cell in line.strip("|").split("|"))
            found[first] = rest[:2]
    return found


TABLE_16 = {"FedAvg+SNIP": "FedAvg", "MAML+SNIP": "MAML", "PerFedAvg+SNIP": "PerFedAvg (HF-MAML)",
            "Reptile+SNIP": "Reptile",
            "MAML+MetaVD+DP (released defaults)": "MAML+MetaVD (released defaults)",
            "PerFedAvg+MetaVD+DP (released defaults)": "PerFedAvg+MetaVD (released defaults)",
            "Reptile+MetaVD+DP (released defaults)": "Reptile+MetaVD (released defaults)"}  # fmt: skip
"""Its rows, and whom each is held against."""


def test_metavds_table_16():
    """Each row against its host in Table 8, over all scored rounds; and what is gone of the layer."""
    (tables, hosts), (recipe, runs) = runs_of("M-T8", "M-T8"), runs_of("M-T16", "M-T16")
    shown = [line for line in (ROOT / METAVD).read_text(encoding="utf-8").splitlines() if ", Table 16 |" in line]
    assert len(shown) == sum(1 for (folder, name) in runs) == 14
    for alpha in ("α=0.1", "α=0.5"):
        stored = [_stored(table, f"{alpha} {what}") for table, what in (("M-T8", "Test"), ("M-T16", "Test"))]
        gone = _stored("M-T16", f"{alpha} Sparsity")
        places = [next(c.folder for c in each.cells if c.name == f"{alpha} Test") for each in (tables, recipe)]
        for name, host in TABLE_16.items():
            if (places[1], name) not in runs:
                continue
            pair = compare_all([_table_8(hosts[places[0], host]), _table_8(runs[places[1], name])])[0, 1]
            low, high = sorted(-100 * x for x in pair.interval)
            (paper, ours), (paper_host, our_host) = stored[1][name], stored[0][host]
            row = [paper, paper_host, ours, our_host, told(-100 * pair.difference, (low, high)), *gone[name]]
            assert cells(METAVD, f"{name}, {alpha}, Table 16")[1:] == row
    (first, late) = (next(c.folder for c in each.cells if c.name == "α=0.1 Test") for each in (tables, recipe))
    pair = compare_all([_table_8(hosts[first, "Reptile"]), _table_8(runs[late, list(TABLE_16)[-1]])])[0, 1]
    low, high = (100 * x for x in pair.interval)
    said = f"Reptile, which is {100 * pair.difference:.1f} points ({low:.1f} to {high:.1f}) ahead"
    assert said in (ROOT / METAVD).read_text(encoding="utf-8")


def test_metavds_table_2():
    """Columns of the stored table, means of all scored rounds, and the dropout rate at the end."""
    recipe, runs = runs_of("M-T2", "M-T2")
    folder = next(cell.folder for cell in recipe.cells if cell.name == "α=5 Test")
    names = [line.name for line in recipe.lines if (folder, line.name) in runs]
    assert len(names) == 4
    pairs = compare_all([_table_8(runs[folder, name]) for name in names])
    stored = [_stored("M-T2", f"α=5 {what}") for what in ("Test", "OOD")]
    for i, name in enumerate(names):
        shown, values = cells(METAVD, f"{name}, Table 2"), _table_8(runs[folder, name]).values()
        assert [shown[1:3], shown[6:8]] == [stored[0][name], stored[1][name]]
        assert shown[3] == f"{100 * fmean(v.value for v in values):.1f} ± {100 * stdev(v.value for v in values):.1f}"
        if i:
            low, high = sorted(-100 * x for x in pairs[0, i].interval)
            assert shown[4] == told(-100 * pairs[0, i].difference, (low, high))
            assert f"p = {shown[5]}" == verdict.p_value(pairs[0, i].holm)
            assert shown[8] == f"{fmean(run.rounds[-1].report['dropout_rate'] for run in runs[folder, name]):.2f}"
    late, host = ([_part(runs[folder, name], part) for part in (slice(10), slice(15, 20))]
                  for name in ("Reptile+MetaVD (released defaults)", "Reptile"))  # fmt: skip
    said = f"MetaVD is behind ({late[0]} and {host[0]} %), over the last five ahead ({late[1]} and {host[1]})"
    assert said in (ROOT / METAVD).read_text(encoding="utf-8")


def _on_digits(run) -> float:
    """Accuracy at the method's own point, in %: the mean of the ten scored rounds."""
    scores = run.index["test", run.scored, int(run.scored == "adapted"), "members"]
    assert sorted(scores) == list(range(15, 151, 15))
    return 100 * fmean(score.value("accuracy", "train_weighted") for score in scores.values())


TEACHERS = {(None, None): "FedAvg, 20 % apart", (True, 1.0): "FedBE, as in the table",
            (False, 1.0): "FedBE, clients do not teach", (True, 0.5): "FedBE, teachers sharpened (T = ½)"}  # fmt: skip


def test_who_teaches_fedbe():
    found: dict[str, dict[int, float]] = {}
    for run in load_runs(RAW / "fedbe-teachers.jsonl.xz"):
        shown = TEACHERS[run.fields.get("clients_teach"), run.fields.get("temperature")]
        found.setdefault(shown, {})[run.seed] = _on_digits(run)
    _against_the_host(found, "FedAvg, 20 % apart")


AVERAGED = {(None, None): "FedAvg, 20 % apart, anew", ("probabilities", 0.001): "FedBE, probabilities",
            ("logits", 0.001): "FedBE, logits", ("logits", 0.9): "FedBE, logits, steps of 0.9"}  # fmt: skip


def test_what_of_fedbes_teachers_is_averaged():
    found: dict[str, dict[int, float]] = {}
    for run in load_runs(RAW / "fedbe-logits.jsonl.xz"):
        mean_of = run.fields.get("mean_of")
        shown = AVERAGED[mean_of, run.fields["server_lr"] if mean_of else None]
        found.setdefault(shown, {})[run.seed] = _on_digits(run)
    assert len(found) == 4
    _against_the_host(found, "FedAvg, 20 % apart, anew")


def test_removed_weights_and_inner_steps():
    """SNIP over Per-FedAvg on digits: before and since inner steps leave removed weights alone."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for run in load_runs(RAW / "snip-inner.jsonl.xz"):
        step = run.fields.get("method.local.lr", run.fields.get("local.lr"))
        where = f"digits, steps of {step:g}, Dirichlet({run.config['partition'].split(':')[1]})"
        what = "Per-FedAvg" if "sparsity" not in run.fields else SNIPPED[run.facts["commit"][:7]]
        if run.fields.get("sparsity", 0.7) != 0.7:
            what = "SNIP of 30 %, inner steps move them"
        found.setdefault(where, {}).setdefault(f"{what}, {where}", {})[run.seed] = _on_digits(run)
    assert sum(map(len, found.values())) == 10
    for where, rows in found.items():
        _against_the_host(rows, f"Per-FedAvg, {where}")


def test_removed_weights_and_inner_steps_on_cifar10():
    """SNIP over MAML and Per-FedAvg at α̂ = 0.1: the runs that were replaced, those that did, and the hosts."""
    (tables, hosts), (recipe, since) = runs_of("M-T8", "M-T8"), runs_of("M-T16", "M-T16")
    before = runs_of("M-T16", "M-T16-snip-before")[1]
    host, mine = (next(c.folder for c in each.cells if c.name == "α=0.1 Test") for each in (tables, recipe))
    assert {name for folder, name in before if folder == mine} == {"MAML+SNIP", "PerFedAvg+SNIP"}
    for _, name in before:
        both = [_table_8(before[mine, name]), _table_8(since[mine, name])]
        sums = [[100 * each.value for each in some.values()] for some in both]
        row = [f"{fmean(some):.1f} ± {stdev(some):.1f}" for some in sums]
        for other in (both[0], _table_8(hosts[host, TABLE_16[name]])):
            pair = compare_all([other, both[1]])[0, 1]
            low, high = sorted(-100 * x for x in pair.interval)
            row.append(told(-100 * pair.difference, (low, high)))
        assert cells(METAVD, f"{name}, inner steps")[1:] == row


FALLS = "docs/results/pfedvmp_table1.md"
MOMENTUM = {
    ("fedavg+ft", None, None): "FedAvg-FT, longer",
    ("fedpa+ft", 600, 0.9): "FedAvg-FT with the server's momentum",
    ("fedpa+ft", 100, 0.9): "FedPA-FT",
    ("fedpa+ft", 100, 0.0): "FedPA-FT, steps of 1 and no momentum",
    ("fedep+ft", 100, 0.9): "FedEP-FT",
    ("fedep+ft", 100, 0.0): "FedEP-FT, steps of 1 and no momentum",
}


def _held(runs, point, round):
    """Accuracy on all held-out rows in %, mean ± sd over the seeds."""
    assert sorted(run.seed for run in runs) == [0, 1, 2]
    each = [100 * run.index["held", point, int(point == "adapted"), "members"][round].value("accuracy") for run in runs]
    return f"{fmean(each):.1f} ± {stdev(each):.1f}"


def _trained(runs):
    return f"{fmean(run.rounds[-1].loss for run in runs):.4f}".replace("-", "−")


DATASETS = {"CIFAR-10": "cifar10", "Fashion-MNIST": "fmnist"}


@pytest.mark.parametrize(("table", "data"), [*everything(("V-T1a", "CIFAR-10")), ("V-T1c", "Fashion-MNIST")])
def test_what_fine_tuning_adds_at_the_end(table, data):
    _, runs = runs_of(table, table)
    mistaken = load_runs(RAW / "V-T1-fedep-before.jsonl.xz")
    before = [run for run in mistaken if run.config["partition"] == "capped:0.3:50"]
    named = {f"{name}, {data}": runs["capped-Dirichlet-0.3", name] for name in ("FedAvg-FT", "FedPA-FT", "FedEP-FT")}
    named[f"FedEP-FT before its mend, {data}"] = [run for run in before if run.config["dataset"] == DATASETS[data]]
    for name, some in named.items():
        received = "not scored" if name == f"FedEP-FT, {data}" else _held(some, "received", 1000)
        assert cells(FALLS, name)[1:] == [received, _held(some, "adapted", 1000), _trained(some)], name


def test_a_servers_momentum_and_fine_tuning():
    found = {"FedEP-FT, since its mend": load_runs(RAW / "fedep-fall.jsonl.xz")}
    for run in load_runs(RAW / "finetuning-fall.jsonl.xz"):
        mine = {name.rpartition(".")[2]: value for name, value in run.fields.items()}
        key = run.config["method"].partition("[")[0], mine.get("burn_rounds"), mine.get("server_momentum")
        found.setdefault(MOMENTUM[key], []).append(run)
    assert len(found) == 7
    for name, runs in found.items():
        last = len(runs[0].rounds)
        assert last == (3000 if name == "FedAvg-FT, longer" else 600)
        curve = [_held(runs, "adapted", round) if round <= last else "" for round in (100, 300, 600, 3000)]
        assert cells(FALLS, name)[1:] == [*curve, _held(runs, "received", last), _trained(runs)], name


def test_fedep_on_digits_since_its_mend():
    """As the tables of the page, where FedEP's rows are from before."""
    text = (ROOT / "docs/results/baselines.md").read_text()
    runs = load_runs(RAW / "baselines-fedep.jsonl.xz")
    for alpha in ("0.1", "0.3"):
        (row,) = headline([run for run in runs if run.config["partition"] == f"dirichlet:{alpha}"])
        assert len(row.picked) == 5
        assert f"{row.cells['accuracy'].text} % (Dirichlet({alpha}))" in text
        assert f"{row.cells['bytes'].text} a round; raw metrics: `docs/results/raw/baselines-fedep" in text


def _spread(runs, rule, metric="cov"):
    return read_samples(runs, rule, Shown(metric=metric, percent=True))


def _reach(pair):
    """A difference with its interval, in points, as pages have it."""
    low, high = (f"{100 * end:+.2f}".replace("-", "−") for end in pair.interval)
    return f"{100 * pair.difference:+.2f}".replace("-", "−") + f" ({low} to {high})"


def test_how_long_fine_tuning_moves_table_3():
    page, found = "docs/results/README.md", {}
    for run in load_runs(RAW / "V-T3-finetuning.jsonl.xz"):
        found.setdefault(run.fields.get("epochs"), []).append(run)
    rows = {None: "FedPAC", 1: "FedAvg-FT, an epoch", 5: "FedAvg-FT, 5 epochs", 20: "FedAvg-FT, 20 epochs"}
    assert found.keys() == rows.keys()
    for epochs, name in rows.items():
        told = cells(page, name)[1:]
        shown = [(0, "paper", "accuracy", 1), (1, "paper", "cov", 2), (3, "validated", "cov", 2)]
        for place, rule, metric, digits in shown:
            each = [100 * one.value for one in _spread(found[epochs], rule, metric).values()]
            assert len(each) == 5
            assert told[place] == f"{fmean(each):.{digits}f} ± {stdev(each):.{digits}f}", (name, rule, metric)
        for place, rule in ((2, "paper"), (4, "validated")):
            gap = compare_pair(*(_spread(found[which], rule) for which in (epochs, None)))
            assert told[place] == (_reach(gap) if epochs else ""), (name, rule)
    text = (ROOT / page).read_text(encoding="utf-8")
    for epochs in (5, 20):
        for rule in ("paper", "validated"):
            low, high = compare_pair(_spread(found[1], rule), _spread(found[epochs], rule)).interval
            assert f"({100 * low:.2f} to {100 * high:.2f})" in text.replace("−", "-").replace("+", "")


LABELS = {"fedavg": "FedAvg", "fedper": "FedPer", "pfedgp": "pFedGP"}


def test_pfedgp_and_labels_that_a_client_does_not_know():
    found: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    for run in load_runs(RAW / "pfedgp-labels.jsonl.xz"):
        law, test = run.config["partition"], run.config["test_partition"]
        steps = ", 15 steps a round" * (run.fields["local.epochs"] == 15)
        shown = f"{LABELS[run.config['method']]}{steps}, digits, {test}, Dirichlet({law.split(':')[1]})"
        found.setdefault((law, test), {}).setdefault(shown, {})[run.seed] = _on_digits(run)
    assert [len(rows) for rows in found.values()] == [4, 3, 3, 3]
    for (law, test), rows in found.items():
        host = next(shown for shown in rows if shown.startswith("FedAvg"))
        _against_the_host(rows, host)
        known = [_known(data.load("digits", clients=40, partition=law, test_partition=test, seed=seed))[0]
                 for seed in (0, 1, 2)]  # fmt: skip
        assert cells(METAVD, host)[3] == ", ".join(known)


@pytest.mark.skipif("POSTERITY_DATA" not in os.environ, reason="POSTERITY_DATA is unset: CIFAR-10's labels are needed")
@pytest.mark.everything
@pytest.mark.parametrize(("alpha", "words"), [
    (0.1, "training rows of the class of {}, {} and {} % of their test rows (newcomers {}, {} and {})"),
    (0.5, "at 0.5 of {}, {} and {} ("),
])  # fmt: skip
def test_which_labels_of_table_8_clients_know(alpha, words):
    law = f"dirichlet:{alpha}:1"
    told = [_known(data.load("cifar10", clients=130, newcomers=30, partition=law, test_partition="independent",
                             seed=seed)) for seed in (0, 1, 2)]  # fmt: skip
    said = words.format(*(members for members, _ in told), *(newcomers for _, newcomers in told))
    assert said in (ROOT / METAVD).read_text(encoding="utf-8")


def _known(federation):
    """What the note of a partition says of members and of newcomers."""
    (note,) = unseen_note(federation)
    return [*re.findall(r"([0-9.]+) %", note), ""][:2]


SNIPPED = {"67258ad": "SNIP, inner steps move them", "39eaa53": "SNIP, inner steps do not"}
FAMILIES = {(None, None): "Reptile, decay of 0.0033", ("naive", "cohort"): "VD, decay of 0.0033",
            ("ensemble", "cohort"): "EnsembleVD, the cohort's", ("ensemble", "all"): "EnsembleVD, everybody's",
            ("hyper", "cohort"): "MetaVD, the cohort's", ("hyper", "all"): "MetaVD, everybody's"}  # fmt: skip


def test_where_an_ensembles_noise_comes_from():
    found: dict[str, dict[int, float]] = {}
    rates: dict[str, list[float]] = {}
    for run in load_runs(RAW / "metavd-families.jsonl.xz"):
        shown = FAMILIES[run.fields.get("family"), run.fields.get("moves")]
        found.setdefault(shown, {})[run.seed] = _on_digits(run)
        rates.setdefault(shown, []).append(run.rounds[-1].report.get("dropout_rate"))
    assert found.keys() == set(FAMILIES.values())
    _against_the_host(found, "Reptile, decay of 0.0033")
    for shown, some in rates.items():
        assert cells(METAVD, shown)[3] == ("" if None in some else f"{fmean(some):.2f}")


def _against_the_host(found, host):
    """Rows of the page: mean and deviation over seeds, and the difference from the host by seed."""
    for shown, values in found.items():
        row, by_seed = cells(METAVD, shown), [values[seed] for seed in (0, 1, 2)]
        gaps = ", ".join(f"{value - found[host][seed]:+.1f}".replace("-", "−") for seed, value in enumerate(by_seed))
        assert row[1] == f"{fmean(by_seed):.1f} ± {stdev(by_seed):.1f}"
        assert row[2] == ("" if shown == host else gaps)


def test_beta_and_the_width_of_the_layer():
    found: dict[tuple[int, float | None], dict[int, float]] = {}
    for run in load_runs(RAW / "metavd-width.jsonl.xz"):
        mean = _on_digits(run)
        weights = 8 * int(run.config["set"]["model.width"]) ** 2
        found.setdefault((weights, run.fields.get("beta")), {})[run.seed] = mean
    assert len(found) == 6
    for (weights, beta), values in found.items():
        host = found[weights, None]
        shown = cells(METAVD, f"{'Reptile' if beta is None else f'β = {beta:g}'}, K = {weights:,}")
        assert shown[1] == ("" if beta is None else f"{beta * 2048 / weights:g}")
        assert shown[2] == f"{fmean(values.values()):.1f} ± {stdev(values.values()):.1f}"
        gaps = ", ".join(f"{values[seed] - host[seed]:+.1f}".replace("-", "−") for seed in (0, 1, 2))
        assert shown[3] == ("" if beta is None else gaps)


def test_beta_and_the_step_size():
    """Per-FedAvg on digits: mean of the scored rounds, minus its host by seed, dropout rate at the end."""
    found: dict[tuple[str, float | None], list] = {}
    for run in sorted(load_runs(RAW / "metavd-step.jsonl.xz"), key=lambda run: run.seed):
        mean = _on_digits(run)
        key = (run.config["set"]["local.lr"], run.fields.get("beta"))
        found.setdefault(key, []).append((mean, run.rounds[-1].report.get("dropout_rate")))
    assert len(found) == 6
    for (step, beta), seeds in found.items():
        assert len(seeds) == 3
        shown = cells(METAVD, f"{'Per-FedAvg' if beta is None else f'β = {beta:g}'}, steps of {step}")
        mean, gaps, rate = shown[1:]
        assert mean == f"{fmean(s[0] for s in seeds):.1f} ± {stdev(s[0] for s in seeds):.1f}"
        if beta is None:
            assert [gaps, rate] == ["", ""]
            continue
        pairs = zip(seeds, found[step, None], strict=True)
        assert gaps == ", ".join(f"{a[0] - b[0]:+.1f}".replace("-", "−") for a, b in pairs)
        assert rate == f"{fmean(s[1] for s in seeds):.2f}"


def test_beta_with_the_independent_test_split():
    (found,) = headline(load_runs(RAW / "metavd-independent.jsonl.xz"))
    page = (ROOT / METAVD).read_text(encoding="utf-8").replace("\n", " ")
    assert found.arm.runs[0].config["test_partition"] == "independent"
    points = [*newcomers([found]).rows[0][1][:3], by_point([found]).rows[0][1][0]]
    assert all(text in page for text in (found.cells["accuracy"].text, *points))


def _papers(p):
    """FedBPS's Table 2, as the recipe has it."""
    line = next(line for line in find("B-T2").lines if line.name == f"p = {p:.0%}".replace("%", " %"))
    return [float(line.paper[name]) for name in ("MNIST", "Fashion-MNIST", "CIFAR-10")]


def _ours(p):
    """The same of ours, `validated`, from the stored table."""
    page = (ROOT / "docs/results/tables/B-T2/table.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in page.splitlines() if line.startswith(f"| p = {p:.0%} |".replace("%", " %"))]
    return [row[3].strip() for row in rows]


def test_a_tenth_at_home_is_fedavg():
    rows = headline(load_runs(RAW / "B-T2-ten-fmnist.jsonl.xz"))
    held = main_comparison(rows)
    found = {each.arm.runs[0].fields.get("p", 0.0): each for each in held.rows}
    assert [run.seed for each in rows for run in each.arm.runs] == [0, 1, 2] * 3
    for p, first in ((0.0, "nothing (FedAvg)"), (0.1, "10 % at home"), (0.3, "30 % at home")):
        assert cells(FEDBPS, first)[1] == found[p].cells["accuracy"].text
    gains = {}
    for p in (0.1, 0.3):
        i, j = held.rows.index(found[p]), held.rows.index(found[0.0])
        assert i < j
        pair = held.pairs[i, j]
        assert cells(FEDBPS, f"{p:.0%} at home".replace("%", " %"))[2] == told(
            100 * pair.difference, tuple(100 * x for x in pair.interval)
        )
        values = [[by_seed(each)[seed] for seed in range(3)] for each in (found[p], found[0.0])]
        gains[p] = [100 * (x - y) for x, y in zip(*values, strict=True)]
    assert max(gains[0.1]) < 0.1
    assert [f"{x:.1f}" for x in gains[0.3]] == ["2.9", "9.7", "5.8"]


def by_seed(each: Row) -> dict[int, float]:
    """A row's accuracy in each run, at the round that validation chooses."""
    chosen = {run.seed: select_round(run, "validated") for run in each.arm.runs}
    return {seed: found.value("accuracy") for seed, found in chosen.items()}


def test_what_fedbps_ranks_by():
    """Accuracy by p with both scores, and their paired differences."""
    found = {(each.label, run.fields.get("p"), run.fields.get("score")): each
             for each in headline(load_runs(RAW / "fedbps-score.jsonl.xz")) for run in each.arm.runs[:1]}  # fmt: skip
    held = main_comparison(list(found.values()))
    for p in (0.1, 0.3, 0.5, 0.7, 0.9):
        both = [each for (_, share, _), each in found.items() if share == p]
        variance, curvature = sorted(both, key=lambda each: each.arm.runs[0].fields["score"], reverse=True)
        shown = cells(FEDBPS, f"p = {p:.0%}".replace("%", " %"))
        assert [run.seed for run in variance.arm.runs] == list(range(5))
        assert shown[1:3] == [variance.cells["accuracy"].text, curvature.cells["accuracy"].text]
        i, j = held.rows.index(variance), held.rows.index(curvature)
        pair, sign = held.pairs[min(i, j), max(i, j)], 1 if i < j else -1
        low, high = sorted(100 * sign * x for x in pair.interval)
        assert shown[3] == told(100 * sign * pair.difference, (low, high))
    for p in (0.3, 0.5, 0.7, 0.9):  # read as the share that stays shared
        read = cells(FEDBPS, f"p = {p:.0%}, read so".replace("%", " %"))
        assert [float(value) for value in read[1:4]] == list(_papers(p))
        assert read[5:6] == [cells(FEDBPS, f"p = {1 - p:.0%}".replace("%", " %"))[1]]
        if p < 0.9:
            assert read[6:] == _ours(1 - p)
    for name, row_name in (("FedAvg", "0 %, FedAvg"), ("Local", "100 %, local")):
        assert cells(FEDBPS, row_name)[1] == found[name, None, None].cells["accuracy"].text


def test_digits_with_ten_seeds():
    comparison = main_comparison(headline(load_runs(RAW / "digits-ten-seeds.jsonl.xz")))
    assert len(comparison.pairs) == 15
    for (i, j), pair in comparison.pairs.items():
        low, high = pair.interval
        cells = row("docs/results/comparisons.md", f"{comparison.rows[i].label} − {comparison.rows[j].label}").split(
            "|"
        )
        assert [c.strip() for c in (cells[2], cells[3])] == [
            f"{100 * pair.difference:+.2f}",
            f"{100 * low:+.2f} to {100 * high:+.2f}",
        ]


@pytest.mark.everything
@pytest.mark.parametrize("path", sorted(RAW.glob("*.jsonl.xz")), ids=lambda p: p.name)
def test_raw_metrics_name_their_commit(path):
    assert all(log.facts["commit"] for log in read_packed(path))


@pytest.mark.everything
@pytest.mark.parametrize("alpha", ["0.1", "0.3"])
def test_baselines(alpha):
    page = (ROOT / "docs/results/baselines.md").read_text(encoding="utf-8")
    shown = page.partition(f"<!-- digits {alpha} -->")[2].partition("<!-- end of")[0].splitlines()
    found = complete(headline(load_runs(RAW / f"baselines-{alpha}.jsonl.xz")))
    assert len(found) == 36
    for each in found:
        cells = next(line for line in shown if line.startswith(f"| {each.label} |"))
        for key in ("accuracy", "worst10", "cov", "ece", "bytes"):
            assert f" {each.cells[key].text} |" in cells, (each.label, key)
