"""Damaged, mixed and foreign run folders: every one is noticed, in a sentence, and nothing is made up."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from kinds import everything

import posterity
from posterity.engine.disk_store import DiskStore
from posterity.experiment import models as kept_round
from posterity.experiment import run
from posterity.experiment.compare import compare_runs, resume_all
from posterity.experiment.models import Chosen
from posterity.experiment.resume import check_trusted, outside_names
from posterity.report import write_report
from posterity.runs import files
from posterity.runs import folder as run_folder
from posterity.runs.lines import scores_of

from .damage import (
    Outcome,
    after_flip,
    every_round,
    flip,
    make_run,
    mounted,
    own_files,
    places,
    put_back,
    small,
    take_up,
)
from .kills import remains

STORES = ("memory", "disk")
FILES = {"run.json", "config.toml", "metrics.jsonl", "checkpoint.safetensors", "checkpoint.previous.safetensors",
         "inputs.safetensors"}  # fmt: skip
HEADS = {"checkpoint.safetensors": (8, 40), "checkpoint.previous.safetensors": (8, 40)}  # in the table of contents


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> dict[str, Path]:
    """Runs with records in memory and on disk, finished and interrupted in the last round."""
    base = tmp_path_factory.mktemp("made")
    runs = {f"{store} finished": make_run(base / f"{store}-finished", store) for store in STORES}
    runs |= {f"{store} cut": make_run(base / f"{store}-cut", store, stop_in=4) for store in STORES}
    return runs


@pytest.fixture(scope="session")
def ends(made) -> dict[str, dict[str, object]]:
    return {store: remains(made[f"{store} finished"]) for store in STORES}


def copy_of(made, kind: str, tmp_path: Path) -> Path:
    shutil.copytree(made[kind], tmp_path / "run")
    return tmp_path / "run"


# --- flipped bits ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("count", [2, pytest.param(12, marks=pytest.mark.everything)])
@pytest.mark.parametrize("kind", ["memory finished", "disk cut", *everything("memory cut", "disk finished")])
def test_a_flipped_bit_is_noticed_in_every_file(kind, count, made, ends, tmp_path):
    whole, store = made[kind], kind.split()[0]
    names = own_files(whole)
    assert {*names} >= FILES | ({"personal/rows.bin", "personal/undo.bin"} if store == "disk" else set()), names
    for name in names:
        for place in sorted({*places(whole / name, count), *(HEADS.get(name, ()) if count > 2 else ())}):
            outcome = after_flip(whole, tmp_path / "copy", name, place, ends[store])
            assert outcome.noticed or put_back(whole, name, place), (name, place)


def test_flipped_numbers_of_many_clients_are_noticed_when_they_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr("posterity.experiment.scoring.LISTED", 3)
    out = make_run(tmp_path / "run")
    (name,) = [name for name in own_files(out) if name.startswith("clients/") and "2" in name]
    assert posterity.load(out).lines[-1].clients["nll"]
    flip(out / name, (out / name).stat().st_size - 1)
    told = [line.clients for line in scores_of(posterity.load(out).lines) if line.clients.path == out / name]
    with pytest.raises(ValueError, match=r"round-000002.safetensors is not as it was written"):
        told[0]["nll"]


@pytest.mark.parametrize("name", ["run.json", "config.toml", "metrics.jsonl"])
def test_the_report_notices_it_too(name, made, tmp_path):
    out = copy_of(made, "memory finished", tmp_path)
    path = out / name
    data = path.read_bytes()
    path.write_bytes(data.replace(b"1", b"2", 1))
    with pytest.raises(ValueError, match=r"not as it was written"):
        run_folder.check_finished(out)


# --- torn and mixed copies ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("store", STORES)
def test_a_torn_checkpoint_gives_way_to_the_one_before(store, made, ends, tmp_path):
    out = copy_of(made, f"{store} cut", tmp_path)
    path = out / run_folder.CHECKPOINT
    os.truncate(path, path.stat().st_size // 2)
    outcome = take_up(out)
    assert outcome.kind == "remarked"
    assert "the checkpoint before it is used" in outcome.text
    assert remains(out) == ends[store]
    assert take_up(out) == Outcome("silent", "")  # both checkpoints are whole again


def test_a_finished_run_whose_checkpoint_is_torn_is_finished_again(made, ends, tmp_path):
    out = copy_of(made, "memory finished", tmp_path)
    os.truncate(out / run_folder.CHECKPOINT, 100)
    shutil.copytree(out, tmp_path / "killed")
    assert take_up(out).kind == "remarked"
    assert remains(out) == ends["memory"]
    run_folder.check_finished(out)
    assert files.read_json(out / run_folder.RUN)["status"] == "finished"
    with every_round(stop_in=4), pytest.warns(UserWarning, match="the checkpoint before it is used"):
        run.resume_run(tmp_path / "killed")
    assert "status" not in files.read_json(tmp_path / "killed" / run_folder.RUN)
    posterity.load(tmp_path / "killed")
    assert remains(tmp_path / "killed") == ends["memory"]


@pytest.mark.parametrize("store", STORES)
def test_without_a_whole_checkpoint_nothing_goes_on(store, made, tmp_path):
    out = copy_of(made, f"{store} cut", tmp_path)
    for name in (run_folder.CHECKPOINT, run_folder.PREVIOUS):
        os.truncate(out / name, 100)
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    assert take_up(out).kind == "refused"
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before


def test_seeds_that_run_at_once_go_back_together(tmp_path):
    configs = [small(seed=seed) for seed in (0, 1)]
    whole, cut = ([tmp_path / how / f"seed-{seed}" for seed in (0, 1)] for how in ("whole", "cut"))
    with every_round():
        run.run_seeds(configs, whole)
    with every_round(stop_in=4):
        run.run_seeds(configs, cut)
    path = cut[1] / run_folder.CHECKPOINT
    os.truncate(path, path.stat().st_size - 1)
    with pytest.warns(UserWarning, match="the checkpoint before it is used"):
        run.run_seeds(configs, cut)
    assert [remains(out) for out in cut] == [remains(out) for out in whole]


def test_missing_checkpoints_are_noticed(made, tmp_path):
    out = copy_of(made, "memory cut", tmp_path)
    for name in (run_folder.CHECKPOINT, run_folder.PREVIOUS):
        (out / name).unlink()
    assert "lines of several rounds and no checkpoint" in take_up(out).text


@pytest.mark.parametrize("state", ["finished", "cut"])
@pytest.mark.parametrize("name", ["kept-*[0-9].safetensors", "kept-*-0000.safetensors", "models-*", "inputs*"])
def test_missing_files_of_what_is_delivered_are_noticed(name, state, made, tmp_path):
    out = copy_of(made, f"memory {state}", tmp_path)
    known = kept_round.names_in(out, {2, 4})
    gone = [path for path in out.glob(name) if path.name in known]
    if name == "models-*" and state == "cut":
        assert not gone  # they are written at the end
        return
    gone[0].unlink()
    outcome = take_up(out)
    assert outcome.kind == "refused"
    assert f"{gone[0].name} is missing" in outcome.text


def test_a_kill_before_tidying_up_leaves_no_rounds_that_nobody_wants(tmp_path, monkeypatch):
    """Between the last checkpoint and the removal of rounds that it does not want."""

    class Killed(Exception):
        pass

    def die_at_the_end(self):
        if self.entries and self.entries[-1]["round"] == self.config.rounds:
            raise Killed
        prune(self)

    prune, given = Chosen.prune, {"model": "linear", "set": {}, "clients": 3, "subset": "8%", "participation": "70%"}
    with monkeypatch.context() as patch:
        patch.setattr(Chosen, "prune", die_at_the_end)
        with pytest.raises(Killed):
            make_run(tmp_path / "cut", **given)
    assert "kept-000002.safetensors" in own_files(tmp_path / "cut")
    assert take_up(tmp_path / "cut") == Outcome("silent", "")
    assert own_files(tmp_path / "cut") == own_files(make_run(tmp_path / "whole", **given))


@pytest.mark.parametrize("state", ["finished", "cut"])
def test_removed_records_are_noticed(state, made, tmp_path):
    out = copy_of(made, f"disk {state}", tmp_path)
    shutil.rmtree(out / "personal")
    outcome = take_up(out)
    assert outcome.kind == "refused"
    assert "rows.bin is missing" in outcome.text


def test_a_checkpoint_older_than_the_records_is_refused(tmp_path, made):
    out = copy_of(made, "disk finished", tmp_path)
    early = make_run(tmp_path / "early", "disk", stop_in=2)  # the same run as it was after its first round
    facts = files.read_json(out / run_folder.RUN)
    files.write_json(out / run_folder.RUN, {**facts, "status": "running"})
    (out / run_folder.PREVIOUS).unlink()
    shutil.copy(early / run_folder.CHECKPOINT, out / run_folder.CHECKPOINT)
    lines = (early / run_folder.METRICS).stat().st_size
    _same_times(early, out, lines)
    outcome = take_up(out)
    assert outcome.kind == "refused"
    assert "newer than the checkpoint beside it (checkpoint 4 against 1)" in outcome.text


def test_a_checkpoint_newer_than_the_records_is_refused(tmp_path, made):
    out = copy_of(made, "disk finished", tmp_path)
    early = make_run(tmp_path / "early", "disk", stop_in=2)
    shutil.rmtree(out / "personal")
    shutil.copytree(early / "personal", out / "personal")
    assert "are not those that the checkpoint knows" in take_up(out).text


def _same_times(early: Path, out: Path, length: int) -> None:
    """The lines of the earlier copy: they hold its times."""
    shutil.copy(early / run_folder.METRICS, out / run_folder.METRICS)
    assert (out / run_folder.METRICS).stat().st_size == length


@pytest.mark.parametrize("state", ["finished", "cut"])
@pytest.mark.parametrize("damage", ["deleted", "half", "one byte short"])
def test_lines_that_are_missing_are_not_made_up(state, damage, made, tmp_path):
    out = copy_of(made, f"memory {state}", tmp_path)
    path = out / run_folder.METRICS
    size = path.stat().st_size
    if damage == "deleted":
        path.unlink()
    else:
        os.truncate(path, size // 2 if damage == "half" else size - 1)
    left = path.read_bytes() if path.exists() else None
    outcome = take_up(out)
    assert outcome.kind == "refused"
    assert "metrics.jsonl" in outcome.text
    assert (path.read_bytes() if path.exists() else None) == left  # nothing was touched


def test_an_edited_configuration_is_noticed(made, tmp_path):
    out = copy_of(made, "memory cut", tmp_path)
    path = out / run_folder.CONFIG
    path.write_text(path.read_text().replace("rounds = 4", "rounds = 6"))
    assert "start a new run with the new one (posterity run --config" in take_up(out).text


def test_other_versions_are_remarked(made, tmp_path):
    out = copy_of(made, "memory cut", tmp_path)
    facts = files.read_json(out / run_folder.RUN)
    files.write_json(out / run_folder.RUN, {**facts, "posterity": "0.0.9"})
    outcome = take_up(out)
    assert outcome.kind == "remarked"
    assert "begun with posterity 0.0.9 (here:" in outcome.text


def test_absurd_numbers_allocate_nothing(tmp_path, made):
    out = copy_of(made, "memory cut", tmp_path)
    for name in (run_folder.CHECKPOINT, run_folder.PREVIOUS):
        (out / name).write_bytes((2**46).to_bytes(8, "little") + b"{}")
    assert "are a table of contents: it was cut off or damaged" in take_up(out).text
    files.write_json(out / run_folder.RUN, {**files.read_json(out / run_folder.RUN), "threads": 10**9})
    assert "threads: 1000000000" in take_up(out).text


# --- a finished run is only read ---------------------------------------------------------------------------------
@pytest.mark.parametrize("store", STORES)
def test_a_finished_run_is_only_read(store, made, tmp_path, monkeypatch):
    out = copy_of(made, f"{store} finished", tmp_path)
    (out / run_folder.LOCK).unlink()
    for path in out.rglob("*"):
        os.utime(path, (1, 1))
    os.utime(out, (1, 1))
    before = {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in (out, *out.rglob("*"))}
    result = posterity.load(out)
    assert {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in (out, *out.rglob("*"))} == before
    assert result.predict_proba(0, torch.zeros(1, 1, 8, 8)).shape == (1, 10)


@pytest.fixture
def small_disk(tmp_path):
    with mounted(tmp_path / "disk") as place:
        yield place


@pytest.mark.parametrize("store", STORES)
def test_a_run_on_a_disk_that_may_only_be_read(store, made, small_disk, tmp_path):
    shutil.copytree(made[f"{store} finished"], small_disk / "run")
    shutil.copytree(made[f"{store} cut"], small_disk / "cut")
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    assert posterity.load(small_disk / "run").round == 4
    write_report(small_disk / "run", tmp_path / "page.html")
    run_folder.check_finished(small_disk / "run")
    with pytest.raises(ValueError, match=r"posterity report .* --out"):
        write_report(small_disk / "run")
    with pytest.raises(ValueError, match=r"cannot be written .*not at its end"):
        posterity.load(small_disk / "cut")


def test_a_place_where_nothing_may_be_written_is_told(made, small_disk):
    result = posterity.load(made["memory finished"])
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    out, told = small_disk / "runs" / "one", r"one cannot be made \(Read-only file system: .*give a folder"
    for write in (
        lambda: run.start_run(small(), out),
        lambda: run.run_seeds([small()], [out]),
        lambda: compare_runs(small(), ["local"], [0], out, lambda title, rounds: pytest.fail("it began")),
        lambda: result.save(out),
    ):
        with pytest.raises(ValueError, match=told):
            write()


# --- a disk that is full -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("store", STORES)
def test_a_full_disk_is_told_and_nothing_is_lost(store, ends, small_disk):
    out = small_disk / "run"
    make_run(out, store, stop_in=3)
    filler = small_disk / "filler"
    fill = subprocess.run(["dd", "if=/dev/zero", f"of={filler}", "bs=4096"], capture_output=True, check=False)
    assert b"No space left" in fill.stderr
    with pytest.raises(
        ValueError, match=r"disk of .* is full .*Nothing that was written is lost: make space, and go on"
    ):
        run.resume_run(out)
    filler.unlink()
    run.resume_run(out)
    assert remains(out) == ends[store]


def test_rows_that_find_no_room_are_an_error_not_a_signal(tmp_path):
    """A limit on the size of files stands for a full disk: the first row fits, the last does not."""
    store = DiskStore(tmp_path, 64)
    store.write(torch.tensor([0]), {"a": torch.ones(1, 4096)})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**19, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            store.write(torch.tensor([63]), {"a": torch.ones(1, 4096)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not store.known[63]


# --- a folder from a stranger ------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["config.toml", "run.json", "metrics.jsonl", "checkpoint.safetensors", "lock",
                                  "run.json.part", "checkpoint.previous.safetensors", "personal/rows.bin",
                                  "personal/undo.bin", "personal/undo.tmp", "personal"])  # fmt: skip
def test_links_are_refused(name, made, tmp_path):
    out = copy_of(made, "disk cut", tmp_path)
    path, mine = out / name, tmp_path / "mine"
    if path.exists():
        path.rename(mine)
    else:
        mine.write_text("precious")
    path.symlink_to(mine)
    before = mine.read_bytes() if mine.is_file() else sorted(os.listdir(mine))
    assert f"{path} is a symbolic link to {mine}" in take_up(out).text
    with pytest.raises(ValueError, match="symbolic link"):
        run.resume_run(out)
    assert (mine.read_bytes() if mine.is_file() else sorted(os.listdir(mine))) == before


def test_a_new_run_is_not_written_through_links(tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("precious")
    for name in ("metrics.jsonl", "lock", "config.toml.part"):
        out = tmp_path / name.replace(".", "-")
        out.mkdir()
        (out / name).symlink_to(mine)
        with pytest.raises(ValueError, match="symbolic link"):
            run.start_run(small(), out)
    assert mine.read_text() == "precious"


def test_a_comparison_is_not_planned_through_a_link(tmp_path):
    (tmp_path / "mine").write_text("precious")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "comparison.json").symlink_to(tmp_path / "mine")
    with pytest.raises(ValueError, match="symbolic link"):
        resume_all(tmp_path / "out", None)
    (tmp_path / "out" / "comparison.json").unlink()
    (tmp_path / "out" / "comparison.json.part").symlink_to(tmp_path / "mine")
    compare_runs(small(), [], [], tmp_path / "out", None)
    assert not (tmp_path / "out" / "comparison.json").is_symlink()
    assert (tmp_path / "mine").read_text() == "precious"


def test_a_pipe_in_the_place_of_a_file_is_refused(made, tmp_path):
    out = copy_of(made, "memory cut", tmp_path)
    (out / "metrics.jsonl").unlink()
    os.mkfifo(out / "metrics.jsonl")
    assert "is no ordinary file" in take_up(out).text


EVIL = {"method": "evil:Method", "dataset": "evil:load", "partition": "evil:rule:2", "model": "evil:make",
        "engine": "evil:engine", "metrics": "evil:metric"}  # fmt: skip


@pytest.mark.parametrize("setting", EVIL)
def test_modules_that_the_user_did_not_name_are_not_imported(setting, made, tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text("raise SystemError('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    out = copy_of(made, "memory cut", tmp_path)
    config = small(**{setting: EVIL[setting]})
    run_folder.write_run(out, files.read_json(out / run_folder.RUN), run.to_toml(config))
    with pytest.raises(ValueError, match=f"names code of its own .the {setting} 'evil:.*--trust"):
        posterity.load(out)
    with pytest.raises(ValueError, match="--trust"):
        check_trusted(tmp_path, trust=False)
    write_report(out, tmp_path / "page.html")  # reads, and imports nothing
    with pytest.raises(SystemError, match="imported"):
        posterity.load(out, trust=True)


def test_an_engine_in_the_facts_is_not_imported(made, tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text("raise SystemError('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    out = copy_of(made, "memory cut", tmp_path)
    files.write_json(out / run_folder.RUN, {**files.read_json(out / run_folder.RUN), "engine": "evil:e"})
    assert "engine: 'evil:e'" in take_up(out).text


@pytest.mark.parametrize("given", [{"method": "fedavg+ft"}, {"partition": "dirichlet:0.3"}, {"dataset": "a/b:c.csv"},
                                   {"method": "pfedvmp@paper"}, {"partition": "natural"}])  # fmt: skip
def test_what_is_ours_needs_no_trust(given):
    assert outside_names(small(**given)) == {}


def test_a_plan_is_looked_at_too(tmp_path):
    plan = {"methods": ["fedavg", "evil:Method"], "seeds": [0], "config": run.to_toml(small()), "together": False}
    files.write_json(tmp_path / "comparison.json", plan)
    with pytest.raises(ValueError, match=r"comparison.json names code of its own .the method 'evil:Method'"):
        check_trusted(tmp_path, trust=False)
