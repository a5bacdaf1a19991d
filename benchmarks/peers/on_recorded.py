"""posterity from the round on in which a long run records its operators: here the first, which is not counted."""

from __future__ import annotations

from on_posterity import make_setup, play
from workload import Outcome, Workload, main

from posterity.engine.cache import TraceCache


def simulate(work: Workload) -> Outcome:
    return play(make_setup(work, TraceCache(patience=0)), work)


if __name__ == "__main__":
    main("recorded", simulate, "posterity")
