"""Runs as a report reads them: frozen records of run folders, or of what `posterity pack` made of many (`packing.py`).

A run that is still going, or was killed, may end in half a line; that line is ignored. A resumed run may have written a
round twice; the later line counts. A folder may be anybody's: only regular files in it are read, and what no run writes
is refused in a sentence.
"""

import json
import lzma
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from posterity.core.protocol import POINTS
from posterity.runs import files
from posterity.runs.folder import CONFIG, METRICS, RUN, is_superseded
from posterity.runs.lines import Line, RoundLine, ScoreLine, from_json, number, rounds_of, scores_of

UNPACKED, MEMORY = 2**29, 2**28  # bytes: a packed file may expand to so many, and its window may be so large
MISTAKES = (TypeError, ValueError, KeyError, AttributeError, OverflowError, RecursionError)  # of what no run writes


class ReportError(ValueError):
    """A folder that cannot be reported on; the message says which, and what to do."""


@dataclass(frozen=True)
class RunLog:
    """What a run wrote, as it stands in its folder or in a file of packed runs."""

    folder: Path
    facts: Mapping[str, Any]  # run.json
    config: str  # config.toml
    lines: Sequence[Line]  # metrics.jsonl


def find_runs(folder: Path) -> list[Path]:
    """The run folders at or below `folder`."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ReportError(
            f"{folder} is neither a folder nor a file of packed runs. Give a run folder, a folder that contains run "
            "folders, or a file that `posterity pack` wrote."
        )
    found = sorted({p.parent for p in folder.rglob(RUN) if not is_superseded(p.parent, folder)})
    if not found:
        raise ReportError(f"No run folder in {folder}: none of its folders has a run.json. Start one: posterity run …")
    return found


def read_log(folder: Path) -> RunLog:
    """What a run folder holds, without the half line at the end of a log whose writer was stopped."""
    names = CONFIG, RUN, METRICS
    files.refuse_links(folder, names)  # one leads out of the folder, a pipe never ends
    there = [name for name in names if (folder / name).exists()]
    texts = {name: (folder / name).read_text(encoding="utf-8", errors="replace") for name in there}
    log = texts.get(METRICS, "").rpartition("\n")[0].split("\n")
    try:
        lines = _records((json.loads(line) for line in log if line.strip()), folder)
        return RunLog(folder, dict(json.loads(texts[RUN])), texts.get(CONFIG, ""), lines)
    except MISTAKES as error:
        raise _edited(folder, error) from error


def read_packed(path: Path) -> list[RunLog]:
    """The runs of a file that `posterity pack` wrote."""
    try:
        raws = [json.loads(line) for line in _unpacked(path).decode().split("\n") if line]
        if not raws:
            raise ValueError("it is empty")
        return [
            RunLog(Path(raw["folder"]), raw["facts"], raw["config"], _records(_unfolded(raw["lines"]))) for raw in raws
        ]
    except (*MISTAKES, OSError, EOFError, lzma.LZMAError) as error:
        raise ReportError(f"{path} is no file of packed runs ({error}). `posterity pack FOLDER` writes one.") from error


def _unpacked(path: Path) -> bytes:
    """All of a packed file, unless it expands beyond what any table needs."""
    unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MEMORY)
    data = unpacker.decompress(path.read_bytes(), UNPACKED + 1)
    if len(data) > UNPACKED:
        raise ValueError(f"it expands to more than {UNPACKED // 2**20} MiB")
    if not unpacker.eof:
        raise ValueError("its end is missing")
    return data


def _unfolded(tables: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The lines of tables: `names` has the path to each field of a line, `columns` its values."""
    for table in tables:
        for values in zip(*table["columns"], strict=True):
            line: dict[str, Any] = {}
            for (*path, name), value in zip(table["names"], values, strict=True):
                place = line
                for step in path:
                    place = place.setdefault(step, {})
                place[name] = value
            yield line


def _records(lines: Iterable[Mapping[str, Any]], folder: Path | None = None) -> list[Line]:
    return [line for told in lines if (line := from_json(told, folder)) is not None]


def _edited(folder: Path, error: Exception) -> ReportError:
    return ReportError(
        f"{folder} holds something that no run writes ({type(error).__name__}: {error}). Was it edited by hand?"
    )


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
    rule: str = ""  # of the partition; empty for clients put together by hand
    fingerprint: str = ""  # of values and parts

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
    except MISTAKES as error:
        raise _edited(log.folder, error) from error


def _run(log: RunLog) -> Run:
    facts, config = log.facts, tomllib.loads(log.config)
    method = facts.get("method") or {}
    name = str(method.get("name") or config.get("method") or log.folder.name)
    rounds = {line.round: line for line in rounds_of(log.lines)}  # a resumed run repeats rounds: the later one counts
    scores = {_order(line): line for line in scores_of(log.lines)}
    spent = sum(r.seconds or 0.0 for r in rounds.values())
    return Run(
        folder=log.folder,
        name=name,
        label=str(method.get("label") or name),
        reference=str(method.get("reference") or ""),
        scored=next((p for p in (config.get("scored"), method.get("scored")) if p in POINTS), "received"),
        seed=config.get("seed"),
        status=str(facts.get("status") or "running"),
        seconds=number(facts.get("seconds")) or spent or None,  # 0 until it ends
        planned=config.get("rounds"),
        federation=read_federation(facts.get("federation") or {}, str(facts.get("evaluate_remark") or "")),
        rounds=tuple(rounds[r] for r in sorted(rounds)),
        scores=tuple(scores[key] for key in sorted(scores)),
        config=config,
        config_text=log.config,
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


def _order(line: ScoreLine) -> tuple[int, str, int, str, str]:
    return line.round, line.point, line.epochs, line.group, line.part
