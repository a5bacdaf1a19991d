"""Equal tuning: every method gets the same number of trials of the same length, and is judged on validation alone.

A trial is a choice of values, run once with each seed; its value is the mean, over the seeds, of the best score on the
validation half (`validated` chooses its round so). No score of a test half is looked at. The first trial has the
defaults. What comes next is Optuna's tree-structured Parzen estimator (`pip install 'posterity[tune]'`), made anew for
every trial from the seed, the number of the trial and the trials before it: a search that was killed tries what it
would have tried. That is why trials are kept here and not in a storage of Optuna's, which does not keep its sampler.

Searched are the fields of a method, of its wrappers and of its training that say so (`search` of `hyper`). What says
nothing stays at its default, and so does what the user has given.

    tuning.json     what the search was begun with: settings, seeds, the data's values, the source of every method
    METHOD.jsonl    a line for each run that is finished
    tuned.toml      the best values, on which data and at which cost they were found; `compare --tuned` takes it

Trials made with other data or settings are not mixed with new ones: that is refused. A method that was edited since
begins again, as in a comparison; its old trials are kept beside the new ones.
"""

import hashlib
import importlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from posterity import methods
from posterity.core.passes import Training
from posterity.core.wrapper import Wrapper
from posterity.evaluate import goal_of
from posterity.experiment.compare import configs_of, parse_variant
from posterity.experiment.divergence import why_diverged
from posterity.experiment.fingerprint import fields_of, sources, tell_changes
from posterity.experiment.result import Result
from posterity.experiment.resume import Tell, fingerprint_of, tell_user
from posterity.experiment.run import start_run
from posterity.experiment.setup import load_federation
from posterity.runs import files
from posterity.runs.folder import make_folder, place_aside
from posterity.settings.config import Config, literal, quoted, read_toml, settings_where
from posterity.settings.hyperparameters import Knob, knobs
from posterity.version import __version__

PLAN, TUNED = "tuning.json", "tuned.toml"
SCALES = ("log", "linear")
ALIKE = settings_where(lambda use: use.changes in ("data", "division", "cohort", "training", "method"))
SAME = tuple(name for name in ALIKE if name != "method")  # what values are tuned for
Values = dict[str, Any]


# --- where is searched
def search_space(spec: str, given: Iterable[str] = ()) -> list[Knob]:
    """The fields of a method with its wrappers that say where they are searched, by the names that `--set` has.

    Left out are settings that were `given`, with prefix or without.
    """
    found, fixed = list[Knob](), set(given)
    for prefix, layer in layers(spec, methods.build(spec)):
        for knob in (k for k in knobs(type(layer)) if k.search is not None):
            name = f"{prefix}{knob.name}"
            if not fixed & {name, name if isinstance(layer, Training) else knob.name}:
                found.append(replace(knob, name=name, default=getattr(layer, knob.name)))
    for knob in found:
        low, high, scale = limits(knob) or (1, 2, "")
        if not low < high or (scale == "log" and not low > 0):
            raise ValueError(f"{knob.name} is searched in {knob.search}, which is no range: expected (lowest, highest, "
                             "scale)")  # fmt: skip
    return found


def layers(spec: str, method: Any) -> list[tuple[str, Any]]:
    """What settings a method has, from the inside out: the prefix of their names and the record that has them."""
    names = methods.words_of(spec)
    found: list[tuple[str, Any]] = []
    for name in reversed(names[1:]):
        found.append((f"{name}.", method))
        method = method.method
    while isinstance(method, Wrapper):  # one that another brought along: its settings have no name in the spec
        method = method.method
    trainings = [(f"{name}.", value) for name, value in vars(method).items() if isinstance(value, Training)]
    return [*trainings, ("", method), *reversed(found)]


def limits(knob: Knob) -> tuple[float, float, str] | None:
    """The range of a setting that is searched; None where some values are tried."""
    search = knob.search or ()
    return search if len(search) == 3 and search[2] in SCALES else None


def rounded(knob: Knob, value: float) -> Any:
    """A number with few digits, the same in a file and in a table, and within the range."""
    low, high, _ = limits(knob) or (value, value, "")
    return round(value) if knob.kind is int else min(max(float(f"{value:.3g}"), low), high)


def can_be_tried(space: Sequence[Knob], values: Values) -> bool:
    """Whether every setting has a value, within its range."""
    return all(_holds(knob, values.get(knob.name)) for knob in space)


def _holds(knob: Knob, value: Any) -> bool:
    if (span := limits(knob)) is None:
        return value in (knob.search or ())
    return isinstance(value, (int, float)) and span[0] <= value <= span[1]


def told(values: Mapping[str, Any]) -> str:
    """Settings in a line."""
    return ", ".join(f"{name}={value}" for name, value in values.items()) or "its defaults"


# --- trials
@dataclass(frozen=True)
class Budget:
    """What every method gets."""

    trials: int = 20
    seeds: tuple[int, ...] = (0,)
    search_seed: int = 0

    def __post_init__(self) -> None:
        if self.trials < 1 or not self.seeds:
            raise ValueError(f"tuning needs at least one trial and one seed; {self.trials} and {self.seeds} were given")


@dataclass(frozen=True)
class Tried:
    """Values that were tried, and the validation score of each seed; nan where a run came to nothing."""

    number: int
    values: Values
    scores: dict[int, float] = field(default_factory=dict)
    higher: bool = True

    def value(self, seeds: Sequence[int]) -> float:
        """The mean over the seeds; nan while one is missing, or where one came to nothing."""
        return sum(self.scores.get(seed, math.nan) for seed in seeds) / len(seeds)


Suggest = Callable[[list[Knob], Sequence[Tried], int], Values]
Score = Callable[[Config], tuple[float, bool]]


def parzen(seeds: Sequence[int], search_seed: int) -> Suggest:
    """The estimator as a function of the space, of what was found and of the number of the trial."""
    try:
        optuna = importlib.import_module("optuna")
    except ImportError:
        raise ValueError("posterity tune searches with Optuna, which is not installed: "
                         "pip install 'posterity[tune]'") from None  # fmt: skip
    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def suggest(space: list[Knob], before: Sequence[Tried], number: int) -> Values:
        kinds = {each.name: _distribution(optuna, each) for each in space}
        higher = all(trial.higher for trial in before)
        seed = hashlib.sha256(f"{search_seed}/{number}".encode()).digest()[:4]  # neighbours have nothing in common
        sampler = optuna.samplers.TPESampler(seed=int.from_bytes(seed, "big"), multivariate=True)
        study = optuna.create_study(sampler=sampler, direction="maximize" if higher else "minimize")
        for trial in before:
            if can_be_tried(space, trial.values) and not math.isnan(value := trial.value(seeds)):
                study.add_trial(optuna.trial.create_trial(params=trial.values, distributions=kinds, value=value))
        found = study.ask(kinds).params
        return {each.name: rounded(each, found[each.name]) if limits(each) else found[each.name] for each in space}

    return suggest


def _distribution(optuna: Any, knob: Knob) -> Any:
    kinds, span = optuna.distributions, limits(knob)
    if span is None:
        return kinds.CategoricalDistribution(knob.search)
    low, high, scale = span
    if knob.kind is int:
        return kinds.IntDistribution(int(low), int(high), log=scale == "log")
    return kinds.FloatDistribution(low, high, log=scale == "log")


def validation_score(result: Result) -> tuple[float, bool]:
    """The best score of a run on the validation half (nan if there is none), and whether higher is better.

    Whether it has exploded is judged there, too: a test score must not even decide that a trial does not count.
    """
    goal = goal_of(result.setup.sim.federation.task)
    found = [entry.get("validation") for entry in result.history(goal.name, "pooled")]
    known = [float(value) for value in found if value is not None and not math.isnan(value)]
    if not known or why_diverged(result.lines, result.federation, result.method.scored, "validation"):
        return math.nan, goal.higher
    return (max(known) if goal.higher else min(known)), goal.higher


def read_trials(path: Path) -> list[Tried]:
    """The trials of a file; a line that a kill cut short is left out."""
    found: dict[int, Tried] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with suppress(ValueError):
            told = json.loads(line)
            trial = found.setdefault(told["trial"], Tried(told["trial"], told["values"], {}, told["higher"]))
            trial.scores[told["seed"]] = math.nan if told["score"] is None else float(told["score"])
    return [found[number] for number in sorted(found)]


def _write(path: Path, trial: int, values: Values, seed: int, score: float, higher: bool) -> None:
    held = path.read_bytes() if path.exists() else b""
    if held[-1:] not in (b"", b"\n"):  # of a line that a kill cut short
        files.write_atomic(path, held[: held.rfind(b"\n") + 1])
    files.append_lines(path, [{"trial": trial, "values": values, "seed": seed, "score": score, "higher": higher}])


def best(trials: Sequence[Tried], seeds: Sequence[int]) -> Tried | None:
    """The trial with the best value on validation, the earliest of equals; None if all came to nothing."""
    known = [trial for trial in trials if not math.isnan(trial.value(seeds))]
    sign = 1 if all(trial.higher for trial in trials) else -1
    return max(known, key=lambda trial: sign * trial.value(seeds)) if known else None


# --- a search
def tune(
    config: Config, names: Sequence[str], budget: Budget, out: Path, suggest: Suggest,
    score: Score = lambda config: validation_score(start_run(config)), tell: Tell = tell_user,
) -> Path:  # fmt: skip
    """Tune every method and write `tuned.toml`; a folder in which this has begun goes on."""
    runs = configs_of(config, names)
    specs = [variant.method for variant, _ in runs]
    if twice := next((spec for i, spec in enumerate(specs) if spec in specs[:i]), None):
        raise ValueError(f"{twice} is to be tuned twice: tune each method once, or in another --out")
    check_plan(config, budget.seeds, budget.search_seed, out)
    found: dict[str, dict[str, Any]] = {}
    for variant, each in runs:
        name, path = variant.name, out / f"{variant.folder}.jsonl"
        begin_method(each, name, path)
        trials = tune_method(each, name, budget, path, suggest, score, tell)
        chosen = best(trials, budget.seeds)
        if chosen is None:
            raise ValueError(f"every trial of {name} came to nothing, so nothing can be chosen for it: look at {path}, "
                             "and give other data, rounds or settings")  # fmt: skip
        about = {"value": chosen.value(budget.seeds), "default": trials[0].value(budget.seeds),
                 "trial": chosen.number + 1, "trials": len(trials)}  # fmt: skip
        found[variant.method] = {**about, "set": {**variant.settings, **chosen.values}}
    files.write_atomic(out / TUNED, to_text(config, budget, found).encode())
    return out / TUNED


def tune_method(
    config: Config, name: str, budget: Budget, path: Path, suggest: Suggest, score: Score, tell: Tell
) -> list[Tried]:
    """The trials of one method (what is set already is not tuned); those in its file are not repeated.

    Those beyond the budget, of a larger search before, do not count: other methods did not get them.
    """
    space = search_space(config.method, _given(config))
    tell(f"{name}: searched {', '.join(each.name for each in space) or 'nothing'}")
    first = {each.name: each.default for each in space}
    count = budget.trials if space else 1  # without anything to tune, the defaults are all there is
    for number in range(count):
        done = {trial.number: trial for trial in read_trials(path)}
        trial = done.get(number)
        if trial is not None:
            values = trial.values
        elif number == 0 and can_be_tried(space, first):
            values = first
        else:
            values = suggest(space, [done[n] for n in done if n < number], number)
        for seed in budget.seeds:
            if trial is None or seed not in trial.scores:
                found, higher = score(replace(config, seed=seed, set={**config.set, **values}))
                _write(path, number, values, seed, found, higher)
                tell(f"{name} trial {number + 1} of {budget.trials}, seed {seed}: {found:.4g} with {values}")
    return [trial for trial in read_trials(path) if trial.number < count]


def _given(config: Config) -> list[str]:
    """Settings that the user has given, and that are not tuned."""
    return [*config.set, *(f"local.{key}" for key in config.training())]


def check_plan(config: Config, seeds: Sequence[int], search_seed: int, out: Path) -> None:
    """Refuse to go on with other data, settings or seeds; more trials or more methods may be asked for."""
    told = {n: v for n, v in asdict(config).items() if n not in ("method", "seed", "keep") and v is not None}
    values = fingerprint_of(load_federation(replace(config, seed=seeds[0])))
    plan = {"asked": {**told, "seeds": list(seeds), "search_seed": search_seed}, "data": values, "methods": {}}
    if not (out / PLAN).exists():
        make_folder(out)
        files.write_json(out / PLAN, plan)
        return
    before = files.read_json(out / PLAN)
    was, here = before["asked"], json.loads(json.dumps(plan))["asked"]
    for name in sorted({*was, *here}):
        if was.get(name) != here.get(name):
            raise ValueError(f"{out} was begun with {name} = {was.get(name)}, and now it is {here.get(name)}: give "
                             "what was given before, or another --out")  # fmt: skip
    if before["data"] != values:
        raise ValueError(f"{out} was begun with other values of {config.dataset}: rows were edited since, or moved to "
                         "other parts. Put the old data back to go on, or give another --out")  # fmt: skip


def begin_method(config: Config, name: str, path: Path) -> None:
    """Move the trials of a method aside that was edited since they were made, and write down what it is now."""
    plan = files.read_json(path.parent / PLAN)
    if path.exists() and (changes := tell_changes(plan["methods"][path.stem], config)):
        place = path.rename(place_aside(path))
        tell_user(f"{name}: {'; '.join(changes)}. Its trials are kept as {place}, count no more, and are done again")
    method = methods.build(config.method, config.settings(), config.training(), config.least)
    plan["methods"][path.stem] = {"sources": sources(config, method), "method": {"fields": fields_of(method)}}
    files.write_json(path.parent / PLAN, plan)


# --- the values that were found
def to_text(config: Config, budget: Budget, found: Mapping[str, Mapping[str, Any]]) -> str:
    """The file of tuned values."""
    text = ("# Values chosen by `posterity tune` on the validation half of the clients' data; no test score was seen.\n"
            "# posterity compare --tuned THIS_FILE --methods … takes them.\n")  # fmt: skip
    facts = {name: getattr(config, name) for name in SAME if getattr(config, name) is not None}
    about = {"posterity": __version__, **facts, **asdict(budget)}
    tables: dict[str, Mapping[str, Any]] = {"about": about, "about.set": config.set}
    for name, told in found.items():
        tables[f"methods.{quoted(name)}"] = {n: v for n, v in told.items() if n != "set"}
        tables[f"methods.{quoted(name)}.set"] = told["set"]
    for place, values in tables.items():
        text += f"\n[{place}]\n" + "".join(f"{quoted(n)} = {literal(v)}\n" for n, v in values.items())
    return text


def with_tuned(names: Sequence[str], config: Config, path: Path) -> tuple[list[str], list[str]]:
    """Methods of a comparison with their tuned values in brackets, and what is to be said about them."""
    table = read_toml(path)
    known, about = table.get("methods"), table.get("about", {})
    if not isinstance(known, dict):
        raise ValueError(f"{path} holds no tuned values (there is no [methods]); 'posterity tune' writes such a file")
    found: list[str] = []
    for name in names:
        variant = parse_variant(name)
        if variant.method not in known:
            raise ValueError(f"{path} has no values for {variant.method!r}: tune it as well (in the file: "
                             f"{', '.join(known)}); methods that were not tuned alike are not compared")  # fmt: skip
        values = {**known[variant.method].get("set", {}), **variant.settings}
        inside = ",".join(f"{key}={value}" for key, value in values.items())
        found.append(f"{variant.method}[{inside}]" if inside else variant.method)
    then = {**{name: about.get(name) for name in SAME}, **about.get("set", {})}  # left out: by default
    here = {**{name: getattr(config, name) for name in SAME}, **config.set}
    other = [f"{name} {_shown(then.get(name))} (here {_shown(here.get(name))})" for name in {**then, **here}
             if str(then.get(name)) != str(here.get(name))]  # fmt: skip
    return found, [f"{path} was tuned with {', '.join(other)}"] if other else []


def _shown(value: Any) -> str:
    return "by default" if value is None else repr(value)
