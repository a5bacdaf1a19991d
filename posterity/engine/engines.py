"""All engines by name."""

from __future__ import annotations

from posterity.engine import loop, stacked
from posterity.engine.api import Engine
from posterity.engine.replay import compiled, graph
from posterity.engine.replay import loop as replayed_loop

ENGINES: dict[str, Engine] = {
    "loop": replayed_loop.LOOP,
    "stacked": stacked.STACKED,
    "graph": graph.GRAPH,
    "compiled": compiled.COMPILED,
    "oracle": loop.ORACLE,
}

__all__ = ["ENGINES"]
