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

import posterity
from posterity.cli import predict as command
from posterity.experiment import run
from posterity.report import write_report
from posterity.runs import files
from posterity.runs import folder as run_folder
from posterity.settings.config import Config

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
    facts = files.read_json(tmp_path / "runs" / run_folder.RUN)
    files.write_json(tmp_path / "runs" / run_folder.RUN, {**facts, "diverged": "its loss has exploded"})
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
    facts = files.read_json(tmp_path / "moved" / run_folder.RUN)
    facts["federation"]["file"] = str(tmp_path / "gone" / "visits.csv")
    files.write_json(tmp_path / "moved" / run_folder.RUN, facts)
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
    with pytest.raises(ValueError, match=r"these\? .* a column called 'site' or 'client' .*--client NAME with one of "):
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
    assert ask([{**good, "site": ""}], client="north")[0] == text


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
        assert complaint == f"error: --out {Path(out)} is the file that is read, and would be replaced; give another\n"
    assert rows.read_bytes() == before
    assert call("predict", str(project / "runs"), "in.csv", "--out", "out.csv")[0] == 0


class Frame:
    """What `predict_proba` needs of a data frame."""

    def __init__(self, columns: dict[str, list[object]]) -> None:
        self.stored, self.columns = columns, list(columns)

    def __getitem__(self, names: list[str]) -> Frame:
        return Frame({name: self.stored[name] for name in names})

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        return np.array(list(zip(*self.stored.values(), strict=True)), dtype=object)


def test_columns_of_a_data_frame_are_found_by_their_names(project):
    result = posterity.load(project / "runs")
    asked = Frame({"site": ["north"], "weight": [70_000], "age": [61], "creatinine": [90.5]})
    expected = result.predict_proba("north", [[61.0, 90.5, 70_000.0]])
    assert torch.equal(result.predict_proba("north", asked), expected)
    with pytest.raises(ValueError, match="x has no column 'weight'; did you mean 'wieght'"):
        result.predict_proba("north", Frame({"age": [61], "creatinine": [90.5], "wieght": [70_000]}))


def test_values_that_a_file_may_not_have_are_refused_in_memory_too(project):
    """A model would answer nan, and the largest of these is the first class."""
    result = posterity.load(project / "runs")
    for wrong, message in (
        (
            [[61.0, 90.0, 70_000.0], [61.0, np.nan, 70_000.0]],
            "x: feature creatinine of row 1 is nan; expected a number",
        ),
        (np.array([[61.0, None, 70_000.0]], dtype=object), "feature creatinine of row 0 is nan"),
        ([[61.0, 90.0, 1e39]], r"feature weight of row 0 is 1e\+39"),
        (torch.tensor([[torch.inf, 90.0, 70_000.0]]), "feature age of row 0 is inf"),
        (np.array([[61.0, "high", 70_000.0]], dtype=object), "x holds what is no number .*high"),
        ([["61", "90", "70000"]], "expected a tensor or an array of numbers"),
    ):
        with pytest.raises(ValueError, match=message):
            result.predict_proba("north", wrong)
    right = np.array([[61.0, 90.0, 70_000.0]])
    same = result.predict_proba("north", right)
    assert torch.equal(result.predict_proba("north", right.astype(">f8")), same)
    mixed = np.array([[61, 90.0, 70_000], [True, 90.0, 70_000]], dtype=object)
    assert torch.equal(result.predict_proba("north", mixed)[:1], same)


def test_arrays_of_a_file_are_read_as_those_of_training(tmp_path):
    """One feature as a plain list, clients as bytes; clients whose names are numbers that others have."""
    x, y = np.random.default_rng(0).normal(60, 9, 60), np.arange(60) % 2
    who = np.array([b"1", b"2", b"3"])[np.arange(60) % 3]
    np.savez(tmp_path / "a.npz", x=x, y=y, client=who)
    config = Config(method="local", dataset=str(tmp_path / "a.npz"), rounds=1, set={"model.hidden": "4"})
    run.start_run(config, tmp_path / "run")
    np.savez(tmp_path / "new.npz", x=x[:3], client=who[:3])
    text, _ = command.predict_file(tmp_path / "run", tmp_path / "new.npz")
    answers, result = read_answers(text), posterity.load(tmp_path / "run")
    assert [answer["client"] for answer in answers] == ["1", "2", "3"]
    assert [float(a["p_0"]) for a in answers] == pytest.approx(
        [result.predict_proba(name, x[k : k + 1, None])[0, 0].item() for k, name in enumerate("123")], rel=1e-5
    )
    with pytest.warns(UserWarning, match="client 1 is the one with this number.*'2'.*called 1 give '1'"):
        found = result.predict_proba(np.int64(1), x[:1, None])
    assert torch.equal(found, result.predict_proba("2", x[:1, None]))
    for x in (np.array([60.0, np.inf], dtype=np.float16), np.array([60.0, 1e39])):
        np.savez(tmp_path / "new.npz", x=x, client=who[:2])
        with pytest.raises(ValueError, match=r"new.npz: x: feature . of row 1 is"):
            command.predict_file(tmp_path / "run", tmp_path / "new.npz")


def test_what_has_no_prediction_has_no_class():
    assert command.as_csv(["a", "b"], [[np.nan, np.nan], [0.25, 0.75]], ["ill", "well"]).splitlines()[1:] == [
        "0,a,,nan,nan", "1,b,well,0.25,0.75"]  # fmt: skip


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
    for bytes_of_another_type in (x[:5, None].astype(int), x[:5, None].astype(float)):
        with pytest.raises(ValueError, match=r"x has values up to 25\d in type torch.*; expected bytes \(uint8"):
            result.predict_proba("b", bytes_of_another_type)
    text, _ = command.predict_file(tmp_path / "run", tmp_path / "scans.npz")
    found = [[float(a["p_0"]), float(a["p_1"])] for a in read_answers(text) if a["client"] == "b"]
    assert found == [pytest.approx(p, rel=1e-5) for p in result.predict_proba("b", x[1::3]).tolist()]
