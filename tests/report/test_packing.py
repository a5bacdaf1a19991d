"""Packed runs: one small file gives the tables, findings and per-client numbers of the folders it was made from."""

from __future__ import annotations

import json
import lzma
import math
from dataclasses import replace

import pytest
import torch

from posterity.report import ReportError, finding, headline, load_runs, pack_runs, write_report
from posterity.report.sections import uneven
from posterity.report.table import RULES, select_round
from posterity.runs.lines import ClientColumns, ScoreLine, read_lines, write_lines

from .fake_runs import comparison, write_run


@pytest.fixture
def folder(tmp_path):
    return comparison(tmp_path / "runs", {"fedavg": 0.7, "pfedvmp": 0.9}, newcomers=4, common=True)


@pytest.mark.parametrize("show", list(RULES))
def test_the_table_is_the_same(folder, tmp_path, show):
    packed = pack_runs(folder, tmp_path / "table.jsonl.xz")
    ours, theirs = headline(load_runs(packed), show), headline(load_runs(folder), show)
    assert [(r.label, r.point, r.rounds, r.seeds) for r in ours] == [
        (r.label, r.point, r.rounds, r.seeds) for r in theirs
    ]
    for one, other in zip(ours, theirs, strict=True):
        assert {k: c.text for k, c in one.cells.items()} == {k: c.text for k, c in other.cells.items()}
        assert [c.mean for c in one.cells.values()] == pytest.approx([c.mean for c in other.cells.values()], rel=1e-6)


@pytest.mark.parametrize("show", list(RULES))
def test_every_client_of_the_chosen_round_is_kept(folder, tmp_path, show):
    packed = load_runs(pack_runs(folder, tmp_path / "table.jsonl.xz"))
    for one, other in zip(packed, load_runs(folder), strict=True):
        ours, theirs = select_round(one, show), select_round(other, show)
        assert ours.round == theirs.round
        assert ours.by_client("accuracy") == pytest.approx(theirs.by_client("accuracy"), rel=1e-6)
        assert ours.by_client("n") == theirs.by_client("n")


def test_the_page_can_be_made_and_the_file_is_small(folder, tmp_path):
    packed = pack_runs(folder, tmp_path / "table.jsonl.xz")
    page = write_report(packed)
    assert page == tmp_path / "table.html"
    assert "pFedVMP" in page.read_text(encoding="utf-8")
    assert packed.stat().st_size < sum(p.stat().st_size for p in folder.rglob("metrics.jsonl")) / 5


def test_the_same_runs_give_the_same_bytes(folder, tmp_path):
    one, two = (pack_runs(folder, tmp_path / name).read_bytes() for name in ("a.xz", "b.xz"))
    assert one == two


def test_an_unfinished_run_is_refused_and_nothing_is_written(folder, tmp_path):
    write_run(folder / "late" / "seed-0", "local", 0.5, 0, status="running", stop=18)
    with pytest.raises(ReportError, match="seed-0 is not finished"):
        pack_runs(folder, tmp_path / "table.jsonl.xz")
    assert not (tmp_path / "table.jsonl.xz").exists()


def test_a_run_whose_metrics_were_left_behind_is_refused(folder, tmp_path):
    next(folder.rglob("metrics.jsonl")).unlink()
    with pytest.raises(ReportError, match=r"is finished, but has no metrics\.jsonl"):
        pack_runs(folder, tmp_path / "table.jsonl.xz")
    assert not (tmp_path / "table.jsonl.xz").exists()


OTHERS = {"nothing": b"", "text": b"text", "object": lzma.compress(b"{}\n"), "list": lzma.compress(b"[1]")}


@pytest.mark.parametrize("content", OTHERS.values(), ids=OTHERS)
def test_another_file_is_told(tmp_path, content):
    path = tmp_path / "other.xz"
    path.write_bytes(content)
    with pytest.raises(ReportError, match=r"other\.xz"):
        load_runs(path)


def rewritten(folder, change):
    """Every log below a folder with other lines."""
    for path in folder.rglob("metrics.jsonl"):
        lines = change(path.parent, [json.loads(line) for line in path.read_text().splitlines()])
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def in_files(folder):
    """Clients' numbers as a run of more than 2,000 keeps them: float32, a file a round; the last is not scored."""
    for path in folder.rglob("metrics.jsonl"):
        lines, rounds = read_lines(path), {}
        for line in lines:
            if isinstance(line, ScoreLine):
                size = len(line.clients["n"])
                some = {name: torch.tensor(reals(values)[:-1]).float() for name, values in line.clients.items()}
                line = replace(line, clients=ClientColumns(size, torch.arange(size - 1).int(), some))
            rounds.setdefault(line.round, []).append(line)
        path.unlink()
        for some in rounds.values():
            write_lines(path, some)


def reals(values):
    return [math.nan if value is None else value for value in values]


def test_clients_whose_numbers_are_in_files_are_packed_too(tmp_path):
    """The page of the packed file ended with the name of a file that is not there."""
    folder = comparison(tmp_path / "runs", {"fedavg": 0.7, "fedper": 0.8}, rounds=4, clients=12)
    in_files(folder)
    packed = pack_runs(folder, tmp_path / "table.jsonl.xz")
    ours, theirs = headline(load_runs(packed)), headline(load_runs(folder))
    assert finding(ours) == finding(theirs)
    one, other = (rows[0].picked[0][1] for rows in (ours, theirs))
    assert one.by_client("n") == other.by_client("n")
    assert one.by_client("accuracy")[-1] is other.by_client("accuracy")[-1] is None
    assert one.by_client("accuracy")[:-1] == pytest.approx(other.by_client("accuracy")[:-1], rel=1e-6)
    assert "Every client under every method" in write_report(packed).read_text(encoding="utf-8")


@pytest.mark.parametrize("away", [False, True])
def test_sites_are_away_where_they_were_and_only_there(tmp_path, away):
    """Of a run across machines; the rounds that no rule chose have no numbers of clients in a packed file."""
    folder = comparison(tmp_path / "runs", {"fedavg": 0.7}, 1, rounds=6, clients=3)

    def leave(_, lines):
        for line in (x for x in lines if x["kind"] == "score" and x["round"] == 4 and away):
            line["clients"]["n"][1] = 0
        return lines

    rewritten(folder, leave)
    path = folder / "fedavg" / "seed-0" / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "engine": "flower"}))
    told = uneven(headline(load_runs(pack_runs(folder, tmp_path / "table.jsonl.xz"))))
    assert told == uneven(headline(load_runs(folder)))
    assert ["rounds were not scored on all clients" in each for each in told] == [True] * away
