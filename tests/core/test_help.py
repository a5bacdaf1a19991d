"""`help()` says what every field of the protocol's records is."""

from __future__ import annotations

import pydoc
import re

import pytest

from posterity import core


@pytest.mark.parametrize("name", ["Here", "Carry", "Batch", "Pass", "Facts", "Now", "Method"])
def test_every_field_is_explained(name):
    record = getattr(core, name)
    shown = pydoc.render_doc(record, renderer=pydoc.plaintext)
    explained = re.findall(
        r"^ \|?\s{6,}(\w+): \S", shown.partition("Attributes:")[2].partition("Method resolution")[0], re.M
    )
    assert explained == list(record.__annotations__)
