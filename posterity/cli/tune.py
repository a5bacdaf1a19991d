"""`posterity tune`: the trials as they are done, and the file that `compare --tuned` takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from posterity.cli.neutral import label
from posterity.cli.show import console, ruled_table, say, say_sentence
from posterity.experiment.config import Config, read_toml
from posterity.experiment.search_space import told
from posterity.experiment.suggest import parzen
from posterity.experiment.tune import Budget, tune, with_tuned


def tune_all(
    config: Config, names: Sequence[str], seeds: Sequence[int], trials: int, search_seed: int, folder: Path, quiet: bool
) -> None:
    """Tune every method, print what was chosen, and say how to use it."""
    budget = Budget(trials, tuple(seeds), search_seed)
    suggest = parzen(budget.seeds, search_seed)
    path = tune(config, names, budget, folder, suggest, tell=(lambda line: None) if quiet else say)
    print_tuned(path)
    say(f"use it: posterity compare --tuned {path} --methods {','.join(names)} (with seeds that did not choose it)")


def print_tuned(path: Path) -> None:
    """What was chosen, beside the defaults' scores."""
    table = ruled_table("Tuned", "Method", "validation", "with defaults", "trial", "chosen")
    for name, each in read_toml(path)["methods"].items():
        scores = [f"{each[n]:.4g}" for n in ("value", "default")]
        table.add_row(*(label(cell) for cell in (name, *scores, f"{each['trial']} of {each['trials']}",
                                                 told(each["set"]))))  # fmt: skip
    console.print(table)


def take_tuned(names: Sequence[str], config: Config, path: Path) -> list[str]:
    """The methods of a comparison with their tuned values."""
    found, remarks = with_tuned(names, config, path)
    for remark in remarks:
        say_sentence(f"note: {remark}")
    return found
