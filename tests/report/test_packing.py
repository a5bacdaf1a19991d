"""Packed runs: one small file gives the tables, findings and per-client numbers of the folders it was made from."""

from __future__ import annotations

import gzip

import pytest
from fake_runs import comparison, write_run

from posterity.report import ReportError, headline, load_runs, pack_runs, write_report
from posterity.report.selected_round import RULES, select_round


@pytest.fixture
def folder(tmp_path):
    return comparison(tmp_path / "runs", {"fedavg": 0.7, "pfedvmp": 0.9}, newcomers=4, common=True)


@pytest.mark.parametrize("show", list(RULES))
def test_the_table_is_the_same(folder, tmp_path, show):
    packed = pack_runs(folder, tmp_path / "table.jsonl.gz")
    ours, theirs = headline(load_runs(packed), show), headline(load_runs(folder), show)
    assert [(r.label, r.point, r.rounds, r.seeds) for r in ours] == [
        (r.label, r.point, r.rounds, r.seeds) for r in theirs
    ]
    for one, other in zip(ours, theirs, strict=True):
        assert {k: c.text for k, c in one.cells.items()} == {k: c.text for k, c in other.cells.items()}
        assert [c.mean for c in one.cells.values()] == pytest.approx([c.mean for c in other.cells.values()], rel=1e-6)


@pytest.mark.parametrize("show", list(RULES))
def test_every_client_of_the_chosen_round_is_kept(folder, tmp_path, show):
    packed = load_runs(pack_runs(folder, tmp_path / "table.jsonl.gz"))
    for one, other in zip(packed, load_runs(folder), strict=True):
        ours, theirs = select_round(one, show), select_round(other, show)
        assert ours.round == theirs.round
        assert ours.score.by_client("accuracy") == pytest.approx(theirs.score.by_client("accuracy"), rel=1e-6)
        assert ours.score.by_client("n") == theirs.score.by_client("n")


def test_the_page_can_be_made_and_the_file_is_small(folder, tmp_path):
    packed = pack_runs(folder, tmp_path / "table.jsonl.gz")
    page = write_report(packed)
    assert page == tmp_path / "table.html"
    assert "pFedVMP" in page.read_text(encoding="utf-8")
    assert packed.stat().st_size < sum(p.stat().st_size for p in folder.rglob("metrics.jsonl")) / 5


def test_the_same_runs_give_the_same_bytes(folder, tmp_path):
    one, two = (pack_runs(folder, tmp_path / name).read_bytes() for name in ("a.gz", "b.gz"))
    assert one == two


def test_an_unfinished_run_is_refused_and_nothing_is_written(folder, tmp_path):
    write_run(folder / "late" / "seed-0", "local", 0.5, 0, status="running", stop=18)
    with pytest.raises(ReportError, match="seed-0 is not finished"):
        pack_runs(folder, tmp_path / "table.jsonl.gz")
    assert not (tmp_path / "table.jsonl.gz").exists()


def test_a_run_whose_metrics_were_left_behind_is_refused(folder, tmp_path):
    next(folder.rglob("metrics.jsonl")).unlink()
    with pytest.raises(ReportError, match=r"is finished, but has no metrics\.jsonl"):
        pack_runs(folder, tmp_path / "table.jsonl.gz")
    assert not (tmp_path / "table.jsonl.gz").exists()


OTHERS = {"nothing": b"", "text": b"text", "object": gzip.compress(b"{}\n"), "list": gzip.compress(b"[1]")}


@pytest.mark.parametrize("content", OTHERS.values(), ids=OTHERS)
def test_another_file_is_told(tmp_path, content):
    path = tmp_path / "other.gz"
    path.write_bytes(content)
    with pytest.raises(ReportError, match=r"other\.gz"):
        load_runs(path)
