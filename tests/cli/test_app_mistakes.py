"""What is refused before anything is written, and mistyped words that get the nearest one."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from posterity.cli.app import PACKAGE, say_remarks
from posterity.runs.files import check_out, locked

SMALL = ["--dataset", "digits", "--clients", "5", "--rounds", "2", "--subset", "20%", "--quiet"]


@pytest.mark.parametrize("words", [["compare"], ["resume", "x"]])
@pytest.mark.parametrize("jobs", ["0", "-2"])
def test_no_runs_at_once_is_refused(call, words, jobs):
    code, _, complaint = call(*words, "--jobs", jobs)
    assert code == 2
    assert f"Invalid value for '--jobs': {jobs} is not in the range x>=1" in complaint
    assert not Path("runs").exists()


def test_a_range_of_no_seed_is_refused_before_anything_is_written(call):
    code, _, complaint = call("compare", "--methods", "local,fedavg", "--seeds", "3-1", "--out", "out", *SMALL)
    assert code == 2
    assert "a range from the lower one on (0-4); '3-1' was given" in complaint
    assert not list(Path().iterdir())


@pytest.mark.parametrize(("seeds", "twice"), [("0,0", "0"), ("1-3,0,2-5", "2, 3")])
def test_a_seed_named_twice_is_refused_before_anything_is_written(call, seeds, twice):
    """Two processes wrote one folder: "dup/fedavg/seed-0 is being written by another process"."""
    code, _, complaint = call("compare", "--methods", "fedavg", "--seeds", seeds, "--out", "out", *SMALL)
    assert code == 2
    assert f"--seeds names {twice} more than once" in complaint
    assert not list(Path().iterdir())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[method]\nname = "fedavg"', "method takes a word; {'name': 'fedavg'} was given"),
        ('dataset = ["digits"]', "dataset takes a word; ['digits'] was given"),
        ("subset = [1, 2]", "subset takes a word or none; [1, 2] was given"),
        ("lr = true", "lr takes a number or none; True was given"),
    ],
)
def test_a_setting_of_another_kind_says_what_it_is(call, text, message):
    Path("config.toml").write_text(text)
    code, _, complaint = call("run", "--config", "config.toml")
    assert code == 2
    assert message in complaint


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compare", "--methods", "local", "--methods", "fedavg"], "--methods was given 2 times, and only the last "
         "would count: give it once"),
        (["run", "--lr=0.1", "--rounds", "2", "--lr", "0.2"], "--lr was given 2 times, and only the last would count: "
         "give it once"),
        (["flower", "new", "app", "--method", "local", "--method", "fedper"], "--method was given 2 times"),
    ],
)  # fmt: skip
def test_a_flag_given_twice_is_refused(call, words, message):
    code, _, complaint = call(*words)
    assert code == 2
    assert message in complaint
    assert not list(Path().iterdir())


def test_flags_that_may_be_given_twice(call):
    words = ["run", *SMALL, "--quiet", "--set", "local.momentum=0.9", "--set", "model.hidden=8", "--out", "mine"]
    assert call(*words)[0] == 0
    code, _, complaint = call("report", "mine", "--", "--out", "--out")
    assert code == 2
    assert "was given" not in complaint


@pytest.mark.parametrize("command", ["run", "compare", "demo"])
@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("thesis", "thesis holds other files (chapter.tex, figures) and no"),
        ("notes.txt", "notes.txt is a file, and a folder is needed"),
        ("notes.txt/run", "is a file"),
    ],
)
def test_a_folder_with_other_files_is_left_alone(call, command, out, message):
    Path("thesis/figures").mkdir(parents=True)
    Path("thesis/chapter.tex").write_text("\\begin{document}")
    Path("notes.txt").write_text("mine")
    before = sorted(Path().rglob("*"))
    code, _, complaint = call(command, "--out", out)
    assert code == 2
    assert message in complaint
    assert "Traceback" not in complaint
    assert sorted(Path().rglob("*")) == before
    assert Path("notes.txt").read_text() == "mine"


def test_an_empty_folder_and_what_a_kill_left_are_taken(tmp_path):
    (tmp_path / ".gitkeep").write_text("")
    check_out(tmp_path)
    check_out(tmp_path, comparison=True)
    (tmp_path / "paper.pdf").write_text("")
    for comparison in (False, True):
        with pytest.raises(ValueError, match=r"holds other files \(paper.pdf\)"):
            check_out(tmp_path, comparison)
    (tmp_path / "comparison.json").write_text("{}")
    check_out(tmp_path, comparison=True)  # a comparison goes on
    with pytest.raises(ValueError, match="no run"):
        check_out(tmp_path)
    (tmp_path / "lock").write_text("")
    check_out(tmp_path)  # a run that was killed before it had a configuration


def test_a_run_is_marked_before_anything_else_is_written(tmp_path):
    """What `check_out` looks for is what `locked` leaves."""
    with locked(tmp_path):
        (tmp_path / "inputs.safetensors").write_text("")  # and here comes the kill
    check_out(tmp_path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["comapre"], "did you mean 'compare'"),
        (["new", "metod", "foo"], "did you mean 'method'"),
        (["run", "--method", "fedavg", "--roundz", "3"], "--rounds"),
        (["models", "mlpp"], "did you mean 'mlp'"),
    ],
)
def test_a_mistyped_word_gets_the_nearest(call, words, message):
    code, _, complaint = call(*words)
    assert code == 2
    assert message.lower() in complaint.lower()
    assert "Traceback" not in complaint


def test_a_mistyped_command_gets_the_nearest_once(call):
    """Typer 0.20 names it in the message, and click 8.4 once more behind that."""
    code, _, complaint = call("runn")
    assert code == 2
    assert complaint.count("Did you mean") == 1
    assert "'run'" in complaint


def test_networks_and_their_options(call):
    everything = call("models")[1]
    assert all(name in everything for name in ("mlp", "resnet18", "hidden"))
    code, detail, _ = call("models", "mlp")
    assert code == 0
    assert "model.hidden" in detail
    assert "widths of the hidden" in detail  # what the source says beside it


def test_what_the_package_remarks_is_one_line_and_other_warnings_stay(capsys):
    with warnings.catch_warnings(record=True) as usual:
        warnings.simplefilter("always")
        say_remarks()
        warnings.warn_explicit("the one before is \x1b[2Jused", UserWarning, f"{PACKAGE}/experiment/run.py", 7)
        warnings.warn_explicit("something else", UserWarning, "elsewhere.py", 7)
    assert capsys.readouterr().err == "note: the one before is \\x1b[2Jused\n"
    assert [str(each.message) for each in usual] == ["something else"]
