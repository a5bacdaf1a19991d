"""Augmentation: the right pixels, fair draws, the same ones in every engine, and nowhere but in training."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from predicted import score
from torch.nn import functional as F

import posterity
from posterity import Method
from posterity.core import weighted
from posterity.core.messages import Message
from posterity.core.passes import Training, gather
from posterity.core.protocol import Batch, Carry, Here, Pass, Personal
from posterity.core.random import fold, make_key
from posterity.engine.augment import PAD, Augmentation, augmented, moved
from posterity.engine.cache import TraceCache
from posterity.engine.client import visit_client
from posterity.engine.engines import find_engine
from posterity.engine.round import first_state
from posterity.engine.seeds import MultiSeed, train_rounds
from posterity.engine.simulation import Simulation
from posterity.engine.store import Store
from posterity.experiment import run as run_module
from posterity.laws import make_case
from posterity.laws.case import run, small_federation
from posterity.laws.invariance import fill_padding
from posterity.methods.fedala import FedALA
from posterity.methods.fedavg import FedAvg
from posterity.methods.fedbps import FedBPS
from posterity.methods.pfedgp import PFedGP
from posterity.methods.wrappers.calibrated import Calibrated
from posterity.runs import files

BOTH = Augmentation((1, 8, 8), crop=True, flip=True, border=-3.0)
LOCAL = Training(lr=0.01, batch=10)
COHORTS = [(0, 1, 4), (1, 5, 7)]  # of 25, 1 and 5 samples, then of 1, 2 and 13


def test_a_crop_and_a_flip_are_slices_of_the_padded_picture() -> None:
    x = torch.randn(3, 3, 6, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    padded = F.pad(x, (PAD, PAD, PAD, PAD), value=-2.0)
    down, along, flipped = torch.tensor([0, 3, 8]), torch.tensor([8, 4, 0]), torch.tensor([0, 1, 1])
    got = moved(x, down - PAD, along - PAD, flipped, -2.0)
    for i in range(3):
        window = padded[i, :, down[i] : down[i] + 6, along[i] : along[i] + 9]
        assert torch.equal(got[i], window.flip(-1) if flipped[i] else window)


def test_every_place_is_as_likely_as_any_other() -> None:
    count, side = 8100, 2 * PAD + 1
    x = torch.arange(81, dtype=torch.float64).reshape(1, 1, 9, 9).expand(count, 1, 9, 9)
    got = Augmentation((1, 9, 9), crop=True, flip=True).apply(x, make_key(5))[:, 0]
    middle, beside = (
        got[:, 4, 4],
        got[:, 4, 5],
    )  # of the window: always a pixel of the picture; its neighbour may not be
    counts = torch.bincount(middle.long(), minlength=81).double()
    expected = count / side**2
    assert float(((counts - expected) ** 2 / expected).sum()) < 124.8  # χ² with 80 degrees of freedom, 0.1 %
    whole = (middle % 9 > 0) & (middle % 9 < 8)
    flips = (beside < middle)[whole].double()
    assert abs(float(flips.mean()) - 0.5) < 3.3 * 0.5 / len(flips) ** 0.5
    apart = flips - 0.5, middle[whole] // 9 - 4, middle[whole] % 9 - 4  # drawn independently
    for one, other in ((0, 1), (0, 2), (1, 2)):
        cosine = F.cosine_similarity(apart[one], apart[other], dim=0)
        assert abs(float(cosine)) < 3.3 / len(flips) ** 0.5


def test_a_row_does_not_depend_on_those_behind_it_and_another_key_draws_anew() -> None:
    x, key = torch.randn(9, 1, 8, 8), make_key(1)
    alone = BOTH.apply(x[:4], key)
    assert torch.equal(BOTH.apply(x, key)[:4], alone)
    assert not torch.equal(BOTH.apply(x, fold(key, 0))[:4], alone)
    assert torch.equal(replace(BOTH, crop=False, flip=False).apply(x, key), x)
    flipped = replace(BOTH, crop=False).apply(x, key)
    assert all(torch.equal(a, b) or torch.equal(a, b.flip(-1)) for a, b in zip(flipped, x, strict=True))
    assert not torch.equal(flipped, x)


@pytest.mark.parametrize(
    ("method", "trains"),
    [(FedAvg(), [True]), (FedBPS(), [True, False]), (FedALA(), [True, True]), (PFedGP(), [False, True])],
    ids=lambda value: getattr(value, "label", ""),
)
def test_what_trains_is_augmented_and_what_only_looks_is_not(method: Method, trains: list[bool]) -> None:
    before, after = method.passes(), augmented(method.passes(), BOTH)
    assert [a.step.__qualname__ != b.step.__qualname__ for a, b in zip(before, after, strict=True)] == trains


def test_validation_and_preparation_are_not_training() -> None:
    sim = replace(make_case(Calibrated(FedAvg(LOCAL)), "cnn").sim(), augment=BOTH)
    assert sim.prepare() == replace(sim, augment=None).prepare()
    looks = gather("sums", lambda params, batch, here: batch.x.sum())
    on_validation = Pass(lambda carry, batch, here: carry, on="validation")
    assert augmented((looks, on_validation), BOTH) == (looks, on_validation)


@dataclass(frozen=True)
class Looking(FedAvg):
    """Trains nothing; a client's record is a number made of all pixels that it saw, in their order, exactly."""

    def join(self, here: Here) -> Personal:
        return here.n * 0

    def passes(self) -> tuple[Pass, ...]:
        def begin(carry: Carry, here: Here) -> Carry:
            return replace(carry, kept={"seen": here.n * 0})

        def step(carry: Carry, batch: Batch, here: Here) -> Carry:
            rows = (batch.x.flatten(1) * torch.arange(1, 65)).sum(1)
            number = (batch.mask * rows * torch.arange(1, len(rows) + 1)).sum()
            return replace(carry, kept={"seen": (carry.kept["seen"] * 31 + number) % 1_000_003})

        return (Pass(step, begin, epochs=2, batch=6),)

    def message(self, carry: Carry, here: Here) -> tuple[Message, Personal]:
        return weighted(carry.params, here), carry.kept["seen"]


def looking(seed: int = 0, **changes: object) -> Simulation:
    case = make_case(Looking(LOCAL), "cnn")
    whole = replace(case.federation, x=(case.federation.x * 50).round())
    return replace(case.sim(seed), **{"federation": whole, "augment": BOTH, **changes})  # type: ignore[arg-type]


def seen(sim: Simulation, engine: str, order: int = 1) -> list[float]:
    """The records of two rounds."""
    made = run(sim, engine, [cohort[::order] for cohort in COHORTS])
    return [number for each in made.rounds for number in each.records.tolist()]


def test_every_engine_block_and_order_draws_the_same() -> None:
    plain = seen(looking(), "oracle")
    assert plain != seen(looking(augment=None), "oracle")
    assert plain != seen(looking(seed=1), "oracle")
    assert len(set(plain)) == len(plain)  # client 1, of one picture, draws anew in the second round
    assert seen(looking(), "stacked") == plain
    assert seen(looking(memory=1), "stacked") == plain
    assert seen(looking(), "stacked", order=-1) == plain
    assert seen(looking(build=fill_padding(7.0)), "stacked") == plain


@pytest.mark.parametrize("engine", ["loop", "graph"])
def test_what_is_recorded_draws_anew_at_every_step(engine: str) -> None:
    """In the second round steps are replayed, under other keys."""
    pair = [(4,), (4,)]
    called, replayed = (run(sim, name, pair).rounds for sim, name in (
        (looking(), "oracle"), (looking(traces=TraceCache(patience=0)), engine)
    ))  # fmt: skip
    assert [each.records.tolist() for each in called] == [each.records.tolist() for each in replayed]


def test_a_site_and_several_seeds_at_once_draw_the_same() -> None:
    sims = [looking(seed) for seed in (0, 1)]
    alone = [run(sim, "oracle", COHORTS[:1]).rounds[0].records for sim in sims]
    stores, cohort = [Store(13), Store(13)], torch.tensor(COHORTS[0])
    states = [first_state(sim) for sim in sims]
    train_rounds(MultiSeed.of(sims), find_engine("stacked"), states, stores, [cohort, cohort], 1, 1)
    for store, records in zip(stores, alone, strict=True):
        assert torch.equal(store.rows[cohort], records)
    site = visit_client(sims[0].site(4), states[0], (), None, 1)
    assert torch.equal(site.record, alone[0][2])
    with pytest.raises(ValueError, match="equal augmentations"):
        MultiSeed.of([sims[0], replace(sims[1], augment=None)])


def test_fine_tuning_is_augmented_alike_in_both_engines() -> None:
    case = make_case(FedAvg(LOCAL), "cnn")
    clients, store = torch.tensor([1, 4]), Store(13)

    def told(engine: str, **changes: Any) -> list[torch.Tensor]:
        sim = case.sim(**changes)
        return score(sim, find_engine(engine), first_state(sim), store, clients, 1, [case.federation.test], "adapted")[
            0
        ]

    alone, stacked, plain = told("oracle", augment=BOTH), told("stacked", augment=BOTH), told("stacked")
    for one, other, without in zip(alone, stacked, plain, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-9)
        assert not torch.allclose(one, without, rtol=0, atol=1e-6)


SMALL = {"dataset": "digits", "method": "fedavg", "model": "linear", "clients": 4, "subset": "10%", "batch_size": 10}


class Interrupted(Exception):
    pass


def test_a_run_that_is_resumed_ends_as_one_that_was_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SMALL | {"rounds": 3, "evaluate_every": 1, "augment": "crop,flip", "engine": "stacked"}
    monkeypatch.setattr(run_module, "WRITING", math.inf)  # a checkpoint after every round
    whole, append = posterity.run(out=tmp_path / "whole", **settings), files.append_lines

    def stop_in_round_3(path: Path, lines: list[dict[str, Any]]) -> int:
        if any(line.get("round") == 3 for line in lines):
            raise Interrupted
        return append(path, lines)

    with monkeypatch.context() as patch:
        patch.setattr(files, "append_lines", stop_in_round_3)
        with pytest.raises(Interrupted):
            posterity.run(out=tmp_path / "cut", **settings)
    again = posterity.load(tmp_path / "cut")
    assert again.round == 3
    assert all(torch.equal(p, again.state.params[n]) for n, p in whole.state.params.items())
    plain = posterity.run(**(settings | {"augment": None}))
    assert not all(torch.equal(p, plain.state.params[n]) for n, p in whole.state.params.items())


@pytest.mark.parametrize(
    ("text", "shape", "message"),
    [
        ("crop,turn", (1, 8, 8), "augment takes crop, flip or crop,flip; 'turn' of 'crop,turn' is not known"),
        (" ,", (1, 8, 8), "augment takes crop, flip or crop,flip; ' ,' is not known"),
        ("flip", (6,), r"needs pictures \(channels, height, width\); samples of laws have the shape \(6,\)"),
        ("crop", (1, 4, 9), "moves pictures by up to 4 pixels; those of laws have 4×9"),
    ],
)
def test_what_cannot_be_augmented_is_said(text: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Augmentation.parse(text, small_federation(shape))


def test_the_border_is_the_darkest_value_and_a_run_says_what_is_done() -> None:
    federation = small_federation((1, 4, 9))
    asked = Augmentation.parse("flip", federation)
    assert asked == Augmentation((1, 4, 9), flip=True, border=float(federation.x.min()))
    assert Augmentation.parse(None, federation) is None
    done = posterity.run(**SMALL, rounds=1, augment="flip")
    assert any("training pictures are flipped at random" in note for note in done.setup.notes)
