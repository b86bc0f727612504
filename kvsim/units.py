"""Quantities with units as users write them: ``80 GiB``, ``25 GB/s``, ``15 ms``, or a plain number.

Read once, when a scenario or catalog comes in; behind that door everything is bytes, seconds and
bytes per second.
"""

from __future__ import annotations

import difflib
import math
import re

from kvsim.errors import show

_DECIMAL = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}

BYTES: dict[str, float] = {
    "B": 1.0,
    "KB": 1e3,
    **{f"{prefix}B": factor for prefix, factor in _DECIMAL.items()},
    **{f"{prefix}B": factor for prefix, factor in _BINARY.items()},
}
"""Bytes in one of each unit of size."""

BYTES_PER_S: dict[str, float] = {
    **{f"{unit}/s": factor for unit, factor in BYTES.items()},
    # Networks are sold in bits.
    **{f"{prefix}b/s": factor / 8 for prefix, factor in _DECIMAL.items()},
}
"""Bytes a second in one of each unit of bandwidth."""

FLOPS_PER_S: dict[str, float] = {
    f"{prefix}{name}/s": factor
    for prefix, factor in (("", 1.0), *_DECIMAL.items())
    for name in ("FLOP", "FLOPS")
}
"""Floating-point operations a second in one of each unit of them."""

SECONDS: dict[str, float] = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
"""Seconds in one of each unit of time."""

_QUANTITY = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(\S*)\s*", re.ASCII)


def parse_bytes(value: object) -> int:
    """A size in bytes.

    Args:
        value: text with a unit (``"80 GiB"``, rounded to the nearest byte), or a whole number of
            bytes.

    Raises:
        ValueError: no number, an unknown unit, not finite, or a fraction of a byte without a unit.
    """
    number, has_unit = _parse(value, "a size", BYTES, "80 GiB")
    if not has_unit and not number.is_integer():
        raise ValueError(
            f"{show(value)} is not a whole number of bytes. Write a unit, as in '{value} GiB'."
        )
    return int(value) if isinstance(value, int) else round(number)


def parse_bytes_per_s(value: object) -> float:
    """A bandwidth in bytes a second, from text with a unit (``"25 GB/s"``) or a plain number.

    Raises:
        ValueError: no number, an unknown unit, or not finite.
    """
    return _parse(value, "a bandwidth", BYTES_PER_S, "25 GB/s")[0]


def parse_flops_per_s(value: object) -> float:
    """A rate of arithmetic in FLOP a second, from text with a unit (``"362 TFLOP/s"``).

    Raises:
        ValueError: no number, no unit or an unknown one, or not finite.
    """
    number, has_unit = _parse(value, "a rate of arithmetic", FLOPS_PER_S, "362 TFLOP/s")
    if not has_unit:
        raise ValueError(f"{show(value)} has no unit. Write one, as in '362 TFLOP/s'.")
    return number


def parse_seconds(value: object) -> float:
    """A time in seconds, from text with a unit (``"15 ms"``) or a plain number of seconds.

    Raises:
        ValueError: no number, an unknown unit, or not finite.
    """
    return _parse(value, "a time", SECONDS, "15 ms")[0]


def _parse(value: object, what: str, units: dict[str, float], example: str) -> tuple[float, bool]:
    """The number in the smallest unit, and whether a unit was written."""
    written = str(value) if isinstance(value, int | float | str) else ""
    match = None if isinstance(value, bool) else _QUANTITY.fullmatch(written)
    if match is None:
        raise ValueError(f"{show(value)} is not {what}. Write a finite one, as in '{example}'.")
    unit = match[2]
    if unit and unit not in units:
        raise ValueError(f"{show(value)} has an unknown unit. {_advice(unit, units)}")
    number = float(match[1]) * units.get(unit, 1.0)
    if not math.isfinite(number):
        raise ValueError(f"{show(value)} is too large for {what}. Write one as in '{example}'.")
    return number, unit != ""


def _advice(unit: str, units: dict[str, float]) -> str:
    # Case tells units apart (GB/s, Gb/s), so what differs in case alone comes first.
    same = [known for known in units if known.lower() == unit.lower()]
    near = [*same, *difflib.get_close_matches(unit, units, n=1)]
    return f"Did you mean '{near[0]}'?" if near else f"Use one of {', '.join(units)}."
