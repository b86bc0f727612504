"""An opened trace, whatever its format: options, notices, and lines that cannot be used."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from kvsim.errors import Problems
from kvsim.workload.request import Request, Session

if TYPE_CHECKING:
    from kvsim.workload.traces.reuse import SharedPrefixes

MAX_PROBLEMS = 10
"""Problems that are named before a file is given up."""
MOST_SKIPPED = 0.05
"""Share of a file's lines that may be left out."""


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """Which part of a trace is replayed, how fast, and how it is read.

    Attributes:
        limit: number of requests to replay, None for all.
        time_scale: factor on all times; 2 halves the request rate.
        start_s: seconds on the trace's own clock, before scaling: requests before it are left out,
            and it is where the run's clock starts, so `arrival = (time - start_s) * time_scale`.
        block_tokens: tokens an id stands for; None for what the file or its format says.
        shared_tails: take partial last ids for shared (see `SharedTails`).
        strict: refuse what would be put right with a notice: times out of order, empty answers.
        skip_bad: leave out lines that cannot be used, up to `MOST_SKIPPED` of them, and count them.
        time_unit: of the file's times, "s", "ms", "us" or "ns"; "auto" for what they look like.
        columns: for tables, the column of each of `table.COLUMNS`; None for their usual names.
        tokenizer: what cuts the text of request logs into tokens.
        reuse: draws what prompts share in traces of lengths only; None for nothing.
    """

    limit: int | None = None
    time_scale: float = 1.0
    start_s: float = 0.0
    block_tokens: int | None = None
    shared_tails: bool = False
    strict: bool = False
    skip_bad: bool = False
    time_unit: str = "auto"
    columns: Mapping[str, str] | None = None
    tokenizer: str = "characters"
    reuse: SharedPrefixes | None = None


@dataclass(slots=True)
class Notices:
    """What was put right while reading: how often each, and where first."""

    counts: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)

    def add(self, what: str, where: str) -> None:
        """Count one case of `what`."""
        self.counts[what] += 1
        self.first.setdefault(what, where)

    def sentences(self, shown: str) -> list[str]:
        """One sentence for each kind, for people."""
        return [
            f"{shown}: {what} ({count} times, first on {self.first[what]})."
            for what, count in self.counts.items()
        ]


class BadLines:
    """Lines that cannot be used: refused with all that is wrong, or left out and counted.

    Attributes:
        problems: what is refused.
    """

    def __init__(self, shown: str, word: str, *, skip: bool) -> None:
        """Start without any.

        Args:
            shown: how messages name the file.
            word: what is counted: "line", "row" or "request".
            skip: leave them out.
        """
        self.problems: list[str] = []
        self._shown = shown
        self._word = word
        self._skip = skip
        self._reasons: Counter[str] = Counter()
        self._first: dict[str, str] = {}
        self._num_skipped = 0

    @property
    def is_full(self) -> bool:
        """Whether so many problems are known that the file is given up."""
        return len(self.problems) >= MAX_PROBLEMS

    def add(self, place: str, problems: Sequence[str]) -> None:
        """A line with problems, one or more."""
        if not self._skip:
            self.problems += [f"{place}: {problem}" for problem in problems]
            return
        reason = _reason(problems[0])
        self._num_skipped += 1
        self._reasons[reason] += 1
        self._first.setdefault(reason, place)

    def check_share(self, num_good: int) -> None:
        """Refuse a file of which too many lines were left out.

        Raises:
            Problems: more than `MOST_SKIPPED` of all lines.
        """
        if self._num_skipped > MOST_SKIPPED * (self._num_skipped + num_good):
            rule = f"more than the {MOST_SKIPPED:.0%} that on_bad: skip leaves out"
            text = f"{self._counted(num_good)} cannot be used, {rule}: {self._by_reason()}."
            raise Problems(self._shown, [f"{text} Correct the file."])

    def sentences(self, name: str, num_good: int) -> list[str]:
        """What was left out, in one sentence for people; none where nothing was."""
        if not self._num_skipped:
            return []
        return [f"{name}: {self._counted(num_good)} left out: {self._by_reason()}."]

    def _counted(self, num_good: int) -> str:
        num_all = self._num_skipped + num_good
        share = self._num_skipped / max(1, num_all)
        return f"{self._num_skipped:,} of {num_all:,} {self._word}s ({100 * share:.2g} %)"

    def _by_reason(self) -> str:
        return "; ".join(
            f"{reason} ({count:,}, first on {self._first[reason]})"
            for reason, count in self._reasons.most_common()
        )


_VALUES = re.compile(r'"[^"]*"|\[[^\]]*\]|\{[^}]*\}|(?<![\w.])-?\d[\w.,+]*')


def _reason(problem: str) -> str:
    """A problem without the values that make it one of a kind."""
    return _VALUES.sub("...", problem.split(". ")[0].rstrip("."))


class Trace(Protocol):
    """An opened trace.

    Attributes:
        shown: how messages name the file.
        format: name of its format.
        block_tokens: tokens that one id stands for; None where content is exact.
        block_tokens_from: who says so: "format", "file", "given" or "inferred".
        has_sessions: whether requests belong to sessions.
        starts_recorded: whether it is recorded when sessions start.
        timed: whether all requests have a recorded time.
        time_unit: in which the file has its times, as `Clock.unit`; None where it has none.
    """

    shown: str
    format: str
    block_tokens: int | None
    block_tokens_from: str
    has_sessions: bool
    starts_recorded: bool
    timed: bool
    time_unit: str | None

    @property
    def warnings(self) -> list[str]:
        """What was put right so far, and what the trace cannot show."""

    def share_read(self) -> float:
        """Share of the file read so far, 0 to 1."""

    def requests(self) -> Iterator[Request]:
        """Requests by recorded time; only where all have one."""

    def sessions(self) -> Iterator[Session]:
        """Sessions: by their recorded start, or as the file has them."""
