"""Names out of somebody else's file never command the terminal."""

from __future__ import annotations

import pytest

from posterity.settings.text import plain

HOSTILE = [
    ("\x1b[2J\x1b[H", "\\x1b[2J\\x1b[H"),  # clears the screen
    ("a\rb\nc\td", "a\\x0db\\x0ac\\x09d"),  # rewrites the line, begins another
    ("\x9b31m", "\\x9b31m"),  # the escape of one byte
    ("\x07\x08\x00\x7f", "\\x07\\x08\\x00\\x7f"),
    ("gpj.\u202eexe", "gpj.\\u202eexe"),  # reads backwards
    ("\u2028", "\\u2028"),
    ("\udcff", "\\udcff"),  # a file name that is no UTF-8: printing it would raise
]


@pytest.mark.parametrize(("name", "shown"), HOSTILE)
def test_what_a_terminal_would_obey_is_shown_instead(name: str, shown: str) -> None:
    assert plain(name) == shown
    plain(name).encode()  # can be printed


@pytest.mark.parametrize(
    "name", ["Krankenhaus Süd", "病院", "عيادة", "clinique n° 3 – été", "[bold]x[/bold]", "a\\x1bb", "🏥"]
)
def test_names_of_people_stay_as_they_are(name: str) -> None:
    assert plain(name) == name


def test_lines_of_a_message_stay_where_they_are_asked_to() -> None:
    assert plain("first\n\x1bsecond", keep="\n") == "first\n\\x1bsecond"
