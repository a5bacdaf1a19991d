"""Every law with wrappers and with other networks than the plain MLP."""

from __future__ import annotations

import pytest

from .cases import case_named, under_laws


@pytest.mark.parametrize(("case", "law"), under_laws(lambda name, model: model != "mlp" or "+" in name))
def test_law(case, law):
    law.function(case_named(case))
