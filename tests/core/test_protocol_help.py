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
    listed = re.split(r"^ \|?\s*$", shown.partition("Attributes:\n")[2], maxsplit=1, flags=re.M)[0]
    explained = re.findall(r"^ \|?\s{6,}(\w+): \S", listed, re.M)
    assert explained == list(record.__annotations__)
