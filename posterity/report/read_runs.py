"""Run folders, read into frozen records; or a file into which `posterity pack` put them (`packing.py`).

A run folder holds `config.toml`, `run.json` and `metrics.jsonl`. A run that is still going, or was killed, may end in
half a line; that line is ignored. A resumed run may have written a round twice; the later line counts.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from posterity.evaluate.client_scores import stored
from posterity.evaluate.infinite import restored
from posterity.report.logs import ReportError, RunLog, find_runs, read_log, read_packed

POINTS = ("received", "adapted", "trained")  # the protocol's; its file imports PyTorch, and a report needs none


@dataclass(frozen=True)
class ScoreLine:
    """One line of scores: a round, an evaluation point, a group of clients and a part of their data."""

    round: int
    point: str
    epochs: int
    group: str
    part: str
    metrics: Mapping[str, Mapping[str, float | None]]
    fairness: Mapping[str, float | None]
    clients: Mapping[str, Sequence[Any]]  # as read: of hundreds of rounds a page looks at one
    bins: Sequence[Sequence[Any]]  # of the most probable class
    flat: Sequence[Sequence[Any]] = ()  # of all class probabilities; older logs have none

    def value(self, metric: str, weight: str = "pooled") -> float | None:
        return self.metrics.get(metric, {}).get(weight)

    def by_client(self, metric: str) -> list[float | None]:
        return [_reading(x) for x in self.clients.get(metric) or ()]


@dataclass(frozen=True)
class RoundLine:
    """What one round of training cost and said about itself."""

    round: int
    cohort: int
    refused: tuple[tuple[int | str, str], ...]  # (client's number, or its name; reason)
    empty: bool
    loss: float | None
    bytes_up: float | None
    bytes_down: float | None
    seconds: float | None
    report: Mapping[str, float | None]
    rolled_back: str = ""  # why nothing of it was kept
    notes: tuple[str, ...] = ()

    @property
    def traffic(self) -> float | None:
        known = [b for b in (self.bytes_up, self.bytes_down) if b is not None]
        return sum(known) if known else None


@dataclass(frozen=True)
class FederationFacts:
    """Who took part: sizes and class counts per client, and what the data set's reader assumed."""

    name: str
    task: str
    clients: int
    members: int
    newcomers: int
    classes: int
    class_names: tuple[str, ...]
    names: tuple[str, ...]
    train: tuple[int, ...]
    validation: tuple[int, ...]
    test: tuple[int, ...]
    histogram: tuple[tuple[int, ...], ...]
    notes: tuple[str, ...]
    rule: str = ""  # of the partition; empty for clients put together by hand, and in old folders
    fingerprint: str = ""  # of values and parts; empty in old folders

    def client(self, index: int) -> str:
        """The client's own name where it has one, else its number."""
        return self.names[index] if index < len(self.names) else f"client {index}"

    @property
    def numbered(self) -> bool:
        """Whether the clients have no names of their own, only the numbers that a partition gave them."""
        return all(name.removeprefix("client ").isdecimal() for name in self.names)


@dataclass(frozen=True, eq=False)
class Run:
    """One run: what was asked for, where it ran, and everything it measured."""

    folder: Path
    name: str
    label: str
    reference: str
    scored: str
    seed: int | None
    status: str
    seconds: float | None
    planned: int | None
    federation: FederationFacts
    rounds: tuple[RoundLine, ...]
    scores: tuple[ScoreLine, ...]
    config: Mapping[str, Any] = field(repr=False)
    config_text: str = field(repr=False)
    facts: Mapping[str, Any] = field(repr=False)

    @property
    def fields(self) -> Mapping[str, Any]:
        """The method's hyper-parameters as they were in force, where the log has them."""
        return (self.facts.get("method") or {}).get("fields") or {}

    @property
    def adapt_steps(self) -> int | None:
        """The steps that clients take for an epoch of adaptation; None: whole epochs. The outermost wrapper decides."""
        keys = sorted((k for k in self.fields if k.rsplit(".", 1)[-1] == "adapt_steps"), key=lambda k: k.count("."))
        return next((int(self.fields[k]) for k in keys if self.fields[k] is not None), None)

    @property
    def finished(self) -> bool:
        return self.status == "finished"

    @cached_property
    def index(self) -> dict[tuple[str, str, int, str], dict[int, ScoreLine]]:
        """The scores by (part, point, epochs, group), then by round: a page asks for them hundreds of times."""
        found: dict[tuple[str, str, int, str], dict[int, ScoreLine]] = {}
        for s in self.scores:
            found.setdefault((s.part, s.point, s.epochs, s.group), {})[s.round] = s
        return found

    @property
    def reached(self) -> int:
        """The last round seen, whether it was scored or only trained."""
        return max([r.round for r in self.rounds] + [s.round for s in self.scores], default=0)


def load_runs(folder: Path) -> list[Run]:
    """Every run at or below `folder`, or in a file of packed runs, by label and then by seed in numerical order."""
    logs = read_packed(folder) if Path(folder).is_file() else [read_log(f) for f in find_runs(folder)]
    runs = [read_run(log) for log in logs]
    return sorted(runs, key=lambda r: (r.label.casefold(), r.seed if r.seed is not None else -1, str(r.folder)))


def read_run(log: RunLog) -> Run:
    """One run from its log."""
    try:
        return _run(log)
    except ReportError:
        raise
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise ReportError(
            f"{log.folder} holds something that no run writes ({type(error).__name__}: {error}). Was it edited by hand?"
        ) from error


def _run(log: RunLog) -> Run:
    folder, facts, text = log.folder, log.facts, log.config
    try:
        config = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ReportError(f"{folder / 'config.toml'} is not valid TOML: {error}") from error
    method = facts.get("method") or {}
    name = str(method.get("name") or config.get("method") or folder.name)
    rounds, scores = _metrics([stored(line, folder) if line.get("clients_file") else line for line in log.lines])
    return Run(
        folder=folder,
        name=name,
        label=str(method.get("label") or name),
        reference=str(method.get("reference") or ""),
        scored=next((p for p in (config.get("scored"), method.get("scored")) if p in POINTS), "received"),
        seed=config.get("seed"),
        status=str(facts.get("status") or "running"),
        seconds=_number(facts.get("seconds")) or sum(r.seconds or 0.0 for r in rounds) or None,  # 0 until it ends
        planned=config.get("rounds"),
        federation=read_federation(facts.get("federation") or {}, str(facts.get("evaluate_remark") or "")),
        rounds=rounds,
        scores=scores,
        config=config,
        config_text=text,
        facts=facts,
    )


def read_federation(raw: Mapping[str, Any], remark: str = "") -> FederationFacts:
    """The clients as `run.json` has them."""
    train = tuple(int(n) for n in raw.get("train") or ())
    clients = int(raw.get("clients") or len(train))
    return FederationFacts(
        name=str(raw.get("name") or "unnamed data"),
        task=str(raw.get("task") or "classification"),
        clients=clients,
        members=int(raw.get("members") or clients),
        newcomers=int(raw.get("newcomers") or 0),
        classes=int(raw.get("classes") or 0),
        class_names=tuple(str(c) for c in raw.get("class_names") or ()),
        names=tuple(str(n) for n in raw.get("names") or ()),
        train=train,
        validation=tuple(int(n) for n in raw.get("validation") or ()),
        test=tuple(int(n) for n in raw.get("test") or ()),
        histogram=tuple(tuple(int(n) for n in row) for row in raw.get("histogram") or ()),
        notes=(*(str(n) for n in raw.get("notes") or ()), *([remark] if remark else [])),
        rule=str((raw.get("partition") or {}).get("rule") or ""),
        fingerprint=str(raw.get("fingerprint") or ""),
    )


def _metrics(lines: Sequence[Mapping[str, Any]]) -> tuple[tuple[RoundLine, ...], tuple[ScoreLine, ...]]:
    """Rounds and scores; of two lines about the same thing the later one, because a resumed run repeats rounds."""
    rounds: dict[int, RoundLine] = {}
    scores: dict[tuple[int, str, int, str, str], ScoreLine] = {}
    for raw in lines:
        if raw.get("kind") == "round":
            rounds[int(raw["round"])] = _round(raw)
        elif raw.get("kind") == "score":
            score = _score(restored(raw))
            scores[score.round, score.point, score.epochs, score.group, score.part] = score
    return tuple(rounds[r] for r in sorted(rounds)), tuple(scores[k] for k in sorted(scores))


def _round(raw: Mapping[str, Any]) -> RoundLine:
    refused = tuple((_client(r.get("client")), str(r.get("reason", ""))) for r in raw.get("refused") or ())
    return RoundLine(
        round=int(raw["round"]),
        cohort=int(raw.get("cohort") or 0),
        refused=refused,
        empty=bool(raw.get("empty")),
        loss=_number(raw.get("loss")),
        bytes_up=_number(raw.get("bytes_up")),
        bytes_down=_number(raw.get("bytes_down")),
        seconds=_number(raw.get("seconds")),
        report={str(k): _number(v) for k, v in (raw.get("report") or {}).items()},
        rolled_back=str(raw.get("rolled_back") or ""),
        notes=tuple(str(note) for note in raw.get("notes") or ()),
    )


def _client(told: Any) -> int | str:
    """A simulation numbers its clients, a server across machines knows their names."""
    known = isinstance(told, str) or (isinstance(told, int) and told >= 0)
    return told if known else f"client {told!s:.20}"


def _score(raw: Mapping[str, Any]) -> ScoreLine:
    metrics = {
        str(k): {str(w): _reading(x) for w, x in (v if isinstance(v, dict) else {"pooled": v}).items()}
        for k, v in (raw.get("metrics") or {}).items()
    }
    return ScoreLine(
        round=int(raw["round"]),
        point=str(raw["point"]),
        epochs=int(raw.get("epochs") or 0),
        group=str(raw.get("group") or "members"),
        part=str(raw["part"]),
        metrics=metrics,
        fairness={str(k): _number(v) for k, v in (raw.get("fairness") or {}).items()},
        clients=raw.get("clients") or {},
        bins=raw.get("bins") or (),
        flat=raw.get("flat") or (),
    )


def _number(value: Any) -> float | None:
    """A finite number, or None: JSON written by Python may hold NaN, and no figure can draw it."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def _reading(value: Any) -> float | None:
    """A metric may be infinite (a prediction that was certain and wrong), and a table must show that."""
    infinite = isinstance(value, float) and math.isinf(value)
    return value if infinite else _number(value)
