"""Files whose requests lie inside objects, as rows: OpenTelemetry's spans, and turns of sessions.

OpenTelemetry: OTLP as JSON (`resourceSpans`, one export a line or one document), or a span an
object with `attributes` as SDKs print them. Requests are the spans with GenAI attributes: lengths
from `gen_ai.usage.input_tokens` and `output_tokens`, the session from `gen_ai.conversation.id`,
else the trace, and text from `gen_ai.input.messages` and `gen_ai.output.messages` where it was
recorded. Source: OpenTelemetry's semantic conventions for generative AI, and those before them
(`prompt_tokens`, `completion_tokens`).

Sessions: objects with `turns` or `steps`, a list of rows with lengths, and maybe times, delays or
ids; what a turn does not say itself, its session does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from kvsim.workload.traces.clock import Clock
from kvsim.workload.traces.lengths_only import as_count, count_problems
from kvsim.workload.traces.logs import OpenAIRows
from kvsim.workload.traces.record import Row, missing_problems
from kvsim.workload.traces.rows import Fields, Rows
from kvsim.workload.traces.text import as_json

TURNS = ("turns", "steps")
SIGNALS = {"resourceMetrics": "metrics", "resourceLogs": "logs"}
_SESSION_KEYS = ("gen_ai.conversation.id", "session.id")
_INPUT_TOKENS = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUT_TOKENS = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")


class NestedRows:
    """Rows that other rows hold, each with the number of the one it lies in."""

    def __init__(self, rows: Rows, unfold: Callable[[Fields], Iterator[Fields]]) -> None:
        """Unfold these rows when they are read."""
        self._rows = rows
        self._unfold = unfold
        self.shown = rows.shown
        self.word = rows.word

    def share_read(self) -> float:
        """Share of the file read so far, 0 to 1."""
        return self._rows.share_read()

    def times(self, names: tuple[str, ...]) -> Iterator[tuple[int, Any]]:
        """`(number, time)` of the rows that have one."""
        for number, row in self:
            if not isinstance(row, str):
                yield from ((number, row[name]) for name in names if row.get(name) is not None)

    def __iter__(self) -> Iterator[tuple[int, Fields | str]]:
        """Yield the rows."""
        for number, row in self._rows:
            if isinstance(row, str):
                yield number, row
            else:
                yield from ((number, inner) for inner in self._unfold(row))


def turns_of(fields: Fields) -> Iterator[Fields]:
    """The rows of a session."""
    key = next((key for key in TURNS if isinstance(fields.get(key), list)), None)
    if key is None:
        yield fields
        return
    session = {name: value for name, value in fields.items() if name != key}
    for name in ("id", "trajectory_id", "instance_id"):
        if name in session:
            session.setdefault("session_id", session[name])
    for number, turn in enumerate(fields[key]):
        if isinstance(turn, dict):
            # When a session starts is said of its first turn alone.
            ours = {k: v for k, v in session.items() if number == 0 or k == "session_id"}
            yield {**ours, **turn}
        else:
            yield {**session, key: turn}


def requests_of(fields: Fields) -> Iterator[Fields]:
    """The GenAI requests of an export of spans, or of one span, as rows."""
    for span in _spans(fields):
        attributes = _attributes(span.get("attributes"))
        if _first(attributes, _INPUT_TOKENS) is None and not _messages(attributes):
            continue
        if attributes.get("gen_ai.operation.name") in ("invoke_agent", "execute_tool"):
            continue  # its requests have spans of their own
        yield _as_row(span, attributes)


def _spans(fields: Fields) -> Iterator[Fields]:
    resources = fields.get("resourceSpans")
    if not isinstance(resources, list):
        yield fields
        return
    for resource in resources:
        scopes = resource.get("scopeSpans") if isinstance(resource, dict) else None
        for scope in scopes if isinstance(scopes, list) else ():
            spans = scope.get("spans") if isinstance(scope, dict) else None
            yield from (
                span
                for span in (spans if isinstance(spans, list) else ())
                if isinstance(span, dict)
            )


def _attributes(written: Any) -> Fields:
    """Attributes by name: a mapping, or OTLP's list of keys with typed values."""
    if isinstance(written, dict):
        return written
    found: Fields = {}
    for entry in written if isinstance(written, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("key"), str):
            found[entry["key"]] = _value(entry.get("value"))
    return found


def _value(value: Any) -> Any:
    """A value of OTLP: integers are texts there, lists and mappings are wrapped."""
    if not isinstance(value, dict) or not value:
        return value
    (kind, inner), *_ = value.items()
    if kind == "arrayValue":
        inner = inner.get("values", []) if isinstance(inner, dict) else []
        return [_value(part) for part in inner] if isinstance(inner, list) else []
    if kind == "kvlistValue":
        return _attributes(inner.get("values") if isinstance(inner, dict) else None)
    return inner


def _first(attributes: Fields, names: tuple[str, ...]) -> Any:
    return next((attributes[name] for name in names if attributes.get(name) is not None), None)


def _as_row(span: Fields, attributes: Fields) -> Fields:
    context = span.get("context")
    context = context if isinstance(context, dict) else {}
    trace_id = span.get("traceId", context.get("trace_id", span.get("trace_id")))
    row: Fields = {
        "start": span.get("startTimeUnixNano", span.get("start_time")),
        "end": span.get("endTimeUnixNano", span.get("end_time")),
        "session_id": _first(attributes, _SESSION_KEYS) or trace_id,
        "input_tokens": _first(attributes, _INPUT_TOKENS),
        "output_tokens": _first(attributes, _OUTPUT_TOKENS),
    }
    messages = _messages(attributes)
    if messages:
        row["messages"] = messages
        answer = _as_messages(attributes.get("gen_ai.output.messages"))
        if answer:
            row["response"] = answer[0]["content"]
        row["usage"] = {"completion_tokens": as_count(row["output_tokens"])}
    return {key: value for key, value in row.items() if value is not None}


def _messages(attributes: Fields) -> list[Fields]:
    system = attributes.get("gen_ai.system_instructions")
    begin = [{"role": "system", "content": as_json(system)}] if system else []
    said = _as_messages(attributes.get("gen_ai.input.messages"))
    return [*begin, *said] if said else []


def _as_messages(written: Any) -> list[Fields]:
    """Messages with roles and parts, which may be JSON in a text, as roles and texts."""
    if isinstance(written, str):
        try:
            written = json.loads(written)
        except (ValueError, RecursionError):
            return []
    messages = []
    for message in written if isinstance(written, list) else ():
        if isinstance(message, dict) and isinstance(message.get("role"), str):
            parts = message.get("parts", message.get("content"))
            texts = [
                part["content"]
                if isinstance(part, dict) and isinstance(part.get("content"), str)
                else as_json(part)
                for part in (parts if isinstance(parts, list) else [parts])
            ]
            messages.append({"role": message["role"], "content": "".join(texts)})
    return messages


class SpanRows:
    """Requests of OpenTelemetry's spans, which are written as they end."""

    name = "opentelemetry"
    time_names: tuple[str, ...] = ("start",)

    def __init__(self, clock: Clock, texts: OpenAIRows | None) -> None:
        """Start at the first row.

        Args:
            clock: that times are on.
            texts: reads rows with text; None where spans have lengths only.
        """
        self.seconds = clock.seconds
        self._clock = clock
        self._texts = texts
        self._ends_s: dict[str, float] = {}

    def parse(self, fields: dict[str, Any]) -> Row | list[str]:
        """What the span says, or everything that is wrong with it."""
        problems = list(missing_problems(fields, ("start",))) or list(
            self._clock.problems(fields, "start")
        )
        if problems:
            return problems
        row = self._lengths(fields) if self._texts is None else self._texts.parse(fields)
        if isinstance(row, list):
            return row
        row.time_s = self.seconds(fields["start"])
        row.session_id = str(fields["session_id"]) if "session_id" in fields else None
        end_s = None if "end" not in fields else self.seconds(fields["end"])
        if row.session_id is not None and row.time_s is not None:
            before_s = self._ends_s.get(row.session_id)
            if before_s is not None and before_s <= row.time_s:
                row.delay_s = row.time_s - before_s
            if end_s is not None:
                self._ends_s[row.session_id] = end_s
        return row

    def _lengths(self, fields: dict[str, Any]) -> Row | list[str]:
        if "input_tokens" not in fields:
            return ["gen_ai.usage.input_tokens: missing, and so is the text in other spans."]
        problems = list(count_problems(fields, "input_tokens"))
        num_output = None
        if "output_tokens" in fields:
            problems += count_problems(fields, "output_tokens", least=0)
            num_output = as_count(fields["output_tokens"])
        return problems or Row(None, as_count(fields["input_tokens"]), num_output)


def is_span(fields: Fields) -> bool:
    """Whether a row is an export of spans or a span, of whatever kind."""
    if "resourceSpans" in fields:
        return True
    begins = {"startTimeUnixNano", "start_time"} & fields.keys()
    named = {"traceId", "trace_id", "context"} & fields.keys()
    return bool(begins and named and "attributes" in fields)
