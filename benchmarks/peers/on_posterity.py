"""posterity, set up as `posterity run` does it: `auto` chooses the engine and the way to convolve."""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from workload import CLASSES, SHAPE, Outcome, Workload, main, make_data, make_network

from posterity.data.federation import Federation, Part
from posterity.engine.blocks import able
from posterity.engine.cache import TraceCache
from posterity.engine.round import first_state, train_round
from posterity.engine.store import Store
from posterity.experiment.setup import Setup, set_up
from posterity.settings.config import Config


def make_federation(work: Workload) -> Federation:
    x, y = make_data(work)
    rows = torch.arange(work.clients * work.images)
    part = Part.of(list(rows.split(work.images)))
    nothing = Part(rows[:0], part.offsets * 0)
    names = tuple(str(k) for k in range(work.clients))
    pool = x.reshape(-1, *SHAPE), y.flatten()
    return Federation("synthetic", "classification", *pool, CLASSES, part, nothing, nothing, work.clients, names)


def make_setup(work: Workload, traces: TraceCache | None = None) -> Setup:
    """The run's own set-up, with the first weights that all peers have; `traces` other than its own, if given."""
    config = Config(method="fedavg", model=work.network, rounds=work.rounds, local_epochs=1, batch_size=work.batch,
                    lr=work.lr, optimiser="sgd", seed=work.seed)  # fmt: skip
    made = set_up(config, make_federation(work))
    start = {n: p.detach().clone() for n, p in make_network(work).named_parameters()}
    if {n: p.shape for n, p in start.items()} != {n: p.shape for n, p in made.sim.initial.items()}:
        raise ValueError(f"the plain {work.network} is not posterity's: their parameters differ")
    traces = made.sim.traces if traces is None else traces
    return replace(made, sim=replace(made.sim, initial=start, traces=traces))


def play(setup: Setup, work: Workload) -> Outcome:
    """The rounds, with everybody in each."""
    sim, seconds = setup.sim, []
    state, store, everyone = first_state(sim), Store(sim.federation.clients), able(sim)
    begun = time.time()
    for number in range(1, work.rounds + 1):
        since = time.perf_counter()
        state, _ = train_round(sim, setup.engine, state, store, everyone, number, work.rounds)
        seconds.append(time.perf_counter() - since)
    module = make_network(work)
    module.load_state_dict(state.params)
    way = f", convolutions {sim.model.conv_backend}" if setup.remark else ""
    return Outcome(begun, seconds, module, f"engine {setup.engine.name}{way}; {setup.remark}".rstrip("; "))


def simulate(work: Workload) -> Outcome:
    return play(make_setup(work), work)


if __name__ == "__main__":
    main("posterity", simulate, "posterity")
