"""Every numbered equation of the five papers' method sections stands once in the code, or the docstring says why not.

A line of code that is an equation ends in `# (9)`, or in `# (9), (10)` if it is several; words may follow. The tables
below go from the first equation of a paper to the last of its method section. They give the file where the number
stands or, for what is not computed, the reason, and then the docstring of the method's file speaks about the number.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter

import pytest

from .source import ROOT

METHODS, CORE = "posterity/methods", "posterity/core"
BPS, CURVATURE = f"{METHODS}/fedbps.py", f"{CORE}/curvature.py"
MAP = f"{METHODS}/fedmap.py"
NP, MOMENTS = f"{METHODS}/fednp.py", f"{CORE}/moments.py"
VD, DROPOUT = f"{METHODS}/wrappers/metavd.py", f"{CORE}/dropout.py"
VMP, CENTROIDS = f"{METHODS}/pfedvmp.py", f"{CORE}/centroids.py"
FILES = {"fedbps": (BPS, CURVATURE), "fedmap": (MAP,), "fednp": (NP, MOMENTS), "metavd": (VD, DROPOUT),
         "pfedvmp": (VMP, CENTROIDS)}  # fmt: skip
TABLES = {
    "fedbps": {"1": "the problem", "2": BPS, "3": BPS, "4": BPS, "5": BPS},
    "fedmap": {
        "1": MAP,
        "2": MAP,
        "3": MAP,
        "4": MAP,
        "5": MAP,
        "6": MAP,
        "7": MAP,
        "8": MAP,
        "9": MAP,
    },
    "fednp": {
        "1": NP,
        "2": "EP in general; (5) is its case",
        "3": "EP in general; (4) is its case",
        "4": "the exact posterior, which is approximated",
        "5": NP,
        "6": NP,
        "7": "the tilted density: only its moments are needed",
        "8": MOMENTS,
        "9": MOMENTS,
        "10": MOMENTS,
        "11": "replaced by an update without a division: erratum N4",
        "12": "wrong: errata N1 and N4",
        "13": MOMENTS,
        "14": "the cavity of C, whose moments are (15)",
        "15": MOMENTS,
        "16": MOMENTS,
        "17": NP,
        "18": NP,
        "19": NP,
        "27": MOMENTS,
        "28": MOMENTS,
        "33": MOMENTS,
        "37": MOMENTS,
        "44": MOMENTS,
        "45": MOMENTS,
        "47": NP,
    },
    "metavd": {
        "1": "the host's objective",
        "2": "the sum over clients: each descends on its own term, (4)",
        "3": VD,
        "4": VD,
        "5": VD,
    },
    "pfedvmp": {
        "1": "the problem",
        "2": "the problem, approximated",
        "3": "the form of the approximation",
        "4": CENTROIDS,
        "5": "the mixture: its parts are treated one by one",
        "6": "cavities: the loss has no use for them",
        "7": "the client's problem",
        "8a": "the client's problem, with a surrogate",
        "8b": "the surrogate, whose logarithm is (9)",
        "9": VMP,
        "10": VMP,
        "11": CENTROIDS,
        "12": VMP,
        "13": CENTROIDS,
    },
}  # fmt: skip
SECTION = {"fedbps": 5, "fedmap": 9, "fednp": 19, "metavd": 5, "pfedvmp": 13}  # last equation of the method section
NUMBERS = re.compile(r"# (\(\d+[a-z]?\)(?:, \(\d+[a-z]?\))*)")
BLANK = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


def stated(text: str) -> Counter[str]:
    """How often each number ends a line of code; docstrings and comments on lines of their own do not count."""
    found: Counter[str] = Counter()
    coded = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and token.start[0] in coded:
            for group in NUMBERS.findall(token.string):
                found.update(re.findall(r"\((\w+)\)", group))
        if token.type not in BLANK:
            coded.add(token.end[0])
    return found


def places(paper: str) -> dict[str, list[str]]:
    """The files in which each number stands, once for each time."""
    found: dict[str, list[str]] = {}
    for file in FILES[paper]:
        for number, times in stated((ROOT / file).read_text(encoding="utf-8")).items():
            found.setdefault(number, []).extend([file] * times)
    return found


def mentioned(text: str) -> set[str]:
    """Numbers that the docstring of a file speaks about."""
    return set(re.findall(r"\((\d+[a-z]?)\)", ast.get_docstring(ast.parse(text)) or ""))


@pytest.mark.parametrize(("paper", "number"), [(p, n) for p, table in TABLES.items() for n in table])
def test_an_equation_stands_once(paper, number):
    where, found = TABLES[paper][number], places(paper).get(number, [])
    if where.endswith(".py"):
        assert found == [where]
    else:
        assert found == []
        assert number in mentioned((ROOT / FILES[paper][0]).read_text(encoding="utf-8"))


@pytest.mark.parametrize("paper", TABLES)
def test_the_tables_are_complete(paper):
    """No equation of the section is missing here, and no line has a number that is not here."""
    assert {int(n.rstrip("ab")) for n in TABLES[paper]} >= set(range(1, SECTION[paper] + 1))
    assert set(places(paper)) <= set(TABLES[paper])


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
    ],
)
def test_the_rule_itself(text, numbers):
    assert sorted(stated(text)) == numbers


def test_a_docstring_is_read():
    assert mentioned('"""As in (4) and (8a).  # (9)"""\nx = 1  # (5)') == {"4", "8a", "9"}
