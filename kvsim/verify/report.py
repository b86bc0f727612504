"""What came of following one transcript."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

_MOST_CHARACTERS = 160
"""A value in a sentence is cut after so many characters; `--json` has all of it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One value of a transcript, and the core's in its place.

    Attributes:
        line: number of its line in the file, from 1.
        op: what the line records.
        what: the name of the value in the line.
        expected: what the transcript says.
        got: what the core says; plain numbers, lists and dicts.
    """

    line: int
    op: str
    what: str
    expected: Any
    got: Any

    @property
    def same(self) -> bool:
        """Whether the two agree; of a mapping also the order counts."""
        if isinstance(self.expected, dict) and isinstance(self.got, dict):
            return list(self.expected.items()) == list(self.got.items())
        return bool(self.expected == self.got)


@dataclass(frozen=True, slots=True)
class Skipped:
    """Answers of one line that were read and not compared.

    Attributes:
        num_answers: how many.
    """

    num_answers: int


Following = Iterator[Answer | Skipped]
"""A transcript being followed. It advances only as far as it is read."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first answer that is not the engine's.

    Attributes:
        line: number of its line in the file, from 1.
        op: what the line records.
        what: the name of the value in the line.
        expected: what the transcript says.
        got: what the core says.
    """

    line: int
    op: str
    what: str
    expected: Any
    got: Any


@dataclass(frozen=True, slots=True)
class FileReport:
    """One transcript's outcome.

    Attributes:
        file: the path as given.
        identical: True where every answer compared is the same, False where one differs, None
            where nothing could be checked.
        checked: answers compared, the one that differs included; following stops there.
        skipped: answers read but not compared.
        first_difference: None where nothing differs.
    """

    file: str
    identical: bool | None
    checked: int
    skipped: int
    first_difference: Difference | None

    def as_json(self) -> dict[str, Any]:
        """The report as JSON knows it, keys in a fixed order."""
        return asdict(self)

    @property
    def sentence(self) -> str:
        """One line for a terminal."""
        skipped = f", {self.skipped:,} skipped" if self.skipped else ""
        if self.identical is None:
            return f"{self.file}: nothing to check ({self.skipped:,} answers skipped)"
        if self.first_difference is None:
            return f"{self.file}: same ({self.checked:,} answers checked{skipped})"
        first = self.first_difference
        return (
            f"{self.file}: differs at line {first.line}, {first.op} {first.what}: "
            f"expected {_short(first.expected)}, got {_short(first.got)} "
            f"({self.checked:,} answers checked{skipped})"
        )


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 3]}..."
