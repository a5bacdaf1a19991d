"""Rows in a file and their journals."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from posterity.engine import disk_store as row_file
from posterity.engine.disk_store import DiskStore

CLIENTS, WIDTH = 400, 300  # clients, float32 numbers of a row


def rows(clients, number=0):
    base = torch.tensor(clients, dtype=torch.float32)[:, None]
    return {"a": base + 1000 * number + torch.arange(WIDTH)}


def read(store, clients):
    store.expect_like({"a": torch.zeros(1, WIDTH)})
    return store.read(torch.tensor(clients))["a"]


@pytest.fixture
def store(tmp_path):
    made = DiskStore(tmp_path, CLIENTS)
    made.write(torch.tensor([3, 50, 51, 399]), rows([3, 50, 51, 399]))
    return made


def test_rows_are_read_as_they_were_written_last(store):
    store.write(torch.tensor([50, 60]), rows([50, 60], 2))
    assert torch.equal(read(store, [3, 50, 60]), torch.cat((rows([3])["a"], rows([50, 60], 2)["a"])))


def test_records_of_any_kind_are_read_as_they_were_written(tmp_path):
    store, clients = DiskStore(tmp_path, CLIENTS), torch.tensor([3, 1])
    written = {"none": torch.zeros(2, 0), "seen": torch.tensor([[True, False], [False, True]]),
               "count": torch.tensor([2**40, -1]), "small": torch.tensor([[7], [9]], dtype=torch.int16)}  # fmt: skip
    store.write(clients, written)
    found = store.read(clients)
    assert all(found[name].dtype == leaf.dtype and torch.equal(found[name], leaf) for name, leaf in written.items())


@pytest.mark.parametrize("copy", [1, 5000, 2**22])
def test_old_rows_go_to_the_journal_in_pieces(tmp_path, monkeypatch, copy):
    monkeypatch.setattr(row_file, "COPY", copy)
    store = DiskStore(tmp_path, CLIENTS)
    before, after = list(range(0, 40, 2)), list(range(40))
    store.write(torch.tensor(before), rows(before, 1))
    store.prepare()
    store.commit(1)
    known = store.known.clone()
    store.write(torch.tensor(after), rows(after, 2))
    store.write(torch.tensor(after), rows(after, 3))  # the journal has them already
    raw = store.journal.read_bytes()
    entry = 8 + 4 * WIDTH + 8
    assert len(raw) == 32 + len(after) * entry
    assert [int(np.frombuffer(raw, np.int64, 1, 32 + i * entry)[0]) for i in range(len(after))] == after
    del store
    again = DiskStore(tmp_path, CLIENTS, 1)
    again.known = known
    assert again.undo() == len(after)
    assert torch.equal(read(again, before), rows(before, 1)["a"])
    assert not read(again, [1, 3, 39]).any()


@pytest.fixture
def journalled(tmp_path):
    """A store with checkpoint 1, and three old rows in its journal."""
    store = DiskStore(tmp_path, CLIENTS)
    store.write(torch.tensor([1, 2, 3]), rows([1, 2, 3], 1))
    store.prepare()
    store.commit(1)
    store.write(torch.tensor([1, 2, 3]), rows([1, 2, 3], 2))
    return store


@pytest.mark.parametrize("place", [0, 9, 17, 25, 32, 50])
def test_a_damaged_journal_is_refused(journalled, tmp_path, place):
    data = bytearray(journalled.journal.read_bytes())
    data[place] ^= 0x10
    journalled.journal.write_bytes(data)
    with pytest.raises(ValueError, match=r"undo\.bin is not as it was written"):
        DiskStore(tmp_path, CLIENTS, 1).undo()


def test_a_damaged_last_entry_is_remarked(journalled, tmp_path):
    data = bytearray(journalled.journal.read_bytes())
    data[-1] ^= 0x10
    journalled.journal.write_bytes(data)
    with pytest.warns(UserWarning, match="the last entry of .*undo.bin is damaged"):
        assert DiskStore(tmp_path, CLIENTS, 1).undo() == 2


def test_two_journals_lead_back_to_the_checkpoint_before(tmp_path):
    store = DiskStore(tmp_path, CLIENTS)
    for number in (1, 2):
        store.write(torch.tensor([number, 3]), rows([number, 3], number))
        store.prepare()
        store.commit(number)
    store.write(torch.tensor([3, 5]), rows([3, 5], 7))
    again = DiskStore(tmp_path, CLIENTS, 1)
    assert again.undo() == 4
    assert torch.equal(read(again, [1, 3]), rows([1, 3], 1)["a"])
    assert not read(again, [2, 5]).any()
    with pytest.raises(ValueError, match=r"newer than the checkpoint beside it \(checkpoint 1 against 0\)"):
        DiskStore(tmp_path, CLIENTS, 0).undo()
