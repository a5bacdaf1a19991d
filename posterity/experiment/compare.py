"""Several methods, several seeds, the same federations: one folder of runs.

A method as a comparison names it: with settings of its own in brackets, so that it may appear twice.

    METHOD[NAME=VALUE,NAME=VALUE]     fedprox[mu=0.1]   pfedvmp@paper+ft[xi=5,ft.epochs=2]   fedavg[model.hidden=32,16]

The brackets stand at the end, behind all suffixes. What may stand in them is what `--set` takes, and it wins over
`--set`; only `data.` may not, because all methods are to have the same clients. The configuration of the run has the
plain method and the settings, as if they had been given by `--set`. "all" stands for every method that is not named
beside it, by itself or with settings.
"""

import os
import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

import torch

from posterity import methods
from posterity.engine.process_settings import with_threads
from posterity.evaluate import load_metrics
from posterity.experiment import resume
from posterity.experiment.resume import Tell, tell_user
from posterity.experiment.run import Watch
from posterity.experiment.workers import Run, Task, WorkerLost, start_workers, work
from posterity.methods import available
from posterity.runs import files
from posterity.runs.folder import CONFIG, PLAN, RUN, disk_explained, is_finished, make_folder, runs_below
from posterity.settings.config import Config, from_table, to_toml
from posterity.settings.hyperparameters import split_list

ALL = "all"
PLAIN = set("+-_.=")  # besides letters and digits: what a folder's name may have
FORM = "fedprox[mu=0.1] or pfedvmp+ft[xi=5,ft.epochs=2], the brackets behind all suffixes"


@dataclass(frozen=True)
class Variant:
    """A method and the settings that it alone has in a comparison."""

    name: str  # as it was typed
    method: str
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        """The name of its folder: `fedprox-mu=0.1`."""
        told = [self.method, *(f"{name}={value}" for name, value in self.settings.items())]
        return "".join(c if c.isalnum() or c in PLAIN else "-" for c in "-".join(told))


def parse_variant(text: str) -> Variant:
    """One method of a comparison."""
    method, bracket, inner = text.partition("[")
    if not bracket and "]" not in text:
        return Variant(text, text)
    settings: dict[str, str] = {}
    last = ""
    for piece in split_list(inner.removesuffix("]")):
        name, equals, value = (part.strip() for part in piece.partition("="))
        if equals and name in settings:
            raise ValueError(f"{text!r} sets {name} twice: give it one value")
        if equals:
            last = name
        if not last or not inner.endswith("]") or set("[]") & set(method + inner[:-1]):
            raise ValueError(f"{text!r} is not understood as a method with settings: expected {FORM}")
        settings[last] = value if equals else f"{settings[last]},{piece}"  # a list, as in model.hidden=32,16
    if not settings or not method:
        raise ValueError(f"{text!r} is not understood as a method with settings: expected {FORM}")
    if wrong := next((name for name in settings if name.startswith("data.")), None):
        raise ValueError(f"{text!r} sets {wrong}, but all methods of a comparison have the same clients: use --set")
    return Variant(text, method, settings)


def name_all(names: Sequence[str]) -> list[str]:
    """`names`, with every method that they do not name in the place of "all"."""
    given = {parse_variant(name).method for name in names}
    rest = [name for name in sorted(available()) if name not in given]
    return [each for name in names for each in (rest if name == ALL else [name])]


def parse_variants(names: Sequence[str]) -> list[Variant]:
    """The methods of a comparison, each with a folder of its own."""
    found: dict[str, Variant] = {}
    for name in names:
        variant = parse_variant(name)
        if (other := found.get(variant.folder)) is not None:
            same = f"{name!r} is named twice" if other.name == name else f"{other.name!r} and {name!r} look the same"
            raise ValueError(f"{same}: give each method once, or other settings in brackets ({FORM})")
        found[variant.folder] = variant
    return list(found.values())


MOST_THREADS = 1024  # that a plan may ask for
Watching = Callable[[str, int], AbstractContextManager[Watch]]


def demo_plan() -> tuple[Config, list[str], list[int]]:
    """What `posterity demo` runs: digits, Dirichlet(0.3), 20 clients, six methods, three seeds.

    ξ₁ = 10 was chosen for pFedVMP among 0.5, 2, 5 and 10 on the validation halves of seeds 0 and 1: the paper's 50 is
    for 512 features and a step size of 0.01, and over-regularises 64 features at 0.1.
    """
    names = ["local", "fedavg", "fedavg+ft", "fedper", "fedmap", "pfedvmp"]
    config = Config(
        dataset="digits",
        partition="dirichlet:0.3",
        clients=20,
        rounds=30,
        evaluate_every=5,
        lr=0.1,
        batch_size=20,
        local_epochs=2,
        set={"xi": 10.0},
    )
    return config, names, [0, 1, 2]


def compare_runs(
    config: Config,
    names: list[str],
    seeds: list[int],
    out: Path,
    watching: Watching,
    jobs: int = 1,
    together: bool = False,
    tell: Tell = tell_user,
    again: bool = True,
    threads: int | None = None,
) -> None:
    """Run every method with every seed under `out`; what is finished stays, what was interrupted goes on.

    A method may have settings of its own (`fedprox[mu=0.1]`). With `together`, the seeds of a method
    run at once where none of them has begun alone. Runs whose method or data were edited since are moved aside and done
    again, or, without `again`, are refused. A run that has not begun gets `threads`, by default its share of what there
    is, however many runs are left: engine and rounding depend on it.
    """
    load_metrics(config.metrics)  # for its mistakes
    planned = _plan(config, names, seeds, out)
    left = any(not is_finished(path) for _, runs in planned for path, _ in runs)
    known: resume.Known = {}
    changed = {variant.name: resume.find_changed(out / variant.folder, known) for variant, _ in planned}
    for name, some in changed.items():
        if some and again:
            resume.begin_again(name, some, tell)
        elif some and left:
            _refuse(name, some, out)
    tasks = [task for variant, runs in planned for task in tasks_left(runs, together, variant.name)]
    tasks.sort(key=lambda task: seeds.index(task.config.seed))  # the first seed of all methods, then the second
    threads = threads or _share(jobs, len(planned) * (1 if together else len(seeds)))
    plan = {"methods": names, "seeds": seeds, "config": to_toml(config), "together": together}
    make_folder(out)
    with disk_explained(out):
        files.write_json(out / PLAN, {**plan, "jobs": jobs, "threads": threads})
    try:
        execute(tasks, watching, jobs, threads)
    except WorkerLost as lost:
        raise WorkerLost(f"{lost}; go on with: posterity resume {shlex.quote(str(out))}") from lost


def _share(jobs: int, tasks: int) -> int:
    """The threads of each run where `jobs` of so many in all run at once."""
    return max(1, torch.get_num_threads() // (jobs if tasks > 1 else 1))


def _plan(config: Config, names: list[str], seeds: list[int], out: Path) -> list[tuple[Variant, list[Run]]]:
    """The runs of each method; every mistake is told before the first run."""
    planned = []
    for variant, each in configs_of(config, names):
        _check_method(variant, each)
        runs = [(out / variant.folder / f"seed-{seed}", replace(each, seed=seed)) for seed in seeds]
        for path, wanted in runs:
            if (path / CONFIG).exists():
                resume.check_settings(path, wanted)
        planned.append((variant, runs))
    return planned


def _check_method(variant: Variant, config: Config) -> None:
    """Refuse a value that a method cannot have; another may have a setting of that name."""
    try:
        methods.build(variant.method, config.settings(), config.training())
    except ValueError as error:
        raise ValueError(f"{variant.name}: {error}; what is meant for one method of a comparison stands in brackets "
                         "behind it, as in fedprox[mu=0.1]") from None  # fmt: skip


def configs_of(config: Config, names: Sequence[str]) -> list[tuple[Variant, Config]]:
    """What each method is run with: of the settings those that it has, and its own."""
    variants = parse_variants(names)
    specs = list(dict.fromkeys(variant.method for variant in variants))
    return [
        (each, replace(config, method=each.method, set={**fitting(each.method, config, specs), **each.settings}))
        for each in variants
    ]


def planned(config: Config, names: list[str], seeds: list[int], out: Path) -> list[Run]:
    """The runs of a comparison one after the other: places under `out`, and configurations."""
    return [run for _, runs in _plan(config, names, seeds, out) for run in runs]


def _refuse(name: str, changed: Mapping[Path, tuple[str, ...]], out: Path) -> None:
    """To resume is to end where an uninterrupted comparison would have ended."""
    path, changes = next(iter(changed.items()))
    raise ValueError(
        f"{path} was begun with something else ({name}: {'; '.join(changes)}), so this comparison cannot go on as it "
        f"began. Put back what was there; or give its 'posterity compare … --out {out}' again, which moves such runs "
        "aside and does them again"
    )


def resume_all(folder: Path, watching: Watching, jobs: int | None = None, tell: Tell = tell_user) -> None:
    """Go on with every unfinished run in or under `folder`; of its last comparison, also with those not yet begun.

    A comparison has as many runs at once as when it began, unless `jobs` says otherwise, with as many threads.
    """
    if (folder / PLAN).exists():
        plan = files.read_json(folder / PLAN)
        config = from_table(tomllib.loads(plan["config"]))
        names, seeds, threads = plan["methods"], plan["seeds"], min(plan["threads"], MOST_THREADS)
        at_once = jobs or min(plan["jobs"], os.cpu_count() or 1)
        compare_runs(config, names, seeds, folder, watching, at_once, plan["together"], tell, False, threads)
        wanted = {path for path, _ in planned(config, names, seeds, folder)}
        others = [path for path in runs_below(folder, "*/seed-*") if path not in wanted]  # of one before
        if tasks := tasks_left([(path, resume.read_config(path)) for path in others], False):
            execute(tasks, watching, at_once, threads)
        return
    found = runs_below(folder) if folder.is_dir() else []
    if not found:
        raise ValueError(f"{folder} holds no run (there is no {CONFIG} in or under it)")
    runs = [(path, resume.read_config(path)) for path in found]
    execute(tasks_left(runs, False), watching, jobs or 1, _share(jobs or 1, len(runs)))


def tasks_left(runs: list[Run], together: bool, name: str = "") -> list[Task]:
    """What is left to do: seeds that began at once go on at once, and with `together` all that have not begun do."""
    tasks: list[Task] = []
    fresh = [(path, config) for path, config in runs if not (path / CONFIG).exists()]
    for path, config in (run for run in runs if run not in fresh):
        seeds = files.read_json(path / RUN).get("together", [])
        at_once = [(path.parent / f"seed-{seed}", replace(config, seed=seed)) for seed in seeds] or [(path, config)]
        if not is_finished(path) and not any(path == other for task in tasks for other, _ in task.runs):
            tasks.append(Task.of(at_once, name))
    begun = {path for task in tasks for path, _ in task.runs}  # a kill may have come before all of them had begun
    left = [run for run in fresh if run[0] not in begun]
    return tasks + ([Task.of(left, name)] if together and left else [Task.of([run], name) for run in left])


def execute(tasks: list[Task], watching: Watching, jobs: int, threads: int) -> None:
    """All tasks, each with so many threads: one after the other, or in `jobs` processes."""
    if jobs <= 1 or len(tasks) <= 1:
        for task in tasks:
            with with_threads(threads), watching(task.title, task.config.rounds) as watch:
                task.do(watch)
        return
    total, done = sum(task.config.rounds for task in tasks), count(1)
    title = f"{len(tasks)} runs, {jobs} at once"
    with start_workers(min(jobs, len(tasks)), threads) as workers, watching(title, total) as watch:
        work(workers, tasks, lambda lines: watch(next(done), total, lines), tell_user)


def fitting(name: str, config: Config, names: list[str]) -> dict[str, object]:
    """Settings of one method; what only others have is theirs, what none has is a mistake."""
    kept = {}
    for key, value in config.set.items():
        if key.startswith(("model.", "data.", "local.")) or methods.has_setting(name, key):
            kept[key] = value
        elif not any(methods.has_setting(each, key) for each in names):
            methods.build(name, {key: value})  # which says what is possible
    return kept
