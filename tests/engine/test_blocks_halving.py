"""Out of memory: the block is halved and the run goes on, with the same numbers and a sentence."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import torch
from oracles.sims import Run, mlp, points, worst

import posterity
from posterity.core.passes import Training
from posterity.data.federation import Federation
from posterity.engine.blocks import declared_bytes, out_of_memory
from posterity.engine.engines import STACKED, Engine
from posterity.methods.fedper import FedPer

SIZES = (5, 4, 6, 3, 5, 4, 5)


@dataclass(frozen=True)
class Small:
    """A device on which so many clients fit, and not one more."""

    most: int
    error: type[Exception] = torch.OutOfMemoryError
    text: str = "CUDA out of memory. Tried to allocate 20.00 GiB"
    inner: Engine = STACKED
    name: str = "small"
    seen: list[int] = field(default_factory=list)

    def offer(self, sim, state, clients, count):
        return self.inner.offer(sim, state, clients, count)

    def join(self, sim, here):
        return self.inner.join(sim, here)

    def visit(self, sim, passes, here):
        self.fit(here)
        return self.inner.visit(sim, passes, here)

    def predict(self, sim, passes, adapt, here, parts):
        self.fit(here)
        return self.inner.predict(sim, passes, adapt, here, parts)

    def fit(self, here):
        self.seen.append(len(here.client))
        if len(here.client) > self.most:
            raise self.error(self.text)


def run_of(engine) -> Run:
    federation = points(SIZES)
    return Run(FedPer(Training(lr=0.1, batch=4)), federation, mlp(federation), engine)


ON_A_CPU = {"error": RuntimeError, "text": "DefaultCPUAllocator: can't allocate memory"}


@pytest.mark.parametrize("how", [{}, pytest.param(ON_A_CPU, marks=pytest.mark.everything)])
def test_a_block_that_does_not_fit_is_halved_and_the_run_goes_on(how):
    engine, roomy = Small(2, **how), run_of(STACKED).rounds(2)
    run = run_of(engine).rounds(2)
    assert engine.seen == [7, 4, 2, 2, 2, 1, 2, 2, 2, 1]  # later blocks are small from the start
    assert worst(run.state, roomy.state) < 1e-12
    assert worst(run.store.rows, roomy.store.rows) < 1e-12
    assert [log.accepted for log in run.logs] == [len(SIZES)] * 2
    notes = run.sim.traces.take_notes()
    assert "in training with 7 clients at once" in notes[0]
    assert "it goes on with 2" in notes[-1]
    assert run.sim.traces.take_notes() == []


def test_blocks_of_the_same_round_are_small_from_the_start_too():
    """Each that is not has every recording forgotten."""
    engine, run = Small(2), run_of(STACKED)
    four = 4 * declared_bytes(run.sim, torch.arange(len(SIZES)), run.sim.passes())
    run.sim, run.engine = replace(run.sim, memory=four), engine
    run.rounds(1)
    assert engine.seen == [4, 2, 2, 2, 1]


def test_what_is_asked_is_answered_in_halves_too():
    roomy, run = run_of(STACKED).rounds(1), run_of(STACKED).rounds(1)
    run.engine = Small(3)
    for point in ("received", "trained"):
        for mine, theirs in zip(run.outputs(point), roomy.outputs(point), strict=True):
            assert torch.allclose(mine, theirs, rtol=0, atol=1e-12)


def test_what_was_too_much_for_scoring_does_not_divide_training():
    """Once it did: rounds of a cohort that had always fitted were taken in pieces, to the end of the run."""
    run = run_of(STACKED).rounds(1)
    run.engine = Small(3)
    run.outputs("trained")
    assert "in scoring with 7 clients at once" in run.sim.traces.take_notes()[0]
    run.engine, short = Small(7), Small(3)
    run.rounds(1)
    assert run.engine.seen == [7]
    run.engine = short
    run.outputs("trained")
    assert max(short.seen) <= 3  # scoring itself remembers


def test_after_scoring_memory_beyond_what_is_allowed_is_given_back(monkeypatch):
    run, given = run_of(STACKED).rounds(1), []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: given.append(1))
    for reserved, calls in ((run.sim.memory, 0), (run.sim.memory + 1, 1)):
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda reserved=reserved: reserved)
        run.outputs("received")
        assert len(given) == calls


def test_one_client_that_does_not_fit_is_a_sentence():
    with pytest.raises(ValueError, match=r"one client alone does not fit.*--batch-size"):
        run_of(Small(0)).rounds(1)


def test_other_errors_are_not_taken_for_it():
    assert not out_of_memory(RuntimeError("shapes do not fit"))
    with pytest.raises(RuntimeError, match="shapes"):
        run_of(Small(2, error=RuntimeError, text="shapes do not fit")).rounds(1)


def test_data_that_do_not_fit_are_told_with_their_size(monkeypatch, tmp_path):
    def full(*given):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB\nmore")

    monkeypatch.setattr(Federation, "to", full)
    told = (r"the 1,797 rows of digits \(460,032 bytes\) do not fit into the memory of cpu: take fewer \(--subset\), "
            r".* \(CUDA out of memory. Tried to allocate 20.00 GiB\)$")  # fmt: skip
    with pytest.raises(ValueError, match=told):
        posterity.run(method="fedavg", dataset="digits", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
