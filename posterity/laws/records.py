"""Laws about what lasts: records, states, refused messages, scoring and resuming."""

from dataclasses import replace

import torch
from safetensors.torch import load, save
from torch import Tensor

from posterity.core.messages import Message, Rows
from posterity.core.protocol import POINTS, Personal
from posterity.core.tree import Tree, tree_filled, tree_leaves, tree_map, tree_named, tree_rows
from posterity.engine.blocks import receive_stack
from posterity.engine.engines import ORACLE
from posterity.engine.round import first_state
from posterity.engine.store import Store
from posterity.laws.case import (
    COHORTS,
    SCORED,
    Broken,
    Case,
    Change,
    RoundHistory,
    assert_close,
    assert_same_bits,
    history,
    one_round,
    outputs,
    predictions,
    run,
    shapes,
)
from posterity.laws.law import law
from posterity.laws.purity import snapshot, unchanged

# -5000 and -5000.001 are different weights; entries of a sum of matrices hold precisions of all sizes
EXACT = {"log_weight", "matrix"}


@law(
    "absent",
    "The records of absent clients do not change in a single bit, nor do their rows in a state that remembers them.",
    "combine builds a new table and forgets the old rows. Use total[...].into(state.table), which replaces the rows "
    "that arrived and keeps the others.",
)
def law_absent(case: Case) -> None:
    for engine in ("oracle", "stacked"):
        made = history(case, engine)
        for number, done in enumerate(made.rounds, 1):
            state, store = made.before(number)
            absent = [c for c in range(case.federation.members) if c not in COHORTS[number - 1]]
            if bool((store.known[absent] != done.known[absent]).any()):
                raise Broken(f"round {number}, {engine}: a client that was absent has a record now")
            old = [c for c in absent if bool(store.known[c])]
            if old:
                now, then = tree_rows(done.rows, old), tree_rows(store.rows, old)
                assert_same_bits(now, then, f"round {number}, {engine}, records of the absent clients {old}")
            if "remembered" in case.method.absent:
                _tables(done.sent, state, done.state, absent, f"round {number}, {engine}")


def _tables(sent: Message, before: Tree, after: Tree, absent: list[int], where: str) -> None:
    """Tables of the state that hold what `Rows` brings: rows of absent clients stay."""
    sizes = {tuple(v.shape[1:]) for part in sent.values() if isinstance(part, Rows) for v in tree_leaves(part.value)}
    for (name, table), (_, now) in zip(tree_named(before), tree_named(after), strict=True):
        if not name.startswith("params") and table.dim() and len(table) > max(absent) and table.shape[1:] in sizes:
            assert_same_bits(now[absent], table[absent], f"{where}, state {name!r}, rows of absent clients {absent}")


@law(
    "structure",
    "State and Personal keep names, order, shapes and kinds for ever; join and message return one structure; "
    "state.params holds the network's leaves.",
    "join returns () or {} and message something else, a dict rebuilt in another order, or a State without params. "
    "Build both from the same names in the same order, e.g. {n: new[n] for n in here.initial}.",
)
def law_structure(case: Case) -> None:
    sim, made = case.sim(), history(case, "stacked")
    params = getattr(made.first, "params", None)
    if not isinstance(params, dict) or not set(sim.model.leaves) <= set(params):
        raise Broken(f"state.params of the first state does not hold the leaves {list(sim.model.leaves)}")
    for name in sim.model.leaves:
        if params[name].shape != sim.initial[name].shape:
            raise Broken(f"state.params[{name!r}] has shape {tuple(params[name].shape)}, not the network's")
    here, _ = receive_stack(sim, ORACLE, made.first, Store(case.federation.members), torch.tensor(COHORTS[0]), 1)
    for number, done in enumerate(made.rounds, 1):
        pairs = {
            "state after": (made.first, done.state),
            "message of": (tree_rows(made.at(1).sent, 0), tree_rows(done.sent, 0)),
            "record of join and of message in": (tree_rows(here.personal, 0), tree_rows(done.records, 0)),
        }
        for what, (before, after) in pairs.items():
            if shapes(before) != shapes(after):
                raise Broken(f"{what} round {number}: the leaves were {shapes(before)} and are {shapes(after)}")


@law(
    "precision",
    "float32 in, float32 out: states, records, messages (but for log-weights and matrices) and predictions.",
    "a float64 tensor that meets the parameters (torch.tensor([2.0], dtype=float64) * p, numpy numbers, "
    "torch.where of two Python numbers). Cast to here.n.dtype, or to the leaf's own with .to(p).",
)
def law_precision(case: Case) -> None:
    thin = Case(case.method, case.model, case.federation.to("cpu", torch.float32), dtype=torch.float32)
    made = run(thin.sim(), "stacked", COHORTS[:2])
    thin.memory["trace stacked"] = made
    looked = {"state": made.state, "records": made.at(2).records, "messages": made.at(2).sent}
    looked["predictions"] = {point: outputs(thin, "stacked", point) for point in POINTS}
    for what, tree in looked.items():
        for name, leaf in tree_named(tree):
            exempt = what == "messages" and not EXACT.isdisjoint(name.split("/"))
            if leaf.is_floating_point() and leaf.dtype != torch.float32 and not exempt:
                raise Broken(f"{what}: leaf {name!r} is {leaf.dtype} in a float32 run")


@law(
    "scoring",
    "Scoring leaves no trace, at every evaluation point.",
    "predict, adapt or prepare writes to what it was handed. Return new tensors.",
)
def law_scoring(case: Case) -> None:
    made, sim = history(case, "stacked"), case.sim()
    state, store = made.state, made.store()
    watched = (state, store.rows, store.known, case.federation.x, sim.initial)
    before = snapshot(watched)
    for engine in ("oracle", "stacked"):
        for point in POINTS:
            first = predictions(sim, engine, state, store, SCORED, point)
            unchanged(before, watched, f"scoring ({point}, {engine})")
            assert_same_bits(outputs(case, engine, point), first, f"scored twice ({point}, {engine})")


@law(
    "newcomers",
    "A client that the server has never met can be scored, equally by both engines.",
    "offer cannot cope with client None, or looks up a row by a number that the tables do not have. Offer a neutral "
    "row when client is None.",
)
def law_newcomers(case: Case) -> None:
    for point in POINTS[:2]:
        ones, many = (outputs(case, engine, point, newcomers=True) for engine in ("oracle", "stacked"))
        assert_close(ones, many, f"predictions for newcomers, {point}, loop and stacked", case.slack)
        if not all(bool(leaf.isfinite().all()) for leaf in many):
            raise Broken(f"predictions for newcomers, {point}, are not finite")


@law(
    "probabilities",
    "What predict returns are log-probabilities that sum to 1 (for regression: a mean and a positive variance).",
    "predict returns logits, or an average of logarithms. End with log_softmax; average probabilities, not logarithms.",
)
def law_probabilities(case: Case) -> None:
    for newcomers, points in ((False, POINTS), (True, POINTS[:2])):
        for point in points:
            for client, output in enumerate(outputs(case, "stacked", point, newcomers=newcomers)):
                _proper(output, case, f"{point}, {'newcomer' if newcomers else 'scored client'} no. {client}")


def _proper(output: Tensor, case: Case, where: str) -> None:
    if case.federation.task == "regression":
        if not bool(output.isfinite().all()) or not bool((output[:, 1] > 0).all()):
            raise Broken(f"{where}: a variance is not positive, or a number is not finite")
        return
    error = (output.exp().sum(-1) - 1).abs()
    if len(error) and not bool((error < 1e-9).all()):
        raise Broken(f"{where}: probabilities sum to {float(output.exp().sum(-1)[error.argmax()]):.6g}")


def _poison(victims: tuple[int, ...]) -> Change:
    """Turns every floating number that `victims` send (or keep, if nothing is sent) into NaN."""

    def change(clients: Tensor, sent: Message, records: Personal) -> tuple[Message, Personal]:
        bad = torch.tensor([int(c) in victims for c in clients])

        def spoil(leaf: Tensor) -> Tensor:
            where = bad.reshape(-1, *[1] * (leaf.dim() - 1))
            return torch.where(where, torch.nan, leaf) if leaf.is_floating_point() else leaf

        speaks = any(leaf.is_floating_point() for leaf in tree_leaves(sent))
        return (tree_map(spoil, sent), records) if speaks else (sent, tree_map(spoil, records))

    return change


@law(
    "refusal",
    "A message that is not finite is left out and named, its client's record stays as it was, and the round equals one "
    "without that client; if all are refused, nothing changes. A client with broken data does not stop the others.",
    "combine counts clients by itself (take the weight from the total, or now.cohort), or a function raises on NaN, "
    "which ends the round for everybody (torch.linalg.cholesky: use cholesky_ex and let the NaN through).",
)
def law_refusal(case: Case) -> None:
    made, sim = history(case, "stacked"), case.sim()
    if not any(leaf.is_floating_point() for leaf in tree_leaves((made.at(1).sent, made.at(1).records))):
        return  # nothing that could be refused
    done = one_round(sim, "stacked", *made.before(2), COHORTS[1], 2, _poison((1,)))
    if [r.client for r in done.log.refused] != [1]:
        raise Broken(f"client 1 sent NaN, but refused were {done.log.refused}")
    _left_out(case, done, 1)
    x = case.federation.x.clone()
    x[case.federation.train.client(8)[0]] = torch.nan
    broken = replace(sim, federation=replace(case.federation, x=x))
    ill = one_round(broken, "stacked", *made.before(2), COHORTS[1], 2)
    if {r.client for r in ill.log.refused} - {8}:
        raise Broken(f"client 8 has NaN in its data, but refused were {ill.log.refused}")
    if ill.log.refused:
        _left_out(case, ill, 8)
    state, store = made.before(2)
    all_bad = one_round(sim, "stacked", state, store, COHORTS[1], 2, _poison(COHORTS[1]))
    if not all_bad.log.empty:
        raise Broken("every message was NaN, but the round is not reported as empty")
    before = (state, made.at(1).rows, made.at(1).known)
    assert_same_bits((all_bad.state, all_bad.rows, all_bad.known), before, "a round in which all were refused")


def _left_out(case: Case, done: RoundHistory, victim: int) -> None:
    made, where = history(case, "stacked"), f"client {victim} refused"
    state, store = made.before(2)
    assert_same_bits(tree_rows(done.rows, victim), tree_rows(store.rows, victim), f"{where}, its record")
    without = one_round(case.sim(), "stacked", state, store, [c for c in COHORTS[1] if c != victim], 2)
    assert_close((done.state, done.rows), (without.state, without.rows), f"{where}, the round without it", case.slack)


@law(
    "resume",
    "State and records that were saved by name and read again continue bit for bit.",
    "something that lasts is kept in a field marked static, or outside State and Personal.",
)
def law_resume(case: Case) -> None:
    made, sim = history(case, "stacked"), case.sim()
    for number in (2, 3):
        state, store = made.before(number)
        stored = {f"state:{n}": t.clone().contiguous() for n, t in tree_named(state)}
        stored |= {f"rows:{n}": t.clone().contiguous() for n, t in tree_named(store.rows)}
        named = load(save({**stored, "known": store.known}))
        fresh, again = first_state(sim), Store(case.federation.members)
        state = tree_filled(fresh, {n: named[f"state:{n}"] for n, _ in tree_named(fresh)})
        again.rows = tree_filled(store.rows, {n: named[f"rows:{n}"] for n, _ in tree_named(store.rows)})
        again.known = named["known"]
        done = one_round(sim, "stacked", state, again, COHORTS[number - 1], number)
        straight = made.at(number)
        pair = (done.state, done.rows, done.known), (straight.state, straight.rows, straight.known)
        assert_same_bits(*pair, f"round {number} after a restart")
