"""What `test_cuda.py` asks of a GPU can be begun at all: machines without one skip that file and would not notice."""

from __future__ import annotations

import pytest

from posterity.engine.round import first_state
from posterity.experiment.setup import set_up
from posterity.settings.config import from_table

from .test_cuda import COMPILED, SMALL


@pytest.mark.parametrize("method", sorted({method for method, _ in COMPILED}))
def test_every_method_begins_with_these_settings(method):
    setup = set_up(from_table({**SMALL, "method": method, "model": "mlp", "engine": "stacked", "lr": 0.01}))
    assert first_state(setup.sim) is not None
