"""The law of withheld classes names a declaration that lacks something, whatever form the statistics have."""

from __future__ import annotations

import pytest

from posterity import methods
from posterity.laws import LawBroken, make_case
from posterity.laws.withheld import find_rare, law_withholding

MORE = [
    ("pfedvmp", {}, "the row of this class in 'classes'"),
    ("pfedvmp", {"features": ("classes",)}, "'spread' is made of 'features'"),
    ("fedpac", {"before": ("clients",)}, "'after', which is by class"),
    ("fedpac", {"after": ("prototypes",)}, "'before', which is by class"),
]


@pytest.mark.parametrize(
    ("spec", "declared", "told"),
    [
        ("fedproto", {}, "'features', which is by class"),
        ("fedproto", {"features": ()}, "'prototypes' is made of 'features', but class_statistics lists"),
        *(pytest.param(*each, marks=pytest.mark.everything) for each in MORE),
    ],
)
def test_a_declaration_that_lacks_something_is_named(spec, declared, told, monkeypatch):
    method = methods.build(spec)
    monkeypatch.setattr(type(method), "class_statistics", declared)
    with pytest.raises(LawBroken, match=told):
        law_withholding(make_case(method))


def test_the_class_that_is_looked_at_is_rare():
    federation = make_case(methods.build("fedavg")).federation
    found = find_rare(federation, (3, 0))  # client 3 has one class
    assert found.client == 0
    assert set(federation.y[found.rows].tolist()) == {found.label}
    assert found.least > len(found.rows) > 0
