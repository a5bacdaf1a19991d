"""Every numbered equation of a method stands in its own file or folder, or the docstring says why not.

A line of code that is an equation ends in `# (9)`, or in `# (9), (10)` if it is several; words may follow. A number may
stand wherever it is used, as often as that helps. What a docstring displays with its number is computed. For the five
papers that have a specification the table goes from the first equation to the last of the method section: a number that
is not computed has its reason there, and then the docstring of the method speaks about the number.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter

import pytest

from .source import papers

FILES = papers()
NOT_COMPUTED = {
    "fedbps": {"1": "the problem"},
    "fedmap": {},
    "fednp": {
        "2": "EP in general; (5) is its case",
        "3": "EP in general; (4) is its case",
        "4": "the exact posterior, which is approximated",
        "7": "the tilted density: only its moments are needed",
        "11": "replaced by an update without a division: erratum N4",
        "12": "wrong: errata N1 and N4",
        "13": "the normaliser: only its derivatives are needed",
        "14": "the cavity of C, whose moments are (15)",
    },
    "metavd": {"1": "the host's objective", "2": "the sum over clients: each descends on its own term, (4)"},
    "pfedvmp": {
        "1": "the problem",
        "2": "the problem, approximated",
        "3": "the form of the approximation",
        "5": "the mixture: its parts are treated one by one",
        "6": "cavities: the loss has no use for them",
        "7": "the client's problem",
        "8a": "the client's problem, with a surrogate",
        "8b": "the surrogate, whose logarithm is (9)",
    },
}
SECTION = {"fedbps": 5, "fedmap": 9, "fednp": 19, "metavd": 5, "pfedvmp": 13}  # last equation of the method section
APPENDIX = {"fednp": ("27", "28", "33", "37", "44", "45", "47")}  # further equations that are computed
NUMBERS = re.compile(r"# (\(\d+[a-z]?\)(?:, \(\d+[a-z]?\))*)")
LETTERS = re.compile(r"# (\([a-z]\)(?:, \([a-z]\))*)")
DODGE = re.compile(r"#.*\beqs?\. ?\(?\d")
BLANK = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


def comments(text: str) -> list[str]:
    """What follows code on its line; docstrings and comments on lines of their own do not count."""
    found, coded = [], set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and token.start[0] in coded:
            found.append(token.string)
        if token.type not in BLANK:
            coded.add(token.end[0])
    return found


def stated(text: str, pattern: re.Pattern[str] = NUMBERS) -> Counter[str]:
    """How often each number ends a line of code."""
    groups = [group for comment in comments(text) for group in pattern.findall(comment)]
    return Counter(number for group in groups for number in re.findall(r"\((\w+)\)", group))


def computed(method: str, pattern: re.Pattern[str] = NUMBERS) -> set[str]:
    """The numbers in the code of a method's file or folder."""
    return set().union(*(stated(file.read_text(encoding="utf-8"), pattern) for file in FILES[method]))


def docstring(text: str) -> str:
    return ast.get_docstring(ast.parse(text)) or ""


def mentioned(text: str) -> set[str]:
    """Numbers that the docstring of a file speaks about."""
    return set(re.findall(r"\((\d+[a-z]?)\)", docstring(text)))


def displayed(text: str, pattern: re.Pattern[str] = NUMBERS) -> set[str]:
    """Numbers at the end of a line of the docstring."""
    groups = [group for line in docstring(text).splitlines() for group in pattern.findall(line)]
    return {number for group in groups for number in re.findall(r"\((\w+)\)", group)}


def section(paper: str) -> list[str]:
    """The equations of a method section, (8a) and (8b) counting as one."""
    parts = {n.rstrip("ab"): n for n in NOT_COMPUTED[paper]}
    plain = [str(n) for n in range(1, SECTION[paper] + 1) if str(n) not in parts]
    return [*plain, *NOT_COMPUTED[paper], *APPENDIX.get(paper, ())]


@pytest.mark.parametrize(("paper", "number"), [(p, n) for p in SECTION for n in section(p)])
def test_an_equation_stands_in_its_paper_or_the_docstring_says_why_not(paper, number):
    if number in NOT_COMPUTED[paper]:
        assert number not in computed(paper)
        assert number in mentioned(FILES[paper][0].read_text(encoding="utf-8"))
    else:
        assert number in computed(paper)


@pytest.mark.parametrize("paper", SECTION)
def test_no_line_has_a_number_that_is_not_in_the_paper(paper):
    assert computed(paper) <= set(section(paper))


@pytest.mark.parametrize("pattern", [NUMBERS, LETTERS], ids=["numbers", "letters"])
@pytest.mark.parametrize("method", FILES)
def test_what_a_docstring_displays_is_computed(method, pattern):
    shown = displayed(FILES[method][0].read_text(encoding="utf-8"), pattern)
    assert shown - set(NOT_COMPUTED.get(method, ())) <= computed(method, pattern)


@pytest.mark.parametrize("file", [file for files in FILES.values() for file in files], ids=lambda f: f.name)
def test_numbers_are_written_in_one_way(file):
    assert [c for c in comments(file.read_text(encoding="utf-8")) if DODGE.search(c)] == []


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("x = 1  # (9), (10)", ["10", "9"]),
        ("x = 1  # a word # (8b)", ["8b"]),
        ("x = 1  # (9) with (39)", ["9"]),
        ("x = f(\n    1,  # (2)\n)", ["2"]),
        ('x = """a\n# (3)\nb"""', []),
        ("# (3)\nx = 1", []),
        ("x = 1  # see (3)", []),
        ("x = 1  # (3)\ny = 2  # (3)", ["3"]),
    ],
)
def test_the_rule_itself(text, numbers):
    assert sorted(stated(text)) == numbers


@pytest.mark.parametrize(("comment", "dodges"), [("# eq. 11; E4", True), ("# (11); E4", False), ("# seq. 4", False)])
def test_a_dodge_is_seen(comment, dodges):
    assert bool(DODGE.search(comment)) == dodges


def test_a_docstring_is_read():
    text = '"""As in (4) and (8a).\n\n    y = f(x)    # (9)\n    z = y       # (b)\n"""\nx = 1  # (5)'
    assert mentioned(text) == {"4", "8a", "9"}
    assert displayed(text) == {"9"}
    assert displayed(text, LETTERS) == {"b"}
