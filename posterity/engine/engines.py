"""All engines by name, and where one of your own is found. What an engine is: `api.py`."""

from __future__ import annotations

from posterity.core.outside import find_outside
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


def find_engine(name: str) -> Engine:
    """The engine of that name; `package.module:attribute` is one of your own, or a class of them."""
    if ":" not in name:
        if name not in ENGINES:
            raise ValueError(f"engine {name!r} is unknown; possible: auto, {', '.join(ENGINES)}")
        return ENGINES[name]
    found, _ = find_outside(name, "engine")
    engine = found() if isinstance(found, type) else found
    if not isinstance(engine, Engine):
        raise ValueError(
            f"{name!r} is not an engine: it must have a name and the functions offer, join, visit, predict"
        )
    return engine


__all__ = ["ENGINES", "find_engine"]
