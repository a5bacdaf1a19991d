"""Files of a run: strict JSON, checkpoints of this format only, and pledges that are kept or dropped as a whole."""

from __future__ import annotations

import json
import math

import pytest
import torch
from safetensors.torch import save

from posterity.runs import files
from posterity.runs import folder as run_folder


def refuse(word):
    raise AssertionError(f"{word} is no JSON")


def test_numbers_that_are_not_finite_become_null(tmp_path):
    value = {"a": [1.5, math.nan, {"b": math.inf}], "c": (-math.inf, 2)}
    files.write_json(tmp_path / "a.json", value)
    length = files.append_lines(tmp_path / "a.jsonl", [value, {"d": math.nan}])
    assert length == (tmp_path / "a.jsonl").stat().st_size
    expected = {"a": [1.5, None, {"b": None}], "c": [None, 2]}
    told = json.loads((tmp_path / "a.json").read_text(), parse_constant=refuse)
    assert {k: v for k, v in told.items() if k not in ("format", "checksum")} == expected
    assert files.read_json(tmp_path / "a.json") == expected
    lines = [json.loads(line, parse_constant=refuse) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert lines == [expected, {"d": None}]


def test_a_checkpoint_of_another_format_is_refused(tmp_path):
    leaves = {"state/w": torch.zeros(2)}
    (tmp_path / run_folder.CHECKPOINT).write_bytes(save(leaves, {"format": "99", "facts": "{}"}))
    with pytest.raises(ValueError, match=r"has format '99'; this version of posterity reads 2"):
        run_folder.read_checkpoint(tmp_path)


def test_a_tree_of_another_shape_is_named(tmp_path):
    run_folder.save_checkpoint(tmp_path, {"state": {"w": torch.arange(3.0)}}, {"commit": 1})
    leaves, facts = run_folder.read_checkpoint(tmp_path)
    assert facts == {"commit": 1}
    assert run_folder.restore({"w": torch.zeros(3)}, leaves, "state")["w"].tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(ValueError, match=r"has \(3,\) at state/w, but \(4,\) is expected"):
        run_folder.restore({"w": torch.zeros(4)}, leaves, "state")
    with pytest.raises(ValueError, match=r"has nothing at state/v"):
        run_folder.restore({"v": torch.zeros(3)}, leaves, "state")


def test_a_tree_may_hold_a_tensor_under_two_names(tmp_path):
    leaf = torch.arange(6.0)
    tree = {"w": leaf, "anchor": leaf, "part": leaf[2:4], "empty": torch.zeros(0), "none": torch.zeros(0)}
    run_folder.save_checkpoint(tmp_path, {"state": tree}, {"commit": 1})
    again = run_folder.restore(tree, run_folder.read_checkpoint(tmp_path)[0], "state")
    assert all(torch.equal(again[name], tree[name]) for name in tree)


@pytest.mark.parametrize(("written", "common"), [
    ([3, 3], 3), ([3, 2], 2), ([2, 1], 1),  # a kill came before the second had its checkpoint
    ([1, 0], None), ([0, 0], None),
])  # fmt: skip
def test_runs_that_go_together_go_on_from_what_all_have(written, common, tmp_path):
    runs = [tmp_path / "seed-0", tmp_path / "seed-1"]
    for folder, last in zip(runs, written, strict=True):
        folder.mkdir()
        for commit in range(1, last + 1):
            run_folder.save_checkpoints([folder], [({"state": {"w": torch.zeros(1)}}, {"commit": commit})])
    found = [path and run_folder.read_saved(path)[1]["commit"] for path in run_folder.last_common(runs)]
    assert found == [common] * 2


def test_files_of_several_copies_have_no_common_checkpoint(tmp_path):
    runs = [tmp_path / "seed-0", tmp_path / "seed-1"]
    for folder, commit in zip(runs, (5, 2), strict=True):
        folder.mkdir()
        saved(folder, commit)
    with pytest.raises(ValueError, match=r"no checkpoint in common \(seed-0: 5, seed-1: 2\)"):
        run_folder.last_common(runs)


def saved(folder, commit=1, name=run_folder.CHECKPOINT):
    run_folder.save_checkpoint(folder, {"state": {"w": torch.arange(3.0)}}, {"commit": commit}, name)
    return folder / name


def test_a_changed_byte_is_noticed_wherever_it_stands(tmp_path):
    path = saved(tmp_path)
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        with pytest.raises(ValueError, match=str(path)):
            run_folder.read_saved(path)


@pytest.mark.parametrize("old", [b'"checksum"', b'"format": "2"'])
def test_a_text_whose_checksum_was_lost_is_noticed(old, tmp_path):
    path = tmp_path / "a.json"
    files.write_json(path, {"a": 1})
    path.write_bytes(path.read_bytes().replace(old, b'"farewell": "1"' if b"format" in old else b'"chucksum"'))
    with pytest.raises(ValueError, match="is not as it was written"):
        files.read_json(path)


def test_files_without_a_checksum_are_refused(tmp_path):
    (tmp_path / "a.json").write_text('{"a": 1}')
    with pytest.raises(ValueError, match="is not as it was written"):
        files.read_json(tmp_path / "a.json")
    path = tmp_path / run_folder.CHECKPOINT
    path.write_bytes(save({"state/w": torch.zeros(2)}, {"format": "2", "facts": '{"commit": 3}'}))
    with pytest.raises(ValueError, match="is not as it was written"):
        run_folder.read_saved(path)


def test_the_checkpoint_before_is_kept_and_used(tmp_path):
    for commit in (1, 2, 3):
        run_folder.save_checkpoints([tmp_path], [({"state": {"w": torch.zeros(1)}}, {"commit": commit})])
    assert list(run_folder.valid_checkpoints(tmp_path)) == [3, 2]
    (tmp_path / run_folder.CHECKPOINT).write_bytes(b"torn")
    with pytest.warns(UserWarning, match="cut off or damaged; the checkpoint before it is used"):
        assert run_folder.read_checkpoint(tmp_path)[1] == {"commit": 2}
    (tmp_path / run_folder.PREVIOUS).unlink()
    with pytest.raises(ValueError, match=r"cut off or damaged; put a whole copy"):
        run_folder.read_checkpoint(tmp_path)


def test_names_are_forced_to_disk_after_a_move(tmp_path, monkeypatch):
    told = []
    move, force = files.os.replace, files.sync_folder
    monkeypatch.setattr(files.os, "replace", lambda *a: (told.append("move"), move(*a)))
    monkeypatch.setattr(files, "sync_folder", lambda folder: (told.append(folder), force(folder)))
    files.write_json(tmp_path / "a.json", {"a": 1})
    assert told == ["move", tmp_path]
