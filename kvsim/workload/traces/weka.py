"""kv-cache-tester's sessions of coding agents, as shipped and with runs of ids.

As shipped a line (or file) is one session: `id`, `block_size`, `tool_tokens`, `system_tokens` and
`requests`, each with `t` (seconds after the session's start), `in`, `out` (tokens), `hash_ids`,
`api_time` and `think_time` (seconds, null where not measured), or a sub-agent with `agent_id` and
`requests` of its own. Their times are after the session's start, or after the sub-agent's where one
of them is before it.

With runs of ids a request is `[t, in, out, depth, api_time, think_time, [[first id, count], ...]]`,
in blocks of 64 tokens, sub-agents' among the others with depth 1.

Ids are local to a session, one for each whole block; what is left of a prompt has none and is
content of its own. In a closed loop a turn waits for the one before it of its agent, and for the
sub-agents that had ended; a sub-agent waits for the turn that was the last to begin.

Source: github.com/callanjfox/kv-cache-tester.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvsim.cache.content import Content
from kvsim.workload.request import After, Request, Session, Turn
from kvsim.workload.traces.contents import TraceUids
from kvsim.workload.traces.record import LeaveOut, as_number, id_problems, length_problems, shown

BLOCK_TOKENS = 64
"""Of the files with runs of ids."""
LARGEST_LOCAL_ID = 2**24
_SLACK_S = 1.5
"""Times are recorded to the second, so a turn may seem to begin this long before one ends."""


@dataclass(slots=True)
class _Call:
    """A request as recorded, with its ids as runs."""

    time_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    agent: str | None
    took_s: float
    think_s: float | None
    runs: list[tuple[int, int]]
    is_sub_agent: bool

    @property
    def end_s(self) -> float:
        return self.time_s + self.took_s


class WekaSessions:
    """Sessions of either form."""

    name = "weka"
    number = 0
    leave_out: LeaveOut | None = None

    def __init__(self, block_tokens: int) -> None:
        """Start at the first line; ids stand for this many tokens."""
        self._block_tokens = block_tokens
        self._num_ids = 0

    def end(self) -> list[Session]:
        """Nothing is left over."""
        return []

    def parse(self, fields: dict[str, Any], uids: TraceUids) -> list[Session] | list[str]:
        """The session of a line, or everything that is wrong with it."""
        if "id" not in fields or not isinstance(fields.get("requests"), list):
            return ["id, requests: missing. A line needs id and a list of requests."]
        said = fields.get("block_size", self._block_tokens)
        if said != self._block_tokens:
            return [f"block_size: {shown(said)}, where lines before have {self._block_tokens}."]
        calls: list[_Call] = []
        problems: list[str] = []
        for number, request in enumerate(fields["requests"]):
            for found in self._calls(request, f"requests.{number}"):
                if isinstance(found, str) and self.leave_out is not None:
                    self.leave_out(found.partition(": ")[2])
                elif isinstance(found, str):
                    problems.append(found)
                else:
                    calls.append(found)
        if problems:
            return problems
        if not calls:
            return ["requests: an empty list. A session needs at least one."]
        calls.sort(key=lambda call: call.time_s)
        session_id = str(fields["id"])
        largest = max((f + n - 1 for call in calls for f, n in call.runs), default=0)
        first_uid, self._num_ids = self._num_ids, self._num_ids + largest + 1
        turns: list[Turn] = []
        for call, after in zip(calls, _dependencies(calls), strict=True):
            request = self._request(call, f"{session_id}-{len(turns) + 1:05d}", first_uid, uids)
            request.session_id = session_id
            turns.append(Turn(request, after, 0.0 if after else call.time_s))
        return [Session(session_id, None, turns)]

    def _calls(
        self, request: Any, place: str, agent: str | None = None, begin_s: float = 0.0
    ) -> Iterator[_Call | str]:
        """The calls of an entry, or what is wrong with it."""
        if isinstance(request, list) and len(request) == 7:
            keys = ("t", "in", "out", "depth", "api_time", "think_time", "runs")
            yield self._call(dict(zip(keys, request, strict=True)), place, None, 0.0)
        elif not isinstance(request, dict):
            yield f"{place}: {shown(request)} is no request. Write an object, or a list of 7."
        elif request.get("type") == "subagent":
            inner, time_s = request.get("requests"), as_number(request.get("t"))
            if not isinstance(inner, list) or time_s is None:
                yield f"{place}: a sub-agent without t or requests."
                return
            times = [as_number(call.get("t")) for call in inner if isinstance(call, dict)]
            is_relative = any(t is not None and t < time_s for t in times)
            name = f"{place}-{request.get('agent_id')}"
            for number, call in enumerate(inner):
                yield from self._calls(
                    call, f"{place}.requests.{number}", name, time_s if is_relative else 0.0
                )
        else:
            yield self._call(request, place, agent, begin_s)

    def _call(
        self, fields: dict[str, Any], place: str, agent: str | None, begin_s: float
    ) -> _Call | str:
        missing = [key for key in ("t", "in", "out") if key not in fields]
        if missing:
            return f"{place}: {', '.join(missing)}: missing."
        problems = [
            *length_problems(fields, "in"),
            *length_problems(fields, "out", least=0),
        ]
        time_s = as_number(fields["t"])
        if time_s is None or time_s < 0:
            problems.append(f"t: {shown(fields['t'])} is not a number of seconds from 0.")
        runs = fields.get("runs")
        if runs is None:
            fields = {"hash_ids": [], **fields}
            found = list(id_problems(fields, "hash_ids"))
            problems += found
            runs = [] if found else _runs(fields["hash_ids"])
        elif not _are_runs(runs):
            problems.append(f"{shown(runs)} are no runs of ids. Write [[first id, count], ...].")
        if not problems:
            num_ids, most = sum(n for _, n in runs), fields["in"] // self._block_tokens
            if num_ids > most:
                problems.append(
                    f"{num_ids} ids for {fields['in']} tokens, which have {most} whole blocks of "
                    f"{self._block_tokens}."
                )
            elif max((first + n for first, n in runs), default=0) > LARGEST_LOCAL_ID:
                problems.append(f"an id above {LARGEST_LOCAL_ID}. Ids are local to a session.")
        if problems or time_s is None:
            return f"{place}: {problems[0]}"
        took_s, think_s = as_number(fields.get("api_time")), as_number(fields.get("think_time"))
        return _Call(
            time_s + begin_s,
            fields["in"],
            fields["out"],
            agent,
            max(0.0, took_s or 0.0),
            think_s,
            [(first, count) for first, count in runs],
            agent is not None or bool(fields.get("depth")),
        )

    def _request(self, call: _Call, request_id: str, first_uid: int, uids: TraceUids) -> Request:
        own_uid = uids.own()
        # Ids are chained, so a run of consecutive ones can be one span, named after its first.
        run_uids = [first_uid + first for first, _ in call.runs]
        ends = np.cumsum([count for _, count in call.runs], dtype=np.int64) * self._block_tokens
        covered = int(ends[-1]) if len(ends) else 0
        if covered < call.num_prompt_tokens:
            run_uids.append(own_uid)
            ends = np.append(ends, call.num_prompt_tokens)
        return Request(
            request_id,
            call.time_s,
            Content(np.array(run_uids, dtype=np.int64), ends.astype(np.int64)),
            call.num_prompt_tokens,
            call.num_output_tokens,
            own_uid,
        )


def _runs(ids: list[int]) -> list[tuple[int, int]]:
    """Ids as `(first, count)` of consecutive ones."""
    if not ids:
        return []
    array = np.array(ids, dtype=object if max(ids) >= 2**62 else np.int64)
    begins = np.flatnonzero(np.diff(array, prepend=array[0] - 2) != 1)
    counts = np.diff(begins, append=len(ids))
    return [(int(array[begin]), int(count)) for begin, count in zip(begins, counts, strict=True)]


def _are_runs(runs: Any) -> bool:
    return isinstance(runs, list) and all(
        isinstance(run, list)
        and len(run) == 2
        and type(run[0]) is int
        and type(run[1]) is int
        and run[0] >= 0
        and run[1] >= 1
        for run in runs
    )


def _dependencies(calls: list[_Call]) -> Iterator[tuple[After, ...]]:
    """What each call waits for, in order of time.

    Where no sub-agent is named, a sub-agent's call goes on with the one that had ended, began with
    the same id, and ended last.
    """
    last_main: int | None = None
    agents: dict[str, int] = {}
    to_join: set[int] = set()
    for number, call in enumerate(calls):
        if not call.is_sub_agent:
            joined = [n for n in sorted(to_join) if calls[n].end_s <= call.time_s + _SLACK_S]
            to_join -= set(joined)
            after = [After(other, max(0.0, call.time_s - calls[other].end_s)) for other in joined]
            if last_main is not None:
                # The think time of a turn that waited for sub-agents is theirs.
                wait = _wait(calls, number, last_main)
                after.insert(0, After(last_main) if joined else wait)
            last_main = number
            yield tuple(after)
            continue
        name = call.agent
        if name is None:
            going_on = [
                (calls[n].end_s, agent)
                for agent, n in agents.items()
                if calls[n].end_s <= call.time_s + _SLACK_S
                and [run[0] for run in calls[n].runs[:1]] == [run[0] for run in call.runs[:1]]
            ]
            name = max(going_on)[1] if going_on else f"{number:06d}"
        before = agents.get(name)
        agents[name] = number
        if before is not None:
            to_join.discard(before)
            to_join.add(number)
            yield (_wait(calls, number, before),)
            continue
        to_join.add(number)
        if last_main is None:
            yield ()
        elif calls[last_main].end_s <= call.time_s:
            yield (After(last_main, call.time_s - calls[last_main].end_s),)
        else:
            yield (After(last_main, call.time_s - calls[last_main].time_s, "start"),)


def _wait(calls: list[_Call], number: int, before: int) -> After:
    """Waits for the call before of the same agent, for as long as was recorded."""
    think_s = calls[number].think_s
    if think_s is None or think_s < 0:
        think_s = max(0.0, calls[number].time_s - calls[before].end_s)
    return After(before, think_s)
