"""Which format a trace file has, by how it begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from kvsim.errors import Problems
from kvsim.workload.traces import conversations, dynamo, lengths_only, logs, mooncake, nested, table
from kvsim.workload.traces.lines import TraceLines, first_bytes
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

NUM_SAMPLED = 1000
"""Rows at the beginning of a file that are looked at before it is read."""
CSV_COLUMNS = {
    "azure": lengths_only.AZURE_COLUMNS,
    "burstgpt": lengths_only.BURSTGPT_COLUMNS,
}
FORMATS: dict[str, str] = {
    "mooncake": "Mooncake's JSONL, an id for each block of a whole prompt",
    "mooncake-delta": "Dynamo's variant, whose later turns say what they add",
    "aiperf": "AIPerf's rows: likewise, ids, times and outputs where there are any",
    "agentic-mooncake": "Dynamo's plays: requests that depend on others",
    "applied-compute": "session templates: lengths and tool latencies",
    "dynamo-requests": "Dynamo's request traces (dynamo.request.trace.v1)",
    "weka": "kv-cache-tester's sessions, as shipped or with runs of ids",
    "qwen-bailian": "Qwen-Bailian's chats in blocks of 16 tokens",
    "azure": "Azure's CSV of 2023 or 2024, lengths only",
    "burstgpt": "BurstGPT's CSV, lengths only",
    "table": "CSV, JSONL or Parquet with columns of any names (columns)",
    "sessions": "objects with turns or steps, each a row with lengths",
    "opentelemetry": "GenAI spans, as OTLP JSON or as SDKs print them",
    "sharegpt": "conversations with text, hashed when read",
    "wildchat": "WildChat's conversations with text and times",
    "lmsys": "LMSYS-Chat's conversations with text",
    "trajectories": "agents' messages with text, an object a session",
    "openai": "logged requests with text in OpenAI's form, hashed when read",
    "token-ids": "logged requests as lists of token ids, hashed when read",
}
"""Names of the formats, and what each is."""
_DOCUMENTS = {"sharegpt", "weka", "wildchat", "lmsys", "trajectories", "sessions", "opentelemetry"}
"""Formats whose files may be one JSON document."""
_NOT_IN_PARQUET = {
    "weka",
    "applied-compute",
    "agentic-mooncake",
    "dynamo-requests",
    "opentelemetry",
}
_TELLING_KEYS: tuple[tuple[str, set[str]], ...] = (
    ("weka", {"id", "requests"}),
    ("applied-compute", {"num_turns", "input_prompt_length"}),
    ("qwen-bailian", {"chat_id", "parent_chat_id"}),
    ("sharegpt", {"conversations"}),
    ("wildchat", {"conversation", "conversation_hash"}),
    ("lmsys", {"conversation"}),
    ("agentic-mooncake", {"request_id", "wait_for"}),
)
_ENGINE_EVENTS = (
    "these are vLLM's KV cache events. They say which blocks were stored and removed, not which "
    "requests asked for them: by default a hit leaves no event, and where a prompt ends and its "
    "answer begins is never said. Replay the requests themselves, as logs of format openai."
)


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A file as far as it is known before its format is read.

    Attributes:
        path: where it is.
        shown: how messages name it.
        open_rows: opens it, for another pass.
        sample: its first rows that can be read.
        columns: names of its columns, where it has a header.
    """

    path: Path
    shown: str
    open_rows: Callable[[], Rows]
    sample: list[Fields]
    columns: tuple[str, ...] = ()


def recognised(path: Path, shown: str, wanted: str) -> tuple[str, TraceFile]:
    """The format of a file, and the file.

    Args:
        path: where it is.
        shown: how messages name it.
        wanted: one of `FORMATS`, or "auto".

    Raises:
        KvsimError: the file cannot be read, or its format is not recognised.
    """
    if first_bytes(path, shown) == b"PAR1":
        return _parquet(path, shown, wanted)
    head = _head(path, shown)
    objects = [row for line in head if isinstance(row := json_object(line), dict)]
    is_csv = not objects and bool(head) and head[0].lstrip()[:1] not in ("[", "{")
    if wanted in CSV_COLUMNS or (is_csv and wanted in ("auto", "table") and "," in head[0]):
        name = wanted if wanted != "auto" else _csv_format(head[0])
        if name:
            return name, _csv_file(path, shown, CSV_COLUMNS.get(name, ()), head)
    is_document = not objects and bool(head) and head[0].lstrip()[:1] in ("[", "{")
    if is_document and (wanted in _DOCUMENTS or wanted == "auto"):
        file = file_of(path, shown, lambda: JsonDocument(path, shown))
        found = _format_of_rows(file.sample, shown)
        if wanted == "auto" and found in _DOCUMENTS:
            return found, file
        if wanted != "auto":
            return wanted, file
    file = file_of(path, shown, lambda: JsonRows(path, shown))
    if wanted != "auto":
        return wanted, file
    if any('"BlockStored"' in line or '"block_hashes"' in line for line in head):
        raise Problems(shown, [f"line 1: {_ENGINE_EVENTS}"])
    found = _format_of_rows(file.sample, shown)
    if found is not None:
        return found, file
    if not head:
        return "mooncake", file  # said to be empty when it is read
    raise _unknown(shown, head)


def file_of(path: Path, shown: str, open_rows: Callable[[], Rows]) -> TraceFile:
    """A file with a sample of its rows."""
    return TraceFile(path, shown, open_rows, sample_of(open_rows()))


def sample_of(rows: Rows) -> list[Fields]:
    """The first rows that can be read."""
    sample = []
    try:
        for _, fields in islice(rows, NUM_SAMPLED):
            if isinstance(fields, dict):
                sample.append(fields)
    except Problems:
        pass  # said when the rows are read in earnest
    return sample


def _unknown(shown: str, head: list[str]) -> Problems:
    """Why a file is of no known format."""
    bad = json_object(head[0])
    if isinstance(bad, str) and head[0].lstrip()[:1] in ("[", "{"):
        return Problems(shown, [f"line 1: {bad}"])
    if isinstance(bad, str) and "," in head[0]:
        headers = [f"{name}: {','.join(columns)}" for name, columns in CSV_COLUMNS.items()]
        problem = (
            f"line 1: {shown_value(head[0])} is no header of a known format. A CSV file begins"
        )
        text = f"{problem} with the names of its columns ({'; '.join(headers)})."
        return Problems(shown, [f"{text} For others say which column is what: workload.columns."])
    what = shown_value(head[0]) if isinstance(bad, str) else f"keys {', '.join(bad)}"
    return Problems(shown, [f"line 1: {_not_recognised(f'begins with {what}')}"])


def _not_recognised(what: str) -> str:
    return f"a file that {what} is of no known format. Set format to one of {', '.join(FORMATS)}."


def _parquet(path: Path, shown: str, wanted: str) -> tuple[str, TraceFile]:
    columns = ParquetRows(path, shown).columns
    sample = sample_of(ParquetRows(path, shown))
    file = TraceFile(path, shown, lambda: ParquetRows(path, shown), sample, tuple(columns))
    if wanted == "auto":
        wanted = _format_of_rows(sample, shown, dict.fromkeys(columns, None)) or ""
    if not wanted or wanted in _NOT_IN_PARQUET or wanted in CSV_COLUMNS:
        what = f"holds columns {', '.join(columns)}"
        raise Problems(shown, [f"format: {_not_recognised(what)}"])
    return wanted, file


def _head(path: Path, shown: str) -> list[str]:
    """The first lines, as far as they can be read."""
    lines = TraceLines(path, shown)
    try:
        return [line for _, line in islice(lines, 20)]
    except Problems:
        return []  # said when the rows are read in earnest
    finally:
        lines.close()


def _header(line: str) -> list[str]:
    return [column.strip().strip('"') for column in line.lstrip("\ufeff").split(",")]


def _csv_format(line: str) -> str:
    columns = _header(line)
    for name, needed in CSV_COLUMNS.items():
        if set(columns) >= set(needed):
            return name
    return "table" if table.found_columns(columns).keys() >= {"time", "prompt"} else ""


def _csv_file(path: Path, shown: str, needed: tuple[str, ...], head: list[str]) -> TraceFile:
    def open_rows() -> Rows:
        return CsvRows(path, shown, needed)

    columns = tuple(_header(head[0])) if head else ()
    return TraceFile(path, shown, open_rows, sample_of(open_rows()), columns)


def _format_of_rows(sample: list[Fields], shown: str, columns: Fields | None = None) -> str | None:
    """The format whose keys the first rows have."""
    first = sample[:20]
    keys: set[str] = set().union(*first, columns or {})
    if any(fields.get("schema") == dynamo.AGENTIC_SCHEMA for fields in first):
        return "agentic-mooncake"
    if any(fields.get("schema") == dynamo.REQUEST_SCHEMA for fields in first):
        return "dynamo-requests"
    for key, signal in nested.SIGNALS.items():
        if key in keys and "resourceSpans" not in keys:
            text = f"these are OpenTelemetry's {signal}, which do not tell requests apart."
            raise Problems(shown, [f"line 1: {text} Export the traces (resourceSpans)."])
    if any(nested.is_span(fields) for fields in first):
        return "opentelemetry"
    for name, needed in _TELLING_KEYS:
        if needed <= keys:
            return name
    if set(logs.PROMPT_IDS) & keys:
        return "token-ids"
    if any(_is_trajectory(fields) for fields in first):
        return "trajectories"
    if any(logs.asked_of(fields) is not None for fields in first):
        return "openai"
    if any(isinstance(fields.get(key), list) for fields in first for key in nested.TURNS):
        return "sessions"
    if not {"input_length", "input_tokens"} & keys:
        return "table" if table.found_columns(keys).keys() >= {"time", "prompt"} else None
    return _format_of_mooncake_like([mooncake.with_usual_names(fields) for fields in sample])


def _is_trajectory(fields: Fields) -> bool:
    """Whether messages are a whole session: with answers in them, and none or no length behind."""
    said = conversations.messages_of(fields, "trajectories")
    if said is None or not conversations.has_answers(said):
        return False
    behind = ("response", "completion", "choices", "usage", "output_length", "max_tokens")
    return "messages" not in fields or not ({*behind, "max_completion_tokens"} & fields.keys())


def _format_of_mooncake_like(sample: list[Fields]) -> str:
    """Whether later turns of a session are whole, or only what they add.

    A later turn whose ids begin as those of the turn before is whole. One that has a delay and
    ids that begin otherwise, or none, is an addition.
    """
    num_without = {
        key: sum(key not in fields for fields in sample)
        for key in ("hash_ids", "timestamp", "output_length")
    }
    # Rows that lack what Mooncake's have: AIPerf's where that is usual, else a mistake.
    for key in ("hash_ids", "output_length"):
        if num_without[key] * 5 > len(sample):
            return "aiperf"
    if num_without["timestamp"] == len(sample) and any("delay" not in row for row in sample):
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
