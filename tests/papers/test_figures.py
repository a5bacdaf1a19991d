"""The papers' figures, each made on a few digits, and what they show held against logs, models and metrics."""

from __future__ import annotations

import json
import re
import statistics
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import posterity
from posterity.evaluate import per_client, score
from posterity.experiment.models import carry_of
from posterity.papers.figures import catalogue, draw_figure, figures
from posterity.papers.figures.drawing import KINDS, PARTITION
from posterity.papers.figures.features import scatter_ratio
from posterity.papers.figures.material import Material
from posterity.papers.figures.sheet import Panel, sheet
from posterity.papers.recipe import find
from posterity.papers.runs import RunRequest, gather, read_places
from posterity.papers.shown import Shown, read_value
from posterity.report import load_runs, pack_runs

DOCS = Path(__file__).parents[2] / "docs"
RAW, PICTURES = DOCS / "results" / "raw", DOCS / "pictures" / "figures"

TINY: dict[str, Any] = {
    "dataset": "digits", "model": "mlp", "subset": "20%", "clients": 3, "rounds": 2, "batch_size": 20, "lr": 0.1,
    "local_epochs": 1, "newcomers": "0", "participation": "100%", "partition": "dirichlet:0.5", "engine": "stacked",
    "evaluate_every": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Made:
    """A figure's files, read."""

    root: ElementTree.Element
    numbers: dict[str, Any]
    folder: Path

    def marked(self, css: str, tag: str = "*") -> list[ElementTree.Element]:
        return [each for each in self.root.iter() if css in each.get("class", "").split() and tag in ("*", local(each))]

    @property
    def texts(self) -> list[str]:
        return [each.text or "" for each in self.root.iter() if local(each) == "text"]


def local(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def make(name: str, folder: Path, cells: Sequence[str] = (), methods: Sequence[str] = (), **asked: Any) -> Made:
    drawn = draw_figure(name, folder, RunRequest(**asked), cells, methods)
    assert drawn.svg == folder / "figures" / f"{name}.svg"
    numbers = json.loads(drawn.numbers.read_text(encoding="utf-8"))
    assert (numbers["figure"], numbers["tables"]) == (name, list(figures()[name].tables))
    return Made(ElementTree.parse(drawn.svg).getroot(), numbers, folder)


def test_the_catalogue():
    """Every figure has a drawer, and names columns and rows that its tables have."""
    for name, figure in figures().items():
        assert figure.id == name
        assert figure.kind in {*KINDS, PARTITION}
        assert figure.needs
        assert all(recipe.cells and recipe.lines for recipe in figure.chosen((), ()))
    assert figures()["V-F2"].tables == ("V-T1a",)
    assert [c.name for r in figures()["V-F4"].chosen(["V-T1g"], []) for c in r.cells] == ["Dirichlet(0.3)"]
    assert [c.name for r in figures()["B-F3"].chosen(["MNIST"], []) for c in r.cells] == ["MNIST"]
    assert [line.name for line in figures()["V-F2"].chosen([], ["FedRep"])[0].lines] == ["FedRep"]
    with pytest.raises(ValueError, match="V-F2 has no cell 'Dirichlet'"):
        figures()["V-F2"].chosen(["Dirichlet"], [])
    with pytest.raises(ValueError, match="there is no figure 'V-F9'"):
        catalogue.find_figure("V-F9")


def test_as_many_bubbles_as_counts_that_are_not_zero(tmp_path):
    made = make("M-F2", tmp_path, seeds=[3], more={**TINY, "clients": 70, "subset": None, "newcomers": "10"})
    (group, second) = made.marked("bubble")
    counts = made.numbers["panels"][0]["counts"]
    assert len(counts) == 70  # more than a report's page shows
    assert len(list(group)) == sum(n > 0 for row in counts for n in row)
    assert len(list(second)) == sum(n > 0 for row in made.numbers["panels"][1]["counts"] for n in row)
    areas = [float(circle.get("r", 0)) ** 2 for circle in group]
    flat = [n for row in counts for n in row if n > 0]
    assert areas[flat.index(max(flat))] == max(areas)
    assert not (tmp_path / "tables").exists()  # nothing was trained


def test_the_title_of_a_partition_says_what_is_divided(tmp_path):
    made = make("M-F2", tmp_path, seeds=[3], more=TINY)
    assert [panel["setting"].partition(", α")[0] for panel in made.numbers["panels"]] == ["digits, 20% of it"] * 2


def test_data_that_are_not_here_are_left_out_and_named(tmp_path, monkeypatch):
    monkeypatch.setenv("POSTERITY_DATA", str(tmp_path))
    with pytest.raises(ValueError, match="V-F4 needs the labels of its data, and none are here: cifar100"):
        draw_figure("V-F4", tmp_path, cells=["V-T1g"])
    with pytest.raises(ValueError, match=r"V-F2 is drawn from runs of V-T1a, and what is missing .* cannot be run: "):
        draw_figure("V-F2", tmp_path, RunRequest([0], 0.01))
    assert not (tmp_path / "figures").exists()


@pytest.fixture(scope="module")
def curves(tmp_path_factory):
    return make("V-F3", tmp_path_factory.mktemp("curves"), seeds=[0, 1], methods=["FedPer", "FedAvg-FT"], more=TINY)


def test_curves_are_those_of_the_log(curves):
    """A point for every scored round; its value is the mean over seeds of what the run's log says."""
    shown = next(c for c in curves.numbers["curves"] if c["name"] == "FedAvg-FT" and c["panel"].startswith("Accuracy"))
    assert shown["rounds"] == [1, 2]
    folder = curves.folder / "tables" / "V-T1b" / "capped-Dirichlet-0.1" / "fedavg+ft"
    runs = load_runs(folder)
    assert [run.seed for run in runs] == shown["seeds"] == [0, 1]
    logged = [[s.value("accuracy") for s in run.scores if (s.point, s.part, s.group) == ("adapted", "held", "members")]
              for run in runs]  # fmt: skip
    assert shown["mean"] == [pytest.approx(statistics.fmean(each)) for each in zip(*logged, strict=True)]
    assert shown["sd"] == [pytest.approx(statistics.stdev(each)) for each in zip(*logged, strict=True)]
    loss = next(c for c in curves.numbers["curves"] if c["name"] == "FedAvg-FT" and c["panel"] == "Training loss")
    assert loss["mean"][1] == pytest.approx(statistics.fmean(run.rounds[1].loss for run in runs))
    lines = curves.marked("line", "path")
    assert [line.get("d", "").count("L") for line in lines] == [1] * 4  # two points each
    assert len(curves.marked("band")) == 4


def test_what_was_run_stands_on_the_sheet(curves):
    told = " ".join(curves.texts)
    assert "digits, dirichlet:0.5, 3 clients, mlp, 2 rounds, seeds 0, 1." in told
    assert "clients 3 instead of 50" in told
    assert "dataset digits instead of cifar10" in told
    assert "model mlp instead of cnn" in told


def test_long_titles_of_panels_do_not_run_into_their_neighbours():
    drawing = '<svg xmlns="http://www.w3.org/2000/svg" width="200" height="50"/>'
    name = "FedAvg+MetaVD (released defaults), all classes"
    made = ElementTree.fromstring(sheet("title", [], [Panel(name, drawing, "5 %"), Panel("short", drawing, "6 %")], 2))
    texts = [node for node in made.iter() if node.get("class") == "panel"]
    assert " ".join(node.text for node in texts[:-1]) == name
    assert len({node.get("y") for node in texts[:-1]}) == len(texts) - 1 == 2
    assert all(7 * len(node.text) < float(texts[-1].get("x")) - float(node.get("x")) for node in texts[:-1])
    (first, second) = (node for node in made.iter() if node.get("width") == "200")
    assert first.get("y") == second.get("y")  # drawings of a row begin at one height
    assert all(float(node.get("y")) < float(first.get("y")) for node in texts)


def test_finished_runs_are_drawn_as_they_are(curves):
    """Without seeds nothing is run: what is there is taken, and its size is said."""
    before = {path: path.stat().st_mtime_ns for path in curves.folder.rglob("metrics.jsonl")}
    again = make("V-F3", curves.folder, methods=["FedPer", "FedAvg-FT"])
    assert {path: path.stat().st_mtime_ns for path in curves.folder.rglob("metrics.jsonl")} == before
    assert again.numbers == curves.numbers


def test_runs_with_other_seeds_are_not_taken_as_they_are(curves):
    recipe = figures()["V-F3"].chosen([], ["FedPer", "FedAvg-FT"])[0]
    place = curves.folder / "tables" / "V-T1b"
    assert Material.below(recipe, place).complete
    facts = curves.folder / "tables" / "V-T1b" / "capped-Dirichlet-0.1" / "fedper" / "seed-1" / "run.json"
    before = facts.read_text(encoding="utf-8")
    try:
        facts.write_text(before.replace('"finished"', '"running"'), encoding="utf-8")
        assert not Material.below(recipe, place).complete
    finally:
        facts.write_text(before, encoding="utf-8")


TOY: dict[str, Any] = {"engine": "stacked", "set": {"data.samples": "30"}}


def test_what_is_asked_for_is_drawn(tmp_path):
    """Runs of other seeds and sizes in the same folder are not averaged with it."""
    one = make("A-F1", tmp_path, ["label skew"], seeds=[0], more={**TOY, "rounds": 2})
    two = make("A-F1", tmp_path, ["label skew"], seeds=[1], more={**TOY, "rounds": 3})
    assert [made.numbers["curves"][0]["seeds"] for made in (one, two)] == [[0], [1]]
    assert [made.numbers["curves"][0]["rounds"] for made in (one, two)] == [[1, 2], [1, 2, 3]]
    as_it_is = draw_figure("A-F1", tmp_path, cells=["label skew"])
    assert json.loads(as_it_is.numbers.read_text())["curves"] == one.numbers["curves"]
    (note,) = as_it_is.notes
    assert note.endswith("is left out, because it has another size than other seeds: rounds 3 instead of 2")
    with pytest.raises(ValueError, match=r"cannot be run: .* other settings \(rounds: there 2, now 4\)"):
        make("A-F1", tmp_path, ["label skew"], more={**TOY, "rounds": 4})


def test_curves_of_clients_are_not_drawn_from_packed_runs(tmp_path):
    """They have each client's numbers at chosen rounds alone; folders of runs have all."""
    made = make("A-F1", tmp_path / "a", ["label skew"], seeds=[0], more={**TOY, "rounds": 3})
    place = tmp_path / "a" / "tables"
    again = make("A-F1", tmp_path / "b", places=[place])  # the other two columns were not run
    assert again.numbers == made.numbers
    packed = pack_runs(place, tmp_path / "packed.jsonl.xz")
    with pytest.raises(ValueError, match=r"each client's balanced_accuracy in \d of 3 rounds, as packed runs have it"):
        make("A-F1", tmp_path / "c", places=[packed])
    assert not (tmp_path / "c").exists()


def test_rows_stand_in_the_figures_order():
    """Each host beside the same with MetaVD, where the table has its rows by kind."""
    (recipe,) = figures()["M-F5"].chosen([], [])
    names = [line.name for line in recipe.lines]
    assert names[:2] == ["FedAvg", "FedAvg+MetaVD (released defaults)"]
    assert all(name.endswith("+MetaVD (released defaults)") for name in names[1::2])


@pytest.mark.parametrize(("name", "more"), [("M-F5", {}), ("V-F3", {}), ("B-F3", {"cells": ["MNIST", "Fashion-MNIST",
                                                                                           "CIFAR-10"]})])  # fmt: skip
def test_published_figures_are_those_of_the_published_runs(name, more, tmp_path):
    raw = {"M-F5": ["M-T8"], "V-F3": ["V-T1b"], "B-F3": ["B-T2", "B-T1"]}[name]
    make(name, tmp_path, places=[RAW / f"{table}.jsonl.xz" for table in raw], **more)
    made, published = (place.read_text() for place in (tmp_path / "figures" / f"{name}.svg", PICTURES / f"{name}.svg"))
    assert made == published


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_file_is_no_place_for_a_figure(tmp_path, below):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        draw_figure("A-F1", tmp_path / "file" / below, RunRequest([0], 0.01))


def test_mistakes_are_not_missing_data(tmp_path):
    with pytest.raises(ValueError, match="--scale must be above 0 and at most 1; 5 was given"):
        draw_figure("M-F2", tmp_path, RunRequest(scale=5))
    with pytest.raises(ValueError, match=r"^partition 'nonsense'"):  # and not that data are missing
        draw_figure("M-F2", tmp_path, RunRequest([0], more={**TINY, "partition": "nonsense"}))


def test_curves_of_clients_are_those_of_the_log(tmp_path):
    made = make("A-F1", tmp_path, seeds=[0], cells=["label skew"], more={**TOY, "rounds": 3})
    (run,) = load_runs(tmp_path)
    held = [s for s in run.scores if (s.point, s.part, s.group) == (run.scored, "held", "members")]
    shown = {c["name"]: c["mean"] for c in made.numbers["curves"]}
    assert len(shown) == len(made.marked("line", "path")) == 10
    assert shown["client 7"] == [pytest.approx(s.by_client("balanced_accuracy")[6]) for s in held]
    assert not made.marked("band")  # ten of them would cover each other; the deviations are in the numbers
    dashed = [line for line in made.marked("line", "path") if "dash1" in line.get("class", "")]
    assert len(dashed) == 5


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    return make("N-F3", tmp_path_factory.mktemp("features"), seeds=[0], more=TINY)


def test_the_scatter_ratio_is_that_of_the_models_features(features):
    shown = next(m for m in features.numbers["methods"] if m["method"] == "FedAvg")
    result = posterity.load(features.folder / "tables" / "N-F3" / "CIFAR-100" / "fedavg" / "seed-0")
    federation = result.federation
    rows = torch.cat([federation.test.client(k) for k in range(3)])
    params = result.delivered("validated").kept.state.params  # one model for everybody
    z, _ = result.setup.sim.model.features(params, federation.x[rows])
    assert shown["scatter_ratio"] == [pytest.approx(scatter_ratio(z, federation.y[rows]), rel=1e-5)]
    assert shown["classes"] == federation.y[rows].tolist()
    assert f"S_W/S_B {shown['scatter_ratio'][0]:.2f}; accuracy" in " ".join(features.texts)


def test_every_sample_is_a_point_of_each_panel(features):
    first = features.numbers["methods"][0]
    points = len(first["points"])
    assert points == len(first["classes"]) == len(first["clients"])
    mine = [first["clients"].count(k) for k in range(6)]
    assert sum(mine) == points
    assert len(features.marked("mark")) == 2 * 2 * points  # two methods; all together, and each in its client's panel
    assert len(features.marked("faint")) == 2 * sum(points - n for n in mine)


def test_features_of_personal_models_are_the_clients_own(tmp_path):
    """A fine-tuned network has another base at every client: features are those of each client's own model."""
    made = make("V-F2", tmp_path, seeds=[0], methods=["FedAvg-FT"], more=TINY)
    result = posterity.load(tmp_path / "tables" / "V-T1a" / "Dirichlet-0.3" / "fedavg+ft" / "seed-0")
    delivery, federation = result.delivered("validated"), result.federation
    rows = [federation.test.client(k) for k in range(3)]
    pieces = []
    for k in range(3):
        params = carry_of(
            {name: leaf[k] for name, leaf in delivery.models.items()}
        ).params  # fine-tuned, so every client has its own base
        pieces.append(result.setup.sim.model.features(params, federation.x[rows[k]])[0])
    expected = scatter_ratio(torch.cat(pieces), federation.y[torch.cat(rows)])
    assert made.numbers["methods"][0]["scatter_ratio"] == [pytest.approx(expected, rel=1e-5)]
    shared, _ = result.setup.sim.model.features(delivery.kept.state.params, federation.x[torch.cat(rows)])
    assert scatter_ratio(shared, federation.y[torch.cat(rows)]) != pytest.approx(expected, rel=1e-3)


def test_predicted_classifiers(features):
    """Drawn from N-F3's runs; the share of rows that point to their class is computed here by loops."""
    from posterity.papers.figures.classifiers import DRAWS, agreement, predict_rows
    from posterity.papers.figures.features import held_features

    made = make("N-F5", features.folder)
    result = posterity.load(features.folder / "tables" / "N-F3" / "CIFAR-100" / "fednp" / "seed-0")
    rows = predict_rows(result, 6, 10, 0)
    assert rows.drawn.shape == (3 * DRAWS * 10, result.setup.sim.model.feature_dim)
    assert len(made.marked("cross")) == 2 * len(rows.drawn)  # two strokes each
    npn = {n: leaf[0] for n, leaf in result.delivered("validated").kept.records.read(torch.tensor([0]))["npn"].items()}
    z = result.delivered("validated").kept.state.totals
    mean, variance = result.method.classifier(npn, z.mean(), z.covariance())
    first = mean.reshape(10, -1).double()
    gap = (rows.drawn[: 10 * DRAWS].reshape(DRAWS, 10, -1) - (first - first.mean(0))) / variance.double().reshape(
        10, -1
    ).sqrt()
    assert float(gap.square().mean()) == pytest.approx(1, abs=0.2)  # draws have the predicted mean and variance
    features_z, held = held_features(result, 6, 10)
    means = {c: features_z[held.y == c].double().mean(0) for c in sorted(set(held.y.tolist()))}
    centre = torch.stack([*means.values()]).mean(0)
    right = total = 0
    for row, c in zip(rows.drawn, rows.y.tolist(), strict=True):
        if c in means:
            near = {k: float(torch.cosine_similarity(row, m - centre, 0)) for k, m in means.items()}
            right, total = right + (max(near, key=near.__getitem__) == c), total + 1
    assert agreement(features_z, held.y, rows) == pytest.approx(right / total)
    assert made.numbers["classifiers"][0]["agreement"][0] == pytest.approx(right / total)


def test_reliability_bins_are_those_of_the_models(tmp_path):
    """The log's bins are shown: the models that the run delivers, asked again about the test rows, have the same."""
    made = make("M-F5", tmp_path, seeds=[0], methods=["Reptile"], more=TINY)
    (run,) = load_runs(tmp_path)
    (shown,) = made.numbers["methods"]
    result = posterity.load(run.folder)
    data = result.federation
    rows = [data.test.client(k) for k in range(data.members)]
    p = torch.cat([result.predict_proba(k, data.x[r], scaled=True) for k, r in enumerate(rows) if len(r)]).double()
    y = data.y[torch.cat(rows)]
    again = score(p.log(), y, torch.tensor([0, len(y)]), data.classes, "classification")
    for kind in ("bins", "flat"):
        for ours, found in zip(shown[kind], getattr(again, kind)[0].tolist(), strict=True):
            assert ours == pytest.approx(found, abs=1e-4)
    for name in ("ece", "mce", "ece_flat", "mce_flat"):
        assert shown[name] == [pytest.approx(float(per_client(again)[name][0]), abs=1e-5)]
    samples = sum(run.federation.test)
    assert sum(n for n, _, _ in shown["bins"]) == samples
    assert sum(n for n, _, _ in shown["flat"]) <= 10 * samples
    filled = [sum(n > 0 for n, _, _ in shown[kind]) for kind in ("flat", "bins")]
    assert len(made.marked("count", "rect")) == sum(filled)


def test_logs_without_bins_are_named(tmp_path):
    make("M-F5", tmp_path, seeds=[0], methods=["Reptile"], more=TINY)
    (log,) = tmp_path.rglob("metrics.jsonl")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    log.write_text("".join(json.dumps({**line, "flat": []}) + "\n" for line in lines))
    with pytest.raises(ValueError, match=r"Reptile, seed 0 .* does not have the bins of all classes.*run it again"):
        make("M-F5", tmp_path, methods=["Reptile"])


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return make("N-F1", tmp_path_factory.mktemp("toy"), seeds=[0], more={"rounds": 2})


def test_the_toys_curves(toy):
    made = toy
    average, ours = made.numbers["methods"]
    result = posterity.load(toy.folder / "tables" / "N-F1" / "scaled" / "fedavg" / "seed-0")
    x = torch.tensor(average["x"])[:, None]
    assert average["average"] == pytest.approx(result.predict_proba(0, x, show="last")[:, 0].tolist(), rel=1e-5)
    assert average["truth"][0] == pytest.approx(-(7.5**2) - 15 + 5)
    assert average["local"][0] != pytest.approx(average["average"], rel=1e-3)
    error = (result.predict_proba(0, result.federation.x, show="last")[:, 0] - result.federation.y).square().mean()
    assert average["mse"] == [pytest.approx(float(error), rel=1e-5)]
    assert "band_sd" not in average
    assert min(ours["band_sd"]) > 0
    assert len(made.marked("shade")) == 1
    assert len(made.marked("cross")) == 4 * 100  # a hundred samples in each of four panels
    assert len(made.marked("thick")) == 2
    low, high = float(result.federation.x.min()), float(result.federation.x.max())
    rows = zip(*(ours[name] for name in ("x", "truth", "band_mean", "band_sd")), strict=True)
    inside = [abs(t - m) <= 3 * s for x, t, m, s in rows if low <= x <= high]
    assert ours["covered"] == [pytest.approx(sum(inside) / len(inside))]


def test_the_band_is_the_mixture_of_the_clients_predictions(toy):
    """Against draws: coefficients of a client chosen by its samples, drawn from what its NPN predicts."""
    from posterity.papers.figures.toy import mixture, predicted_heads

    result = posterity.load(toy.folder / "tables" / "N-F1" / "scaled" / "fednp-lam=0.01-biases=true" / "seed-0")
    x = torch.tensor([[-6.0], [0.5], [7.0]])
    mean, sd = mixture(result, x)
    draw = torch.Generator().manual_seed(0)
    heads, found = predicted_heads(result.delivered("last"), 3), []
    for k, count in enumerate((30, 20, 50)):
        (w, w_var), (b, b_var) = heads[k].values()
        h = torch.cat([x / 8, (x / 8) ** 2, (x / 8) ** 3], 1)
        weights = w + w_var.sqrt() * torch.randn(count * 400, 3, generator=draw)
        found.append(weights @ h.T + b + b_var.sqrt() * torch.randn(count * 400, 1, generator=draw))
    curves = torch.cat(found)
    torch.testing.assert_close(curves.mean(0), mean, rtol=0.03, atol=0.1)
    torch.testing.assert_close(curves.std(0), sd, rtol=0.03, atol=0.1)


def test_p_against_accuracy(tmp_path):
    made = make("B-F3", tmp_path, seeds=[0], methods=["p = 90 %", "p = 30 %"], more={**TINY, "rounds": 1})
    ours, paper = made.numbers["courses"]
    assert ours["p"] == paper["p"] == [0.3, 0.9]
    assert paper["mean"] == pytest.approx([0.9113, 0.9219])
    results = [
        posterity.load(tmp_path / "tables" / "B-T2" / "Fashion-MNIST" / f"fedbps-p={p}" / "seed-0") for p in (0.3, 0.9)
    ]
    assert ours["mean"] == [pytest.approx(result.metric("accuracy")) for result in results]
    assert len(made.marked("dot", "circle")) == 4


def test_runs_of_other_machines_are_drawn_as_they_are(tmp_path):
    """From packed logs nothing is run, the table's numbers are shown, and what is missing is said."""
    raw = [RAW / "B-T2.jsonl.xz", RAW / "B-T1.jsonl.xz"]
    made = make("B-F3", tmp_path, ["MNIST", "CIFAR-10"], places=raw)
    assert "Not yet run" not in " ".join(made.texts)
    ours, paper, *_ = made.numbers["courses"]
    assert ours["p"] == [0.3, 0.5, 0.7, 0.9, 1.0]
    recipe = find("B-T2")
    found = gather(recipe, read_places(raw))
    line = next(line for line in recipe.lines if line.method == "fedbps")
    values = [read_value(run, "validated", Shown()) for run in found.runs["MNIST", line.name]]
    assert ours["mean"][2] == pytest.approx(statistics.fmean(values))
    assert paper["p"] == [0.3, 0.5, 0.7, 0.9]
    assert not (tmp_path / "tables").exists()
    made = make("B-F3", tmp_path, ["CIFAR-10"], places=raw[:1])
    assert "Not yet run: p = 70 %." in " ".join(made.texts)  # which is a row of B-T1
    with pytest.raises(ValueError, match="no run of M-T8 that M-F5 shows"):
        make("M-F5", tmp_path, places=raw)
    with pytest.raises(ValueError, match="V-F2 shows data or what models make of them"):
        make("V-F2", tmp_path, places=raw)
    assert [path.name for path in tmp_path.rglob("*.svg")] == ["B-F3.svg"]


def test_curves_of_the_rows_that_were_run(tmp_path):
    made = make("V-F3", tmp_path, ["Dirichlet(0.1)"], places=[RAW / "V-T1b.jsonl.xz"])
    assert {each["name"] for each in made.numbers["curves"]} == {"FedPer", "pFedVMP"}
    made = make("V-F3", tmp_path, places=[RAW / "V-T1b.jsonl.xz"])
    six = {"FedAvg-FT", "FedPer", "FedRep", "GPFL", "FedPAC", "pFedVMP"}
    assert {each["name"] for each in made.numbers["curves"]} == six
    assert all(each["rounds"][-1] == 1000 and each["seeds"] == [0, 1, 2] for each in made.numbers["curves"])


def test_figures_are_drawn_by_programs_that_know_no_variables(curves):
    """And no element is inside of another method's: whose rule would win is not said."""
    told = next(each.text or "" for each in curves.root.iter() if local(each) == "style")
    assert "#0072b2" in told
    assert "var(" not in told
    assert "color-mix" not in told
    above = {child: parent for parent in curves.root.iter() for child in parent}
    coloured = [each for each in curves.root.iter() if methods_of(each)]
    assert coloured
    for each in coloured:
        while (each := above.get(each)) is not None:
            assert not methods_of(each)


def methods_of(element: ElementTree.Element) -> list[str]:
    return [name for name in element.get("class", "").split() if re.fullmatch(r"m\d", name)]


def test_the_commands(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from posterity.cli.app import app

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    said = CliRunner().invoke(
        app, ["reproduce", "n-f4", "--rounds", "1", "--seeds", "0", "--methods", "FedPA", "--jobs", "1"]
    )
    assert said.exit_code == 0, said.output
    assert "figure: runs/figures/N-F4.svg; its numbers: runs/figures/N-F4.json" in said.output
    listed = CliRunner().invoke(app, ["reproduce", "--list"]).output.splitlines()
    table = listed[next(i for i, line in enumerate(listed) if "drawn from" in line) :]
    line = next(line for line in table if "N-F4" in line)
    assert "polynomial" in line
    assert "not yet drawn" not in line
    assert "not yet drawn" in next(line for line in table if "B-F3" in line)
