"""What left a site, as a page for whoever answers for its data: made of the lines of its `sent.jsonl`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posterity.report.columns import human_bytes
from posterity.report.logs import write_atomic
from posterity.report.template import fill_template

SINGLE = 2000  # lines that are shown one by one
Line = Mapping[str, Any]


def write_sent_page(out: Path, client: str, experiment: str, lines: Sequence[Line], leaves: Sequence[Line]) -> None:
    """The page of a client in an experiment: every line, and what they come to for each leaf."""
    size = sum(int(line["bytes"]) for line in lines)
    counts = [int(line["count"]) for line in lines if line["count"]]  # 0: nothing was told
    rounds = sorted({int(line["round"]) for line in lines})
    least = f"; nothing of it is made of fewer than {min(counts)} samples" if counts else ""
    facts = {
        "client": client,
        "experiment": experiment,
        "rounds": f"{rounds[0]} … {rounds[-1]}" if rounds else "none",
        "leaves": str(len(leaves)),
        "bytes": f"{size:,}",
    }
    text = fill_template(
        "sent.html",
        title=f"What left {client}",
        finding=f"{human_bytes(size)} left this site in {len(rounds)} rounds, registration included{least}, as far as "
        "samples are behind it and are known.",
        facts=list(facts.items()),
        leaves=leaves,
        lines=lines[-SINGLE:],
        total=len(lines),
        cut=len(lines) > SINGLE,
    )
    write_atomic(out, text.encode(errors="replace"))


__all__ = ["write_sent_page"]
