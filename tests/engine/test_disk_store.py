"""Rows in a file: which pages the system is asked for, and that asking changes no byte."""

from __future__ import annotations

import mmap
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from posterity.engine import disk_store as row_file
from posterity.engine.disk_store import Mapped, spans

PAGE = mmap.PAGESIZE
CLIENTS, WIDTH = 400, 300  # clients, float32 numbers of a row: a row and a page are not multiples of each other


def rows(clients, number=0):
    base = torch.tensor(clients, dtype=torch.float32)[:, None]
    return {"a": base + 1000 * number + torch.arange(WIDTH)}


def read(store, clients):
    store.expect_like({"a": torch.zeros(1, WIDTH)})
    return store.read(torch.tensor(clients))["a"]


class Listener:
    """Stands in for a mapped array and writes down what the system is told."""

    def __init__(self, array, fails=False):
        self.array, self.fails, self.told = array, fails, []
        self.base = SimpleNamespace(madvise=self.madvise)

    def madvise(self, *advice):
        self.told.append(advice)
        if self.fails:
            raise OSError("not understood")

    def __getitem__(self, index):
        return self.array[index]

    def __setitem__(self, index, value):
        self.array[index] = value


@pytest.fixture
def store(tmp_path):
    made = Mapped(tmp_path, CLIENTS)
    made.write(torch.tensor([3, 50, 51, 399]), rows([3, 50, 51, 399]))
    return made


@pytest.mark.parametrize("width", [1, 7, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE + 5])
@pytest.mark.parametrize("clients", [[], [0], [0, 1, 2], [5, 6, 40, 41, 43], list(range(50)), [0, 49]])
def test_spans_cover_the_pages_of_the_rows_and_no_others(width, clients):
    found = spans(np.array(clients, dtype=np.int64), width)
    pages = {byte // PAGE for k in clients for byte in (*range(k * width, (k + 1) * width, PAGE), (k + 1) * width - 1)}
    assert all(first % PAGE == 0 and length % PAGE == 0 and length > 0 for first, length in found)
    covered = [page for first, length in found for page in range(first // PAGE, (first + length) // PAGE)]
    assert covered == sorted(pages)  # each once, ascending
    gaps = [b[0] - (a[0] + a[1]) for a, b in pairwise(found)]
    assert all(gap > 0 for gap in gaps)  # neighbours are joined


def test_only_rows_that_exist_are_asked_for(store):
    store.file.map = Listener(store.file.map)
    got = read(store, [399, 7, 50, 3])
    assert store.file.map.told == [(mmap.MADV_WILLNEED, *span) for span in spans(np.array([3, 50, 399]), 4 * WIDTH)]
    assert torch.equal(got, torch.cat((rows([399])["a"], torch.zeros(1, WIDTH), rows([50, 3])["a"])))


def test_what_is_written_after_rows_were_announced_is_read(store):
    store.prefetch(torch.tensor([50, 3]))
    store.write(torch.tensor([50, 60]), rows([50, 60], 2))
    assert torch.equal(read(store, [3, 50, 60]), torch.cat((rows([3])["a"], rows([50, 60], 2)["a"])))


def test_nothing_is_announced_before_the_file_exists(tmp_path):
    empty = Mapped(tmp_path, CLIENTS)
    empty.prefetch(torch.tensor([1, 2]))
    assert not empty.path.exists()


@pytest.mark.parametrize("deaf", ["fails", "absent"])
def test_a_system_that_does_not_listen_reads_the_same(store, deaf):
    store.file.map = Listener(store.file.map, fails=True)
    if deaf == "absent":
        store.file.map.base = None
    assert torch.equal(read(store, [51, 3]), rows([51, 3])["a"])
    assert bool(store.file.map.told) == (deaf == "fails")


def test_records_of_any_kind_are_read_as_they_were_written(tmp_path):
    store, clients = Mapped(tmp_path, CLIENTS), torch.tensor([3, 1])
    written = {"none": torch.zeros(2, 0), "seen": torch.tensor([[True, False], [False, True]]),
               "count": torch.tensor([2**40, -1]), "small": torch.tensor([[7], [9]], dtype=torch.int16)}  # fmt: skip
    store.write(clients, written)
    found = store.read(clients)
    assert all(found[name].dtype == leaf.dtype and torch.equal(found[name], leaf) for name, leaf in written.items())


@pytest.mark.parametrize("copy", [1, 5000, 2**22])
def test_old_rows_go_to_the_journal_in_pieces(tmp_path, monkeypatch, copy):
    monkeypatch.setattr(row_file, "COPY", copy)
    store = Mapped(tmp_path, CLIENTS)
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
    again = Mapped(tmp_path, CLIENTS, 1)
    again.known = known
    assert again.undo() == len(after)
    assert torch.equal(read(again, before), rows(before, 1)["a"])
    assert not read(again, [1, 3, 39]).any()


@pytest.fixture
def journalled(tmp_path):
    """A store with checkpoint 1, and three old rows in its journal."""
    store = Mapped(tmp_path, CLIENTS)
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
        Mapped(tmp_path, CLIENTS, 1).undo()


def test_a_damaged_last_entry_is_remarked(journalled, tmp_path):
    data = bytearray(journalled.journal.read_bytes())
    data[-1] ^= 0x10
    journalled.journal.write_bytes(data)
    with pytest.warns(UserWarning, match="the last entry of .*undo.bin is damaged"):
        assert Mapped(tmp_path, CLIENTS, 1).undo() == 2


def test_two_journals_lead_back_to_the_checkpoint_before(tmp_path):
    store = Mapped(tmp_path, CLIENTS)
    for number in (1, 2):
        store.write(torch.tensor([number, 3]), rows([number, 3], number))
        store.prepare()
        store.commit(number)
    store.write(torch.tensor([3, 5]), rows([3, 5], 7))
    again = Mapped(tmp_path, CLIENTS, 1)
    assert again.undo() == 4
    assert torch.equal(read(again, [1, 3]), rows([1, 3], 1)["a"])
    assert not read(again, [2, 5]).any()
    with pytest.raises(ValueError, match=r"newer than the checkpoint beside it \(checkpoint 1 against 0\)"):
        Mapped(tmp_path, CLIENTS, 0).undo()
