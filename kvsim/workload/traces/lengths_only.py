"""Traces of arrivals and lengths: Azure's and BurstGPT's CSV files.

Azure: `TIMESTAMP,ContextTokens,GeneratedTokens`, times as dates, in 2024 with a zone; the clock
of the trace starts at the first one. BurstGPT: `Timestamp,Model,Request tokens,Response
tokens,Total tokens,Log Type`, times in seconds.

Sources: github.com/Azure/AzurePublicDataset (CC-BY-4.0), github.com/HPMLL/BurstGPT.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from kvsim.workload.traces.record import MAX_LENGTH_TOKENS, Row, as_number, shown

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURSTGPT_COLUMNS = ("Timestamp", "Request tokens", "Response tokens")


class AzureRows:
    """Rows with a date, and two lengths."""

    name = "azure"
    time_names: tuple[str, ...] = ("TIMESTAMP",)

    def __init__(self, begin_s: float) -> None:
        """Start at the first row.

        Args:
            begin_s: Unix seconds of the earliest row, the zero of the trace's clock.
        """
        self._begin_s = begin_s

    def seconds(self, time: Any) -> float | None:
        """A date in seconds on the trace's clock."""
        unix_s = unix_seconds(time)
        return None if unix_s is None else unix_s - self._begin_s

    def parse(self, fields: dict[str, Any]) -> Row | list[str]:
        """What the row says, or everything that is wrong with it."""
        time_s = self.seconds(fields["TIMESTAMP"])
        problems = [*_length_problems(fields, *AZURE_COLUMNS[1:])]
        if time_s is None:
            text = f"TIMESTAMP: {shown(fields['TIMESTAMP'])} is not a date and time."
            problems.append(f"{text} Write it as in 2023-11-16 18:17:03.97.")
        if problems:
            return problems
        return Row(time_s, _count(fields["ContextTokens"]), _count(fields["GeneratedTokens"]))


class BurstGPTRows:
    """Rows with seconds, and two lengths."""

    name = "burstgpt"
    time_names: tuple[str, ...] = ("Timestamp",)

    def seconds(self, time: Any) -> float | None:
        """A time in seconds."""
        return as_number(time)

    def parse(self, fields: dict[str, Any]) -> Row | list[str]:
        """What the row says, or everything that is wrong with it."""
        time_s = self.seconds(fields["Timestamp"])
        problems = [*_length_problems(fields, *BURSTGPT_COLUMNS[1:])]
        if time_s is None or time_s < 0:
            text = f"Timestamp: {shown(fields['Timestamp'])} is not a number of seconds from 0."
            problems.append(text)
        if problems:
            return problems
        return Row(time_s, _count(fields["Request tokens"]), _count(fields["Response tokens"]))


def unix_seconds(time: Any) -> float | None:
    """Unix seconds of a date and time, in UTC where no zone is given; None where it is none."""
    if type(time) is not str:
        return None
    text, _, zone = time.strip().partition("+")
    whole, dot, fraction = text.partition(".")
    try:
        # Azure writes seven digits; Python reads six.
        moment = datetime.fromisoformat(f"{whole}{'+' + zone if zone else ''}")
        part = float(f"0.{fraction}") if dot else 0.0
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp() + part


def _count(value: Any) -> int:
    number = as_number(value)
    return -1 if number is None or number != int(number) else int(number)


def _length_problems(fields: dict[str, Any], prompt: str, answer: str) -> Iterator[str]:
    for name, least in ((prompt, 1), (answer, 0)):
        if not least <= _count(fields[name]) <= MAX_LENGTH_TOKENS:
            yield (
                f"{name}: {shown(fields[name])} is not a number of tokens from {least} to "
                f"{MAX_LENGTH_TOKENS}. Remove the line."
            )
