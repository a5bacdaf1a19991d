"""Several methods, several seeds, the same federations: one folder of runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from posterity import methods
from posterity.experiment import folder as files
from posterity.experiment.config import Config, from_table, read_toml
from posterity.experiment.run import Watch, resume_run, start_run

Watching = Callable[[str, int], AbstractContextManager[Watch]]


def demo_plan() -> tuple[Config, list[str], list[int]]:
    """What `posterity demo` runs: digits, Dirichlet(0.3), 20 clients, six methods, three seeds.

    ξ₁ = 5 was chosen for pFedVMP among 0.1, 0.5, 2 and 5 on the validation halves of seeds 0 and 1: the paper's 50 is
    for 512 features and a step size of 0.01, and over-regularises 64 features at 0.05.
    """
    names = ["local", "fedavg", "fedavg+ft", "fedper", "fedmap", "pfedvmp"]
    config = Config(
        dataset="digits",
        partition="dirichlet:0.3",
        clients=20,
        rounds=30,
        evaluate_every=5,
        lr=0.05,
        local_epochs=2,
        set={"xi": 5.0},
    )
    return config, names, [0, 1, 2]


def compare_runs(config: Config, names: list[str], seeds: list[int], out: Path, watching: Watching) -> None:
    """Run every method with every seed under `out`; what is finished stays, what was interrupted goes on."""
    plan = [(name, seed, replace(config, method=name, seed=seed)) for seed in seeds for name in names]
    shared = {k: v for k, v in config.set.items() if not k.startswith(("model.", "data.", "local."))}
    plan = [(name, seed, replace(c, set=_fitting(name, c, shared, names))) for name, seed, c in plan]
    for name, seed, each in plan:
        methods.build(name, each.settings(), each.training())  # every mistake is told before the first run
        path = out / _safe(name) / f"seed-{seed}"
        if (path / files.CONFIG).exists() and from_table(read_toml(path / files.CONFIG)) != each:
            raise ValueError(f"{path} holds a run with other settings; give another --out")
    for name, seed, each in plan:
        path = out / _safe(name) / f"seed-{seed}"
        if _finished(path):
            continue
        with watching(f"{name} seed {seed}", each.rounds) as watch:
            if (path / files.CONFIG).exists():
                resume_run(path, watch)
            else:
                start_run(each, path, watch)


def resume_all(folder: Path, watching: Watching) -> None:
    """Go on with every unfinished run in or under `folder`."""
    found = sorted(p.parent for p in folder.rglob(files.CONFIG)) if folder.is_dir() else []
    if not found:
        raise ValueError(f"{folder} holds no run (there is no {files.CONFIG} in or under it)")
    for path in (p for p in found if not _finished(p)):
        config = from_table(read_toml(path / files.CONFIG))
        with watching(f"{config.method} seed {config.seed}", config.rounds) as watch:
            resume_run(path, watch)


def _fitting(name: str, config: Config, shared: dict[str, object], names: list[str]) -> dict[str, object]:
    """Settings of one method in a comparison: what only others have is theirs; what none has is a mistake."""
    kept = {k: v for k, v in config.set.items() if k not in shared}
    for key, value in shared.items():
        errors = {}
        for each in names:
            try:
                methods.build(each, {key: value})
            except ValueError as error:
                errors[each] = error
        if len(errors) == len(names):
            raise next(iter(errors.values()))
        if name not in errors:
            kept[key] = value
    return kept


def _finished(path: Path) -> bool:
    return (path / files.RUN).exists() and files.read_json(path / files.RUN).get("status") == "finished"


def _safe(name: str) -> str:
    return name.replace(":", "-").replace("/", "-")
