"""The formats by name: how each is told from the others, and how its files are opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeGuard

from kvsim.errors import Problems, unknown_name
from kvsim.workload.traces import dynamo, lengths_only, mooncake, qwen_bailian, text, weka
from kvsim.workload.traces.lines import TraceLines, first_bytes
from kvsim.workload.traces.record import as_number
from kvsim.workload.traces.record import shown as shown_value
from kvsim.workload.traces.rows import (
    CsvRows,
    Fields,
    JsonDocument,
    JsonRows,
    ParquetRows,
    Rows,
    json_object,
)
from kvsim.workload.traces.session_trace import SessionReading, SessionTrace
from kvsim.workload.traces.trace import RowReading, RowTrace, Trace, TraceOptions

_NUM_SAMPLED = 1000
_MAX_BLOCK_TOKENS = 2**24
_PARQUET_MAGIC = b"PAR1"
_CSV_COLUMNS = {
    "azure": lengths_only.AZURE_COLUMNS,
    "burstgpt": lengths_only.BURSTGPT_COLUMNS,
}
_DOCUMENTS = {"sharegpt", "weka"}
"""Formats whose files may be one JSON document."""

FORMATS: dict[str, str] = {
    "mooncake": "Mooncake's JSONL, an id for each block of a whole prompt",
    "mooncake-delta": "Dynamo's variant, whose later turns say what they add",
    "aiperf": "AIPerf's rows: likewise, ids and times where there are any",
    "agentic-mooncake": "Dynamo's plays: requests that depend on others",
    "applied-compute": "session templates: lengths and tool latencies",
    "dynamo-requests": "Dynamo's request traces (dynamo.request.trace.v1)",
    "weka": "kv-cache-tester's sessions, as shipped or with runs of ids",
    "qwen-bailian": "Qwen-Bailian's chats in blocks of 16 tokens",
    "azure": "Azure's CSV of 2023 or 2024, lengths only",
    "burstgpt": "BurstGPT's CSV, lengths only",
    "sharegpt": "conversations with text, hashed when read",
    "openai": "logged requests with text in OpenAI's form, hashed when read",
}
"""Names of the formats, and what each is."""


@dataclass(frozen=True, slots=True)
class _File:
    """A file as far as it is known before its format is read.

    Attributes:
        open_rows: opens it, for another pass.
        sample: its first rows that can be read.
    """

    path: Path
    shown: str
    open_rows: Callable[[], Rows]
    sample: list[Fields]


def open_trace_file(
    path: Path, options: TraceOptions, *, trace_format: str = "auto", shown: str | None = None
) -> Trace:
    """Open a trace.

    Args:
        path: the file.
        options: which part of it, and how it is read.
        trace_format: one of `FORMATS`, or "auto" to recognise it.
        shown: how messages name the file, by default its path.

    Raises:
        KvsimError: the file cannot be read, its format is not recognised, or its first request is
            wrong. Later ones are checked when they are read.
    """
    shown = str(path) if shown is None else shown
    if trace_format != "auto" and trace_format not in FORMATS:
        raise Problems(shown, [f"format: {unknown_name('format', trace_format, FORMATS)}"])
    name, file = _recognised(path, shown, trace_format)
    fixed = _FIXED_BLOCKS.get(name)
    if fixed is not None and options.block_tokens not in (None, fixed):
        problem = f"block_tokens: {options.block_tokens}, where an id of {name} stands for {fixed}"
        raise Problems(shown, [f"{problem} tokens. Leave it out."])
    return _OPENERS[name](file, options)


def _recognised(path: Path, shown: str, wanted: str) -> tuple[str, _File]:
    """The format of a file, and the file."""
    if first_bytes(path, shown) == _PARQUET_MAGIC:
        columns = ParquetRows(path, shown).columns
        sample = _sample(ParquetRows(path, shown))
        file = _File(path, shown, lambda: ParquetRows(path, shown), sample)
        if wanted == "auto":
            wanted = _format_of_rows(sample, dict.fromkeys(columns, None)) or ""
        if wanted not in _IN_PARQUET:
            what = f"holds columns {', '.join(columns)}"
            raise Problems(shown, [f"format: {_not_recognised(what)}"])
        return wanted, file
    head = _head(path, shown)
    if wanted in _CSV_COLUMNS or (wanted == "auto" and head and _csv_format(head[0])):
        name = wanted if wanted != "auto" else _csv_format(head[0])
        columns = list(_CSV_COLUMNS[name])
        return name, _csv_file(path, shown, tuple(columns))
    objects = [row for line in head if isinstance(row := json_object(line), dict)]
    is_document = not objects and bool(head) and head[0].lstrip()[:1] in ("[", "{")
    if is_document and (wanted in _DOCUMENTS or wanted == "auto"):
        sample = _sample(JsonDocument(path, shown))
        file = _File(path, shown, lambda: JsonDocument(path, shown), sample)
        found = _format_of_rows(sample)
        if wanted == "auto" and found in _DOCUMENTS:
            return found, file
        if wanted != "auto":
            return wanted, file
    file = _File(path, shown, lambda: JsonRows(path, shown), _sample(JsonRows(path, shown)))
    if wanted != "auto":
        return wanted, file
    if any('"BlockStored"' in line or '"block_hashes"' in line for line in head):
        raise Problems(shown, [f"line 1: {_ENGINE_EVENTS}"])
    found = _format_of_rows(file.sample)
    if found is not None:
        return found, file
    if not head:
        return "mooncake", file  # said to be empty when it is read
    bad = json_object(head[0])
    if isinstance(bad, str) and head[0].lstrip()[:1] in ("[", "{"):
        raise Problems(shown, [f"line 1: {bad}"])
    if isinstance(bad, str) and "," in head[0]:
        headers = [f"{name}: {','.join(columns)}" for name, columns in _CSV_COLUMNS.items()]
        problem = (
            f"line 1: {shown_value(head[0])} is no header of a known format. A CSV file begins"
        )
        raise Problems(shown, [f"{problem} with the names of its columns ({'; '.join(headers)})."])
    what = shown_value(head[0]) if isinstance(bad, str) else f"keys {', '.join(bad)}"
    raise Problems(shown, [f"line 1: {_not_recognised(f'begins with {what}')}"])


_ENGINE_EVENTS = (
    "these are vLLM's KV cache events. They say which blocks were stored and removed, not which "
    "requests asked for them: by default a hit leaves no event, and where a prompt ends and its "
    "answer begins is never said. Replay the requests themselves, as logs of format openai."
)


def _not_recognised(what: str) -> str:
    return f"a file that {what} is of no known format. Set format to one of {', '.join(FORMATS)}."


def _head(path: Path, shown: str) -> list[str]:
    """The first lines, as far as they can be read."""
    lines = TraceLines(path, shown)
    try:
        return [line for _, line in islice(lines, 20)]
    except Problems:
        return []  # said when the rows are read in earnest
    finally:
        lines.close()


def _sample(rows: Rows) -> list[Fields]:
    """The first rows that can be read."""
    sample = []
    try:
        for _, fields in islice(rows, _NUM_SAMPLED):
            if isinstance(fields, dict):
                sample.append(fields)
    except Problems:
        pass  # said when the rows are read in earnest
    return sample


def _csv_format(line: str) -> str:
    columns = {column.strip() for column in line.lstrip("\ufeff").split(",")}
    for name, needed in _CSV_COLUMNS.items():
        if columns >= set(needed):
            return name
    return ""


def _csv_file(path: Path, shown: str, columns: tuple[str, ...]) -> _File:
    def open_rows() -> Rows:
        return CsvRows(path, shown, columns)

    return _File(path, shown, open_rows, _sample(open_rows()))


def _format_of_rows(sample: list[Fields], columns: Fields | None = None) -> str | None:
    """The format whose keys the first rows have."""
    keys = set().union(*sample[:20], columns or {})
    if any(fields.get("schema") == dynamo.AGENTIC_SCHEMA for fields in sample[:20]):
        return "agentic-mooncake"
    if any(fields.get("schema") == dynamo.REQUEST_SCHEMA for fields in sample[:20]):
        return "dynamo-requests"
    for name, needed in _TELLING_KEYS:
        if needed <= keys:
            return name
    if any(text.asked_of(fields) is not None for fields in sample[:20]):
        return "openai"
    if not {"input_length", "input_tokens"} & keys:
        return None
    return _format_of_mooncake_like([mooncake.with_usual_names(fields) for fields in sample])


_TELLING_KEYS: tuple[tuple[str, set[str]], ...] = (
    ("weka", {"id", "requests"}),
    ("applied-compute", {"num_turns", "input_prompt_length"}),
    ("qwen-bailian", {"chat_id", "parent_chat_id"}),
    ("sharegpt", {"conversations"}),
    ("agentic-mooncake", {"request_id", "wait_for"}),
)


def _format_of_mooncake_like(sample: list[Fields]) -> str:
    """Whether later turns of a session are whole, or only what they add.

    A later turn whose ids begin as those of the turn before is whole. One that has a delay and
    ids that begin otherwise, or none, is an addition.
    """
    if any("hash_ids" not in fields or "timestamp" not in fields for fields in sample):
        without_ids = any("hash_ids" not in fields for fields in sample)
        late = any("timestamp" not in fields and "delay" not in fields for fields in sample)
        # A row that lacks what Mooncake's have: AIPerf's where that is usual, else a mistake.
        if without_ids and sum("hash_ids" not in fields for fields in sample) * 5 > len(sample):
            return "aiperf"
        if late and all("timestamp" not in fields for fields in sample):
            return "aiperf"
    first_ids: dict[str, Any] = {}
    for fields in sample:
        session_id, ids = fields.get("session_id"), fields.get("hash_ids")
        if session_id is None:
            continue
        first = ids[0] if isinstance(ids, list) and ids else None
        if "delay" in fields and first_ids.get(str(session_id), first) != first:
            return "mooncake-delta"
        first_ids.setdefault(str(session_id), first)
    return "mooncake"


def _block_tokens(
    options: TraceOptions, sample: list[Fields], usual: int, key: str = "hash_ids"
) -> tuple[int, str]:
    """Tokens an id stands for, and who says so."""
    if options.block_tokens is not None:
        return options.block_tokens, "given"
    lengths = [
        (fields["input_length"], len(fields[key]))
        for fields in map(mooncake.with_usual_names, sample)
        if isinstance(fields.get(key), list)
        and type(fields.get("input_length")) is int
        and fields["input_length"] > 0
    ]
    inferred = mooncake.infer_block_tokens(lengths)
    return (usual, "format") if inferred is None else (inferred, "inferred")


def _open_mooncake(file: _File, options: TraceOptions) -> Trace:
    block_tokens, who = _block_tokens(options, file.sample, mooncake.BLOCK_TOKENS)
    has_sessions = any("session_id" in fields for fields in file.sample)
    reading = RowReading(mooncake.MooncakeRows, file.open_rows, block_tokens, who, has_sessions)
    return RowTrace(reading, options)


def _open_delta(name: str) -> Callable[[_File, TraceOptions], Trace]:
    def open_it(file: _File, options: TraceOptions) -> Trace:
        strict = name == "mooncake-delta"
        rows = [mooncake.with_usual_names(fields) for fields in file.sample]
        timed = not rows or "timestamp" in rows[0]
        seen: set[str] = set()
        whole = []
        for fields in rows:
            session_id = fields.get("session_id")
            if session_id is None or str(session_id) not in seen:
                whole.append(fields)
            seen.add(str(session_id))
        usual = mooncake.BLOCK_TOKENS
        block_tokens, who = _block_tokens(options, whole, usual) if strict else (usual, "format")
        if options.block_tokens is not None:
            block_tokens, who = options.block_tokens, "given"
        reading = RowReading(
            lambda: mooncake.DeltaRows(name, ids_needed=strict, times_needed=strict or timed),
            file.open_rows,
            block_tokens,
            who,
            has_sessions=not timed or any("session_id" in fields for fields in rows),
            adds_only=True,
            ids_may_differ=not strict,
            timed=timed,
        )
        return RowTrace(reading, options)

    return open_it


def _open_qwen(file: _File, options: TraceOptions) -> Trace:
    reading = RowReading(
        qwen_bailian.QwenBailianRows, file.open_rows, qwen_bailian.BLOCK_TOKENS, "format", True
    )
    return RowTrace(reading, options)


def _open_azure(file: _File, options: TraceOptions) -> Trace:
    times = [lengths_only.unix_seconds(fields["TIMESTAMP"]) for fields in file.sample]
    begin_s = min((time_s for time_s in times if time_s is not None), default=0.0)
    reading = RowReading(
        lambda: lengths_only.AzureRows(begin_s), file.open_rows, None, "format", False
    )
    return RowTrace(reading, options)


def _open_burstgpt(file: _File, options: TraceOptions) -> Trace:
    reading = RowReading(lengths_only.BurstGPTRows, file.open_rows, None, "format", False)
    return RowTrace(reading, options)


def _open_weka(file: _File, options: TraceOptions) -> Trace:
    first = file.sample[0] if file.sample else {}
    said = first.get("block_size")
    block_tokens = said if _is_block_tokens(said) else weka.BLOCK_TOKENS
    _check_given(options, block_tokens, file.shown)
    shared = as_number(first.get("tool_tokens")) or 0.0
    shared += as_number(first.get("system_tokens")) or 0.0
    warnings: tuple[str, ...] = ()
    if shared:
        warnings = (
            "ids are local to a session, so the tools and system prompt that sessions share "
            f"({shared:,.0f} tokens in the first) are not found again: hit rates are a lower "
            "bound.",
        )
    reading = SessionReading(
        lambda: weka.WekaSessions(block_tokens),
        file.open_rows,
        block_tokens,
        "format" if said is None else "file",
        starts_recorded=False,
        timed=True,
        warnings=warnings,
    )
    return SessionTrace(reading, options)


def _open_agentic_mooncake(file: _File, options: TraceOptions) -> Trace:
    sizes = (fields.get("block_size") for fields in file.sample)
    said = next((size for size in sizes if _is_block_tokens(size)), None)
    if said:
        _check_given(options, said, file.shown)
    block_tokens, who = (said, "file") if said else _block_tokens(options, file.sample, 512)
    waits = any(fields.get("dependencies") or fields.get("wait_for") for fields in file.sample)
    reading = SessionReading(
        lambda: dynamo.AgenticMooncakeSessions(block_tokens),
        file.open_rows,
        block_tokens,
        who,
        starts_recorded=True,
        timed=not waits,
    )
    return SessionTrace(reading, options)


def _open_applied_compute(file: _File, options: TraceOptions) -> Trace:
    reading = SessionReading(
        dynamo.AppliedComputeSessions,
        file.open_rows,
        None,
        "format",
        starts_recorded=False,
        timed=False,
    )
    return SessionTrace(reading, options)


def _open_dynamo_requests(file: _File, options: TraceOptions) -> Trace:
    replays = [
        fields["request"]["replay"]
        for fields in file.sample
        if isinstance(fields.get("request"), dict)
        and isinstance(fields["request"].get("replay"), dict)
    ]
    sizes = (replay.get("trace_block_size") for replay in replays)
    said = next((size for size in sizes if _is_block_tokens(size)), None)
    if said:
        _check_given(options, said, file.shown)
    block_tokens = said or options.block_tokens or 512
    reading = SessionReading(
        lambda: dynamo.RequestTraceSessions(block_tokens),
        file.open_rows,
        block_tokens,
        "file" if said else "format",
        starts_recorded=True,
        timed=True,
    )
    return SessionTrace(reading, options)


def _open_sharegpt(file: _File, options: TraceOptions) -> Trace:
    tokens = text.Tokens(options.tokenizer)
    reading = SessionReading(
        lambda: text.ShareGPTSessions(tokens),
        file.open_rows,
        text.BLOCK_TOKENS,
        "format",
        starts_recorded=False,
        timed=False,
    )
    return SessionTrace(reading, options)


def _open_openai(file: _File, options: TraceOptions) -> Trace:
    tokens = text.Tokens(options.tokenizer)
    times = [text.logged_seconds(fields) for fields in file.sample]
    known = [time_s for time_s in times if time_s is not None]
    # Dates and Unix times begin the clock; small numbers are on a clock of their own.
    begin_s = min(known) if known and min(known) > 1e8 else 0.0
    reading = RowReading(
        lambda: text.OpenAIRows(tokens, begin_s),
        file.open_rows,
        text.BLOCK_TOKENS,
        "format",
        has_sessions=not known
        or any({"session_id", "conversation_id"} & fields.keys() for fields in file.sample),
        timed=bool(known) or not times,
    )
    return RowTrace(reading, options)


def _is_block_tokens(size: Any) -> TypeGuard[int]:
    return type(size) is int and 0 < size <= _MAX_BLOCK_TOKENS


def _check_given(options: TraceOptions, said: int, shown: str) -> None:
    if options.block_tokens not in (None, said):
        problem = f"block_tokens: {options.block_tokens}, where the file says {said}."
        raise Problems(shown, [f"{problem} Leave it out."])


_FIXED_BLOCKS = {
    "qwen-bailian": qwen_bailian.BLOCK_TOKENS,
    "sharegpt": text.BLOCK_TOKENS,
    "openai": text.BLOCK_TOKENS,
}
_IN_PARQUET = {"mooncake", "mooncake-delta", "aiperf", "qwen-bailian"}
_OPENERS: dict[str, Callable[[_File, TraceOptions], Trace]] = {
    "mooncake": _open_mooncake,
    "mooncake-delta": _open_delta("mooncake-delta"),
    "aiperf": _open_delta("aiperf"),
    "agentic-mooncake": _open_agentic_mooncake,
    "applied-compute": _open_applied_compute,
    "dynamo-requests": _open_dynamo_requests,
    "weka": _open_weka,
    "qwen-bailian": _open_qwen,
    "azure": _open_azure,
    "burstgpt": _open_burstgpt,
    "sharegpt": _open_sharegpt,
    "openai": _open_openai,
}
