"""How files of each format are opened: what their first rows say about all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

from kvsim.errors import Problems
from kvsim.workload.traces import (
    conversations,
    dynamo,
    lengths_only,
    logs,
    mooncake,
    nested,
    qwen_bailian,
    table,
    text,
    weka,
)
from kvsim.workload.traces.clock import PER_S, Clock, recognised
from kvsim.workload.traces.lengths_only import LengthRows
from kvsim.workload.traces.recognition import TraceFile, sample_of
from kvsim.workload.traces.record import as_number
from kvsim.workload.traces.row_trace import RowReading, RowTrace
from kvsim.workload.traces.rows import Fields
from kvsim.workload.traces.session_trace import SessionReading, SessionTrace
from kvsim.workload.traces.trace import Trace, TraceOptions

_MAX_BLOCK_TOKENS = 2**24
_NO_CONTENT = (
    "spans have lengths only, so what the turns of a session share is not known. Record messages "
    "(gen_ai.input.messages), or draw reuse"
)


def _clock(
    file: TraceFile, names: Sequence[str], usual: str, options: TraceOptions
) -> tuple[Clock, bool]:
    """The clock of a file, and whether all of its first rows have times."""
    said = next((fields["time_unit"] for fields in file.sample[:1] if "time_unit" in fields), None)
    if isinstance(said, str) and said in PER_S and options.time_unit == "auto":
        options = replace(options, time_unit=said)
    times = [
        next((fields[name] for name in names if fields.get(name) is not None), None)
        for fields in file.sample
    ]
    found = recognised([time for time in times if time is not None], usual, options.time_unit)
    if found.begin_s:
        # The earliest of all, wherever it is.
        plain = replace(found, begin_s=0.0)
        seconds = (plain.seconds(time) for _, time in file.open_rows().times(tuple(names)))
        known = (time_s for time_s in seconds if time_s is not None)
        found = replace(found, begin_s=min(known, default=found.begin_s))
    return found, None not in times


def _block_tokens(
    options: TraceOptions, sample: list[Fields], usual: int, shown: str, key: str = "hash_ids"
) -> tuple[int, str]:
    """Tokens an id stands for, and who says so."""
    said = next(
        (
            fields[name]
            for fields in sample
            for name in mooncake.BLOCK_KEYS
            if _is_block_tokens(fields.get(name))
        ),
        None,
    )
    if said is not None:
        _check_given(options, said, shown)
        return said, "file"
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


def _is_block_tokens(size: Any) -> TypeGuard[int]:
    return type(size) is int and 0 < size <= _MAX_BLOCK_TOKENS


def _check_given(options: TraceOptions, said: int, shown: str) -> None:
    if options.block_tokens not in (None, said):
        problem = f"block_tokens: {options.block_tokens}, where the file says {said}."
        raise Problems(shown, [f"{problem} Leave it out."])


def _names_sessions(sample: list[Fields]) -> bool:
    return any({"session_id", "conversation_id"} & fields.keys() for fields in sample)


def _open_mooncake(file: TraceFile, options: TraceOptions) -> Trace:
    clock, _ = _clock(file, mooncake.TIME_NAMES, "ms", options)
    block_tokens, who = _block_tokens(options, file.sample, mooncake.BLOCK_TOKENS, file.shown)
    reading = RowReading(
        lambda: mooncake.MooncakeRows(clock),
        file.open_rows,
        block_tokens,
        who,
        has_sessions=any("session_id" in fields for fields in file.sample),
        clock=clock,
        block_keys=mooncake.BLOCK_KEYS,
    )
    return RowTrace(reading, options)


def _open_delta(name: str) -> Callable[[TraceFile, TraceOptions], Trace]:
    def open_it(file: TraceFile, options: TraceOptions) -> Trace:
        strict = name == "mooncake-delta"
        clock, timed = _clock(file, mooncake.TIME_NAMES, "ms", options)
        rows = [mooncake.with_usual_names(fields) for fields in file.sample]
        has_starts = not rows or "timestamp" in rows[0]
        seen: set[str] = set()
        whole = []
        for fields in rows:
            session_id = fields.get("session_id")
            if session_id is None or str(session_id) not in seen:
                whole.append(fields)
            seen.add(str(session_id))
        usual = mooncake.BLOCK_TOKENS
        # AIPerf's ids need not be as many as a prompt has blocks, so they tell no size.
        told = whole if strict else [{**fields, "hash_ids": None} for fields in whole]
        block_tokens, who = _block_tokens(options, told, usual, file.shown)
        reading = RowReading(
            lambda: mooncake.DeltaRows(
                name, clock, ids_needed=strict, times_needed=strict or has_starts
            ),
            file.open_rows,
            block_tokens,
            who,
            has_sessions=not has_starts or any("session_id" in fields for fields in rows),
            adds_only=True,
            ids_may_differ=not strict,
            starts_recorded=has_starts,
            timed=timed,
            clock=clock,
            block_keys=mooncake.BLOCK_KEYS,
        )
        return RowTrace(reading, options)

    return open_it


def _open_qwen(file: TraceFile, options: TraceOptions) -> Trace:
    clock, _ = _clock(file, ("timestamp",), "s", options)
    reading = RowReading(
        lambda: qwen_bailian.QwenBailianRows(clock),
        file.open_rows,
        qwen_bailian.BLOCK_TOKENS,
        "format",
        has_sessions=True,
        clock=clock,
        block_keys=mooncake.BLOCK_KEYS,
    )
    return RowTrace(reading, options)


def _open_lengths(
    name: str, columns: tuple[str, str, str], usual: str
) -> Callable[[TraceFile, TraceOptions], Trace]:
    def open_it(file: TraceFile, options: TraceOptions) -> Trace:
        clock, _ = _clock(file, columns[:1], usual, options)
        if usual == "date" and clock.unit != "date":
            clock = Clock("date")
        reading = RowReading(
            lambda: LengthRows(name, columns, clock),
            file.open_rows,
            None,
            "format",
            has_sessions=False,
            clock=clock,
        )
        return RowTrace(reading, options)

    return open_it


def _open_table(file: TraceFile, options: TraceOptions) -> Trace:
    names = list(file.columns) or list(dict.fromkeys(key for row in file.sample for key in row))
    columns = table.chosen_columns(options.columns, names, file.shown)
    usual = table.unit_of(columns["time"])
    if usual is not None and options.time_unit == "auto":
        options = replace(options, time_unit=usual)
    clock, _ = _clock(file, (columns["time"],), usual or "", options)
    block_tokens, who = None, "format"
    if "ids" in columns:
        lengths = [
            {
                "input_length": lengths_only.as_count(fields.get(columns["prompt"])),
                "hash_ids": table.as_list(fields.get(columns["ids"])),
            }
            for fields in file.sample
        ]
        block_tokens, who = _block_tokens(options, lengths, mooncake.BLOCK_TOKENS, file.shown)
    reading = RowReading(
        lambda: table.TableRows(columns, clock),
        file.open_rows,
        block_tokens,
        who,
        has_sessions="session" in columns,
        clock=clock,
    )
    return RowTrace(reading, options)


def _open_sessions(file: TraceFile, options: TraceOptions) -> Trace:
    open_flat = _unfolded(file, nested.turns_of)
    sample = [mooncake.with_usual_names(row) for row in sample_of(open_flat())]
    flat = replace(file, open_rows=open_flat, sample=sample)
    has_ids = any(isinstance(fields.get("hash_ids"), list) for fields in sample)
    if has_ids and all("timestamp" in fields for fields in sample):
        return _open_mooncake(flat, options)
    return _open_delta("aiperf")(flat, options)


def _unfolded(file: TraceFile, unfold: Callable[[Fields], Any]) -> Callable[[], nested.NestedRows]:
    return lambda: nested.NestedRows(file.open_rows(), unfold)


def _open_spans(file: TraceFile, options: TraceOptions) -> Trace:
    open_flat = _unfolded(file, nested.requests_of)
    sample = sample_of(open_flat())
    if file.sample and not sample:
        problem = (
            "no span of this OpenTelemetry file is a request to a model: none has "
            "gen_ai.usage.input_tokens or gen_ai.input.messages."
        )
        raise Problems(file.shown, [f"line 1: {problem} Export spans with GenAI attributes."])
    flat = replace(file, open_rows=open_flat, sample=sample)
    clock, _ = _clock(flat, ("start",), "ns", options)
    texts = any("messages" in fields for fields in sample)
    tokens = text.Tokens(options.tokenizer)
    reading = RowReading(
        lambda: nested.SpanRows(
            clock, logs.OpenAIRows(tokens, {"timestamp": clock}) if texts else None
        ),
        open_flat,
        text.BLOCK_TOKENS if texts else None,
        "format",
        has_sessions=any("session_id" in fields for fields in sample),
        clock=clock,
        warnings=() if texts or options.reuse else (f"{_NO_CONTENT}.",),
        by_end=True,
    )
    return RowTrace(reading, options)


def _open_weka(file: TraceFile, options: TraceOptions) -> Trace:
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
        time_unit="s",
        warnings=warnings,
    )
    return SessionTrace(reading, options)


def _open_agentic_mooncake(file: TraceFile, options: TraceOptions) -> Trace:
    sizes = (fields.get("block_size") for fields in file.sample)
    said = next((size for size in sizes if _is_block_tokens(size)), None)
    if said:
        _check_given(options, said, file.shown)
        block_tokens, who = said, "file"
    else:
        block_tokens, who = _block_tokens(options, file.sample, 512, file.shown)
    waits = any(fields.get("dependencies") or fields.get("wait_for") for fields in file.sample)
    reading = SessionReading(
        lambda: dynamo.AgenticMooncakeSessions(block_tokens),
        file.open_rows,
        block_tokens,
        who,
        starts_recorded=True,
        timed=not waits,
        time_unit="ms",
    )
    return SessionTrace(reading, options)


def _open_applied_compute(file: TraceFile, options: TraceOptions) -> Trace:
    reading = SessionReading(
        dynamo.AppliedComputeSessions,
        file.open_rows,
        None,
        "format",
        starts_recorded=False,
        timed=False,
        time_unit="s",
    )
    return SessionTrace(reading, options)


def _open_dynamo_requests(file: TraceFile, options: TraceOptions) -> Trace:
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
        time_unit="ms",
    )
    return SessionTrace(reading, options)


def _open_conversations(name: str) -> Callable[[TraceFile, TraceOptions], Trace]:
    def open_it(file: TraceFile, options: TraceOptions) -> Trace:
        tokens = text.Tokens(options.tokenizer)
        has_starts = name == "wildchat" and any("timestamp" in fields for fields in file.sample)
        reading = SessionReading(
            lambda: conversations.ConversationSessions(name, tokens, timed=has_starts),
            file.open_rows,
            text.BLOCK_TOKENS,
            "format",
            starts_recorded=has_starts,
            timed=has_starts and all(map(conversations.has_times, file.sample)),
            time_unit="date" if has_starts else None,
        )
        return SessionTrace(reading, options)

    return open_it


def _open_logs(name: str) -> Callable[[TraceFile, TraceOptions], Trace]:
    def open_it(file: TraceFile, options: TraceOptions) -> Trace:
        tokens = text.Tokens(options.tokenizer)
        clocks = {
            key: _clock(file, (key,), usual, options)[0]
            for key, usual in logs.TIME_KEYS
            if any(fields.get(key) is not None for fields in file.sample)
        }
        has_times = bool(clocks)
        begin_s = min((clock.begin_s for clock in clocks.values() if clock.begin_s), default=0.0)
        clocks = {key: replace(clock, begin_s=begin_s) for key, clock in clocks.items()}
        clocks = clocks or {"timestamp": Clock("ms")}
        reading = RowReading(
            (lambda: logs.OpenAIRows(tokens, clocks))
            if name == "openai"
            else (lambda: logs.TokenIdRows(clocks)),
            file.open_rows,
            text.BLOCK_TOKENS,
            "format",
            has_sessions=not has_times or _names_sessions(file.sample),
            starts_recorded=has_times or not file.sample,
            timed=has_times or not file.sample,
            clock=next(iter(clocks.values())),
        )
        return RowTrace(reading, options)

    return open_it


FIXED_BLOCKS = {
    "qwen-bailian": qwen_bailian.BLOCK_TOKENS,
    "sharegpt": text.BLOCK_TOKENS,
    "wildchat": text.BLOCK_TOKENS,
    "lmsys": text.BLOCK_TOKENS,
    "trajectories": text.BLOCK_TOKENS,
    "openai": text.BLOCK_TOKENS,
    "token-ids": text.BLOCK_TOKENS,
}
"""Formats whose ids stand for a number of tokens that nobody chooses."""
OPENERS: dict[str, Callable[[TraceFile, TraceOptions], Trace]] = {
    "mooncake": _open_mooncake,
    "mooncake-delta": _open_delta("mooncake-delta"),
    "aiperf": _open_delta("aiperf"),
    "agentic-mooncake": _open_agentic_mooncake,
    "applied-compute": _open_applied_compute,
    "dynamo-requests": _open_dynamo_requests,
    "weka": _open_weka,
    "qwen-bailian": _open_qwen,
    "azure": _open_lengths("azure", lengths_only.AZURE_COLUMNS, "date"),
    "burstgpt": _open_lengths("burstgpt", lengths_only.BURSTGPT_COLUMNS, "s"),
    "table": _open_table,
    "sessions": _open_sessions,
    "opentelemetry": _open_spans,
    "sharegpt": _open_conversations("sharegpt"),
    "wildchat": _open_conversations("wildchat"),
    "lmsys": _open_conversations("lmsys"),
    "trajectories": _open_conversations("trajectories"),
    "openai": _open_logs("openai"),
    "token-ids": _open_logs("token-ids"),
}
"""How a file of each format is opened."""
