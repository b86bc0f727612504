"""Dynamo's formats beyond Mooncake's rows: agentic plays, session templates, and request traces.

- Agentic Mooncake: a header with `schema`, `block_size`; then a request a line with Mooncake's
  lengths and ids, a unique `request_id`, `play_id` (what belongs together), `not_before_ms`, and
  `dependencies`, each a `request_id` above, a `trigger` ("completion", or "dispatch" for its
  arrival) and a `delay_ms`. Older files have `wait_for`, `delay` and `tool_wait_ms` instead.
- Applied Compute: a session a line, `num_turns` answers with their tool output and latency
  (seconds), and a final answer. Each prompt is the one before, its answer, and the tool's output.
- Request traces: `dynamo.request.trace.v1` records, written as requests end, with hashes of whole
  prompts; sessions of agents are linked by `agent_context` and by `tool_end` records.

Sources: fixtures of wheel ai-dynamo 1.6.1; docs of its replay ("Replay workloads").
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvsim.workload.conversation import Conversation
from kvsim.workload.request import After, Request, Session, Turn
from kvsim.workload.traces.contents import TraceUids
from kvsim.workload.traces.mooncake import with_usual_names
from kvsim.workload.traces.record import (
    LeaveOut,
    as_number,
    id_problems,
    is_length,
    length_problems,
    missing_problems,
    number_problems,
    shown,
    with_integer_ids,
)

AGENTIC_SCHEMA = "dynamo.agentic_mooncake"
REQUEST_SCHEMA = "dynamo.request.trace.v1"


def _id_count_problem(name: str, num_ids: int, num_tokens: int, block_tokens: int) -> Iterator[str]:
    most = -(-num_tokens // block_tokens)
    if not num_tokens // block_tokens <= num_ids <= most:
        yield (
            f"{name}: {num_ids} ids for {num_tokens} tokens, where one id for every {block_tokens} "
            f"tokens makes {most}. Correct the line."
        )


class AgenticMooncakeSessions:
    """Plays, complete when the file is."""

    name = "agentic-mooncake"
    number = 0
    leave_out: LeaveOut | None = None

    def __init__(self, block_tokens: int) -> None:
        """Start at the first line; ids stand for this many tokens."""
        self._block_tokens = block_tokens
        self._plays: dict[str, Session] = {}
        self._places: dict[str, tuple[str, int]] = {}

    def end(self) -> list[Session]:
        """The plays, by their start."""
        return sorted(self._plays.values(), key=lambda play: play.start_s or 0.0)

    def parse(self, fields: dict[str, Any], uids: TraceUids) -> list[Session] | list[str]:
        """Nothing yet, or everything that is wrong with the line."""
        if fields.get("schema") == AGENTIC_SCHEMA:
            said = fields.get("block_size", self._block_tokens)
            if said != self._block_tokens:
                return [f"block_size: {shown(said)} is not a number of tokens from 1 to {2**24}."]
            return []
        fields = with_integer_ids(with_usual_names(fields), "hash_ids")
        needed = ("request_id", "input_length", "output_length", "hash_ids")
        problems = list(missing_problems(fields, needed)) or list(self._problems(fields))
        if problems:
            return problems
        request_id = str(fields["request_id"])
        waits = list(self._waits(fields))
        play_id = fields.get("play_id") or (self._places[waits[0][0]][0] if waits else request_id)
        time_ms = as_number(fields.get("not_before_ms", fields.get("timestamp", 0)))
        time_s = 0.0 if time_ms is None else time_ms / 1000
        play = self._plays.setdefault(str(play_id), Session(str(play_id), time_s, []))
        others = [name for name, _, _ in waits if self._places[name][0] != play_id]
        if others:
            return [f"dependencies: {shown(others[0])} is in another play. Use one play_id."]
        own_uid = uids.own()
        num_tokens = fields["input_length"]
        start_s = play.start_s or 0.0
        after = tuple(
            After(self._places[name][1], delay_s, "start" if trigger == "dispatch" else "end")
            for name, trigger, delay_s in waits
        )
        play.timed = play.timed and not after
        turn_s = max(0.0, time_s - start_s)
        request = Request(
            request_id,
            0.0 if after else turn_s,
            uids.content(fields["hash_ids"], num_tokens, self._block_tokens, own_uid),
            num_tokens,
            fields["output_length"],
            own_uid,
            str(play_id),
        )
        self._places[request_id] = (str(play_id), len(play.turns))
        play.turns.append(Turn(request, after, turn_s))
        return []

    def _waits(self, fields: dict[str, Any]) -> Iterator[tuple[str, str, float]]:
        """`(request id, trigger, delay in s)` of what a request waits for."""
        for wait in fields.get("dependencies") or []:
            delay_ms = as_number(wait.get("delay_ms", 0)) or 0.0
            yield str(wait["request_id"]), wait.get("trigger", "completion"), delay_ms / 1000
        delay_ms = (as_number(fields.get("delay", 0)) or 0.0) + (
            as_number(fields.get("tool_wait_ms", 0)) or 0.0
        )
        for name in fields.get("wait_for") or []:
            yield str(name), "completion", delay_ms / 1000

    def _problems(self, fields: dict[str, Any]) -> Iterator[str]:
        yield from length_problems(fields, "input_length")
        yield from length_problems(fields, "output_length", least=0)
        found = list(id_problems(fields, "hash_ids"))
        yield from found
        if not found and is_length(fields["input_length"]):
            yield from _id_count_problem(
                "hash_ids", len(fields["hash_ids"]), fields["input_length"], self._block_tokens
            )
        if str(fields["request_id"]) in self._places:
            text = f"request_id: {shown(fields['request_id'])} is there already."
            yield f"{text} Give each request its own."
        for name in ("not_before_ms", "timestamp", "delay", "tool_wait_ms"):
            if fields.get(name) is not None:
                yield from number_problems(fields, name, "milliseconds")
        for key in ("dependencies", "wait_for"):
            waits = fields.get(key) or []
            if not isinstance(waits, list):
                yield f"{key}: {shown(waits)} is not a list."
                continue
            for wait in waits:
                yield from self._wait_problems(key, wait)

    def _wait_problems(self, key: str, wait: Any) -> Iterator[str]:
        name = wait
        if key == "dependencies":
            if not isinstance(wait, dict) or "request_id" not in wait:
                yield f"dependencies: {shown(wait)} names no request_id."
                return
            name = wait["request_id"]
            if wait.get("trigger", "completion") not in ("completion", "dispatch"):
                yield f"dependencies: {shown(wait['trigger'])}: use completion or dispatch."
            if "delay_ms" in wait:
                yield from number_problems(wait, "delay_ms", "milliseconds")
        if str(name) not in self._places:
            yield (
                f"{key}: {shown(name)} is no request_id of a line above. Keep the request it "
                "names, before this one."
            )


class AppliedComputeSessions:
    """Session templates: lengths and tool latencies."""

    name = "applied-compute"
    number = 0
    leave_out: LeaveOut | None = None

    def __init__(self) -> None:
        """Start at the first line."""
        self._num_sessions = 0

    def end(self) -> list[Session]:
        """Nothing is left over."""
        return []

    def parse(self, fields: dict[str, Any], uids: TraceUids) -> list[Session] | list[str]:
        """The session of a line, or everything that is wrong with it."""
        problems = list(missing_problems(fields, _TEMPLATE)) or list(_template_problems(fields))
        if problems:
            return problems
        self._num_sessions += 1
        session_id = f"{self._num_sessions:07d}"
        conversation = Conversation()
        session = Session(session_id, None, [], timed=False)
        answers = [*fields["assistant_response_length"], fields["final_assistant_response_length"]]
        added = [fields["input_prompt_length"], *fields["tool_call_output_length"]]
        waits_s = [0.0, *fields["tool_call_latency"]]
        for number, (answer, new, wait_s) in enumerate(zip(answers, added, waits_s, strict=True)):
            own_uid = uids.own()
            # The answer has the same uid as what it answers: nobody else has either.
            conversation.append(own_uid, new)
            session.turns.append(
                Turn(
                    Request(
                        f"{session_id}-{number + 1:05d}",
                        0.0,
                        conversation.content(),
                        conversation.num_tokens,
                        answer,
                        own_uid,
                        session_id,
                    ),
                    (After(number - 1, float(wait_s)),) if number else (),
                )
            )
            conversation.append(own_uid, answer)
        return [session]


_TEMPLATE = (
    "num_turns",
    "input_prompt_length",
    "assistant_response_length",
    "tool_call_output_length",
    "tool_call_latency",
    "final_assistant_response_length",
)


def _template_problems(fields: dict[str, Any]) -> Iterator[str]:
    num_turns = fields["num_turns"]
    yield from length_problems(fields, "input_prompt_length")
    yield from length_problems(fields, "final_assistant_response_length", least=0)
    if type(num_turns) is not int or num_turns < 0:
        yield f"num_turns: {shown(num_turns)} is not a number of turns from 0."
        return
    for name in ("assistant_response_length", "tool_call_output_length", "tool_call_latency"):
        values = fields[name]
        if not isinstance(values, list) or len(values) != num_turns:
            yield f"{name}: {shown(values)} is not a list of num_turns ({num_turns}) values."
        elif name == "tool_call_latency":
            wrong = [value for value in values if (as_number(value) or 0.0) < 0]
            wrong += [value for value in values if as_number(value) is None]
            if wrong:
                yield f"{name}: {shown(wrong[0])} is not a number of seconds from 0."
        else:
            wrong = [value for value in values if not is_length(value, 0)]
            if wrong:
                yield f"{name}: {shown(wrong[0])} is not a number of tokens."


class RequestTraceSessions:
    """Requests and their agents' sessions, complete when the file is."""

    name = "dynamo-requests"
    number = 0
    leave_out: LeaveOut | None = None

    def __init__(self, block_tokens: int) -> None:
        """Start at the first line; hashes stand for this many tokens."""
        self._block_tokens = block_tokens
        self._requests: list[tuple[float, float, str, Request]] = []
        self._parents: dict[str, tuple[str | None, int]] = {}
        self._joins: list[tuple[str, str]] = []

    def parse(self, fields: dict[str, Any], uids: TraceUids) -> list[Session] | list[str]:
        """Nothing yet, or everything that is wrong with the line."""
        context = fields.get("agent_context")
        context = context if isinstance(context, dict) else {}
        kind = fields.get("event_type")
        if kind == "tool_end" and isinstance(fields.get("tool"), dict):
            claude = fields["tool"].get("claude")
            if isinstance(claude, dict) and claude.get("execution_mode") == "blocking":
                self._joins.append(
                    (str(claude.get("consumer_request_id")), str(claude.get("child_session_id")))
                )
            return []
        if kind != "request_end":
            return []
        request = fields.get("request")
        if not isinstance(request, dict) or not isinstance(request.get("replay"), dict):
            return ["request.replay: missing. A request_end needs lengths and hashes to replay."]
        return self._request(request, context, uids)

    def _request(
        self, request: dict[str, Any], context: dict[str, Any], uids: TraceUids
    ) -> list[Session] | list[str]:
        flat = with_integer_ids({**request["replay"], **request}, "input_sequence_hashes")
        needed = ("request_received_ms", "input_length", "input_sequence_hashes", "output_tokens")
        problems = list(missing_problems(flat, needed)) or [
            *length_problems(flat, "input_length"),
            *length_problems(flat, "output_tokens", least=0),
            *id_problems(flat, "input_sequence_hashes"),
            *number_problems(flat, "request_received_ms", "milliseconds"),
        ]
        block_tokens = flat.get("trace_block_size", self._block_tokens)
        if not problems and block_tokens != self._block_tokens:
            text = f"trace_block_size: {shown(block_tokens)}, where lines before have"
            problems = [f"{text} {self._block_tokens}."]
        if not problems:
            hashes, num_tokens = flat["input_sequence_hashes"], flat["input_length"]
            problems = list(
                _id_count_problem("input_sequence_hashes", len(hashes), num_tokens, block_tokens)
            )
        if problems:
            return problems
        own_uid = uids.own()
        session_id = context.get("session_id")
        request_id = str(request.get("request_id", f"{self.number:07d}"))
        name = request_id if session_id is None else str(session_id)
        parent = context.get("parent_session_id")
        self._parents.setdefault(name, (None if parent is None else str(parent), self.number))
        took_ms = as_number(flat.get("total_time_ms", 0)) or 0.0
        received_s = (as_number(flat["request_received_ms"]) or 0.0) / 1000
        self._requests.append(
            (
                received_s,
                received_s + took_ms / 1000,
                name,
                Request(
                    request_id,
                    received_s,
                    uids.content(flat["input_sequence_hashes"], num_tokens, block_tokens, own_uid),
                    num_tokens,
                    flat["output_tokens"],
                    own_uid,
                    name,
                ),
            )
        )
        return []

    def end(self) -> list[Session] | list[tuple[int, str]]:
        """Sessions with their sub-agents in them, by start; the clock begins at the first."""
        unknown = [
            (
                line,
                f"parent_session_id: {shown(parent)} is the session of no request here. Keep its "
                "requests, or remove the link.",
            )
            for parent, line in self._parents.values()
            if parent is not None and parent not in self._parents
        ]
        if unknown:
            return unknown
        self._requests.sort(key=lambda entry: entry[0])
        begin_s = self._requests[0][0] if self._requests else 0.0
        sessions: dict[str, Session] = {}
        ends: dict[str, list[float]] = {}
        last_of: dict[str, int] = {}
        joins = dict(self._joins)
        for received_s, end_s, name, request in self._requests:
            root = self._root(name)
            session = sessions.setdefault(root, Session(root, received_s - begin_s, []))
            ended = ends.setdefault(root, [])
            time_s = received_s - begin_s - (session.start_s or 0.0)
            request.arrival_s, request.session_id = time_s, root
            after = []
            before = last_of.get(name)
            if before is None:
                before = last_of.get(self._parents[name][0] or "")
            joined = last_of.get(joins.get(request.request_id, ""))
            if before is not None and joined is not None:
                # The time since the turn before is the sub-agent's.
                after.append(After(before))
            elif before is not None:
                after.append(_recorded_wait(session.turns[before], ended[before], time_s, before))
            if joined is not None:
                after.append(_recorded_wait(session.turns[joined], ended[joined], time_s, joined))
            last_of[name] = len(session.turns)
            ended.append(time_s + end_s - received_s)
            session.turns.append(Turn(request, tuple(after), 0.0 if after else time_s))
        return list(sessions.values())

    def _root(self, name: str) -> str:
        """The session that has no parent here, from which this one comes."""
        seen = {name}
        while True:
            parent = self._parents[name][0]
            if parent is None or parent in seen or parent not in self._parents:
                return name
            seen.add(parent)
            name = parent


def _recorded_wait(turn: Turn, ended_s: float, time_s: float, index: int) -> After:
    """As long after the other's end as recorded, or after its start where it had not ended."""
    if ended_s <= time_s:
        return After(index, time_s - ended_s)
    return After(index, max(0.0, time_s - turn.request.arrival_s), "start")
