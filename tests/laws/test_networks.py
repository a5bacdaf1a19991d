"""Every law with wrappers and with other networks than the plain MLP."""

from __future__ import annotations

import pytest

from .cases import subject_of, under_laws


@pytest.mark.parametrize(("case", "law"), under_laws(lambda name, model: model != "mlp" or "+" in name))
def test_law(case, law):
    law.function(subject_of(case))
