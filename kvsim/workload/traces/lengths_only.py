"""Traces of arrivals and lengths: Azure's and BurstGPT's CSV files.

Azure: `TIMESTAMP,ContextTokens,GeneratedTokens`, times as dates, in 2024 with a zone; the clock
of the trace starts at the first one. BurstGPT: `Timestamp,Model,Request tokens,Response
tokens,Total tokens,Log Type`, times in seconds.

Sources: github.com/Azure/AzurePublicDataset (CC-BY-4.0), github.com/HPMLL/BurstGPT.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvsim.workload.traces.clock import Clock
from kvsim.workload.traces.record import MAX_LENGTH_TOKENS, Row, as_number, shown

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURSTGPT_COLUMNS = ("Timestamp", "Request tokens", "Response tokens")


class LengthRows:
    """Rows with a time and two lengths, in columns of these names."""

    def __init__(self, name: str, columns: tuple[str, str, str], clock: Clock) -> None:
        """Start at the first row.

        Args:
            name: of the format.
            columns: of the time, the length of the prompt, and that of the answer.
            clock: that times are on.
        """
        self.name = name
        self.time_names: tuple[str, ...] = columns[:1]
        self.seconds = clock.seconds
        self._columns = columns
        self._clock = clock

    def parse(self, fields: dict[str, Any]) -> Row | list[str]:
        """What the row says, or everything that is wrong with it."""
        time, prompt, answer = self._columns
        problems = [*count_problems(fields, prompt), *count_problems(fields, answer, least=0)]
        problems += self._clock.problems(fields, time)
        if problems:
            return problems
        return Row(self.seconds(fields[time]), as_count(fields[prompt]), as_count(fields[answer]))


def as_count(value: Any) -> int:
    """A number of tokens, also one in quotes; -1 where it is none."""
    number = as_number(value)
    return -1 if number is None or number != int(number) else int(number)


def count_problems(fields: dict[str, Any], name: str, *, least: int = 1) -> Iterator[str]:
    """What is wrong with a number of tokens, which may stand in quotes."""
    if not least <= as_count(fields[name]) <= MAX_LENGTH_TOKENS:
        yield (
            f"{name}: {shown(fields[name])} is not a number of tokens from {least} to "
            f"{MAX_LENGTH_TOKENS}. Remove the line."
        )
