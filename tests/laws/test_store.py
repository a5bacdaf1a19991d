"""Personal records in a file: equal to records in memory, and as the last checkpoint knew them after a kill."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from predicted import score

from posterity.core.tree import tree_map, tree_named, tree_rows
from posterity.engine.blocks import receive_stack
from posterity.engine.disk_store import DiskStore
from posterity.engine.engines import STACKED, Stacked
from posterity.engine.round import first_state, train_round
from posterity.engine.store import Store
from posterity.laws import make_case
from posterity.laws.case import COHORTS
from posterity.methods.fedmap import FedMAP
from posterity.methods.fedper import FedPer

from .roster import LOCAL

CLIENTS = 6


def rows(clients, number):
    """Records of some clients that tell which client wrote them and when."""
    base = torch.tensor(clients, dtype=torch.float64)[:, None] + 100 * number
    return {"a": base + torch.arange(3), "b": {"count": base[:, 0].long(), "flag": base.float()[:, :, None]}}


def fresh(clients):
    return tree_map(torch.zeros_like, rows(clients, 0))


def write(store, clients, number):
    store.write(torch.tensor(clients), rows(clients, number))


def _read(store, clients, like):
    """The records of `clients`; zeros of those who have none."""
    store.expect_like(like)
    held = store.read(clients)
    known = store.known[clients]
    return tree_map(lambda leaf: torch.where(known.reshape(-1, *[1] * (leaf.dim() - 1)), leaf, 0), held)


def read(store, clients=range(CLIENTS)):
    return _read(store, torch.tensor(list(clients)), fresh(list(clients)))


def equal(left, right):
    ours, theirs = dict(tree_named(left)), dict(tree_named(right))
    return ours.keys() == theirs.keys() and all(
        torch.equal(t, theirs[n]) and t.dtype == theirs[n].dtype for n, t in ours.items()
    )


def reopened(folder, known, commit):
    """What a new process does after a kill."""
    store = DiskStore(folder, CLIENTS, commit)
    store.known = known.clone()
    store.undo()
    return store


@pytest.fixture
def checkpoint(tmp_path):
    """A store with checkpoint 1, and what it held then: clients 0, 1 and 2."""
    store = DiskStore(tmp_path, CLIENTS)
    write(store, [0, 1, 2], 1)
    store.prepare()
    store.commit(1)
    return store, store.known.clone(), tree_map(torch.clone, read(store))


@pytest.mark.parametrize("cls", [FedPer, FedMAP])
def test_a_run_on_file_equals_a_run_in_memory(cls, tmp_path):
    looked_at = make_case(cls(LOCAL))
    sim, members = looked_at.sim(), looked_at.federation.members
    ends = []
    for store in (Store(members), DiskStore(tmp_path, members)):
        state = first_state(sim)
        for number, cohort in enumerate(COHORTS, 1):
            state, _ = train_round(sim, STACKED, state, store, torch.tensor(cohort), number, len(COHORTS))
            if isinstance(store, DiskStore):
                store.prepare()
                store.commit(number)
        everybody = torch.arange(members)
        outputs = score(sim, STACKED, state, store, everybody, 3, [looked_at.federation.test], "received")
        template = tree_map(lambda leaf: torch.zeros_like(leaf)[None].expand(members, *leaf.shape), one_record(sim))
        ends.append((state, outputs, _read(store, everybody, template), store.known))
    assert equal(*ends)


def one_record(sim):
    return {n: p for n, p in sim.initial.items() if isinstance(sim.method, FedMAP) or n in sim.model.head_names}


def test_clients_never_met_have_what_join_made(tmp_path):
    store = DiskStore(tmp_path, CLIENTS)
    write(store, [4], 1)
    asked = []

    @dataclass(frozen=True)
    class Engine(Stacked):
        def join(self, sim, here):
            asked.append(here.client.tolist())
            return tree_map(lambda leaf: leaf + 7, fresh(here.client.tolist()))

    sim = make_case(FedPer(LOCAL)).sim()
    here, _ = receive_stack(sim, Engine(), first_state(sim), store, torch.tensor([3, 4, 5]), 1)
    got = here.personal
    assert asked == [[3, 5]]  # nobody joins twice
    assert equal(tree_rows(got, slice(0, 3, 2)), tree_map(lambda leaf: leaf + 7, fresh([3, 5])))
    assert equal(tree_rows(got, slice(1, 2)), rows([4], 1))


def test_empty_records_need_no_file(tmp_path):
    store = DiskStore(tmp_path, CLIENTS)
    store.write(torch.tensor([1]), ())
    assert store.known.tolist() == [False, True, False, False, False, False]
    assert store.read(torch.tensor([1])) == ()
    assert not store.path.exists()


def test_a_kill_before_the_commit_puts_the_old_rows_back(checkpoint, tmp_path):
    store, known, held = checkpoint
    write(store, [1, 3], 2)
    write(store, [1, 0], 3)
    store.prepare()
    del store
    again = reopened(tmp_path, known, 1)
    assert equal(read(again), held)
    raw = np.fromfile(tmp_path / "rows.bin", np.uint8).reshape(CLIENTS, -1)
    assert not raw[3].any()  # a client first met after the checkpoint leaves nothing


def test_a_kill_between_checkpoint_and_journal_keeps_the_new_rows(checkpoint, tmp_path):
    store, *_ = checkpoint
    write(store, [1, 3], 2)
    store.prepare()
    known, held = store.known.clone(), tree_map(torch.clone, read(store))
    del store  # checkpoint 2 is on disk, the journal still belongs to checkpoint 1
    again = reopened(tmp_path, known, 2)
    assert equal(read(again), held)
    write(again, [1], 3)
    del again
    assert equal(read(reopened(tmp_path, known, 2)), held)


def test_a_torn_last_entry_is_ignored(checkpoint, tmp_path):
    store, known, held = checkpoint
    write(store, [1], 2)
    entry = 8 + store.width
    with store.journal.open("ab") as file:  # killed while the entry of client 2 was written; its row is untouched
        file.write((np.int64(2).tobytes() + bytes(store.width))[: entry // 2])
    del store
    assert equal(read(reopened(tmp_path, known, 1)), held)


def test_a_second_kill_after_a_recovery_rolls_back_too(checkpoint, tmp_path):
    store, known, held = checkpoint
    write(store, [1], 2)
    del store
    again = reopened(tmp_path, known, 1)
    write(again, [1, 2], 3)
    del again
    assert equal(read(reopened(tmp_path, known, 1)), held)


@pytest.mark.parametrize("torn", [5, 8, 20])
def test_a_second_kill_after_a_torn_entry_rolls_back_too(checkpoint, tmp_path, torn):
    store, known, held = checkpoint
    write(store, [1], 2)
    with store.journal.open("ab") as file:
        file.write((np.int64(2).tobytes() + bytes(store.width))[:torn])
    del store
    again = reopened(tmp_path, known, 1)
    write(again, [0, 2], 3)
    del again
    assert equal(read(reopened(tmp_path, known, 1)), held)


def test_a_stale_journal_is_replaced(checkpoint, tmp_path):
    store, known, _ = checkpoint
    write(store, [0], 2)
    del store
    later = DiskStore(tmp_path, CLIENTS, number=5)
    later.known = known.clone()
    assert later.undo() == 0
    held = tree_map(torch.clone, read(later))
    assert np.fromfile(later.journal, np.int64, 2).tolist() == [5, later.width]
    write(later, [2], 6)
    del later
    assert equal(read(reopened(tmp_path, known, 5)), held)


def test_a_file_of_another_method_is_refused(checkpoint, tmp_path):
    other = DiskStore(tmp_path, CLIENTS)
    with pytest.raises(ValueError, match="another method, model or federation"):
        other.expect_like({"a": torch.zeros(1, 5)})


def test_one_record_of_mixed_kinds_can_be_read(tmp_path):
    store = DiskStore(tmp_path, CLIENTS)
    write(store, [1], 1)
    assert equal(read(store, [1]), rows([1], 1))


def test_leaves_in_another_order_land_in_their_places(tmp_path):
    store = DiskStore(tmp_path, CLIENTS)
    write(store, [0], 1)
    record = rows([1], 1)
    store.write(torch.tensor([1]), {"b": record["b"], "a": record["a"]})
    assert equal(read(store, [0, 1]), rows([0, 1], 1))
