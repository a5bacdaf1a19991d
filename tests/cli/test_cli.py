"""The command line as a user would start it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from posterity import data
from posterity.cli import terminal as show
from posterity.laws import LAWS

SMALL = ["--dataset", "digits", "--clients", "5", "--rounds", "2", "--subset", "20%", "--quiet"]


def test_run_writes_a_folder_a_table_and_a_report(call):
    code, out, _ = call("run", "--method", "fedavg+ft", *SMALL)
    assert code == 0
    assert "FedAvg-FT" in out
    assert "validated" in out
    folder = Path("runs/digits-fedavg+ft-seed0")
    assert f"report: {folder / 'report.html'}" in out
    assert {p.name for p in folder.iterdir()} >= {"config.toml", "run.json", "metrics.jsonl", "checkpoint.safetensors"}
    assert call("run", "--method", "fedavg+ft", *SMALL)[0] == 0  # a second run gets a folder of its own
    assert Path("runs/digits-fedavg+ft-seed0-2").exists()


@pytest.mark.everything
def test_compare_with_all_seeds_at_once(call):
    words = ["compare", "--methods", "fedavg,fedper", "--seeds", "0-2", *SMALL]
    code, out, _ = call(*words, "--together", "--jobs", "2", "--out", "at-once")
    assert code == 0
    assert call(*words, "--out", "apart")[0] == 0
    assert [line for line in out.splitlines() if "±" in line] != []
    for method in ("fedavg", "fedper"):
        facts = [json.loads(Path(where, method, "seed-2", "run.json").read_text()) for where in ("at-once", "apart")]
        assert [f.get("together") for f in facts] == [[0, 1, 2], None]
        assert facts[0]["federation"] == facts[1]["federation"]


def test_compare_in_two_processes_equals_one_and_repeats_nothing(call):
    words = ["compare", "--methods", "local,fedprox", "--seeds", "0,1", "--set", "mu=0.5", *SMALL]
    assert call(*words, "--out", "one", "--jobs", "1")[0] == 0
    assert call(*words, "--out", "two", "--jobs", "2")[0] == 0
    for run in ("local/seed-0", "fedprox/seed-1"):
        texts = [Path(out, run, "metrics.jsonl").read_text().splitlines() for out in ("one", "two")]
        lines = [[{**json.loads(line), "seconds": 0} for line in text] for text in texts]
        assert lines[0] == lines[1]
    for path in sorted(Path("two/fedprox").rglob("*"), reverse=True):  # as if it had been killed before these began
        path.unlink() if path.is_file() else path.rmdir()
    assert call("resume", "two")[0] == 0
    texts = [Path(out, "fedprox/seed-1/metrics.jsonl").read_text().splitlines() for out in ("one", "two")]
    assert len(texts[0]) == len(texts[1]) > 0
    before = Path("one/local/seed-0/run.json").stat().st_mtime_ns
    assert call(*words, "--out", "one")[0] == 0
    assert Path("one/local/seed-0/run.json").stat().st_mtime_ns == before
    code, _, complaint = call(*words, "--out", "one", "--lr", "0.5")
    assert (code, "other settings" in complaint) == (2, True)


def test_json_is_one_object(call):
    code, out, _ = call("run", "--method", "fedavg", *SMALL, "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["rows"][0]["method"] == "FedAvg"
    assert 0 <= facts["rows"][0]["values"]["accuracy"]["mean"] <= 1
    code, out, _ = call("report", facts["folder"], "--json", "--show", "last")
    assert json.loads(out)["show"] == "last"


def test_a_config_file_and_a_finished_run(call):
    Path("c.toml").write_text('method = "fedprox"\ndataset = "digits"\nclients = 4\nrounds = 2\n[set]\nmu = 0.5\n')
    assert call("run", "--config", "c.toml", "--out", "here", "--quiet")[0] == 0
    assert '"mu" = 0.5' in Path("here/config.toml").read_text()
    assert call("resume", "here")[0] == 0
    code, _, complaint = call("run", "--config", "c.toml", "--out", "here")
    assert code == 2
    assert "posterity resume here" in complaint


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--method", "pfedvpm"], "did you mean 'pfedvmp'"),
        (["run", "--dataset", "digit"], "digits"),
        (["run", "--model", "mpl"], "mlp"),
        (["run", "--partition", "dirichlett:0.3"], "dirichlet"),
        (["run", "--participation", "lots"], "participation 'lots' is not understood"),
        (["run", "--rounds", "2.5"], "rounds takes a whole number"),
        (["run", "--show", "best"], "validated"),
        (["run", "--set", "xi"], "name=value"),
        (["run", "--device", "cuda:99", "--rounds", "1"], "but PyTorch sees"),
        (["run", "--device", "gpu"], "is not understood"),
        (["run", "--config", "none.toml"], "no configuration file"),
        (["resume", "nowhere"], "holds no run"),
        (["report", "nowhere"], "nowhere"),
        (["methods", "fedavgg"], "did you mean 'fedavg'"),
        (["run", "--method", "pfedvmp@papr"], "pfedvmp has no preset 'papr': did you mean 'paper'"),
        (["new", "method", "Not-A-Name"], "Python name in lower case"),
        (["compare", "--methods", "local,fedavg", "--set", "xi=3"], "has no setting 'xi'"),
    ],
)
def test_mistakes_are_told_in_a_sentence_and_leave_nothing_behind(call, words, message):
    code, _, complaint = call(*words)
    assert code == 2
    assert message in complaint
    assert "Traceback" not in complaint
    assert not Path("runs").exists()


def test_listings(call):
    methods = call("methods")[1]
    assert "pfedvmp" in methods
    assert "…" not in methods  # folded, not cut
    detail = call("methods", "pfedvmp")[1]
    assert all(word in detail for word in ("xi", "Table 7", "Differs from the paper", "local.momentum"))
    assert "@paper" not in call("methods", "fedprox")[1]  # its paper has no other values
    row = next(line for line in call("methods", "fednp@paper")[1].splitlines() if "local.batch" in line)
    assert "10" in row
    assert "128" in row
    assert "digits" in call("datasets")[1]
    assert "client" in call("partition", "--dataset", "digits", "--clients", "3")[1].lower()
    assert call("--version")[1].strip() == "0.1.0"


@pytest.mark.parametrize("width", [40, 80])
def test_a_narrow_terminal_cuts_no_number_of_a_pair(call, monkeypatch, width):
    monkeypatch.setattr(show, "console", Console(width=width))
    raw = Path(__file__).parents[2] / "docs" / "results" / "raw" / "demo.jsonl.xz"
    code, out, _ = call("report", str(raw), "--out", "demo.html")
    assert code == 0
    assert "…" not in out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert any("FedAvg-FT" in line and line.endswith("+3.2 −2.9 to +9.4 1.00 12") for line in lines)


@pytest.mark.parametrize("width", [30, 80])
def test_a_partition_cuts_no_number(call, monkeypatch, width):
    monkeypatch.setattr(show, "console", Console(width=width))
    out = call("partition", "--dataset", "digits", "--clients", "3")[1]
    divided = data.load("digits", clients=3)
    counts = divided.histogram(divided.train)
    rows = [line.split()[2:] for line in out.splitlines() if line.strip().startswith("client ")]
    for k, row in enumerate(rows):
        sizes = [str(len(part.client(k))) for part in (divided.train, divided.validation, divided.test)]
        assert row == [*sizes, *map(str, counts[k].tolist())]
    assert len(rows) == 3


def test_a_partition_says_how_many_test_rows_are_of_classes_their_client_knows(call):
    words = ["--dataset", "digits", "--clients", "10", "--partition", "dirichlet:0.1:1", "--newcomers", "3"]
    divided = data.load("digits", clients=10, partition="dirichlet:0.1:1", newcomers=3, test_partition="independent")
    shares, weights = [], []
    for k in range(10):
        known = set(divided.y[divided.train.client(k)].tolist())
        asked = divided.y[divided.test.client(k)].tolist()
        shares.append(sum(y in known for y in asked) / len(asked) if asked else 0.0)
        weights.append(len(divided.train.client(k)) if asked else 0)
    told = [100 * sum(s * w for s, w in zip(shares[a:b], weights[a:b], strict=True)) / sum(weights[a:b])
            for a, b in ((0, 7), (7, 10))]  # fmt: skip
    assert told[0] < 90
    out = " ".join(call("partition", *words, "--test-partition", "independent")[1].split())
    assert f"training rows of the class of {told[0]:.1f} % of their test rows (newcomers: {told[1]:.1f} %)" in out
    assert "class of" not in call("partition", "--dataset", "digits", "--clients", "3", "--partition", "iid")[1]


def test_the_preset_of_a_paper_has_a_label_and_a_plain_folder(call):
    code, out, _ = call("run", "--method", "pfedvmp@paper", "--quiet", *SMALL)
    assert code == 0
    assert "pFedVMP (paper)" in out
    assert [p.name for p in Path("runs").iterdir()] == ["digits-pfedvmp-paper-seed0"]


def test_a_method_outside_the_package_runs_and_keeps_the_laws(call):
    code, out, _ = call("new", "method", "fedfoo")
    assert code == 0
    assert "posterity check fedfoo:Fedfoo" in out
    assert call("new", "method", "fedfoo")[0] == 2  # nothing is overwritten
    code, out, _ = call("run", "--method", "fedfoo:Fedfoo+ft", "--set", "pull=0.5", *SMALL)
    assert code == 0
    assert "Fedfoo-FT" in out
    code, out, _ = call("check", "fedfoo:Fedfoo")
    assert code == 0
    assert f"{len(LAWS)} of {len(LAWS)} laws hold" in out
    spoilt = Path("fedfoo.py").read_text().replace("class Fedfoo", "class Fedbad").replace(
        "        return core.weighted(carry.params, here), ()",
        "        import torch\n\n        noisy = {n: p + torch.rand(1).item() for n, p in carry.params.items()}\n"
        "        return core.weighted(noisy, here), ()",
    )  # fmt: skip
    Path("fedbad.py").write_text(spoilt)
    code, out, _ = call("check", "fedbad:Fedbad")
    assert code == 1
    assert f"of {len(LAWS)} laws hold, " in out


OUTSIDE = {
    "my_data.py": """
import torch
from posterity.data import Pool

def load(data_dir, seed, *, noise: float = 1.0):
    y = torch.arange(120) % 2
    x = torch.randn(120, 3, generator=torch.Generator().manual_seed(seed)) * noise + y[:, None]
    return Pool("mine", x, y, 2)

def wrong(data_dir, seed):
    return None
""",
    "my_partition.py": """
import torch

def stripes(y, clients, rng, width: int = 1):
    rows = torch.arange(len(y))
    return [rows[rows // width % clients == k] for k in range(clients)]

number = 3
""",
    "my_network.py": """
from torch import nn

def make(shape, classes, width=4):
    made = nn.Sequential()
    made.add_module("base", nn.Linear(shape[0], width))
    made.add_module("head", nn.Linear(width, classes))
    return made
""",
}  # each in one file of the current folder


@pytest.fixture
def outside(call, monkeypatch):
    for name, text in OUTSIDE.items():
        Path(name).write_text(text)
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    return call


@pytest.mark.everything
def test_a_dataset_a_partition_and_a_network_outside_the_package(outside):
    words = ["--dataset", "my_data:load", "--partition", "my_partition:stripes:5", "--model", "my_network:make",
             "--set", "data.noise=0.5", "--set", "model.width=6", "--clients", "4", "--rounds", "2", "-q"]  # fmt: skip
    code, _, complaint = outside("run", "--method", "fedavg", *words)
    assert code == 0, complaint
    folder = Path("runs/my_data-load-fedavg-seed0")
    federation = json.loads((folder / "run.json").read_text())["federation"]
    assert (federation["name"], federation["clients"]) == ("mine", 4)
    assert federation["partition"] == {"rule": "my_partition:stripes", "version": 1, "width": 5}
    code, _, complaint = outside("resume", str(folder))  # a folder may come from anybody
    assert (code, "--trust" in complaint) == (2, True)
    assert outside("resume", str(folder), "--trust")[0] == 0
    assert "mine: 4 clients" in outside("partition", *words[:4], "--clients", "4")[1]
    code, _, complaint = outside("compare", "--methods", "fedavg,local", "--seeds", "0", "--jobs", "2", *words)
    assert code == 0, complaint


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--dataset", "my_dat:load"], "there is no module 'my_dat' to take the dataset 'my_dat:load' from"),
        (["--dataset", "my_data:laod"], "is nothing, not a function that makes a dataset: did you mean 'load'"),
        (["--dataset", "my_data:wrong"], "returned a NoneType; expected a Pool or a Federation"),
        (["--partition", "my_partitio:stripes"], "there is no module 'my_partitio' to take the partition"),
        (["--partition", "my_partition:number"], "is of type int, not a function that makes a partition"),
        (["--partition", "my_partition:stripes:1:2"], "expected the form my_partition:stripes[:WIDTH]"),
        (["--model", "my_networ:make"], "there is no module 'my_networ' to take the model"),
        (
            ["--model", "my_network:mke"],
            "'my_network:mke' is nothing, not a function that makes a model: did you mean 'make'",
        ),
    ],
)
def test_what_is_wrong_outside_the_package_is_told_in_a_sentence(outside, words, message):
    code, _, complaint = outside("run", *words)
    assert code == 2
    assert message in complaint
    assert "Traceback" not in complaint
    assert not Path("runs").exists()


@pytest.mark.everything
def test_the_written_test_of_a_new_method_passes(tmp_path):
    subprocess.run([sys.executable, "-m", "posterity", "new", "method", "fedfoo"], cwd=tmp_path, check=True)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))}
    subprocess.run([sys.executable, "-m", "pytest", "-q", "test_fedfoo.py"], cwd=tmp_path, check=True, env=env)


def test_your_own_table(call):
    rng = np.random.default_rng(0)
    rows = ["site,patient,age,pressure,outcome"]
    for site in ("north", "south", "east"):
        for i in range(60):
            label = int(rng.random() < 0.5)
            rows.append(f"{site},{site}{i // 2},{rng.normal(50 + 9 * label):.3f},{rng.normal(label):.3f},{label}")
    Path("visits.csv").write_text("\n".join(rows) + "\n")
    words = ["--dataset", "visits.csv", "--target", "outcome", "--client-column", "site", "--group", "patient"]
    code, out, _ = call("run", "--method", "fedmap", *words, "--rounds", "3", "--quiet", "--json")
    assert code == 0
    values = json.loads(out)["rows"][0]["values"]
    assert values["auroc"]["mean"] > 0.5
    run = json.loads((Path(json.loads(out)["folder"]) / "run.json").read_text())
    assert run["federation"]["names"] == ["east", "north", "south"]
    code, _, complaint = call("run", *[w.replace("outcome", "result") for w in words])
    assert code == 2
    assert "result" in complaint


def test_a_real_process(tmp_path):
    """One start from nothing, as a shell does it."""
    done = subprocess.run([sys.executable, "-m", "posterity", "run", "--method", "local", *SMALL], cwd=tmp_path,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "report: runs" in done.stdout


def test_names_in_a_table_are_not_acted_on(call):
    """Columns, clients and classes may be called anything."""
    rows = ["site,age,[bold]out[/bold]"]
    for site in ("[red]north", "so\x1b[2Juth"):
        rows += [f"{site},{k % 7}.5,{'[link=file:///etc]yes' if k % 2 else 'no'}" for k in range(40)]
    Path("visits.csv").write_text("\n".join(rows) + "\n")
    words = ["--dataset", "visits.csv", "--target", "[bold]out[/bold]", "--client-column", "site"]
    code, out, complaint = call("partition", *words)
    assert code == 0, complaint
    assert "\x1b" not in out
    assert "[red]north" in out
    assert "[link=file" in out.replace("\n", "")
    code, _, complaint = call("partition", *words[:-1], "si\x1b[2Jte")
    assert code == 2
    assert "\x1b" not in complaint
