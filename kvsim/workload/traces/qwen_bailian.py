"""Qwen-Bailian's trace format: chats linked by the turn before.

A line is a JSON object with `chat_id`, `parent_chat_id` (-1 for none), `timestamp` (seconds),
`input_length`, `output_length`, `turn` and `hash_ids`, one id for every 16 tokens, the last padded.
Thinking is stripped before the next turn, so an answer need not return as it was.

Source: github.com/alibaba-edu/qwen-bailian-usagetraces-anon.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvsim.workload.traces.clock import Clock
from kvsim.workload.traces.record import (
    Row,
    id_problems,
    length_problems,
    missing_problems,
    shown,
    with_integer_ids,
)

BLOCK_TOKENS = 16
_FIELDS = ("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length", "hash_ids")


class QwenBailianRows:
    """Rows of chats; the root of each chat seen is remembered, a number or two each."""

    name = "qwen-bailian"
    time_names: tuple[str, ...] = ("timestamp",)

    def __init__(self, clock: Clock) -> None:
        """Start at the first row, with times on this clock."""
        self.seconds = clock.seconds
        self._clock = clock
        self._roots: dict[int, int] = {}

    def parse(self, fields: dict[str, Any]) -> Row | list[str]:
        """What the row says, or everything that is wrong with it."""
        fields = with_integer_ids(fields, "hash_ids")
        problems = list(missing_problems(fields, _FIELDS)) or list(self._problems(fields))
        if problems:
            return problems
        chat_id, parent_id = fields["chat_id"], fields["parent_chat_id"]
        root = chat_id if parent_id == -1 else self._roots[parent_id]
        self._roots[chat_id] = root
        return Row(
            self.seconds(fields["timestamp"]),
            fields["input_length"],
            fields["output_length"],
            fields["hash_ids"],
            str(root),
            parent=None if parent_id == -1 else str(parent_id),
            name=str(chat_id),
        )

    def _problems(self, fields: dict[str, Any]) -> Iterator[str]:
        yield from length_problems(fields, "input_length")
        yield from length_problems(fields, "output_length", least=0)
        yield from id_problems(fields, "hash_ids")
        yield from self._clock.problems(fields, "timestamp")
        for name in ("chat_id", "parent_chat_id"):
            if type(fields[name]) is not int:
                yield f"{name}: {shown(fields[name])} is not an integer."
                return
        if fields["parent_chat_id"] != -1 and fields["parent_chat_id"] not in self._roots:
            yield (
                f"parent_chat_id: {fields['parent_chat_id']} is no chat_id of a line above. "
                "Keep the turn it names, or write -1 for a chat that begins here."
            )
