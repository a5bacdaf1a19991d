"""Named arrays as bytes: a header that lists them, and their numbers one after the other.

    "PSTY"  version (1 byte)  length of the header (4 bytes)  header (JSON)  payload

The header has a fingerprint of what both sides agreed on, facts (a JSON object, anything small) and the name, type and
shape of every array. The payload has no gaps and is little-endian. Whatever is wrong with bytes is a `CodecError`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

MAGIC, SCHEMA = b"PSTY", 1
START = struct.Struct("<4sBI")  # magic, version, length of the header
HEADER = 2**26  # bytes of a header at most
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
                  torch.int8, torch.uint8, torch.bool)
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}
Place = tuple[torch.dtype, tuple[int, ...], int]  # type, shape, and where it begins in the payload


class CodecError(ValueError):
    """Bytes that are not what was expected; the message says what is wrong with them."""


@dataclass(frozen=True)
class Header:
    """What stands before the payload."""

    fingerprint: str
    facts: dict[str, Any]
    complete: bool  # whether leaves are there that need not travel
    arrays: dict[str, Place]
    begin: int  # of the payload


def join_arrays(arrays: Mapping[str, Tensor], agreed: str, facts: Mapping[str, Any], complete: bool) -> bytes:
    """Header and payload."""
    listed = [[name, NAMES[leaf.dtype], list(leaf.shape)] for name, leaf in arrays.items()]
    header = {"fingerprint": agreed, "facts": dict(facts), "complete": complete, "arrays": listed}
    text = json.dumps(header, allow_nan=False, separators=(",", ":")).encode()
    return b"".join([START.pack(MAGIC, SCHEMA, len(text)), text, *map(_raw, arrays.values())])


def payload_bytes(data: bytes) -> int:
    """Bytes of the payload: what is counted."""
    return len(data) - read_header(data).begin


def read_facts(data: bytes, agreed: str | None = None) -> dict[str, Any]:
    """The facts of some bytes; their fingerprint is not looked at unless one is given."""
    return read_header(data, agreed).facts


def read_header(data: bytes, agreed: str | None = None) -> Header:
    """The header, checked by itself and against the length of the bytes."""
    if len(data) < START.size:
        raise CodecError(f"{len(data)} bytes are no message: its first {START.size} say what it is")
    magic, version, length = START.unpack_from(data)
    if magic != MAGIC:
        raise CodecError(f"this is no message: it begins with {magic!r}; expected {MAGIC!r}")
    if version != SCHEMA:
        raise CodecError(
            f"schema version {version} was given; this side reads {SCHEMA}: use the same posterity on both"
        )
    begin = START.size + length
    if length > HEADER or begin > len(data):
        raise CodecError(f"the header says that it has {length} bytes; there are {len(data) - START.size}")
    value = _parsed(data[START.size : begin])
    if not (isinstance(value.get("fingerprint"), str) and isinstance(value.get("facts"), dict)):
        raise CodecError("the header lacks its fingerprint or its facts")
    if agreed is not None and value["fingerprint"] != agreed:
        raise CodecError(f"fingerprint {quoted(value['fingerprint'])} was given, {agreed} is expected: server and site "
                         "differ in method, configuration, shapes or posterity; use the same on both")  # fmt: skip
    arrays = _arrays(value.get("arrays"), len(data) - begin)
    return Header(value["fingerprint"], value["facts"], value.get("complete") is True, arrays, begin)


def _raw(leaf: Tensor) -> bytes:
    return leaf.reshape(-1).view(torch.uint8).numpy().tobytes() if leaf.numel() else b""


def read_array(data: bytes, begin: int, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    count = torch.Size(shape).numel()
    if not count:
        return torch.zeros(tuple(shape), dtype=dtype)
    raw = torch.frombuffer(bytearray(data[begin : begin + count * dtype.itemsize]), dtype=torch.uint8)
    if dtype == torch.bool and bool((raw > 1).any()):
        raise CodecError("a boolean is neither 0 nor 1")
    return raw.view(dtype).reshape(tuple(shape))


def _arrays(listed: Any, size: int) -> dict[str, tuple[torch.dtype, tuple[int, ...], int]]:
    """The table of arrays, whose lengths add up to that of the payload."""
    if not isinstance(listed, list):
        raise CodecError("the header lists no arrays")
    found: dict[str, tuple[torch.dtype, tuple[int, ...], int]] = {}
    place = 0
    for entry in listed:
        if not (isinstance(entry, list) and len(entry) == 3 and isinstance(entry[0], str) and _is_shape(entry[2])):
            raise CodecError("the header lists something that is not a name, a type and a shape")
        name, kind, shape = entry
        if not isinstance(kind, str) or kind not in DTYPES:
            raise CodecError(f"{quoted(name)} has the type {quoted(kind)}; expected one of {', '.join(DTYPES)}")
        if name in found:
            raise CodecError(f"{quoted(name)} is there twice")
        found[name] = (DTYPES[kind], tuple(shape), place)
        count = DTYPES[kind].itemsize
        for length in shape:
            count *= length
        place += count
    if place != size:
        raise CodecError(f"the payload has {size} bytes; its arrays take {place}")
    return found


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= 16 and all(
        isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 2**40 for n in value
    )  # fmt: skip


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise CodecError("the header is no JSON") from None
    if not isinstance(value, dict):
        raise CodecError("the header is no JSON object")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def quoted(value: Any) -> str:
    """At most a line of what somebody else wrote."""
    return repr(value if len(str(value)) <= 80 else f"{str(value)[:77]}...")


__all__ = ["SCHEMA", "CodecError", "Header", "join_arrays", "payload_bytes", "read_array", "read_facts", "read_header"]
