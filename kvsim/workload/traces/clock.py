"""Times of a trace: in which unit they are, where its clock begins, and what is said about it.

A format has a usual unit, and files do not always keep to it. What the first times look like
decides, unless the scenario says (`workload.time_unit`):

- Unix times of 2001 to 2039 in any unit, and dates, begin the clock at the earliest one;
- times with fractions that would be more than 20 requests a second as milliseconds are seconds;
- times of a format without a usual unit are in the one whose mean gap is nearest to a second;
- times that would be more than an hour apart in the usual unit are in the finer one of which the
  mean gap is nearest to a second.

Whatever is not the usual unit is said; so is a rate that no unit but a wrong one explains.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kvsim.workload.traces.record import as_number, shown

PER_S: dict[str, int] = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
"""Units of times by name, each as how many make a second."""
WORDS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
_UNIX_S = (1.0e9, 2.2e9)
_MAX_S = 2**33
_FRACTIONS_PER_S = 20.0
_DOUBTED_PER_S = 50.0
_LONGEST_GAP_S = 3600.0
_DATE = re.compile(
    r"(\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?)?)(\.\d+)?\s*(Z|UTC|[+-]\d\d:?\d\d)?"
)


@dataclass(frozen=True, slots=True)
class Clock:
    """How times of a file become seconds.

    Attributes:
        unit: one of `PER_S`, or "date" for dates and times.
        begin_s: what is zero on the trace's clock, in seconds of the file's.
        said: a sentence about what was taken, for people; None for what is usual.
    """

    unit: str
    begin_s: float = 0.0
    said: str | None = None

    @property
    def per_s(self) -> int:
        """How many of the unit make a second."""
        return PER_S.get(self.unit, 1)

    @property
    def is_plain(self) -> bool:
        """Whether a number over `per_s` is a time, with nothing to take off."""
        return self.begin_s == 0.0 and self.unit != "date"

    def seconds(self, time: Any) -> float | None:
        """A time on the trace's clock, seconds; None where it is none."""
        if self.unit == "date":
            unix_s = unix_seconds(time)
            return None if unix_s is None else max(0.0, unix_s - self.begin_s)
        value = as_number(time)
        if value is None:
            # Some logs have both Unix times and dates.
            unix_s = unix_seconds(time) if self.begin_s else None
            return None if unix_s is None else max(0.0, unix_s - self.begin_s)
        time_s = value / self.per_s
        return max(0.0, time_s - self.begin_s) if self.begin_s else time_s

    def duration_s(self, value: Any) -> float | None:
        """A delay in the same unit, seconds (a number is seconds where times are dates)."""
        number = as_number(value)
        return None if number is None else number / self.per_s

    def problems(self, fields: Mapping[str, Any], name: str) -> Iterator[str]:
        """What is wrong with a time."""
        value = fields[name]
        time_s = self.seconds(value)
        if time_s is None and self.unit == "date":
            yield (
                f"{name}: {shown(value)} is not a date and time. Write it as in "
                "2023-11-16 18:17:03.97."
            )
        elif time_s is None:
            yield f"{name}: {shown(value)} is not a number of {WORDS[self.unit]}."
        else:
            yield from self._range_problems(name, value, time_s)

    def duration_problems(self, fields: Mapping[str, Any], name: str) -> Iterator[str]:
        """What is wrong with a delay."""
        value = fields[name]
        duration_s = self.duration_s(value)
        if duration_s is None:
            yield f"{name}: {shown(value)} is not a number of {WORDS.get(self.unit, 'seconds')}."
        else:
            yield from self._range_problems(name, value, duration_s)

    def _range_problems(self, name: str, value: Any, time_s: float) -> Iterator[str]:
        words = WORDS.get(self.unit, "seconds")
        if time_s < 0:
            yield f"{name}: {shown(value)} is negative. Times are {words} from 0."
        elif time_s > _MAX_S:
            yield (
                f"{name}: {shown(value)} {words} are above 2**33 seconds. Say the unit with "
                "workload.time_unit (--time-unit): s, ms, us or ns."
            )


def recognised(times: Iterable[Any], usual: str, given: str = "auto") -> Clock:
    """The clock that the first times of a file are on.

    Args:
        times: as the file has them; those that are no times are passed over.
        usual: the unit that the format documents; "date" for dates, "" for none.
        given: the unit that the scenario gives, or "auto".

    Returns:
        The clock; `begin_s` is the earliest of these times where they are Unix times or dates.
    """
    values = list(times)
    numbers = [number for number in map(as_number, values) if number is not None]
    if not numbers:
        dates = [unix_s for unix_s in map(unix_seconds, values) if unix_s is not None]
        if not dates:
            return Clock((usual or "s") if given == "auto" else given)
        return Clock("date", min(dates))
    least = min(numbers)
    for unit in PER_S if given == "auto" else (given,):
        if _UNIX_S[0] <= least / PER_S[unit] < _UNIX_S[1]:
            said = f"times are Unix {WORDS[unit]}, so the clock starts at the first"
            return Clock(unit, least / PER_S[unit], f"{said}.")
    if given != "auto":
        return Clock(given)
    return _by_gaps(numbers, usual) if usual in PER_S else _without_usual(numbers)


def _without_usual(numbers: list[float]) -> Clock:
    span = max(numbers) - min(numbers)
    gap = span / max(1, len(numbers) - 1)
    unit = min(PER_S, key=lambda unit: abs(math.log(gap / PER_S[unit]))) if gap else "s"
    why = f"{gap / PER_S[unit]:.3g} s from one to the next on average"
    return Clock(unit, 0.0, _taken(unit, why))


def _by_gaps(numbers: list[float], usual: str) -> Clock:
    span = max(numbers) - min(numbers)
    if len(numbers) < 3 or span == 0:
        return Clock(usual)
    gap_s = span / (len(numbers) - 1) / PER_S[usual]
    rate = f"{1 / gap_s:,.0f} requests would come in a second"
    if gap_s > _LONGEST_GAP_S:
        finer = [unit for unit, per_s in PER_S.items() if per_s > PER_S[usual]]
        if not finer:
            return Clock(usual)
        unit = min(finer, key=lambda unit: abs(math.log(gap_s * PER_S[usual] / PER_S[unit])))
        why = f"as {WORDS[usual]} requests would be {gap_s / 3600:,.1f} hours apart"
        return Clock(unit, 0.0, _taken(unit, why))
    if usual != "ms":
        return Clock(usual)
    num_fractions = sum(not number.is_integer() for number in numbers)
    if 2 * num_fractions > len(numbers) and 1 / gap_s > _FRACTIONS_PER_S:
        why = f"they have fractions, and as milliseconds {rate}"
        return Clock("s", 0.0, _taken("s", why))
    if num_fractions == 0 and 1 / gap_s > _DOUBTED_PER_S:
        return Clock("ms", 0.0, _taken("ms", rate))
    return Clock(usual)


def _taken(unit: str, why: str) -> str:
    return (
        f"times are taken as {WORDS[unit]} ({why}). If that is wrong, set workload.time_unit "
        "(--time-unit) to s, ms, us or ns."
    )


def unix_seconds(time: Any) -> float | None:
    """Unix seconds of a date and time, in UTC where no zone is given; None where it is none."""
    if isinstance(time, datetime):
        return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()
    if type(time) is not str:
        return None
    match = _DATE.fullmatch(time.strip())
    if match is None:
        return None
    # Azure writes seven digits of a second; Python reads six.
    whole, fraction, zone = match.groups(default="")
    try:
        moment = datetime.fromisoformat(whole + zone.replace("UTC", "Z"))
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp() + float(f"0{fraction or '.0'}")
