"""`posterity methods`: a table of all there is, and everything about one."""

from __future__ import annotations


def test_the_table_lists_names(call):
    out = call("methods")[1]
    assert "ensemblevd" in out
    assert "reptile+metavd" in call("methods", "vd")[1]
