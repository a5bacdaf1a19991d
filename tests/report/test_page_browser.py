"""The page in a browser, from the disk: it sorts, it says where a table goes on, nothing is cut, nothing is fetched."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from posterity.evaluate import METRICS
from posterity.report import headline, load_runs, write_report

from .browser import CHROMIUM, Browser
from .fake_runs import comparison
from .handmade import edited
from .test_page_strangers import EVIL, poisoned

pytestmark = [
    pytest.mark.everything,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here (Debian: apt install chromium)"),
]
WIDTHS = (1280, 390)
A4 = 703  # pixels between margins of 12 mm
CUT = """[...document.querySelectorAll("table, svg, pre, p, ul, dl")].filter(e => {
  const box = e.closest(".scroll, pre"), edge = e.getBoundingClientRect();
  return !box && edge.width && (edge.right > innerWidth + 1 || edge.left < -1);
}).map(e => e.outerHTML.slice(0, 80))"""
OVER = """[...document.querySelectorAll(".scroll")].filter(e => e.scrollWidth > e.clientWidth + 1)
  .map(e => e.innerText.slice(0, 80))"""
UNTOLD = """[...document.querySelectorAll(".scroll")].filter(e => e.offsetWidth
  && (e.scrollWidth > e.clientWidth + 1) !== !e.previousElementSibling.hidden).length"""


def column(table: str, name: str) -> str:
    """An expression: the texts of a column, from top to bottom."""
    return f"""(t => {{
      const k = [...t.tHead.rows[0].cells].findIndex(h => h.innerText.startsWith({json.dumps(name)}));
      return [...t.tBodies[0].rows].map(r => r.cells[k].textContent.trim());
    }})(document.querySelector({json.dumps(table)}))"""


def heading(table: str, name: str, browser: Browser) -> str:
    """A selector of the button in a column's heading."""
    find = f"""[...document.querySelector({json.dumps(table)}).tHead.rows[0].cells].findIndex(
      h => h.innerText.startsWith({json.dumps(name)})) + 1"""
    return f"{table} thead th:nth-child({browser.ask(find)}) button"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    made = Browser(tmp_path_factory.mktemp("browser") / "profile")
    yield made
    made.close()


@pytest.fixture(scope="module")
def page(trio: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(trio, tmp_path_factory.mktemp("ten") / "page.html")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes, every metric that a headline may have, clients and methods with long names, three seeds."""
    root = tmp_path_factory.mktemp("two")
    methods = {"fedavg": 0.71, "metavd": 0.80, "a-method-with-a-rather-long-name": 0.91}
    runs = comparison(root / "runs", methods, 3, classes=2, clients=12, newcomers=2, trouble=True)
    extra = {m.name: {"pooled": 0.512} for m in METRICS if m.task != "regression" and m.table == "main"}
    for folder in runs.glob("*/*"):
        edited(folder, "run.json", "hospital 3", "Queen Elizabeth Hospital of the whole of Birmingham")
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        told = [r | ({"metrics": extra | r["metrics"]} if r["kind"] == "score" else {}) for r in lines]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in told))
    return write_report(runs, root / "page.html")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["page", "two"])
def test_it_opens_from_the_disk_and_nothing_is_cut(
    browser: Browser, request: pytest.FixtureRequest, tmp_path: Path, name: str, width: int, dark: bool
) -> None:
    path = request.getfixturevalue(name)
    browser.console.clear()
    browser.asked.clear()
    browser.open(path, width, dark=dark)
    browser.ask("document.querySelectorAll('details').forEach(d => d.open = true), new Promise(requestAnimationFrame)")
    assert browser.console == []
    assert browser.asked == [path.as_uri()]
    assert browser.ask("document.documentElement.scrollWidth") <= width
    assert browser.ask(CUT) == []
    assert browser.ask(UNTOLD) == 0
    if width == 1280:
        assert browser.ask(OVER) == []
    browser.picture(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 100_000, "an empty page is a few kilobytes"


def test_a_click_sorts_by_value_and_a_third_one_restores(browser: Browser, page: Path, trio: Path) -> None:
    browser.open(page)
    rows = headline(load_runs(trio))
    given = [row.label for row in rows]
    button = heading("table.headline", "NLL", browser)
    for direction in ("ascending", "descending", "none"):  # less is better, so the least is first
        browser.click(button)
        values = [float(text.split()[0]) for text in browser.ask(column("table.headline", "NLL"))]
        names = browser.ask(column("table.headline", "Method"))
        state = browser.ask(f"document.querySelector({json.dumps(button)}).parentNode.ariaSort")
        assert state == direction
        if direction == "none":
            assert names == given
        else:
            assert values == sorted(values, reverse=direction == "descending")
            assert {row.label: row.cells["nll"].text.split()[0] for row in rows} == {
                n: f"{v:.3f}" for n, v in zip(names, values, strict=True)
            }


def test_bytes_are_sorted_by_size_and_names_as_people_count(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.click(heading("table.headline", "Bytes", browser))
    sizes = browser.ask("[...document.querySelectorAll('table.headline td[data-v]')].map(c => Number(c.dataset.v))")
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == 3
    browser.click(heading("table.clients", "Client", browser))
    numbers = [int(name.removeprefix("hospital ")) for name in browser.ask(column("table.clients", "Client"))]
    assert numbers == sorted(numbers)


def test_what_was_not_measured_is_last_in_both_directions(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.ask("document.querySelector('table.clients').tBodies[0].rows[3].cells[2].textContent = '–'")
    method = browser.ask("document.querySelector('table.clients thead th:nth-child(3)').innerText")
    for sign in (-1, 1):
        browser.click(heading("table.clients", method, browser))
        texts = browser.ask(column("table.clients", method))
        assert texts[-1] == "–"
        values = [sign * float(re.split(r"\s", text)[0]) for text in texts[:-1]]
        assert all(a <= b for a, b in pairwise(values))


@pytest.mark.parametrize("key", ["Enter", " "])
def test_the_keyboard_sorts(browser: Browser, page: Path, key: str) -> None:
    browser.open(page)
    browser.ask("document.querySelector('table.headline thead th:last-child button').focus()")
    browser.press(key, "\r" if key == "Enter" else " ")
    assert browser.ask("document.querySelector('table.headline thead th:last-child').ariaSort") == "descending"
    assert browser.ask("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_the_hint_goes_when_the_end_is_reached(browser: Browser, page: Path) -> None:
    browser.open(page, 390)
    hidden = "(b => b.previousElementSibling.hidden)(document.querySelector('table.headline').parentNode)"
    assert browser.ask(hidden) is False
    assert browser.ask("document.querySelector('table.headline').parentNode.tabIndex") == 0
    browser.ask(
        "document.querySelector('table.headline').parentNode.scrollLeft = 1e6, new Promise(r => setTimeout(r, 200))"
    )
    assert browser.ask(hidden) is True


@pytest.mark.parametrize("name", ["page", "two"])
def test_paper_is_wide_enough(browser: Browser, request: pytest.FixtureRequest, name: str) -> None:
    browser.open(request.getfixturevalue(name), A4)
    browser.call("Emulation.setEmulatedMedia", media="print")
    try:
        assert browser.ask("document.documentElement.scrollWidth") <= A4
        assert browser.ask("[...document.querySelectorAll('nav, .more')].filter(e => e.offsetHeight).length") == 0
    finally:
        browser.call("Emulation.setEmulatedMedia", media="")


@pytest.mark.parametrize("text", EVIL)
def test_labels_stay_words(browser: Browser, tmp_path: Path, text: str) -> None:
    """No script of a label runs, nothing is asked for, and no policy has to step in."""
    page = write_report(poisoned(tmp_path / "run", text), tmp_path / "page.html")
    browser.console.clear()
    browser.asked.clear()
    browser.open(page)
    assert browser.console == []
    assert browser.asked == [page.as_uri()]
    assert browser.ask("document.scripts.length + document.styleSheets.length + document.images.length") == 2


def test_it_is_whole_without_its_script(browser: Browser, page: Path) -> None:
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(page)
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)
    assert browser.ask("document.querySelectorAll('button').length") == 0
    assert browser.ask("document.querySelectorAll('table.headline tbody tr').length") == 3


def test_a_script_that_got_into_the_page_would_not_run(browser: Browser, page: Path, tmp_path: Path) -> None:
    """The second lock behind escaping: the page's own policy."""
    text = page.read_text(encoding="utf-8").replace("<footer>", "<script>document.title = 'taken'</script><footer>")
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    browser.open(tmp_path / "page.html")
    assert browser.ask("document.title") != "taken"
    assert "Content Security Policy" in " ".join(browser.console)


@pytest.mark.parametrize("dark", [False, True])
def test_words_stand_out_from_what_is_behind_them(browser: Browser, page: Path, dark: bool) -> None:
    """Contrast of 4.5 for text (WCAG 2.2, AA), tints and marks included."""
    browser.open(page, dark=dark)
    low = browser.ask(CONTRAST)
    assert low == []


CONTRAST = """(() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
  const over = colours => {
    canvas.clearRect(0, 0, 1, 1);
    for (const c of colours) { canvas.fillStyle = c; canvas.fillRect(0, 0, 1, 1); }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = rgb => rgb.map(v => v / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, k) => sum + v * [.2126, .7152, .0722][k], 0);
  const behind = e => { const all = []; for (; e; e = e.parentElement) all.unshift(getComputedStyle(e).backgroundColor);
    return all; };
  const found = [];
  for (const e of document.querySelectorAll("th, td, p, li, dt, dd, a, summary, h1, h2, h3, .sd, .hint, svg text")) {
    if (!e.textContent.trim()) continue;
    const style = getComputedStyle(e), under = behind(e);
    const a = light(over([...under, e instanceof SVGElement ? style.fill : style.color])), b = light(over(under));
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    const what = `${e.tagName}.${e.getAttribute("class")} ${e.textContent.trim().slice(0, 20)}`;
    if (ratio < 4.5) found.push(`${what} ${ratio.toFixed(2)}`);
  }
  return [...new Set(found)].slice(0, 12);
})()"""
