"""Tables beside the headline show the round that was chosen for it, on the part that its rule means."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from posterity.report import headline, load_runs
from posterity.report.sections import at, by_point, cautions, every_run, newcomers
from posterity.report.table import epochs_scored, point_name, select_round
from posterity.runs.read import Run

from .handmade import everywhere, run_of, scored, trained

VALIDATION = {2: 0.3, 4: 0.9, 6: 0.6}  # round 4 is chosen
TEST = {2: 0.31, 4: 0.71, 6: 0.81}
HELD = {2: 0.30, 4: 0.75, 6: 0.76}  # the paper's rule chooses 6


def members() -> list[dict[str, object]]:
    parts = {"validation": VALIDATION, "test": TEST, "held": HELD}
    return [scored(r, v, part) for part, by in parts.items() for r, v in by.items()]


def adapted(rounds: tuple[int, ...], part: str = "test", **more: object) -> list[dict[str, object]]:
    """At round r the accuracy is r hundredths; on the whole held-out part a half more."""
    bonus = 0.5 if part == "held" else 0.0
    return [scored(r, r / 100 + bonus, part, "adapted", 1, **more) for r in rounds]  # type: ignore[arg-type]


def made(folder: Path, lines: list[dict[str, object]]):
    run_of(folder, lines)
    return load_runs(folder)[0]


@pytest.mark.parametrize(
    ("rounds", "shown"), [((2, 4, 6), 0.04), ((2, 6), 0.02), ((3, 5), 0.03), ((6,), 0.06), ((5, 6), 0.05)]
)
def test_another_point_is_shown_at_the_chosen_round_or_just_before(
    tmp_path: Path, rounds: tuple[int, ...], shown: float
) -> None:
    run = made(tmp_path, members() + adapted(rounds))
    chosen = select_round(run, "validated")
    assert chosen is not None
    assert chosen.round == 4
    score = at(run, "validated", "adapted", 1, "members")
    assert score is not None
    assert score.value("accuracy") == shown


def test_the_part_is_that_of_the_rule(tmp_path: Path) -> None:
    run = made(tmp_path, members() + adapted((4, 6)) + adapted((4, 6), "held"))
    found = {rule: at(run, rule, "adapted", 1, "members") for rule in ("validated", "paper", "last")}
    values = {rule: score.value("accuracy") for rule, score in found.items() if score is not None}
    assert values == {"validated": 0.04, "paper": 0.56, "last": 0.06}


def test_newcomers_without_a_test_half_are_shown_on_what_there_is(tmp_path: Path) -> None:
    run = made(tmp_path, members() + adapted((4,), "held", group="newcomers"))
    score = at(run, "validated", "adapted", 1, "newcomers")
    assert score is not None
    assert score.value("accuracy") == 0.54
    assert at(run, "validated", "trained", 0, "newcomers") is None


def test_every_point_by_hand(tmp_path: Path) -> None:
    lines = members() + adapted((2, 4, 6)) + [scored(r, 0.9 + r / 100, point="trained") for r in (2, 4)]
    late = [scored(4, 0.5, point="adapted", epochs=5, group="newcomers")]
    run_of(tmp_path, lines + late)
    grid = by_point(headline(load_runs(tmp_path)))
    assert grid.heads == ("received", "adapted, 1 epoch", "trained")  # what only newcomers have is not among them
    assert [cells for _, cells in grid.rows] == [("71.0", "4.0", "94.0")]


def test_steps_are_not_called_epochs(tmp_path: Path) -> None:
    run_of(tmp_path, adapted((2, 4, 6)))
    (run,) = load_runs(tmp_path)

    def having(fields: dict[str, int | None]) -> Run:
        return replace(run, facts={**run.facts, "method": {"fields": fields}})

    whole, one = having({"adapt_steps": None}), having({"method.adapt_steps": 1})
    outer = having({"method.adapt_steps": 1, "adapt_steps": 3})
    inner = having({"method.adapt_steps": 1, "adapt_steps": None})  # the wrapper leaves it to the method
    assert [r.adapt_steps for r in (whole, one, outer, inner)] == [None, 1, 3, 1]
    assert point_name("adapted", 1, [one]) == "adapted, 1 step"
    assert point_name("adapted", 5, [outer]) == "adapted, 15 steps"
    assert point_name("adapted", 5, [whole, one, one]) == "adapted, 5 epochs or 5 steps"
    assert point_name("received", 0, [one]) == "received"


def test_the_gap_is_newcomers_minus_members_after_the_longest_adaptation(tmp_path: Path) -> None:
    late = [scored(r, 0.2 + e / 100, point="adapted" if e else "received", epochs=e, group="newcomers")
            for r in (2, 4) for e in (0, 1, 5)]  # fmt: skip
    run_of(tmp_path, members() + late)
    grid = newcomers(headline(load_runs(tmp_path)))
    assert grid.heads == ("received", "adapted, 1 epoch", "adapted, 5 epochs", "members", "gap")
    assert [cells for _, cells in grid.rows] == [("20.0", "21.0", "25.0", "71.0", "−46.0")]


def test_every_run_tells_its_round_and_its_value_by_each_rule(tmp_path: Path) -> None:
    run_of(tmp_path, members())
    ((_, _, round, cells),) = every_run(headline(load_runs(tmp_path)))
    assert round == "4"
    assert cells == ("71.0", "76.0", "81.0")  # validated, paper, last
    assert epochs_scored(load_runs(tmp_path)[0], "received") == [0]


def test_other_settings_and_other_seeds_are_told(tmp_path: Path) -> None:
    run_of(tmp_path / "a", everywhere(6, 0.5), "fedavg", 0)
    run_of(tmp_path / "b", everywhere(6, 0.6), "fedper", 0)
    runs = load_runs(tmp_path)
    assert cautions(runs, headline(runs)) == []
    run_of(tmp_path / "b", [*everywhere(6, 0.6), trained(6)], "fedper", 1, rounds=8)
    runs = load_runs(tmp_path)
    said = " ".join(cautions(runs, headline(runs)))
    assert "not run with the same rounds: 6, 8" in said
    assert "not run with the same seeds" in said
