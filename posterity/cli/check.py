"""`posterity check`: the laws on a method of yours, a line for each as it is tried, and what is broken in full."""

from __future__ import annotations

import json as as_json

from posterity import methods
from posterity.cli.neutral import label
from posterity.cli.show import console
from posterity.laws import LAWS, ROOTS, Verdict, check


def print_verdicts(method: str, model: str, json: bool) -> bool:
    """Run the laws on a method; whether all hold."""
    made = methods.build(method)
    if json:
        verdicts = check(made, model)
        print(as_json.dumps([{"law": v.law, "held": v.held, "detail": v.detail, "follows": v.follows}
                             for v in verdicts]))  # fmt: skip
        return all(v.held for v in verdicts)
    console.print(f"{label(method)} with {label(model)}: {len(LAWS)} laws, from cause to consequence", highlight=False)
    verdicts = check(made, model, watch=_print_line)
    _print_end(verdicts)
    return all(v.held for v in verdicts)


def _print_line(verdict: Verdict) -> None:
    """One law as soon as it is known."""
    if verdict.follows:
        if verdict.follows not in ROOTS:  # one sentence at the end says it of all of them
            console.print(f"  {verdict.law:<14} [dim]not tried: follows from {verdict.follows}[/dim]", highlight=False)
        return
    word = "[green]holds[/green] " if verdict.held else "[red]broken[/red]"
    console.print(f"  {verdict.law:<14} {word} {verdict.seconds:5.1f} s", highlight=False)
    if not verdict.held:
        for line in verdict.detail.splitlines():
            console.print(f"    {label(line.strip())}", highlight=False, soft_wrap=True)


def _print_end(verdicts: list[Verdict]) -> None:
    broken = [v for v in verdicts if not v.held and not v.follows]
    skipped = sum(bool(v.follows) for v in verdicts)
    text = f"{sum(v.held for v in verdicts)} of {len(verdicts)} laws hold"
    if broken:
        text += f", {len(broken)} broken ({', '.join(v.law for v in broken)})"
    if skipped:
        text += f", {skipped} not tried: mend {broken[0].law!r} first"
    console.print(text, highlight=False)
