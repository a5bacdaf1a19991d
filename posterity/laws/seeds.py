"""A law about seeds: running several at once changes none of them."""

from __future__ import annotations

from dataclasses import replace

import torch

from posterity.core.frozen import bind
from posterity.core.tree import Tree
from posterity.engine.multi_seed import MultiSeed
from posterity.engine.round import Question, answer, first_state, train_round, train_rounds
from posterity.engine.simulation import Simulation
from posterity.engine.stacked import STACKED
from posterity.engine.store import Memory
from posterity.laws.assertions import assert_close
from posterity.laws.case import COHORTS, SCORED, Case, renumbered, some_order
from posterity.laws.law import law

SEEDS = (0, 5)


@law(
    "seeds",
    "Several seeds at once end like each of them by itself.",
    "something that is common to all clients but reaches a client function by another way than `here`, such as a field "
    "of the method that holds tensors, or a table in State whose size depends on the cohort. Offer it.",
)
def law_seeds(case: Case) -> None:
    sims = [_simulation(case, seed) for seed in SEEDS]
    multi, engine = MultiSeed.of(sims), STACKED
    together, apart = ([first_state(sim) for sim in sims] for _ in range(2))
    stores, others = ([Memory(sim.federation.clients) for sim in sims] for _ in range(2))
    for number in (1, 2):
        cohorts = [torch.tensor(COHORTS[(number - 1 + seed) % len(COHORTS)]) for seed in SEEDS]
        ends = train_rounds(multi, engine, together, stores, cohorts, number, len(COHORTS))
        together = [state for state, _ in ends]
        for i, sim in enumerate(sims):
            apart[i], log = train_round(sim, engine, apart[i], others[i], cohorts[i], number, len(COHORTS))
            where = f"seed {SEEDS[i]}, round {number}"
            assert_close(_left(together[i], stores[i]), _left(apart[i], others[i]), where, case.slack)
            assert_close(torch.tensor(ends[i][1].loss), torch.tensor(log.loss), f"{where}, loss", case.slack)
    parts = [(sim.federation.validation, sim.federation.test) for sim in sims]
    for point, newcomers in (("received", False), ("adapted", False), ("trained", False), ("adapted", True)):
        clients = range(case.federation.members, case.federation.clients) if newcomers else SCORED
        asked = [Question(torch.tensor(list(clients)), some, point, newcomers=newcomers) for some in parts]
        outputs = answer(multi, engine, together, stores, asked, 2)
        for i, sim in enumerate(sims):
            alone = answer(MultiSeed.of([sim]), engine, [apart[i]], [others[i]], [asked[i]], 2)[0]
            assert_close(outputs[i], alone, f"predictions of seed {SEEDS[i]}, {point}", case.slack)


def _simulation(case: Case, seed: int) -> Simulation:
    """A simulation with other draws, another first network and another partition."""
    federation = renumbered(case.federation, some_order(case.federation.members, seed))
    model, initial = bind(case.model, case.model.init(seed, case.dtype))
    return replace(case.sim(seed=seed), model=model, initial=initial, federation=federation)


def _left(state: Tree, store: Memory) -> Tree:
    return {"state": state, "records": store.rows, "known": store.known}
