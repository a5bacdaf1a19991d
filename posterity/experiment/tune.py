"""Equal tuning: every method gets the same number of trials of the same length, and is judged on validation alone.

A trial is a choice of values (`search_space.py`), run once with each seed; its value is the mean, over the seeds, of
the best score on the validation half (`validated` chooses its round so). No score of a test half is looked at. The
first trial has the defaults; what comes next is a function of seed, number and what was found before, so a search that
was killed goes on with the trials that it would have had. Each finished run is a line of `METHOD.jsonl`; in the end
`tuned.toml` says the best values, on which data and at which cost they were found. `compare --tuned` takes it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from posterity import __version__
from posterity.evaluate import goal_of
from posterity.experiment.compare import fitting
from posterity.experiment.config import Config, literal, quoted, read_toml
from posterity.experiment.divergence import why_diverged
from posterity.experiment.result import Result
from posterity.experiment.run import start_run
from posterity.experiment.search_space import Dimension, Values, first_values, search_space, tell_space
from posterity.experiment.tune_plan import PLAN, begin_method, check_plan
from posterity.experiment.variants import parse_variant, parse_variants

TUNED = "tuned.toml"
Suggest = Callable[[list[Dimension], Sequence["Tried"], int], Values]
Score = Callable[[Config], tuple[float, bool]]
SAME = ("dataset", "partition", "clients", "model", "split", "subset", "test_partition", "newcomers", "rounds")
ALSO = ("target", "client_column", "group", "public", "participation", "local_epochs", "local_steps", "batch_size",
        "lr", "optimiser", "augment", "min_count", "data_seed")  # fmt: skip


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


def run_score(config: Config) -> tuple[float, bool]:
    """The validation score of a run that is made for it and forgotten."""
    return validation_score(start_run(config))


def read_trials(path: Path) -> list[Tried]:
    """The trials of a file; a line that a kill cut short is left out."""
    found: dict[int, Tried] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            told = json.loads(line)
        except ValueError:
            continue
        score = math.nan if told["score"] is None else float(told["score"])
        before = found.get(told["trial"], Tried(told["trial"], told["values"], {}, told["higher"]))
        found[told["trial"]] = replace(before, scores={**before.scores, told["seed"]: score})
    return [found[number] for number in sorted(found)]


def _write(path: Path, trial: int, values: Values, seed: int, score: float, higher: bool) -> None:
    told = {"trial": trial, "values": values, "seed": seed, "score": None if math.isnan(score) else score}
    held = path.read_bytes() if path.exists() else b""
    cut = held[: held.rfind(b"\n") + 1]  # without a line that a kill cut short
    if len(cut) < len(held):
        path.write_bytes(cut)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({**told, "higher": higher}) + "\n")


def tune_method(
    config: Config, name: str, budget: Budget, out: Path, suggest: Suggest, score: Score = run_score,
    tell: Callable[[str], None] = lambda line: None,
) -> list[Tried]:  # fmt: skip
    """The trials of one method (its settings in brackets are not tuned); those in its file are not repeated.

    Those beyond the budget, of a larger search before, do not count: other methods did not get them.
    """
    variant = parse_variant(name)
    config = replace(config, method=variant.method, set={**config.set, **variant.settings})
    space = search_space(variant.method, _given(config))
    path = out / f"{variant.folder}.jsonl"
    count = budget.trials if space else 1  # without anything to tune, the defaults are all there is
    for number in range(count):
        done = read_trials(path)
        before = [trial for trial in done if trial.number < number]
        trial = next((trial for trial in done if trial.number == number), None)
        values = trial.values if trial else (first_values(space) if number == 0 else None)
        values = suggest(space, before, number) if values is None else values
        for seed in budget.seeds:
            if trial is None or seed not in trial.scores:
                found, higher = score(replace(config, seed=seed, set={**config.set, **values}))
                _write(path, number, values, seed, found, higher)
                tell(f"{name} trial {number + 1} of {budget.trials}, seed {seed}: {found:.4g} with {values}")
    return [trial for trial in read_trials(path) if trial.number < count]


def _given(config: Config) -> list[str]:
    """Settings that the user has given, and that are not tuned."""
    return [*config.set, *(f"local.{key}" for key in config.training())]


def best(trials: Sequence[Tried], seeds: Sequence[int]) -> Tried | None:
    """The trial with the best value on validation, the earliest of equals; None if all came to nothing."""
    known = [trial for trial in trials if not math.isnan(trial.value(seeds))]
    sign = 1 if all(trial.higher for trial in trials) else -1
    return max(known, key=lambda trial: sign * trial.value(seeds)) if known else None


def tune(
    config: Config, names: Sequence[str], budget: Budget, out: Path, suggest: Suggest, score: Score = run_score,
    tell: Callable[[str], None] = lambda line: None,
) -> Path:  # fmt: skip
    """Tune every method and write `tuned.toml`; a folder in which this has begun goes on."""
    variants = parse_variants(names)
    specs = [variant.method for variant in variants]
    if twice := next((spec for i, spec in enumerate(specs) if spec in specs[:i]), None):
        raise ValueError(f"{twice} is to be tuned twice: tune each method once, or in another --out")
    check_plan(config, budget.seeds, budget.search_seed, out)
    found: dict[str, dict[str, Any]] = {}
    for name, variant in zip(names, variants, strict=True):
        each = replace(config, set=fitting(variant.method, config, specs))
        alone = replace(each, method=variant.method, set={**each.set, **variant.settings})
        begin_method(alone, name, out / f"{variant.folder}.jsonl")
        tell(tell_space(name, variant.method, _given(alone)))
        trials = tune_method(each, name, budget, out, suggest, score, tell)
        chosen = best(trials, budget.seeds)
        if chosen is None:
            raise ValueError(f"every trial of {name} came to nothing, so nothing can be chosen for it: look at "
                             f"{out / f'{variant.folder}.jsonl'}, and give other data, rounds or settings")  # fmt: skip
        about = {"value": chosen.value(budget.seeds), "default": trials[0].value(budget.seeds),
                 "trial": chosen.number + 1, "trials": len(trials)}  # fmt: skip
        found[variant.method] = {**about, "set": {**variant.settings, **chosen.values}}
    path = out / TUNED
    path.write_text(to_text(config, budget, found), encoding="utf-8")
    return path


def to_text(config: Config, budget: Budget, found: Mapping[str, Mapping[str, Any]]) -> str:
    """The file of tuned values."""
    facts = {name: getattr(config, name) for name in (*SAME, *ALSO) if getattr(config, name) is not None}
    facts |= {"trials": budget.trials, "seeds": list(budget.seeds), "search_seed": budget.search_seed}
    lines = ["# Values chosen by `posterity tune` on the validation half of the clients' data; no test score was seen.",
             "# posterity compare --tuned THIS_FILE --methods … takes them.", "", "[about]",
             f"posterity = {quoted(__version__)}", *(f"{n} = {literal(v)}" for n, v in facts.items()),
             *(["", "[about.set]"] if config.set else []),
             *(f"{quoted(n)} = {literal(v)}" for n, v in config.set.items())]  # fmt: skip
    for name, told in found.items():
        about = [f"{n} = {literal(v)}" for n, v in told.items() if n != "set"]
        values = [f"{quoted(n)} = {literal(v)}" for n, v in told["set"].items()]
        lines += ["", f"[methods.{quoted(name)}]", *about, "", f"[methods.{quoted(name)}.set]", *values]
    return "\n".join(lines) + "\n"


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
    other = _differences(about, config)
    return found, [f"{path} was tuned with {', '.join(other)}"] if other else []


def _differences(about: Mapping[str, Any], config: Config) -> list[str]:
    """Settings that were others when values were tuned; what the file leaves out had its default, None."""
    names = (*SAME, *ALSO) if "participation" in about else SAME  # files of before know nothing about the others
    pairs = [(name, about.get(name), getattr(config, name)) for name in names]
    if len(names) > len(SAME):
        set_then = about.get("set", {})
        pairs += [(name, set_then.get(name), config.set.get(name)) for name in {**set_then, **config.set}]
    told = [(name, *("by default" if value is None else repr(value) for value in two)) for name, *two in pairs
            if str(two[0]) != str(two[1])]  # fmt: skip
    return [f"{name} {then} (here {now})" for name, then, now in told]


__all__ = ["PLAN", "TUNED", "Budget", "Tried", "best", "read_trials", "run_score", "to_text", "tune", "tune_method",
           "validation_score", "with_tuned"]  # fmt: skip
