"""Scores of all clients at all evaluation points, as lines of a run."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from posterity.core.tree import Tree
from posterity.data.federation import Part
from posterity.engine.round import score as predict_all
from posterity.engine.store import Store
from posterity.engine.world import World
from posterity.evaluate import fairness, per_client, rank, score, summarise
from posterity.evaluate.scores import Scores

LISTED = 2000  # clients up to which a line carries every client's numbers
PER_CLIENT = ("accuracy", "balanced_accuracy", "nll", "brier", "ece", "auroc", "mse")


def score_members(
    world: World, engine: ModuleType, state: Tree, store: Store, round: int, points: tuple[str, ...]
) -> Iterator[dict[str, Any]]:
    """Lines for the members: each point, on validation, test and both."""
    everyone = torch.arange(world.federation.members, device=world.root.device)
    for point in points:
        epochs = world.method.adaptation if point == "adapted" else 0
        yield from _group(world, engine, state, store, round, everyone, point, epochs, "members")


def score_newcomers(
    world: World, engine: ModuleType, state: Tree, store: Store, round: int, epochs: tuple[int, ...]
) -> Iterator[dict[str, Any]]:
    """Lines for clients that the server has never met: as received, and after some epochs on their own data."""
    federation = world.federation
    late = torch.arange(federation.members, federation.clients, device=world.root.device)
    if not len(late):
        return
    for each in (0, *sorted(set(epochs))):
        point = "adapted" if each else "received"
        yield from _group(world, engine, state, store, round, late, point, each, "newcomers")


def score_common(world: World, engine: ModuleType, state: Tree, store: Store, round: int) -> Iterator[dict[str, Any]]:
    """One line for the test set that belongs to no client, scored with what a newcomer receives."""
    rows = world.federation.common
    if rows is None:
        return
    offsets = torch.full((world.federation.clients + 1,), len(rows), device=rows.device)
    offsets[0] = 0  # client 0 stands in for the stranger
    first = torch.zeros(1, dtype=torch.int64, device=rows.device)
    output = predict_all(world, engine, state, store, first, round, [Part(rows, offsets)], "received", 0, True)[0]
    if not world.ranks.leads:
        return
    yield _line(world, round, "received", 0, "common", "test", *_scored(world, output, world.federation.y[rows]))


def _group(
    world: World,
    engine: ModuleType,
    state: Tree,
    store: Store,
    round: int,
    clients: Tensor,
    point: str,
    epochs: int,
    group: str,
) -> Iterator[dict[str, Any]]:
    federation = world.federation
    parts = [federation.validation, federation.test]
    strangers = group == "newcomers"
    outputs = predict_all(world, engine, state, store, clients, round, parts, point, epochs, strangers)
    if not world.ranks.leads:
        return  # what the others computed is scored by the first
    halves = []
    for part, output in zip(parts, outputs, strict=True):
        rows = part.rows[int(part.offsets[clients[0]]) : int(part.offsets[clients[-1] + 1])]
        halves.append(_scored(world, output, federation.y[rows]))
    weights = federation.train.counts[clients]
    both = (halves[0][0] + halves[1][0], None if halves[0][1] is None else halves[0][1] + halves[1][1])
    for name, (scores, ranks) in zip(("validation", "test", "held"), (*halves, both), strict=True):
        yield _line(world, round, point, epochs, group, name, scores, ranks, weights)


def _scored(world: World, outputs: list[Tensor], y: Tensor) -> tuple[Scores, Any]:
    federation = world.federation
    flat = torch.cat(outputs)
    counts = torch.tensor([0, *(len(o) for o in outputs)], device=flat.device)
    scores = score(flat, y, counts.cumsum(0), federation.classes, federation.task)
    two = federation.task == "classification" and federation.classes == 2
    return scores, rank(flat, y, counts.cumsum(0)) if two else None


def _line(
    world: World,
    round: int,
    point: str,
    epochs: int,
    group: str,
    part: str,
    scores: Scores,
    ranks: Any,
    weights: Tensor | None = None,
) -> dict[str, Any]:
    if weights is None:
        weights = torch.ones(scores.clients)
    summary = summarise(scores, weights, ranks=ranks)
    line: dict[str, Any] = {"kind": "score", "round": round, "point": point, "epochs": epochs, "group": group}
    line |= {"part": part, "metrics": summary, "fairness": {}, "clients": {}, "bins": []}
    if world.federation.task == "classification":
        line["fairness"] = fairness(scores)
        line["bins"] = scores.pooled().bins[0].tolist()
    if scores.clients <= LISTED:
        each = per_client(scores, ranks)
        line["clients"] = {"n": [int(n) for n in scores.n]}
        line["clients"] |= {name: [float(v) for v in each[name]] for name in PER_CLIENT if name in each}
    return line
