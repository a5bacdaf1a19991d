"""Somebody else's run folder or packed file: nothing of it is obeyed, nothing outside it is read, and a folder that
cannot be written is read all the same."""

from __future__ import annotations

import json
import lzma
import os
import sys
import threading
from pathlib import Path

import pytest

from posterity.report import ReportError, load_runs, pack_runs, write_report
from posterity.runs import files
from posterity.runs import read as logs_of

from .fake_runs import comparison, write_run
from .handmade import edited
from .test_page import Outline, outline, words

EVIL = (
    "</style></script><script>alert(1)</script><img src=x onerror=alert(2)>",
    '" onmouseover="alert(3)" x="',
    "javascript:alert(4)",
    "{{ 7 * 7 }}{% raw %}",
    "<svg><title></title><a href='//evil.example'>x</a></svg>",
    "name\u202egnp.exe\x1b[31m\x00\ud800",
)
REPO = Path(__file__).parents[2]


def poisoned(folder: Path, text: str) -> Path:
    """A run folder with `text` wherever a run writes a name."""
    write_run(folder, "fedavg", 0.7, 0, rounds=10, trouble=True, newcomers=4, common=True)
    facts = json.loads((folder / "run.json").read_text())
    facts["method"] |= {"label": text, "reference": text, "outside": text, "fields": {text: text}}
    fed = facts["federation"]
    fed |= {"name": text, "names": [text] * 20, "class_names": [text] * 10, "notes": [text]}
    facts |= {"command": text, "engine_remark": text, "notes": [text], "status": text, "device": text}
    facts["metrics"] = [{"name": "accuracy_of_mine", "label": text, "meaning": text, "better": text, "unit": text}]
    (folder / "run.json").write_text(json.dumps(facts))
    edited(
        folder, "config.toml", 'model = "mlp"', f"model = {json.dumps(text, ensure_ascii=True)}".replace("\\ud800", "?")
    )
    lines = (folder / "metrics.jsonl").read_text().replace("not finite <&>", json.dumps(text)[1:-1])
    lines = lines.replace('"effective_clients"', json.dumps(text)).replace('"nll"', '"accuracy_of_mine"')
    (folder / "metrics.jsonl").write_text(lines)
    return folder


@pytest.mark.parametrize("text", EVIL)
def test_nothing_active_comes_out_of_a_label(tmp_path: Path, text: str) -> None:
    clean = outline(
        write_report(write_run(tmp_path / "clean", "fedavg", 0.7, 0, rounds=10, trouble=True, newcomers=4, common=True))
    )
    seen: Outline = outline(write_report(poisoned(tmp_path / "evil", text)))
    assert {(tag, name) for tag, name, _ in seen.attributes} <= {(t, n) for t, n, _ in clean.attributes} | {
        ("small", "class"), ("tr", "class"), ("aside", "class")
    }  # fmt: skip
    assert seen.tags.count("script") == seen.tags.count("style") == 1
    assert not [value for _, name, value in seen.attributes if name in ("href", "src") and not value.startswith("#")]
    assert not set("\x1b\x00\u202e\ud800") & set("".join(seen.text))


def test_only_the_pages_own_script_and_style_are_allowed(tmp_path: Path) -> None:
    page = write_report(poisoned(tmp_path, EVIL[0])).read_text(encoding="utf-8")
    (policy,) = [v for t, n, v in outline(tmp_path / "report.html").attributes if "default-src" in v and t == "meta"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert page.index("Content-Security-Policy") < page.index("<title>")


def test_no_module_is_imported_and_no_code_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Method, metric and network that a folder names stay names, even if such a module lies in the current folder."""
    for place in (tmp_path, tmp_path / "run"):
        place.mkdir(exist_ok=True)
        (place / "evil_module.py").write_text("raise SystemExit('this must not be imported')")
    folder = write_run(tmp_path / "run", "fedavg", 0.7, 0, rounds=4)
    edited(folder, "config.toml", 'method = "fedavg"', 'method = "evil_module:Method"\nmetrics = "evil_module:metric"')
    edited(folder, "config.toml", 'dataset = "digits"', 'dataset = "evil_module:load"')
    facts = json.loads((folder / "run.json").read_text())
    facts["method"]["name"] = "evil_module:Method"
    (folder / "run.json").write_text(json.dumps(facts))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    write_report(folder, tmp_path / "page.html")
    write_report(pack_runs(folder, tmp_path / "runs.jsonl.xz"), tmp_path / "packed.html")
    assert not [name for name in set(sys.modules) - before if "evil" in name]


@pytest.mark.parametrize("name", ["run.json", "metrics.jsonl", "config.toml"])
def test_a_link_in_a_run_folder_is_not_followed(tmp_path: Path, name: str) -> None:
    folder = write_run(tmp_path / "run", "fedavg", 0.7, 0, rounds=4)
    (tmp_path / "secret").write_text((folder / name).read_text())
    (folder / name).unlink()
    (folder / name).symlink_to(tmp_path / "secret")
    with pytest.raises(ValueError, match=f"{name} is a symbolic link"):
        write_report(folder)


def test_a_pipe_in_a_run_folder_is_not_waited_for(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", "fedavg", 0.7, 0, rounds=4)
    (folder / "config.toml").unlink()
    os.mkfifo(folder / "config.toml")
    late = threading.Timer(20, lambda: os.close(os.open(folder / "config.toml", os.O_RDWR)))
    late.start()  # whoever waits for it all the same does not wait for ever
    try:
        with pytest.raises(ValueError, match="no ordinary file"):
            write_report(folder)
    finally:
        late.cancel()


def test_folders_behind_a_link_are_not_looked_into(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "mine", "fedavg", 0.7, 0)
    write_run(tmp_path / "elsewhere", "fedper", 0.7, 0)
    (tmp_path / "runs" / "theirs").symlink_to(tmp_path / "elsewhere")
    assert [run.label for run in load_runs(tmp_path / "runs")] == ["FedAvg"]


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", "fedavg", 0.7, 0, rounds=4)
    (tmp_path / "mine").write_text("precious")
    for name in ("report.html", "report.html.part"):
        (folder / name).symlink_to(tmp_path / "mine")
    page = write_report(folder)
    assert (tmp_path / "mine").read_text() == "precious"
    assert not page.is_symlink()


def test_a_packed_file_that_expands_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs_of, "UNPACKED", 1 << 20)
    (tmp_path / "bomb.xz").write_bytes(lzma.compress(b" " * (1 << 21)))
    with pytest.raises(ReportError, match="expands to more than 1 MiB"):
        load_runs(tmp_path / "bomb.xz")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("run.json", '{"federation": {"train": "abc"}}'),
        ("run.json", '{"method": [1]}'),
        ("run.json", "[" * 100_000),
        ("run.json", '{"federation": {"clients": 1e999}}'),
        ("metrics.jsonl", '[1]\n{"kind": "score"}\n'),
        ("metrics.jsonl", '{"kind": "round", "round": "x"}\n{}\n'),
    ],
)
def test_what_no_run_writes_is_a_sentence(tmp_path: Path, name: str, content: str) -> None:
    folder = write_run(tmp_path / "run", "fedavg", 0.7, 0, rounds=4)
    (folder / name).write_text(content)
    with pytest.raises(ReportError, match="edited by hand"):
        write_report(folder)


def test_a_folder_that_cannot_be_written_is_told_and_can_be_reported_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = comparison(tmp_path / "runs", {"fedavg": 0.7, "fedper": 0.8}, 1)
    real = files.open_regular

    def read_only(path: Path, mode: str, *rest: int) -> object:
        if runs in path.parents and set(mode) & set("wxa+"):
            raise OSError(30, "Read-only file system", str(path))
        return real(path, mode, *rest)

    monkeypatch.setattr(files, "open_regular", read_only)
    with pytest.raises(ReportError, match=r"Read-only file system.*--out"):
        write_report(runs)
    assert sorted(p.name for p in runs.iterdir()) == ["fedavg", "fedper"]
    assert "FedPer" in words(write_report(runs, tmp_path / "page.html"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_to_write(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", "fedavg", 0.7, 0, rounds=4)
    folder.chmod(0o500)
    try:
        with pytest.raises(ReportError, match="--out"):
            write_report(folder)
        assert write_report(folder, tmp_path / "page.html").exists()
    finally:
        folder.chmod(0o700)
