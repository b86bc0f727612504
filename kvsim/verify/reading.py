"""Reading a transcript: gzip, one JSON object a line, the format named in the first.

A file is read and checked whole before any of it is followed, so that a broken one is an error
wherever it breaks.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from kvsim.errors import KvsimError, show, unknown_name
from kvsim.verify.fields import CONFIGS, GROUP, HEADERS, OPS, Fields, field_problem
from kvsim.verify.routing_fields import ROUTER_FORMATS, ROUTING

FORMATS = (*OPS, ROUTING)
"""The formats that can be read; whether one can be followed is another matter."""

_PROFILES = {
    "0.22": "vllm-0.22",
    "0.23": "vllm-0.23",
    "0.32": "vllm-0.32",
    "0.33": "vllm-0.33",
}
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WINDOW_BITS = 31  # zlib's way of asking for a gzip header
_PIECE_BYTES = 4096  # unpacked at a time, so that a break is found near its place
_ENDS_WITH_TOTALS = ("kvsim-steps/1", "kvsim-offload/1", "kvsim-mooncake/1", "kvsim-async/1")


class TranscriptError(KvsimError):
    """A transcript that cannot be followed: cut, of another format, or saying what makes no sense.

    Attributes:
        file: its path as given.
        line: number of the line in question, from 1; None where it is the file as a whole.
    """

    def __init__(self, file: str, line: int | None, problem: str) -> None:
        """Say where, and what is wrong there."""
        self.file = file
        self.line = line
        self.problem = problem
        place = file if line is None else f"{file}: line {line}"
        super().__init__(f"{place}: {problem}")

    def __reduce__(self) -> tuple[type[TranscriptError], tuple[str, int | None, str]]:
        """Pickle by the three arguments, so that a worker process can raise it."""
        return type(self), (self.file, self.line, self.problem)


@dataclass(frozen=True, slots=True)
class Line:
    """One recorded operation.

    Attributes:
        number: of its line in the file, from 1.
        op: what was done.
        fields: all fields, the answers included.
    """

    number: int
    op: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Transcript:
    """A transcript whose lines hold what they should.

    Attributes:
        file: its path as given.
        format: one of `FORMATS`.
        profile: the engine profile that answered; empty where that was not an engine.
        config: the first line's configuration; empty where the format has none.
        lines: the operations in order.
        header: the whole first line.
    """

    file: str
    format: str
    profile: str
    config: dict[str, Any]
    lines: list[Line]
    header: dict[str, Any] = field(default_factory=dict)

    def refuse(self, line: int | None, problem: str) -> NoReturn:
        """Give up on this transcript.

        Raises:
            TranscriptError: always.
        """
        raise TranscriptError(self.file, line, problem)


def read_transcript(path: str | Path) -> Transcript:
    """Read one gzipped transcript and check every line.

    Raises:
        TranscriptError: the file cannot be read, is cut, or holds a line that is no JSON object,
            of an unknown op, or lacks or misuses a field.
    """
    file = str(path)
    records = _records(file, _text(file))
    if not records:
        raise TranscriptError(file, None, "is empty. A transcript starts with its format.")
    header = records[0]
    form = _format(file, header)
    ops = ROUTER_FORMATS[header["policy"]].ops if form == ROUTING else OPS[form]
    lines = [_line(file, ops, number, record) for number, record in enumerate(records[1:], start=2)]
    if not lines:
        raise TranscriptError(file, 1, "nothing follows the first line: the file is cut")
    if form in _ENDS_WITH_TOTALS:
        _check_end(file, lines)
    return Transcript(file, form, _profile(file, header), header.get("config", {}), lines, header)


def _text(file: str) -> str:
    """The unpacked file. Where it breaks, the line that was reached is named."""
    try:
        packed = Path(file).read_bytes()
    except FileNotFoundError:
        raise TranscriptError(file, None, "there is no such file") from None
    except IsADirectoryError:
        raise TranscriptError(file, None, "is a folder. Name the transcripts in it.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TranscriptError(file, None, f"cannot be read: {reason}") from None
    if packed and not packed.startswith(_GZIP_MAGIC):
        raise TranscriptError(file, 1, "is not gzipped. Transcripts are gzipped JSON lines.")
    unpacked, problem = _unpack(packed)
    if problem:
        raise TranscriptError(file, unpacked.count(b"\n") + 1, problem)
    try:
        return unpacked.decode()
    except UnicodeDecodeError as error:
        line = unpacked[: error.start].count(b"\n") + 1
        raise TranscriptError(file, line, "is not UTF-8 text") from None


def _unpack(packed: bytes) -> tuple[bytes, str | None]:
    """What can be unpacked, and why not more; a gzip file may have several members."""
    unpacked = bytearray()
    member = zlib.decompressobj(wbits=_GZIP_WINDOW_BITS)
    try:
        for start in range(0, len(packed), _PIECE_BYTES):
            piece = packed[start : start + _PIECE_BYTES]
            while piece:
                if member.eof:
                    member = zlib.decompressobj(wbits=_GZIP_WINDOW_BITS)
                unpacked += member.decompress(piece)
                piece = member.unused_data
    except zlib.error as error:
        return bytes(unpacked), f"the gzip data breaks here: {error}"
    if packed and not member.eof:
        return bytes(unpacked), "the gzip data ends here: the file is cut"
    return bytes(unpacked), None


def _records(file: str, text: str) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    for number, line in enumerate(lines, start=1):
        # Published configs, as these lines hold them, know infinities.
        takes_any = bool(records) and records[0].get("format") == "kvsim-groups/1"
        constant = float if takes_any else _no_constant
        try:
            record = json.loads(line, object_pairs_hook=_once, parse_constant=constant)
        except json.JSONDecodeError as error:
            problem = f"is not JSON: {error.msg} at character {error.pos + 1}"
            raise TranscriptError(file, number, problem) from None
        except (ValueError, RecursionError) as error:
            problem = f"is not JSON that can be read: {error}"
            raise TranscriptError(file, number, problem) from None
        if not isinstance(record, dict):
            raise TranscriptError(file, number, f"{show(record)} is not a JSON object")
        records.append(record)
    return records


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise ValueError("a key stands in it twice")
    return record


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


def _format(file: str, header: dict[str, Any]) -> str:
    """The format, after a look at the whole first line."""
    form = header.get("format")
    if not isinstance(form, str):
        raise TranscriptError(file, 1, f"format is missing. Known: {', '.join(FORMATS)}.")
    if form not in FORMATS:
        raise TranscriptError(file, 1, unknown_name("format", form, FORMATS))
    if form == ROUTING:
        _check_router(file, header)
        return form
    for name in header:
        if name not in ("format", "engine", "config", *HEADERS.get(form, ())):
            raise TranscriptError(file, 1, f"unknown field {show(name)}")
    if form not in CONFIGS:
        return form
    config = header.get("config")
    if not isinstance(config, dict):
        raise TranscriptError(file, 1, f"config: {show(config)} is not a mapping")
    if problem := field_problem(config, CONFIGS[form]):
        raise TranscriptError(file, 1, f"config.{problem}")
    for number, group in enumerate(config["groups"]):
        if problem := field_problem(group, GROUP):
            raise TranscriptError(file, 1, f"config.groups.{number}.{problem}")
    return form


def _check_router(file: str, header: dict[str, Any]) -> None:
    """Look at the first line of a router's recording, whose fields depend on the router."""
    policy = header.get("policy")
    if not isinstance(policy, str) or policy not in ROUTER_FORMATS:
        name = policy if isinstance(policy, str) else show(policy)
        raise TranscriptError(file, 1, unknown_name("policy", name, ROUTER_FORMATS))
    router = ROUTER_FORMATS[policy]
    common = ("format", "policy", "engine", "config")
    rest = {name: value for name, value in header.items() if name not in common}
    if problem := field_problem(rest, router.header):
        raise TranscriptError(file, 1, problem)
    config = header.get("config")
    if not isinstance(config, dict):
        raise TranscriptError(file, 1, f"config: {show(config)} is not a mapping")
    if problem := field_problem(config, router.config):
        raise TranscriptError(file, 1, f"config.{problem}")


def _profile(file: str, header: dict[str, Any]) -> str:
    """The profile of the release that answered, as in ``vllm 0.33.0``."""
    engine = header.get("engine")
    name, _, release = engine.partition(" ") if isinstance(engine, str) else ("", "", "")
    router = ROUTER_FORMATS.get(header.get("policy", ""))
    if router is not None and router.engine != "vllm":
        if name != router.engine:
            problem = f"engine: {show(engine)} is not known. Known: {router.engine}."
            raise TranscriptError(file, 1, problem)
        return ""
    profile = _PROFILES.get(".".join(release.split(".")[:2]))
    if name != "vllm" or profile is None:
        known = ", ".join(f"vllm {number}.x" for number in _PROFILES)
        raise TranscriptError(file, 1, f"engine: {show(engine)} is not known. Known: {known}.")
    return profile


def _line(file: str, ops: Mapping[str, Fields], number: int, record: dict[str, Any]) -> Line:
    op = record.pop("op", None)
    if op is None:
        raise TranscriptError(file, number, "op is missing")
    if not isinstance(op, str) or op not in ops:
        problem = unknown_name("op", op if isinstance(op, str) else show(op), ops)
        raise TranscriptError(file, number, problem)
    misuse = field_problem(record, ops[op])
    if misuse:
        raise TranscriptError(file, number, f"{op} {misuse}")
    return Line(number, op, record)


def _check_end(file: str, lines: list[Line]) -> None:
    """Steps are recorded as requests, then steps and outputs, then one line of totals."""
    last = lines[-1]
    if last.op != "totals":
        raise TranscriptError(file, last.number, "the last line holds no totals: the file is cut")
    order = {"request": 0, "step": 1, "output": 1, "totals": 2}
    for before, line in zip(lines, lines[1:], strict=False):
        if before.op == "totals" or order[line.op] < order[before.op]:
            problem = f"{line.op} after {before.op}. Requests come first, totals last and once."
            raise TranscriptError(file, line.number, problem)
