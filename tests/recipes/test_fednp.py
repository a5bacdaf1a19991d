"""FedNP's recipes and its example: they run, and what they compute by themselves is checked against another way."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch

from posterity import data, methods
from posterity.settings.config import from_table

ROOT = Path(__file__).parents[2]


def load(path: str, monkeypatch):
    """A script as a module, with its own folder in front of the path, as Python does for a script."""
    file = ROOT / path
    monkeypatch.syspath_prepend(str(file.parent))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, file.stem, module)
    spec.loader.exec_module(module)
    return module


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def call(path: str, out: Path, *flags: str) -> str:
    command = [sys.executable, str(ROOT / path), "--out", str(out), "--quick", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=out)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def call_here(monkeypatch, capsys):
    """A script in this process: what it prints."""

    def run(path: str, *flags: str) -> str:
        script = load(path, monkeypatch)
        monkeypatch.setattr(sys, "argv", [str(ROOT / path), *flags])
        script.main()
        return capsys.readouterr().out

    return run


@pytest.mark.everything
def test_table_4_in_its_quick_form(tmp_path, monkeypatch):
    """Every row in both settings, the paper's number beside ours, the same values in both files."""
    printed = call("recipes/fednp_table4.py", tmp_path)
    recipe = load("recipes/fednp_table4.py", monkeypatch)
    page, found = (tmp_path / "table4.md").read_text(), lines(tmp_path / "table4.jsonl")
    assert page in printed
    assert [(r["method"], r["setting"]) for r in found] == [
        (row.title, s) for row in recipe.TABLE for s in recipe.SETTINGS
    ]
    assert all(math.isfinite(v) for r in found for v in (*r["pooled"], *r["clientwise"]))
    assert all("posterity 0.1.0" in r["versions"] and r["command"].endswith("--quick") for r in found)
    first = {r["method"]: r["pooled"][0] for r in found if r["setting"] == "printed"}
    assert f"| FedAvg | 116.48 ± 2.54 | {first['FedAvg']:.1f} |" in page
    assert "| 72.42 ± 2.39 |" in page
    assert len({round(v, 3) for v in first.values()}) >= 6  # methods differ already after a round


def test_findings_alone_and_the_page_from_the_file(tmp_path, call_here):
    """One finding, no table; `--from` writes the same page again."""
    flags = ["--quick", "--no-table", "--findings", "printed: nothing"]
    printed = call_here("recipes/fednp_table4.py", "--out", str(tmp_path), *flags)
    found = lines(tmp_path / "table4.jsonl")
    assert [r["method"] for r in found] == ["FedAvg", "Quad-FedNP, λ = 0.01", "Quad-FedNP, λ = 10"]
    page = (tmp_path / "table4.md").read_text()
    assert f"| printed | nothing | FedAvg | 1 | {found[0]['pooled'][0]:.1f} |" in page
    assert page in call_here("recipes/fednp_table4.py", "--from", str(tmp_path / "table4.jsonl"))
    assert page in printed


def test_the_first_seeds_of_a_file(monkeypatch):
    recipe = load("recipes/fednp_table4.py", monkeypatch)
    facts = {"command": "c", "versions": "v", "clientwise": [1.0] * 3}
    cell = {"table": 4, "method": "FedAvg", "setting": "scaled", "pooled": [1.0, 3.0, 8.0], **facts}
    assert "| 2.0 ± 1.4 |" in recipe.page([cell], 2)
    assert "| 4.0 ± 3.6 |" in recipe.page([cell])


def test_the_published_table_is_that_of_the_raw_numbers(monkeypatch):
    """Each cell of docs/results/fednp.md, Table 4, of three and of ten seeds; one commit for all, and it is named."""
    recipe = load("recipes/fednp_table4.py", monkeypatch)
    found, page = lines(ROOT / "docs/results/raw/fednp.jsonl"), (ROOT / "docs/results/fednp.md").read_text()
    cells = {(r["method"], r["setting"]): r["pooled"] for r in found if r.get("table") == 4}
    for row in recipe.TABLE:
        values = [cells[row.title, setting][:seeds] for setting in recipe.SETTINGS for seeds in (3, 10)]
        assert f"| {row.title} | {row.paper} | " + " | ".join(recipe.spread(v, 1.0) for v in values) + " |" in page
    asked = [(f.setting, f.what, row.title) for f in recipe.FINDINGS for row in f.rows]
    assert {(r["setting"], r["changed"], r["method"]) for r in found if "changed" in r} == set(asked)
    assert {r["versions"] for r in found} == {found[0]["versions"]}
    assert "commit da1e283" in page
    assert "(da1e283)" in found[0]["versions"]


def test_every_finding_is_a_valid_run(monkeypatch):
    """Settings and flags of each run give the same configuration and a method that can be built."""
    recipe = load("recipes/fednp_table4.py", monkeypatch)
    for finding in recipe.FINDINGS:
        for row in finding.rows:
            config = from_table(recipe.settings(row, finding.setting, finding.flags, finding.set))
            methods.build(config.method, config.settings(), config.training())
            words = recipe.flags_of(finding, row).split()
            base = {**recipe.SETTINGS[finding.setting]}
            extra = dict(w.split("=", 1) for w in words[1:] if "=" in w)
            flags = {a[2:]: b for a, b in pairwise(words) if a.startswith("--") and a != "--set"}
            again = from_table({**base, **flags, "set": {**base.get("set", {}), **extra}})
            assert {n: str(v) for n, v in again.set.items()} == {n: str(v) for n, v in config.set.items()}
            assert (again.method, again.rounds, again.lr, again.local_epochs) == (
                config.method, config.rounds, config.lr, config.local_epochs,
            )  # fmt: skip


def test_one_change_at_a_time(monkeypatch):
    """But for the three step sizes at scaled inputs, whose `what` names both."""
    recipe = load("recipes/fednp_table4.py", monkeypatch)
    several = [f.what for f in recipe.FINDINGS if len(f.flags) + len(f.set) > 1]
    assert several == [f"inputs divided by 8, step {lr}" for lr in ("0.1", "0.3", "3")]


@pytest.mark.everything
def test_the_released_programme_in_its_quick_form(tmp_path, monkeypatch):
    call("recipes/fednp_released.py", tmp_path)
    rows = json.loads((tmp_path / "released.json").read_text())["rows"]
    recipe = load("recipes/fednp_released.py", monkeypatch)
    assert list(rows) == list(recipe.ROWS)
    assert all(math.isfinite(v) for row in rows.values() for v in row["mse"])


@pytest.mark.parametrize("clip", [None, 1000.0])
@pytest.mark.parametrize("clear", [False, True])
def test_the_released_fedavg_is_what_pytorch_would_do(clip, clear, monkeypatch):
    """The same two rounds with torch.optim: gradients that pile up unless cleared, one state, decaying steps."""
    recipe = load("recipes/fednp_released.py", monkeypatch)
    ours = recipe.simulate(1, recipe.Switches(clip=clip, clear=clear), rounds=2)
    options = {"noise": "sd", "intercept": 4.0, "spacing": "grid"}
    federation = data.load("polynomial", split="100/0", seed=1, options=options)
    draw = torch.Generator().manual_seed(1)
    first = [0.05 * (2 * torch.rand(shape, generator=draw) - 1) for shape in recipe.SHAPES.values()]
    theta = first[0].requires_grad_()
    optimiser = torch.optim.RMSprop([theta], lr=0.01)
    shrink = torch.optim.lr_scheduler.ExponentialLR(optimiser, 0.9)
    average = theta.detach().clone()
    for _ in range(2):
        ends = torch.zeros(4)
        for rows in map(federation.train.client, range(3)):
            theta.data.copy_(average)
            x, y = federation.x[rows, 0], federation.y[rows]
            for _ in range(4):
                for batch in torch.randperm(len(x), generator=draw).split(10):
                    if clear:
                        optimiser.zero_grad()
                    design = torch.stack([x[batch] ** 3, x[batch] ** 2, x[batch], torch.ones(len(batch))], 1)
                    ((design @ theta - y[batch]) ** 2).mean().backward()
                    if clip:
                        torch.nn.utils.clip_grad_norm_([theta], clip)
                    optimiser.step()
            ends += len(x) / 100 * theta.detach()
        average = ends
        shrink.step()
    x = federation.x[:, 0]
    design = torch.stack([x**3, x**2, x, torch.ones_like(x)], 1)
    assert ours == pytest.approx(float(((design @ average - federation.y) ** 2).mean()), rel=1e-3)


def test_the_example_draws(tmp_path):
    pytest.importorskip("matplotlib")
    printed = call("examples/fednp_toy.py", tmp_path)
    assert "FedNP: MSE on everybody's data" in printed
    picture = (tmp_path / "fednp_toy.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 150_000


def test_the_band_of_the_example_is_the_mixture(monkeypatch):
    """Mean and sd of the band against draws: a client by its share, then coefficients from its Gaussian.

    What draws is not asked, so that this is tested where matplotlib is missing, too.
    """
    for name in ("matplotlib", "matplotlib.pyplot"):
        monkeypatch.setitem(sys.modules, name, MagicMock())
    example = load("examples/fednp_toy.py", monkeypatch)
    result = example.train("fednp", 2, 0, **example.FEDNP)
    x = torch.tensor([[-6.0], [0.0], [6.0]])
    mean, sd = example.band(result, x)
    generator = torch.Generator().manual_seed(0)
    z, rows = result.state.totals, result.store.rows["npn"]
    curves = []
    for k, count in enumerate((30, 20, 50)):
        centre, variance = result.method.classifier({n: leaf[k] for n, leaf in rows.items()}, z.mean(), z.covariance())
        draws = centre + variance.sqrt() * torch.randn(4000 * count, 4, generator=generator)
        parts = {"weight": draws[:, :3], "bias": draws[:, 3:]}
        if next(iter(result.state.params)).endswith("bias"):
            parts = {"weight": draws[:, 1:], "bias": draws[:, :1]}
        u = x[:, 0] / 8
        curves.append(parts["weight"] @ torch.stack([u, u**2, u**3]) + parts["bias"])
    pool = torch.cat(curves)
    assert torch.allclose(mean, pool.mean(0), atol=float(0.01 * pool.std()))
    assert torch.allclose(sd, pool.std(0), rtol=0.01)
