"""A line of `metrics.jsonl`: from a record to text and back. Nobody else knows its keys.

A record is one line, a field is one key, and the order of fields is that of the keys. Who writes makes records, who
reads gets records; a new field of a line is a new field here.

Up to `LISTED` clients a line carries every client's numbers. Beyond, and where only a sample is scored, they are
columns of float32: in memory for a run without a folder, else in `clients/round-N.safetensors`, and read when somebody
asks, if its checksum is the one that the line holds. To a reader all forms are the same: metric → one value per client
of the group, nan for who was not scored.

JSON knows neither infinity nor NaN: a metric that is infinite, as where a model was certain and wrong, is written as
"inf" or "-inf", and what is undefined as null. Of all other numbers both become null.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import load, save
from torch import Tensor

from posterity.runs import files

LISTED = 2000  # clients up to which a line carries every client's numbers
FOLDER = "clients"
NAME = re.compile(rf"{FOLDER}/round-\d+\.safetensors")


def number(value: Any) -> float | None:
    """A finite number, or None: a log may be anybody's, and no figure can draw another."""
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) else None


def reading(value: Any) -> float | None:
    """A metric may be infinite (a prediction that was certain and wrong), and a table must show that."""
    value = float(value) if value in ("inf", "-inf") else value
    return value if isinstance(value, float) and math.isinf(value) else number(value)


def _numbers(value: Any) -> dict[str, float | None]:
    return {str(name): number(each) for name, each in (value or {}).items()}


def _summaries(value: Any) -> dict[str, dict[str, float | None]]:
    return {str(name): {str(rule): reading(each) for rule, each in by_rule.items()}
            for name, by_rule in (value or {}).items()}  # fmt: skip


def _columns(value: Any) -> dict[str, list[Any]]:
    return {str(name): [float(each) if isinstance(each, str) else each for each in values]
            for name, values in (value or {}).items()}  # fmt: skip


def _refused(value: Any) -> tuple[tuple[int | str, str], ...]:
    """A simulation numbers its clients, a server across machines knows their names."""
    pairs = [(each.get("client"), str(each.get("reason", ""))) for each in value or ()]
    known = [isinstance(who, str) or (isinstance(who, int) and who >= 0) for who, _ in pairs]
    return tuple((who if k else f"client {who!s:.20}", why) for k, (who, why) in zip(known, pairs, strict=True))


def _tell_refused(pairs: Iterable[tuple[int | str, str]]) -> list[dict[str, Any]]:
    return [{"client": who, "reason": why} for who, why in pairs]


def _key(read: Callable[[Any], Any], default: Any = MISSING, write: Callable[[Any], Any] = lambda value: value) -> Any:
    """A field of a line; one with a default is left out of the text where it has it."""
    return field(metadata={"read": read, "write": write}, **({} if default is MISSING else {"default": default}))


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(str(each) for each in value or ())


def _text(value: Any) -> str:
    return str(value or "")


# --- records
@dataclass(frozen=True)
class RoundLine:
    """What one round of training cost and said about itself."""

    kind: ClassVar[str] = "round"
    round: int = _key(int)
    cohort: int = _key(lambda value: int(value or 0))
    accepted: int = _key(lambda value: int(value or 0))
    refused: tuple[tuple[int | str, str], ...] = _key(_refused, write=_tell_refused)  # client's number or name; reason
    empty: bool = _key(bool)
    loss: float | None = _key(number)
    bytes_up: float | None = _key(number)
    bytes_down: float | None = _key(number)
    seconds: float | None = _key(number)
    report: Mapping[str, float | None] = _key(_numbers)
    rolled_back: str = _key(_text, "")  # why nothing of it was kept
    notes: tuple[str, ...] = _key(_texts, ())
    zeros: float | None = _key(number, None)  # share of zeros among the parameters

    @property
    def traffic(self) -> float | None:
        known = [b for b in (self.bytes_up, self.bytes_down) if b is not None]
        return sum(known) if known else None


@dataclass(frozen=True)
class ScoreLine:
    """Scores: a round, an evaluation point, a group of clients and a part of their data."""

    kind: ClassVar[str] = "score"
    round: int = _key(int)
    point: str = _key(str)
    epochs: int = _key(lambda value: int(value or 0))
    group: str = _key(lambda value: str(value or "members"))
    part: str = _key(str)
    metrics: Mapping[str, Mapping[str, float | None]] = _key(_summaries)  # metric → rule → value
    fairness: Mapping[str, float | None] = _key(_numbers)
    clients: Mapping[str, list[Any]] = _key(_columns)  # metric → a value of each client
    bins: Sequence[Sequence[Any]] = _key(lambda value: value or [])  # of the most probable class
    flat: Sequence[Sequence[Any]] = _key(lambda value: value or [])  # of all class probabilities
    sample: Mapping[str, int] | None = _key(lambda value: value, None)  # how many clients of how many were scored

    def value(self, metric: str, rule: str = "pooled") -> float | None:
        return self.metrics.get(metric, {}).get(rule)

    def by_client(self, metric: str) -> list[float | None]:
        return [reading(x) for x in self.clients.get(metric) or ()]

    @property
    def about(self) -> str:
        """What it is about, within its round."""
        return f"{self.group}/{self.point}/{self.epochs}/{self.part}"


@dataclass(frozen=True)
class NoteLine:
    """A sentence of a server across machines."""

    kind: ClassVar[str] = "note"
    text: str = _key(_text)


@dataclass(frozen=True)
class LostLine:
    """A client that did not answer to the final model."""

    kind: ClassVar[str] = "lost"
    client: str = _key(_text)
    round: int = _key(int)
    reason: str = _key(_text)


Line = RoundLine | ScoreLine | NoteLine | LostLine
KINDS: dict[str, type[Line]] = {each.kind: each for each in (RoundLine, ScoreLine, NoteLine, LostLine)}


def rounds_of(lines: Iterable[Line]) -> list[RoundLine]:
    return [line for line in lines if isinstance(line, RoundLine)]


def scores_of(lines: Iterable[Line]) -> list[ScoreLine]:
    return [line for line in lines if isinstance(line, ScoreLine)]


# --- to text
def as_dict(line: Line) -> dict[str, Any]:
    """A line by its keys; fields that have their default are left out."""
    kept = [f for f in fields(line) if f.default is MISSING or getattr(line, f.name) != f.default]
    return {"kind": line.kind, **{f.name: f.metadata["write"](getattr(line, f.name)) for f in kept}}


def to_json(line: Line) -> dict[str, Any]:
    """A line as JSON has it; many clients' numbers in a file are named."""
    told = as_dict(line)
    if isinstance(line, ScoreLine):
        if isinstance(line.clients, StoredColumns):
            place = f"{FOLDER}/{line.clients.path.name}"
            told |= {"clients": {}, "clients_file": place, "clients_checksum": line.clients.checksum}
        told |= {name: _spelled(told[name]) for name in ("metrics", "clients")}
    return dict(files.clean(told))


def _spelled(value: Any) -> Any:
    """Infinite numbers as texts."""
    if isinstance(value, Mapping):
        return {name: _spelled(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_spelled(each) for each in value]
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def write_lines(path: Path, lines: Sequence[Line]) -> tuple[int, list[Line]]:
    """Append to `metrics.jsonl`, on disk: its length now, and the lines with columns left in the folder.

    They go to a file of their own, whole or not at all.
    """
    lines = _write_columns(path.parent, lines)
    return files.append_lines(path, [to_json(line) for line in lines]), lines


def _write_columns(folder: Path, lines: Sequence[Line]) -> list[Line]:
    many = {line.about: line.clients for line in scores_of(lines) if isinstance(line.clients, ClientColumns)}
    if not many:
        return list(lines)
    path, named = folder / FOLDER / f"round-{scores_of(lines)[0].round:06d}.safetensors", dict[str, Tensor]()
    for about, each in many.items():
        columns = {**each.columns, "clients": each.clients, "size": torch.tensor(each.size)}
        named |= {f"{about}/{n}": t.detach().cpu().contiguous().clone() for n, t in columns.items()}
    data = save(named)
    files.write_atomic(path, data)
    return [replace(line, clients=StoredColumns(path, line.about, files.checksum(data)))
            if isinstance(line, ScoreLine) and line.about in many else line for line in lines]  # fmt: skip


# --- and back
def from_json(told: Mapping[str, Any], folder: Path | None = None) -> Line | None:
    """The record of a line; None of a kind that is not known."""
    kind = KINDS.get(str(told.get("kind")))
    if kind is None:
        return None
    line = kind(**{f.name: f.metadata["read"](told.get(f.name)) for f in fields(kind)})
    place = str(told.get("clients_file"))
    if folder is not None and isinstance(line, ScoreLine) and NAME.fullmatch(place):  # nothing outside of the folder
        return replace(line, clients=StoredColumns(folder / place, line.about, str(told.get("clients_checksum"))))
    return line


def read_lines(path: Path, length: int | None = None) -> list[Line]:
    """The lines of `metrics.jsonl`, or of its first bytes; many clients' numbers are read when they are asked for."""
    try:
        found = [from_json(told, path.parent) for told in files.read_lines(path, length)]
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        if isinstance(error, files.DamagedFile):
            raise
        raise files.DamagedFile(f"{path} holds a line that no run writes ({error}); {files.ADVICE}") from None
    return [line for line in found if line is not None]


# --- every client's numbers, where there are many clients
@dataclass(frozen=True, eq=False)
class ClientColumns(Mapping[str, list[Any]]):
    """Numbers of some clients of a group of `size`."""

    size: int
    clients: Tensor  # (scored,) their places in the group
    columns: Mapping[str, Tensor]  # metric → (scored,)

    def __getitem__(self, name: str) -> list[Any]:
        values = torch.full((self.size,), 0.0 if name == "n" else math.nan, dtype=torch.float64)
        values[self.clients.long()] = self.columns[name].double()
        return [int(v) for v in values] if name == "n" else values.tolist()

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)


@dataclass(frozen=True, eq=False)
class StoredColumns(Mapping[str, list[Any]]):
    """`ClientColumns` in a file, under a name, with the checksum that the line holds: read when they are asked for."""

    path: Path
    key: str
    checksum: str

    def read(self) -> ClientColumns:
        if self.path.is_symlink() or not self.path.is_file():
            raise ValueError(f"{self.path} is missing or no ordinary file: put the run's own file back")
        data = self.path.read_bytes()
        if self.checksum != files.checksum(data):
            raise ValueError(f"{self.path} is not as it was written: put back a copy that is whole")
        prefix = f"{self.key}/"
        found = {n.removeprefix(prefix): leaf for n, leaf in load(data).items() if n.startswith(prefix)}
        return ClientColumns(int(found.pop("size")), found.pop("clients"), found)

    def __getitem__(self, name: str) -> list[Any]:
        return self.read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.read())

    def __len__(self) -> int:
        return len(self.read())
