"""`posterity datasets NAME`: what a dataset is, where its files come from and belong, and which are there."""

from __future__ import annotations

import pytest

from posterity.data.registry import available


def flat(text: str) -> str:
    """What was printed, without the breaks of lines."""
    return " ".join(text.split())


@pytest.mark.parametrize("name", [each.name for each in available()])
def test_every_dataset_says_where_it_comes_from(call, monkeypatch, name):
    monkeypatch.delenv("POSTERITY_DATA", raising=False)
    code, out, _ = call("datasets", name)
    assert code == 0
    if name in ("digits", "synthetic", "polynomial"):
        assert "part of the package and needs no files" in flat(out)
    else:
        assert "Official source: http" in flat(out)
        assert "Put them into one of: $POSTERITY_DATA" in flat(out)
        assert "There is no data folder: set the environment variable POSTERITY_DATA, or pass --data-dir" in flat(out)


def test_files_with_size_checksum_and_place(call, tmp_path):
    folder = tmp_path / "data"
    (folder / "cifar10").mkdir(parents=True)
    (folder / "cifar10" / "cifar-10-binary.tar.gz").write_bytes(b"torn")
    out = call("datasets", "cifar10", "--data-dir", str(folder))[1]
    assert "cifar-10-python.tar.gz, 170,498,071 bytes, md5 c58f30108f718f92721af3b95e74349a, not found" in out
    assert f"found in {folder / 'cifar10'} with 4 bytes, not as published" in out
    assert f"Read by --dataset cifar10: binary archive ({folder}" in flat(out).replace("( ", "(")
    complaint = call("run", "--dataset", "cifar10", "--data-dir", str(folder), "--rounds", "1")[2]
    assert "cifar-10-binary.tar.gz: cannot be read" in flat(complaint)
    assert "fetch it again" in flat(complaint)


def test_a_folder_or_a_name_that_is_not_there(call, tmp_path):
    out = flat(call("datasets", "femnist", "--data-dir", str(tmp_path / "nowhere"))[1])
    assert "There is no data folder: set the environment variable POSTERITY_DATA" in out
    assert "nothing yet: no form is there completely" in out
    code, _, complaint = call("datasets", "cifar")
    assert (code, "did you mean 'cifar10'" in flat(complaint)) == (2, True)


def test_options_and_clients_are_shown(call):
    out = flat(call("datasets", "emnist")[1])
    assert "Options (--set): data.split=balanced" in out
    assert "It has clients of its own." in flat(call("datasets", "office31")[1])
