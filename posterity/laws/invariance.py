"""Laws about company: engine, order, blocks, neighbours, padding and other seeds leave no trace in a client's work."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from posterity.core.messages import fold_stack
from posterity.core.network import bind
from posterity.core.protocol import POINTS, Batch
from posterity.core.tree import Tree, tree_bytes, tree_named, tree_rows
from posterity.core.wrapper import Wrapper
from posterity.engine.batches import BuildBatch, build_batch
from posterity.engine.blocks import blocks
from posterity.engine.cache import TraceCache
from posterity.engine.engines import STACKED
from posterity.engine.round import Question, answer, first_state, moment, train_round
from posterity.engine.seeds import MultiSeed, answers, train_rounds
from posterity.engine.simulation import Simulation
from posterity.engine.store import Store
from posterity.laws.case import (
    COHORTS,
    SCORED,
    Case,
    RoundHistory,
    assert_close,
    history,
    one_round,
    outputs,
    renumbered,
    run,
    some_order,
)
from posterity.laws.draws import keys_of_run
from posterity.laws.law import law

HUGE = 1e4
FEW = (3, 8)  # of 8 samples (one class) and of 11: mostly as many steps, and one recording is enough for both
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
    stores, others = ([Store(sim.federation.clients) for sim in sims] for _ in range(2))
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
    for point, newcomers in (("trained", False), ("adapted", True)):
        clients = range(case.federation.members, case.federation.clients) if newcomers else SCORED
        asked = [Question(torch.tensor(list(clients)), some, point, newcomers=newcomers) for some in parts]
        outputs = answers(multi, engine, together, stores, asked, 2)
        for i, sim in enumerate(sims):
            alone = answer(sim, engine, apart[i], others[i], asked[i], 2)
            assert_close(outputs[i], alone, f"predictions of seed {SEEDS[i]}, {point}", case.slack)


def _simulation(case: Case, seed: int) -> Simulation:
    federation = renumbered(case.federation, some_order(case.federation.members, seed))
    model, initial = bind(case.model, case.model.init(seed, case.dtype))
    return replace(case.sim(seed=seed), model=model, initial=initial, federation=federation)


def _left(state: Tree, store: Store) -> Tree:
    return {"state": state, "records": store.rows, "known": store.known}


def visit(done: RoundHistory, index: int) -> Tree:
    return tree_rows({"message": done.sent, "record": done.records}, index)


def same_visits(case: Case, left: RoundHistory, right: RoundHistory, where: str) -> None:
    for i, client in enumerate(left.clients.tolist()):
        assert_close(visit(left, i), visit(right, i), f"{where}, client {client}", case.slack)


def agree(case: Case, left: RoundHistory, right: RoundHistory, where: str) -> None:
    for what in ("sent", "records", "rows", "state"):
        assert_close(getattr(left, what), getattr(right, what), f"{where}, {what}", case.slack)


@law(
    "engines",
    "One client at a time and all clients stacked give the same messages, records, states and predictions.",
    "a mean over a batch that ignores batch.mask, a draw whose first axis is not the batch, `if` on a tensor, or a "
    "statistic over rows in predict. Use core.losses.masked_mean; draw with the batch axis first.",
)
def law_engines(case: Case) -> None:
    ones, many = history(case, "oracle"), history(case, "stacked")
    for number, (left, right) in enumerate(zip(ones.rounds, many.rounds, strict=True), 1):
        same_visits(case, left, right, f"loop and stacked, round {number}")
        agree(case, left, right, f"loop and stacked, round {number}")
    for point in POINTS:
        alone, together = (outputs(case, engine, point) for engine in ("oracle", "stacked"))
        assert_close(alone, together, f"predictions of loop and stacked, {point}", case.slack)


@law(
    "order",
    "The order in which the clients of a cohort are met and added up does not matter.",
    "a message kind whose `+` or `fold` is not symmetric (a running average, 'the last one wins'). Use Mean with a "
    "weight, or Bag, which keeps everything in the order of the clients.",
)
def law_order(case: Case) -> None:
    made, sim = history(case, "stacked"), case.sim()
    for number, done in enumerate(made.rounds, 1):
        state, _ = made.before(number)
        now = moment(sim, number, len(COHORTS), len(done.clients))
        straight = case.method.combine(state, fold_stack(done.sent), now)
        for turn in range(3):
            order = some_order(len(done.clients), turn) if turn else torch.arange(len(done.clients)).flip(0)
            mixed = case.method.combine(state, fold_stack(tree_rows(done.sent, order)), now)
            assert_close(mixed, straight, f"round {number}, messages added in order {order.tolist()}", case.slack)
    again = one_round(sim, "stacked", *made.before(2), COHORTS[1][::-1], 2)
    agree(case, again, made.at(2), "round 2, cohort given backwards")


@law(
    "blocks",
    "A cohort that is cut into several stacks ends like one stack.",
    "`+` of the message kind does something else than its `fold`. Both must add the same way.",
)
def law_blocks(case: Case) -> None:
    made, sim = history(case, "stacked"), case.sim()
    cohort, passes = torch.tensor(COHORTS[1]), case.method.passes()
    memory = 16 * tree_bytes(sim.initial)
    while len(list(blocks(replace(sim, memory=memory), cohort, passes))) == 1 and memory > 1:
        memory //= 2
    while len(list(blocks(replace(sim, memory=memory), cohort, passes))) > 3:
        memory *= 2
    for number in (1, 2):
        cut = one_round(replace(sim, memory=memory), "stacked", *made.before(number), COHORTS[number - 1], number)
        agree(case, cut, made.at(number), f"round {number}, cut into blocks")


@law(
    "company",
    "A client's message and record are the same alone or stacked with others.",
    "padding that counts (a batch is as wide as its largest client), or a draw whose shape has the batch axis last. "
    "Mask every sum over a batch; draw with the batch axis first.",
)
def law_company(case: Case) -> None:
    made, sim = history(case, "stacked"), case.sim()
    for number in (1, 2):
        done = made.at(number)
        for i, client in enumerate(done.clients.tolist()):
            if number == 1 or client in (1, 5, 8):
                alone = one_round(sim, "stacked", *made.before(number), [client], number)
                where = f"round {number}, client {client} alone and in company"
                assert_close(visit(alone, 0), visit(done, i), where, case.slack)


def fill_padding(scale: float) -> BuildBatch:
    """`build_batch`, whose padding holds other samples, or huge numbers."""

    def build(x: Tensor, y: Tensor, rows: Tensor, real: Tensor, dtype: torch.dtype, padded: bool = True) -> Batch:
        batch = build_batch(x, y, rows, real, dtype, padded)
        other = (rows * 7 + 3) % len(x)
        inside = real.reshape(real.shape + (1,) * (batch.x.dim() - real.dim()))
        filled = torch.where(inside, batch.x, scale * x[other])
        return replace(batch, x=filled, y=torch.where(real, batch.y, y[other]))

    return build


@law(
    "mask",
    "What lies behind the mask has no influence.",
    "a mean, count or statistic over batch rows without batch.mask. Use core.losses.masked_mean, and hand the mask "
    "to the model: here.model(params, batch.x, mask=batch.mask, train=True, key=here.key).",
)
def law_mask(case: Case) -> None:
    made, sim = history(case, "stacked"), case.sim()
    for words, scale in (("other samples", 1.0), ("huge numbers", HUGE)):
        padded = replace(sim, build=fill_padding(scale))
        for number in (1, 2):
            done = one_round(padded, "stacked", *made.before(number), COHORTS[number - 1], number)
            same_visits(case, done, made.at(number), f"padding filled with {words}, round {number}")


@dataclass(frozen=True)
class FullBatch(Wrapper):
    def passes(self) -> Any:
        return tuple(replace(p, batch=None, shuffle=False) for p in self.inner.passes())


@law(
    "recording",
    "Recorded once and replayed, every function computes what it computes when it is called.",
    "something that is read outside the tensors, such as float(tensor), a global or a generator: a recording keeps the "
    "value that it had. Compute with tensors, and take what changes from `here`.",
)
def law_recording(case: Case) -> None:
    twice = [FEW, FEW]  # the second round replays what the first recorded, with other numbers
    sim = replace(case.sim(), traces=TraceCache(patience=0))
    called = run(case.sim(), "stacked", twice)
    for number, (one, other) in enumerate(zip(run(sim, "graph", twice).rounds, called.rounds, strict=True), 1):
        same_visits(case, one, other, f"replayed, round {number}")
        assert_close(one.state, other.state, f"replayed, state after round {number}", case.slack)


@law(
    "renumbering",
    "Other numbers for the same clients change nothing but the numbers (all data in one batch, no noise).",
    "arithmetic with here.client. It is a name: fold it into a key or look up a row with it, nothing else.",
)
def law_renumbering(case: Case) -> None:
    members = case.federation.members
    order = some_order(members, 7)  # client j is now what order[j] was
    sim = case.sim(method=FullBatch(case.method))
    uneven = any(bool((table != table[:1]).any()) for table in _tables(first_state(sim), members).values())
    if keys_of_run(case, case.seed).keys or uneven:
        return  # draws depend on the number, and so do rows that started differently
    place = torch.argsort(order)
    cohort = COHORTS[1]
    plain = run(sim, "stacked", [cohort]).rounds[0]
    moved_sim = replace(sim, federation=renumbered(case.federation, order))
    moved = run(moved_sim, "stacked", [place[list(cohort)].tolist()]).rounds[0]
    assert_close(tree_rows(moved.rows, place), plain.rows, "records", case.slack)
    turned = {**dict(tree_named(moved.state)), **{n: t[place] for n, t in _tables(moved.state, members).items()}}
    assert_close(turned, dict(tree_named(plain.state)), "state after one round", case.slack)


def _tables(state: Tree, members: int) -> dict[str, Tensor]:
    leaves = ((n, leaf) for n, leaf in tree_named(state) if not n.startswith("params"))
    return {name: leaf for name, leaf in leaves if leaf.dim() and len(leaf) == members}
