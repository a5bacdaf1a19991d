"""A hospital's own table: train on it, predict for new patients in their raw units, without the table, anywhere."""

from __future__ import annotations

import csv
import io
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from experiment.damage import as_before_kept_rounds

import posterity
from posterity.cli import predict as command
from posterity.experiment import run, run_folder
from posterity.experiment.config import Config
from posterity.report import write_report

SITES = ("east", "north", "west")
CONFIG = Config(method="fedmap", dataset="visits.csv", target="outcome", client_column="site", rounds=3,
                evaluate_every=1, lr=0.2, local_epochs=1, engine="stacked", newcomers="1",
                set={"model.hidden": "4"})  # fmt: skip


def patients(rows: int = 120, seed: int = 3) -> list[dict[str, object]]:
    """Age in years, creatinine in µmol/l and weight in g: the same patient is another row at every site."""
    draw, made = np.random.default_rng(seed), []
    for i in range(rows):
        age, weight = draw.normal(60 + 8 * (i % 3), 9), draw.normal(70_000, 9_000)
        creatinine = draw.normal(90 + 40 * (i % 3), 20)
        ill = draw.random() < 1 / (1 + np.exp(-(age - 66) / 5))
        made.append({"age": round(float(age), 1), "creatinine": round(float(creatinine), 1), "site": SITES[i % 3],
                     "weight": round(float(weight)), "outcome": "ill" if ill else "well"})  # fmt: skip
    return made


def write_table(path: Path, rows: list[dict[str, object]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def read_answers(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with the table and a finished run on it, begun by the relative name of the table."""
    base = tmp_path_factory.mktemp("project")
    write_table(base / "visits.csv", patients())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(base)
        run.start_run(CONFIG, Path("runs"))
    return base


def test_raw_rows_go_in(project):
    result = posterity.load(project / "runs")
    federation = result.federation  # the table is still there
    assert not federation.absent
    raw = torch.tensor([[row["age"], row["creatinine"], row["weight"]] for row in patients()], dtype=torch.float64)
    told = result.clients()
    for client in range(federation.members):
        rows = federation.test.client(client)
        found = result.predict_proba(federation.names[client], raw[rows])
        again = result.predict_proba(client, federation.x[rows], scaled=True)
        assert torch.equal(found, again)
        assert (found.argmax(1) == federation.y[rows]).double().mean().item() == told["accuracy"][client]
    same = [result.predict_proba(client, raw[:1]) for client in (0, 1)]
    assert not torch.allclose(same[0], result.predict_proba(0, raw[:1], scaled=True))


def test_predict_a_file(project, tmp_path):
    """Columns in another order, others between them, rows of all clients mixed: as asked, row by row."""
    new = [{"id": i, "weight": row["weight"], "site": row["site"], "age": row["age"], "outcome": "well",
            "creatinine": row["creatinine"]} for i, row in enumerate(patients(7, seed=9))]  # fmt: skip
    text, notes = command.predict_file(project / "runs", write_table(tmp_path / "new.csv", new))
    result, answers = posterity.load(project / "runs"), read_answers(text)
    assert [(a["row"], a["client"]) for a in answers] == [(str(i), row["site"]) for i, row in enumerate(new)]
    for row, answer in zip(new, answers, strict=True):
        expected = result.predict_proba(row["site"], [[row["age"], row["creatinine"], row["weight"]]])[0].tolist()
        assert [float(answer["p_ill"]), float(answer["p_well"])] == pytest.approx(expected, rel=1e-5)
        assert answer["predicted"] == ("ill" if expected[0] > expected[1] else "well")
    assert "not looked at: id, outcome" in notes[0]
    round = result.delivered().round
    assert notes[-1] == f"models of round {round} (validated), as trained and newcomers as received"
    members, late = result.federation.members, result.federation.names[-1]
    for client, point in ((result.federation.names[0], "trained"), (late, "received")):
        asked = write_table(tmp_path / "one.csv", [{k: v for k, v in new[0].items() if k != "site"}])
        _, notes = command.predict_file(project / "runs", asked, client)
        assert notes[-1] == f"models of round {round} (validated), as {point}"
    assert members == 2
    command.write_predictions(tmp_path / "answers.csv", text)
    assert (tmp_path / "answers.csv").read_text() == text


def test_models_of_a_run_that_came_to_nothing_say_so(project, tmp_path):
    shutil.copytree(project / "runs", tmp_path / "runs")
    facts = run_folder.read_json(tmp_path / "runs" / run_folder.RUN)
    run_folder.write_json(tmp_path / "runs" / run_folder.RUN, {**facts, "diverged": "its loss has exploded"})
    asked = write_table(tmp_path / "new.csv", patients(2))
    _, notes = command.predict_file(tmp_path / "runs", asked)
    assert "this is no result: its loss has exploded" in notes
    assert not any("no result" in note for note in command.predict_file(project / "runs", asked)[1])


def test_a_folder_stands_alone(project, tmp_path, monkeypatch):
    """Moved, without the table, from another folder: the same bits; and saved again from there."""
    rows = [[61.0, 100.0, 70_000.0], [80.0, 60.0, 50_000.0]]
    before = posterity.load(project / "runs")
    shutil.copytree(project / "runs", tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    facts = run_folder.read_json(tmp_path / "moved" / run_folder.RUN)
    facts["federation"]["file"] = str(tmp_path / "gone" / "visits.csv")
    run_folder.write_json(tmp_path / "moved" / run_folder.RUN, facts)
    alone = posterity.load("moved")
    saved = posterity.load(alone.save("saved"))
    for result in (alone, saved):
        assert result.federation.absent
        assert result.clients() == before.clients()
        for client in (*SITES, 0):
            for show in ("validated", "last"):
                assert torch.equal(
                    result.predict_proba(client, rows, show=show), before.predict_proba(client, rows, show=show)
                )
    assert write_report(Path("moved")).exists()
    with pytest.raises(
        ValueError, match=r"'adapted' only|trained on the client's own data|at the point 'trained' only"
    ):
        alone.predict_proba(0, rows, point="adapted")


def test_what_is_wrong_with_a_file_is_said(project, tmp_path):
    ask = lambda rows, **more: command.predict_file(project / "runs", write_table(tmp_path / "a.csv", rows), **more)  # noqa: E731
    good = {"age": 60, "creatinine": 90, "weight": 70_000}
    with pytest.raises(ValueError, match=r"whose rows are these\? .*--client NAME with one of "):
        ask([good])
    with pytest.raises(ValueError, match="row 0: there is no client 'nrth' in this run; did you mean 'north'"):
        ask([{**good, "site": "nrth"}])
    with pytest.raises(ValueError, match="--client: there is no client 'nowhere'"):
        ask([good], client="nowhere")
    with pytest.raises(ValueError, match=r"no column 'weight' .*expected all 3 features"):
        ask([{"age": 60, "creatinine": 90, "wieght": 70_000, "site": "north"}])
    with pytest.raises(ValueError, match=r"line 2, column age"):
        ask([{**good, "age": "", "site": "north"}])
    with pytest.raises(ValueError, match="unknown kind of file"):
        command.predict_file(project / "runs", project / "runs" / run_folder.RUN)
    with pytest.raises(ValueError, match=r"holds no run .*it holds several, give one of them: .*runs"):
        command.predict_file(project, project / "visits.csv")
    text, notes = ask([{**good, "site": "nowhere"}], client="north")
    assert read_answers(text)[0]["client"] == "north"
    assert "--client was given" in notes[0]


def test_a_column_called_client_says_whose_rows_they_are(project, tmp_path):
    """Where the training's column is missing; it wins where both are there, and what is a feature is no client."""
    good = {"age": 60, "creatinine": 90, "weight": 70_000}
    for extra, whose in (({"client": "west"}, "west"), ({"client": "west", "site": "north"}, "north")):
        text, _ = command.predict_file(project / "runs", write_table(tmp_path / "a.csv", [{**good, **extra}]))
        assert read_answers(text)[0]["client"] == whose
    np.savez(tmp_path / "a.npz", x=np.array([[60.0, 90.0, 70_000.0]]), client=np.array(["east"]))
    assert read_answers(command.predict_file(project / "runs", tmp_path / "a.npz")[0])[0]["client"] == "east"
    table = write_table(tmp_path / "b.csv", [{"client": 5, "age": 60}])
    assert command.read_rows(table, ("client", "age"), "site").client is None


def test_the_rows_that_are_read_are_not_replaced(project, call):
    rows = write_table(Path("in.csv"), patients(3))
    before = rows.read_bytes()
    Path("link.csv").symlink_to(rows)
    for out in ("in.csv", "./in.csv", "link.csv"):
        code, _, complaint = call("predict", str(project / "runs"), "in.csv", "--out", out)
        assert code == 2
        assert complaint == f"error: --out {Path(out)} is the file that is read, and would be replaced by its " \
                            "predictions; give another\n"  # fmt: skip
    assert rows.read_bytes() == before
    assert call("predict", str(project / "runs"), "in.csv", "--out", "out.csv")[0] == 0


class Stopped(Exception):
    pass


def stop(round: int, rounds: int, lines: object) -> None:
    raise Stopped


def test_values_edited_while_a_run_was_stopped(tmp_path, monkeypatch):
    """Refused until the old values are back; then it goes on, from any folder."""
    rows = patients()
    write_table(tmp_path / "visits.csv", rows)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Stopped):
        run.start_run(CONFIG, tmp_path / "run", stop)
    with pytest.raises(ValueError, match="is not finished"):
        command.predict_file(tmp_path / "run", tmp_path / "visits.csv")
    write_table(tmp_path / "visits.csv", [{**rows[0], "age": 61.5}, *rows[1:]])
    with pytest.raises(ValueError, match=r"with other values than now.*Put the old data back"):
        posterity.load(tmp_path / "run")
    (tmp_path / "visits.csv").unlink()
    with pytest.raises(ValueError, match=r"no such file.*is not finished and needs its data to go on"):
        posterity.load(tmp_path / "run")
    write_table(tmp_path / "visits.csv", rows)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert posterity.load(tmp_path / "run").round == 3
    write_table(tmp_path / "visits.csv", [{**rows[0], "age": 61.5}, *rows[1:]])
    assert posterity.load(tmp_path / "run").federation.absent  # finished: nothing of the data is needed


@pytest.mark.everything
def test_a_folder_of_before_fingerprints_goes_on(tmp_path, monkeypatch):
    write_table(tmp_path / "visits.csv", patients())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Stopped):
        run.start_run(CONFIG, tmp_path / "run", stop)
    facts = run_folder.read_json(tmp_path / "run" / run_folder.RUN)
    for name in ("fingerprint", "file", "data_dir", "shape", "samples"):
        del facts["federation"][name]
    run_folder.write_json(tmp_path / "run" / run_folder.RUN, facts)
    as_before_kept_rounds(tmp_path / "run", 1)  # nor did a folder list its files
    (tmp_path / "run" / "inputs.safetensors").unlink()
    assert posterity.load(tmp_path / "run").round == 3


def test_a_quantity_has_a_mean_and_a_deviation(tmp_path):
    rows = [{**row, "outcome": 2.0 * float(row["age"])} for row in patients(60)]  # type: ignore[arg-type]
    path = write_table(tmp_path / "visits.csv", rows)
    config = replace(CONFIG, method="fedavg", dataset=str(path), set={**CONFIG.set, "data.task": "regression"})
    run.start_run(replace(config, rounds=1), tmp_path / "run")
    text, _ = command.predict_file(tmp_path / "run", path)
    result = posterity.load(tmp_path / "run")
    first = {name: float(value) for name, value in read_answers(text)[0].items() if name in ("mean", "sd")}
    mean, variance = result.predict_proba("east", [[rows[0][n] for n in ("age", "creatinine", "weight")]])[0].tolist()
    path.unlink()
    assert posterity.load(tmp_path / "run").diverged == result.diverged
    assert first == {"mean": pytest.approx(mean, rel=1e-5), "sd": pytest.approx(variance**0.5, rel=1e-5)}


def test_pictures_as_bytes(tmp_path):
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 256, (60, 8, 8), dtype=np.uint8), np.arange(60) % 2
    np.savez(tmp_path / "scans.npz", x=x, y=y, client=np.array(["a", "b", "c"])[np.arange(60) % 3])
    config = Config(method="fedavg", dataset=str(tmp_path / "scans.npz"), rounds=1, set={"model.hidden": "4"})
    run.start_run(config, tmp_path / "run")
    result = posterity.load(tmp_path / "run")
    whole = result.predict_proba("b", x[:5])
    assert torch.equal(whole, result.predict_proba("b", torch.from_numpy(x[:5])[:, None].float() / 127.5 - 1))
    text, _ = command.predict_file(tmp_path / "run", tmp_path / "scans.npz")
    found = [[float(a["p_0"]), float(a["p_1"])] for a in read_answers(text) if a["client"] == "b"]
    assert found == [pytest.approx(p, rel=1e-5) for p in result.predict_proba("b", x[1::3]).tolist()]
