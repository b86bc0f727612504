"""Mooncake's trace format, and its variants whose turns say only what they add.

A line is a JSON object with `timestamp` (ms), `input_length`, `output_length` (tokens) and
`hash_ids`, `ceil(input_length / block)` of them, the last for what is left of the prompt; a block
has 512 tokens in the published traces. Ids are chained: an id stands for the whole prompt up to its
end; ids may be hexadecimal, as strings. Answers have no ids, so each answer is content of its own.
`session_id` is optional, and so is `block_size`, the tokens of an id. Other keys are ignored.
Source: github.com/kvcache-ai/Mooncake, FAST25-release/traces.

In Dynamo's mooncake-delta and in AIPerf's rows a later turn of a session has the tokens it adds,
behind the turn before and its answer, and instead of a timestamp a `delay` (ms) after that answer.
What a later turn adds can be shared by nobody else, so its ids are checked and not used. AIPerf
leaves out output lengths, and ids where nothing is shared; where there are fewer ids than the
prompt has blocks, what is left is content of its own, and more than that stand for nothing.
Sources: wheels ai-dynamo 1.6.1 (dynamo/replay) and aiperf 0.13.0 (dataset/loader/models.py,
dataset/generator/prompt.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kvsim.workload.traces.clock import Clock
from kvsim.workload.traces.record import (
    MAX_LENGTH_TOKENS,
    Row,
    id_problems,
    length_problems,
    missing_problems,
    with_integer_ids,
)

BLOCK_TOKENS = 512
"""Prompt tokens that one id of Mooncake's published traces stands for."""
BLOCK_KEYS = ("block_size", "trace_block_size")
"""Keys in which a row may say how many tokens an id stands for."""
TIME_NAMES = ("timestamp", "created_time")
MAX_PLAIN_TIME = 2**33
"""In whatever unit: larger ones are looked at more closely."""
_FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")
_OTHER_NAMES = {
    "input_tokens": "input_length",
    "output_tokens": "output_length",
    "created_time": "timestamp",
    "delay_ms": "delay",
}
_LIKELY_BLOCK_TOKENS = (512, 16, 64, 256, 128, 32, 1024, 2048, 4096, 8, 4, 2, 1)


class MooncakeRows:
    """Rows whose prompts are whole."""

    name = "mooncake"
    time_names: tuple[str, ...] = TIME_NAMES

    def __init__(self, clock: Clock) -> None:
        """Start at the first row, with times on this clock."""
        self.seconds = clock.seconds
        self._clock = clock
        self._per_s = clock.per_s if clock.is_plain else 0

    def parse(self, fields: dict[str, Any]) -> Row | list[str]:
        """What the row says, or everything that is wrong with it."""
        time: Any = fields.get("timestamp")
        num_prompt, num_output = fields.get("input_length"), fields.get("output_length")
        ids = fields.get("hash_ids")
        session_id = fields.get("session_id")
        if (
            self._per_s
            and type(time) in (int, float)
            and type(num_prompt) is int
            and type(num_output) is int
            and type(ids) is list
            and 0 <= time < MAX_PLAIN_TIME
            and 0 < num_prompt <= MAX_LENGTH_TOKENS
            and 0 <= num_output <= MAX_LENGTH_TOKENS
            and set(map(type, ids)) == {int}
            and min(ids) >= 0
        ):
            name = None if session_id is None else str(session_id)
            return Row(time / self._per_s, num_prompt, num_output, ids, name)
        fields = with_integer_ids(with_usual_names(fields), "hash_ids")
        problems = list(missing_problems(fields, _FIELDS)) or [
            *length_problems(fields, "input_length"),
            *length_problems(fields, "output_length", least=0),
            *id_problems(fields, "hash_ids"),
            *self._clock.problems(fields, "timestamp"),
        ]
        if problems:
            return problems
        return Row(
            self.seconds(fields["timestamp"]),
            fields["input_length"],
            fields["output_length"],
            fields["hash_ids"],
            None if session_id is None else str(session_id),
        )


class DeltaRows:
    """Rows whose later turns say what they add."""

    time_names: tuple[str, ...] = TIME_NAMES

    def __init__(self, name: str, clock: Clock, *, ids_needed: bool, times_needed: bool) -> None:
        """Start at the first row.

        Args:
            name: of the format.
            clock: that its times are on.
            ids_needed: whether every row has ids.
            times_needed: whether the first turn of every session has a time.
        """
        self.name = name
        self.seconds = clock.seconds
        self._clock = clock
        self._ids_needed = ids_needed
        self._times_needed = times_needed
        self._sessions: set[str] = set()

    def parse(self, fields: dict[str, Any]) -> Row | list[str]:
        """What the row says, or everything that is wrong with it."""
        fields = with_integer_ids(with_usual_names(fields), "hash_ids")
        problems = list(self._problems(fields))
        if problems:
            return problems
        session_id = fields.get("session_id")
        name = None if session_id is None else str(session_id)
        is_later = name in self._sessions
        if name is not None:
            self._sessions.add(name)
        time, delay = fields.get("timestamp"), fields.get("delay")
        time_s = None if time is None else self.seconds(time)
        delay_s = None if delay is None else self._clock.duration_s(delay)
        if is_later and time_s is None and delay_s is None:
            delay_s = 0.0
        return Row(
            time_s,
            fields["input_length"],
            fields.get("output_length"),
            None if is_later else fields.get("hash_ids"),
            name,
            delay_s=delay_s,
        )

    def _problems(self, fields: dict[str, Any]) -> Iterator[str]:
        needed = ["input_length", *["output_length", "hash_ids"] * self._ids_needed]
        session_id = fields.get("session_id")
        if self._times_needed and (session_id is None or str(session_id) not in self._sessions):
            needed.insert(0, "timestamp")
        missing = list(missing_problems(fields, tuple(needed)))
        if missing:
            yield from missing
            return
        yield from length_problems(fields, "input_length")
        if fields.get("output_length") is not None:
            yield from length_problems(fields, "output_length", least=0)
        if "hash_ids" in fields:
            yield from id_problems(fields, "hash_ids")
        if fields.get("timestamp") is not None:
            yield from self._clock.problems(fields, "timestamp")
        if fields.get("delay") is not None:
            yield from self._clock.duration_problems(fields, "delay")


def with_usual_names(fields: dict[str, Any]) -> dict[str, Any]:
    """The row with the names of Mooncake, where Dynamo allows others."""
    if not _OTHER_NAMES.keys() & fields.keys():
        return fields
    return {_OTHER_NAMES.get(name, name): value for name, value in fields.items()}


def infer_block_tokens(lengths: Sequence[tuple[int, int]]) -> int | None:
    """Tokens an id stands for, from prompts' lengths and their numbers of ids.

    With blocks of b tokens a prompt of n tokens has ceil(n / b) ids. Sizes in use are tried in
    order of how usual they are, and the one that fits most prompts is taken; another size only
    where it fits all prompts and none of those does.

    Args:
        lengths: `(prompt tokens, number of ids)`.

    Returns:
        The size, or None where no size fits any prompt.
    """
    counted = [(tokens, ids) for tokens, ids in lengths if ids > 0]
    if not counted:
        return None

    def num_fitting(block_tokens: int) -> int:
        return sum(-(-tokens // block_tokens) == ids for tokens, ids in counted)

    best = max(_LIKELY_BLOCK_TOKENS, key=num_fitting)
    if num_fitting(best) < len(counted):
        smallest = max(-(-tokens // ids) for tokens, ids in counted)
        if num_fitting(smallest) == len(counted):
            return smallest
    return best if num_fitting(best) else None
