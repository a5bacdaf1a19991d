"""The page: it parses, it fetches nothing, and it says what the tables say. `test_page_browser.py` opens it."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from posterity.report import finding, headline, load_runs, write_report
from posterity.report.svg import spread, ticks

from .fake_runs import comparison, write_run
from .handmade import everywhere, run_of, trained

VOID = {"meta", "br", "hr", "img", "input", "link"}


class Outline(HTMLParser):
    """Checks that tags nest, and keeps the text and the attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def outline(page: Path) -> Outline:
    parser = Outline()
    parser.feed(page.read_text(encoding="utf-8"))
    parser.close()
    assert parser.open == []
    return parser


def words(page: Path) -> str:
    return re.sub(r"\s+", " ", "".join(outline(page).text).replace("\u00a0", " "))


def test_page_says_what_the_table_says(trio: Path, tmp_path: Path) -> None:
    page = write_report(trio, tmp_path / "page.html")
    said = words(page)
    rows = headline(load_runs(trio))
    assert finding(rows) in said
    for row in rows:
        for cell in row.cells.values():
            assert cell.text in said
    for phrase in (
        "Selection rule validated",
        "Newcomers",
        "on the common test set",
        "not finite <&>",
        "1 × empty round",
    ):
        assert phrase in said
    assert "pFedVMP, seed 7: running, round 18 of 40. It is left out of the means" in said
    assert "effective clients" in said
    assert "posterity run --method pfedvmp --dataset digits --seed 2" in said


def test_page_needs_nothing_from_outside(trio: Path, tmp_path: Path) -> None:
    page = write_report(trio, tmp_path / "page.html")
    seen = outline(page)
    assert not set(seen.tags) & {"link", "img", "iframe", "object", "embed", "base", "form"}
    assert seen.tags.count("script") == 1
    for tag, name, value in seen.attributes:
        assert not re.search(r"https?:|//|javascript:", value), (tag, name, value)
        assert not name.startswith("on")
        if name in ("href", "src"):
            assert value.startswith("#")
    assert not re.search(r"url\(|@import|fetch\(|XMLHttp|WebSocket|import\(|eval\(|innerHTML", page.read_text("utf-8"))


def test_it_says_what_its_numbers_are_of(trio: Path, tmp_path: Path) -> None:
    """Which round, by which rule, on how many rows of how many clients."""
    rows = headline(load_runs(trio))
    counts = [sum(selected.by_client("n")) for row in rows for _, selected in row.picked]
    said = words(write_report(trio, tmp_path / "page.html"))
    assert f"A run's numbers are over {min(counts):,.0f} to {max(counts):,.0f} test rows of 16 clients." in said
    assert "the round is chosen on the validation half of the held-out data" in said
    both = [sum(s.by_client("n")) for row in headline(load_runs(trio), "paper") for _, s in row.picked]
    said = words(write_report(trio, tmp_path / "page.html", "paper"))
    assert f"A run's numbers are over {min(both):,.0f} to {max(both):,.0f} held-out rows of 16 clients." in said


def test_every_client_stands_on_the_page_by_name(trio: Path, tmp_path: Path) -> None:
    page = write_report(trio, tmp_path / "page.html")
    text = page.read_text(encoding="utf-8")
    assert all(f'<th scope="row">hospital {k}</th>' in text for k in range(20))  # four of them are newcomers
    assert "seed 0, round 3, hospital 4" in words(page)  # whose message was refused


def test_what_runs_note_is_said_once_and_by_whom(tmp_path: Path) -> None:
    comparison(tmp_path, {"fedavg": 0.7, "fedper": 0.8}, 2)
    for folder, note in (("fedavg", "mine alone"), ("fedavg", "said by both"), ("fedper", "said by both")):
        for path in (tmp_path / folder).glob("*/run.json"):
            facts = json.loads(path.read_text())
            path.write_text(json.dumps(facts | {"notes": [*facts.get("notes", ()), note]}))
    said = words(write_report(tmp_path))
    assert "FedAvg: mine alone" in said
    assert said.count("said by both") == 1


def test_rounds_that_were_rolled_back_and_what_rounds_note_have_their_place(tmp_path: Path) -> None:
    lines = [trained(1), trained(2, empty=True, rolled_back="the state after it cannot be used"),
             trained(3, empty=True), trained(4, notes=["the block was halved"]), *everywhere(4, 0.5)]  # fmt: skip
    run_of(tmp_path, lines)
    said = words(write_report(tmp_path))
    assert "1 × rolled back: the state after it cannot be usedseed 0, round 2" in said
    assert "1 × empty roundseed 0, round 3" in said
    assert "the block was halvedseed 0, round 4" in said


def test_a_run_that_diverged_has_its_place(tmp_path: Path) -> None:
    comparison(tmp_path, {"fedavg": 0.7}, 2)
    write_run(tmp_path / "fedavg" / "seed-9", "fedavg", 0.5, 9, status="diverged", stop=18)
    said = words(write_report(tmp_path))
    assert "FedAvg, seed 9: diverged, round 18 of 40. It is left out of the means" in said


def test_links_lead_somewhere(trio: Path, tmp_path: Path) -> None:
    seen = outline(write_report(trio, tmp_path / "page.html")).attributes
    ids = {value for _, name, value in seen if name == "id"}
    assert {value.removeprefix("#") for tag, name, value in seen if (tag, name) == ("a", "href")} <= ids


def test_everything_is_escaped(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    folder = write_run(tmp_path / "a", "fedavg", 0.7, 0)
    for name in ("run.json", "config.toml"):
        text = (folder / name).read_text()
        text = text.replace("FedAvg", evil).replace("hospital 3", evil).replace("digit 4", evil)
        (folder / name).write_text(text.replace("mlp", evil).replace("8×8", evil))
    page = write_report(tmp_path)
    assert evil not in page.read_text(encoding="utf-8")
    assert evil in words(page)


def test_default_place_and_no_draft_left(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fedavg", 0.7, 0)
    assert write_report(tmp_path) == tmp_path / "report.html"
    assert write_report(tmp_path) == tmp_path / "report.html"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "report.html"]


def test_a_run_folder_is_its_own_report(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", "pfedvmp", 0.9, 0)
    said = words(write_report(folder))
    assert "pFedVMP on digits" in said
    assert "no other method here to compare it with" in said
    assert "A single seed, so no band." in said
    assert "± one standard deviation" not in said


@pytest.mark.parametrize("show", ["validated", "paper", "last"])
@pytest.mark.parametrize(
    "options",
    [{"task": "regression"}, {"classes": 2}, {"parts": ("test",)}, {"clients": 1}, {"rounds": 1}, {"clients": 75}],
)
def test_variants_and_missing_parts(tmp_path: Path, show: str, options: dict[str, object]) -> None:
    comparison(tmp_path, {"fedavg": 0.7, "pfedvmp": 0.8}, 2, **options)
    said = words(write_report(tmp_path, show=show))
    assert f"Selection rule {show}" in said
    assert ("The first 60 of 75 clients" in said) == (options.get("clients") == 75)
    assert not re.search(r"\b(nan|None)\b", said)


@pytest.mark.everything
def test_many_methods_stay_below_a_megabyte(tmp_path: Path) -> None:
    methods = {f"method-with-a-long-name-{k}": 0.6 + 0.015 * k for k in range(20)}
    comparison(tmp_path, methods, 2, clients=60, classes=100, rounds=40, every=4)
    assert write_report(tmp_path).stat().st_size < 1_000_000


def test_labels_never_overlap() -> None:
    placed = spread([100, 101, 102, 40, 300, 299], 15, 30, 310)
    ordered = sorted(placed)
    assert all(b - a >= 15 - 1e-9 for a, b in pairwise(ordered))
    assert ordered[0] >= 30
    assert ordered[-1] <= 310
    assert placed[3] == 40


def test_ticks_are_round() -> None:
    assert ticks(0.22, 0.95, 8) == [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    assert ticks(3, 3, 5) == [3]
