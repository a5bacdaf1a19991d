"""How often a comparison of methods names a winner: where there is none, and where there is one.

    python benchmarks/comparisons.py [--comparisons 2000] [--seed 0] [--out docs/results/comparisons.md]
    python benchmarks/comparisons.py --few [--comparisons 2000] [--seed 0] [--out docs/results/comparisons.md]
    python benchmarks/comparisons.py --runs FOLDER [--out docs/results/comparisons.md]

Simulated runs: rows in clients, clients in seeds. A row of client k is answered correctly by method m with seed s when

    0.9 + seed_s + client_sk + effect_m + seed_ms + client_msk + row + noise_ms > 0

with normal terms, so methods share what a seed, a client and a row do to all of them (`alone`: they share nothing).
Twenty clients hold 4 to 16 test rows each (as on digits). `nested`: clients and rows are drawn anew with every seed.
`crossed`: they are the same with every seed. Three rules judge the same numbers: the former one (ahead by more than
the larger standard deviation over seeds), a t-test on the seeds' differences, and `posterity.evaluate.paired`. The
size of the effect was set so that the t-test sees it in 91 % of comparisons with ten seeds. Takes a minute on a core.
`--few` has fewer clients, or one of them most rows, and tells how often the library's intervals hold the truth.

With `--runs`, the folder of a comparison instead: every pair by the library, and by scipy on what `metrics.jsonl` says.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

import posterity
from posterity.evaluate.paired import ClientValues, Paired, Sample, compare_all
from posterity.evaluate.student import quantile
from posterity.report import findings as verdict
from posterity.report import headline, load_runs, main_comparison

SEEDS = (3, 5, 10)
FEW_SEEDS = (2, *SEEDS)
METHODS, CLIENTS, ROWS = 4, 20, (4, 16)
BATCH = 100  # comparisons drawn at once
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Setting:
    """Standard deviations of what is drawn."""

    name: str
    crossed: bool
    common: float  # of a seed, for all methods alike
    effect: float  # of the first method, where there is one
    own: float = 0.12  # of a seed, for one method
    client: float = 0.5  # of a client, for all methods alike
    apart: float = 0.15  # of a client, for one method
    row: float = 0.5  # variance of a row that is the same for all methods; the rest is noise
    clients: int = CLIENTS
    largest: int | None = None  # rows of the first client; None: as many as the others


SETTINGS = (
    Setting("nested, methods alone", False, 0.0, 0.27, client=0.0, row=0.0),
    Setting("nested, seeds in common", False, 0.6, 0.29),
    Setting("crossed, seeds in common", True, 0.6, 0.3),
)
APART = {0.15: "", 0.5: ", methods suit some far better"}  # sd of a client for one method, and how it is told
FEW = tuple(
    Setting(f"{clients} clients{', one with 80 % of the rows' if largest else ''}{told}", crossed, 0.6, 0.0,
            apart=apart, clients=clients, largest=largest)
    for crossed in (True, False)
    for apart, told in APART.items()
    for clients, largest in ((20, None), (20, 760), (5, None), (5, 160), (2, None))
)  # fmt: skip


def draw(setting: Setting, count: int, effect: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """Accuracies (comparisons, methods, seeds, clients), and the clients' test rows (comparisons, seeds, clients)."""
    seeds, once = SEEDS[-1], 1 if setting.crossed else SEEDS[-1]
    clients, most = setting.clients, setting.largest or ROWS[1]
    shape = (count, METHODS, seeds, clients, most)

    def normal(sd: float, *size: int) -> Array:
        return sd * rng.standard_normal(size)

    level = 0.9 + normal(setting.common, count, 1, seeds, 1) + normal(setting.client, count, 1, once, clients)
    level = level + normal(setting.own, count, METHODS, seeds, 1) + normal(setting.apart, count, METHODS, once, clients)
    level[:, 0] += effect
    latent = level[..., None] + normal(np.sqrt(setting.row), count, 1, once, clients, most)
    latent = latent + normal(np.sqrt(1 - setting.row), *shape)
    sizes = rng.integers(ROWS[0], ROWS[1] + 1, (count, once, clients)).repeat(seeds // once, axis=1)
    if setting.largest:
        sizes[..., 0], sizes[..., 1:] = setting.largest, sum(ROWS) // 2
    held = np.arange(most) < sizes[:, None, ..., None]
    return ((latent > 0) & held).sum(-1) / sizes[:, None], sizes.astype(float)


def pooled(accuracy: Array, sizes: Array) -> Array:
    """(comparisons, methods, seeds)."""
    return (accuracy * sizes[:, None]).sum(-1) / sizes.sum(-1)[:, None]


def library(accuracy: Array, sizes: Array, crossed: bool) -> dict[tuple[int, int], Paired]:
    """One comparison (methods, seeds, clients) by the library."""
    weights = sizes / sizes.sum(-1, keepdims=True)
    return compare_all([
        {
            s: Sample(float(weights[s] @ row), ClientValues(row, sizes[s], s, "all" if crossed else s))
            for s, row in enumerate(method)
        }
        for method in accuracy
    ])  # fmt: skip


@dataclass(frozen=True)
class Shares:
    """Shares of comparisons: two methods told apart by each rule; of four, by the library; and coverage."""

    former: float
    t_test: float
    ours: float
    of_four: float
    covered: float


def judge(setting: Setting, seeds: int, accuracy: Array, sizes: Array, truth: float) -> Shares:
    """The first `seeds` seeds of every comparison. With an effect, only the right winner counts; without one, any
    two methods that are told apart, of four as of two."""
    accuracy, sizes = accuracy[:, :, :seeds], sizes[:, :seeds]
    first, second = pooled(accuracy, sizes)[:, :2].swapaxes(0, 1)
    each = first - second
    gap, spread = each.mean(1), np.maximum(first.std(1, ddof=1), second.std(1, ddof=1))
    with np.errstate(divide="ignore", invalid="ignore"):  # few rows: all seeds may give the same difference
        t = gap / (each.std(1, ddof=1) / np.sqrt(seeds))
    right = gap > 0 if truth else np.full(len(gap), True)
    ours, of_four, covered = [], [], []
    for k in range(len(accuracy)):
        pairs = library(accuracy[k], sizes[k], setting.crossed)
        low, high = pairs[0, 1].interval or (-np.inf, np.inf)
        ours.append((low > 0 or high < 0) and right[k])
        covered.append(low <= truth <= high)
        of_four.append(winner(pairs) == 0 if truth else any(pair.separated for pair in pairs.values()))
    shares = (np.abs(gap) > spread) & right, (np.abs(t) > quantile(0.05, seeds - 1)) & right, ours, of_four, covered
    return Shares(*(float(np.mean(share)) for share in shares))


def winner(pairs: dict[tuple[int, int], Paired]) -> int | None:
    """The method that is separated from all others, and ahead of them."""
    for m in range(METHODS):
        mine = [(p, 1 if i == m else -1) for (i, j), p in pairs.items() if m in (i, j)]
        if all(pair.separated and sign * pair.difference > 0 for pair, sign in mine):
            return m
    return None


def simulate(
    setting: Setting, comparisons: int, effect: float, seed: int, among: Sequence[int] = SEEDS
) -> dict[int, Shares]:
    """The shares with each number of seeds."""
    rng = np.random.default_rng([seed, (*SETTINGS, *FEW).index(setting), effect > 0])
    batch = max(1, BATCH * CLIENTS * ROWS[1] // (setting.clients * (setting.largest or ROWS[1])))
    batches = [draw(setting, min(batch, comparisons - k), effect, rng) for k in range(0, comparisons, batch)]
    accuracy, sizes = (np.concatenate(part) for part in zip(*batches, strict=True))
    truth = expected(setting, effect) if effect else 0.0
    return {seeds: judge(setting, seeds, accuracy, sizes, truth) for seeds in among}


def expected(setting: Setting, effect: float) -> float:
    """The true difference, in accuracy: probit terms add their variances, so it is one of two normal integrals."""
    spread = np.sqrt(1 + setting.common**2 + setting.own**2 + setting.client**2 + setting.apart**2)
    normal = NormalDist()
    return normal.cdf((0.9 + effect) / spread) - normal.cdf(0.9 / spread)


def table(found: Sequence[tuple[Setting, float, dict[int, Shares]]]) -> str:
    """Markdown, in percent."""
    lines = [
        "| clients and seeds | true difference | seeds | former rule | t-test over seeds | posterity "
        "| posterity, 4 methods | 95 % intervals that hold the truth |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for setting, effect, by_seeds in found:
        told = f"{100 * expected(setting, effect):.1f} points" if effect else "none"
        for seeds, s in by_seeds.items():
            cells = " | ".join(f"{100 * x:.1f} %" for x in (s.former, s.t_test, s.ours, s.of_four, s.covered))
            lines.append(f"| {setting.name} | {told} | {seeds} | {cells} |")
    return "\n".join(lines)


def few_table(found: Sequence[tuple[Setting, dict[int, Shares]]]) -> str:
    """Markdown: how many intervals hold the truth, in percent, of two methods that are equally good."""
    lines = [
        f"| test rows | clients | {' | '.join(f'{seeds} seeds' for seeds in FEW_SEEDS)} |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for setting, by_seeds in found:
        same = "the same with every seed (crossed)" if setting.crossed else "drawn anew with every seed (nested)"
        cells = " | ".join(f"{100 * by_seeds[seeds].covered:.1f} %" for seeds in FEW_SEEDS)
        lines.append(f"| {same} | {setting.name} | {cells} |")
    return "\n".join(lines)


@dataclass(frozen=True)
class Seen:
    """One run as its files have it: the accuracy at the round chosen on validation, and the clients'."""

    label: str
    value: float
    clients: Array
    sizes: Array


def read_runs(folder: Path) -> dict[str, dict[int, Seen]]:
    """By method and seed, straight from the files: nothing of the library reads or chooses."""
    found: dict[str, dict[int, Seen]] = {}
    for path in sorted(folder.rglob("metrics.jsonl")):
        facts = json.loads((path.parent / "run.json").read_text())
        config = tomllib.loads((path.parent / "config.toml").read_text())
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        mine = [x for x in lines if x["kind"] == "score" and x["group"] == "members"
                and x["point"] == facts["method"]["scored"]]  # fmt: skip
        score = {(x["part"], x["round"]): x["metrics"]["accuracy"]["pooled"] for x in mine}
        rounds = sorted(r for part, r in score if part == "validation")
        best = max(rounds, key=lambda r: score["validation", r])  # the first of equals
        shown = next(x for x in mine if (x["part"], x["round"]) == ("test", best))
        clients, sizes = (np.array(shown["clients"][name], dtype=float) for name in ("accuracy", "n"))
        seen = Seen(facts["method"]["label"], score["test", best], clients, sizes)
        found.setdefault(seen.label, {})[config["seed"]] = seen
    return found


def by_scipy(first: dict[int, Seen], second: dict[int, Seen]) -> dict[str, tuple[float, float] | float]:
    """The paired t-test and its interval; and the interval with the clients' variance, for clients of each seed."""
    from scipy import stats

    seeds = sorted(first.keys() & second.keys())
    a, b = ([runs[s].value for s in seeds] for runs in (first, second))
    inside = []
    for s in seeds:
        held = first[s].sizes > 0
        d, n = (first[s].clients - second[s].clients)[held], first[s].sizes[held]
        w = n / n.sum()
        inside.append(np.sum(w**2 * (d - np.sum(w * d)) ** 2 / (1 - w)))
    d = np.subtract(a, b)
    error = np.sqrt(max(d.var(ddof=1), np.mean(inside)) / len(seeds))
    t_test = stats.ttest_rel(a, b)
    return {
        "t-test": (float(t_test.confidence_interval().low), float(t_test.confidence_interval().high)),
        "p of the t-test": float(t_test.pvalue),
        "interval": tuple(float(x) for x in stats.t.interval(0.95, len(seeds) - 1, d.mean(), error)),
        "p": float(2 * stats.t.sf(abs(d.mean()) / error, len(seeds) - 1)),
    }


def check_runs(folder: Path) -> str:
    """Every pair of a comparison whose seeds have their own clients, by the library and by scipy, as a table."""
    held, seen = main_comparison(headline(load_runs(folder))), read_runs(folder)
    lines = ["| pair | difference, points | 95 % interval | by scipy | t-test over seeds alone, scipy | p | p by scipy "
             "| p, Holm | seeds it would take |", "|---|--:|--:|--:|--:|--:|--:|--:|--:|"]  # fmt: skip
    worst = 0.0
    for (i, j), pair in held.pairs.items():
        labels = held.rows[i].label, held.rows[j].label
        other = by_scipy(*(seen[label] for label in labels))
        assert pair.interval is not None
        assert pair.p is not None
        worst = max(worst, *(abs(x - y) for x, y in zip(pair.interval, other["interval"], strict=True)))
        ours, theirs, alone = (
            f"{100 * low:+.2f} to {100 * high:+.2f}"
            for low, high in (pair.interval, other["interval"], other["t-test"])
        )
        cells = f"{100 * pair.difference:+.2f} | {ours} | {theirs} | {alone} | {pair.p:.4f} | {other['p']:.4f}"
        lines.append(f"| {' − '.join(labels)} | {cells} | {pair.holm:.3f} | {pair.needed or '> 1,000'} |")
    finding = verdict.describe(held, held.rows)
    told = f"Largest distance between the ends of the two intervals: {worst:.1e}."
    return "\n".join(lines).replace("-0.00", "0.00") + f"\n\n{told} What the page says: “{finding}”"


def main() -> None:
    parser = argparse.ArgumentParser(description="How often a comparison of methods names a winner.")
    parser.add_argument(
        "--runs", type=Path, help="folder of a comparison to check against scipy, in place of simulating"
    )
    parser.add_argument("--few", action="store_true", help="few clients, or one with most rows: do intervals hold?")
    parser.add_argument("--comparisons", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="page whose table between the two marks is replaced")
    given = parser.parse_args()
    if given.runs:
        command = next(given.runs.rglob("run.json")).read_text()
        text = f"{versions()}; `{_command(json.loads(command))}`\n\n{check_runs(given.runs)}"
        print(text)
        if given.out:
            replace_between(given.out, "digits", text)
        return
    if given.few:
        few = [(s, simulate(s, given.comparisons, 0.0, given.seed, FEW_SEEDS)) for s in FEW]
        mark, flag, shown = "few clients", " --few", few_table(few)
    else:
        found = [(s, e, simulate(s, given.comparisons, e, given.seed)) for s in SETTINGS for e in (0.0, s.effect)]
        mark, flag, shown = "simulation", "", table(found)
    command = f"python benchmarks/comparisons.py{flag} --comparisons {given.comparisons} --seed {given.seed}"
    text = f"`{command}`, {versions()}.\n\n{shown}"
    print(text)
    if given.out:
        replace_between(given.out, mark, text)


def versions() -> str:
    numbers = f"posterity {posterity.__version__}, numpy {np.__version__}, Python {platform.python_version()}"
    return f"{datetime.date.today()}, {numbers}"


def _command(facts: dict[str, Any]) -> str:
    """What was typed, without where it was written."""
    words = str(facts["command"]).partition(" ")[2].split()
    if "--out" in words:
        words[words.index("--out") : words.index("--out") + 2] = []
    return " ".join(["posterity", *words])


def replace_between(page: Path, name: str, text: str) -> None:
    """Put the text between `<!-- name -->` and `<!-- end of name -->`."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    whole = page.read_text(encoding="utf-8")
    if begin not in whole or end not in whole:
        raise SystemExit(f"{page} has no {begin} … {end}: add the two marks where the table belongs")
    before, after = whole.split(begin)[0], whole.split(end)[1]
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
