"""What a policy is: functions of facts, with parameters, a line that describes it and a source.

A *free-queue order* in its simple form is a function from a block's facts to a number. The full
form is a class of functions with rows of their own: what was given back, what was found again,
who leaves next. *Retention* is a function from a boundary to whether its run is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvsim.errors import KvsimError, show, unknown_name
from kvsim.units import parse_seconds

FREE_QUEUE, RETENTION, HOST_EVICTION = "free_queue", "retention", "host_eviction"
KINDS = {
    FREE_QUEUE: "free-queue order",
    RETENTION: "retention",
    HOST_EVICTION: "host eviction",
}
"""Kinds of policies, and what people call them."""
KEYS = {FREE_QUEUE: "free_queue", RETENTION: "retention", HOST_EVICTION: "eviction"}
"""Kinds of policies, and the keys of a scenario that name one."""

Value = int | float


class PolicyError(KvsimError):
    """A policy did what none may do; it is stopped."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a policy.

    Attributes:
        default: where it is not written; its type is the parameter's.
        description: its meaning, on one line.
        low: the least value.
        high: the largest.
        unit: ``s`` for times, which may be written with a unit; else empty.
    """

    default: Value
    description: str
    low: Value = 0
    high: Value = 2**40
    unit: str = ""

    def read(self, written: object) -> Value:
        """The value that is meant.

        Raises:
            ValueError: not a number of this kind, or out of range.
        """
        number: Value
        if self.unit == "s":
            number = parse_seconds(written)
        elif isinstance(self.default, int):
            if not isinstance(written, int) or isinstance(written, bool):
                raise ValueError(f"{show(written)} is not a whole number. Write one.")
            number = written
        else:
            if not isinstance(written, int | float) or isinstance(written, bool):
                raise ValueError(f"{show(written)} is not a number. Write one.")
            number = float(written)
        if not self.low <= number <= self.high:
            raise ValueError(
                f"{show(written)} is not in {self.low:g} .. {self.high:g}. Use one of these."
            )
        return number


def seconds(default: float, description: str, *, low: float = 0.0) -> Parameter:
    """A time, at most ten years."""
    return Parameter(float(default), description, low, 86400.0 * 3653, "s")


def count(default: int, description: str, *, low: int = 0, high: int = 2**40) -> Parameter:
    """A whole number."""
    return Parameter(int(default), description, low, high)


def number(default: float, description: str, *, low: float = 0.0, high: float = 1e12) -> Parameter:
    """A number."""
    return Parameter(float(default), description, low, high)


def share(default: float, description: str) -> Parameter:
    """A fraction, 0 to 1."""
    return Parameter(float(default), description, 0.0, 1.0)


@dataclass(frozen=True)
class Policy:
    """A policy, before its parameters are chosen.

    Attributes:
        kind: of ``KINDS``.
        function: the simple form's function, or the class of a full form or a host eviction.
        description: one line.
        source: where the idea is from.
        parameters: by name, handed to its functions in this order.
        ask_again: for a simple form, a function with the same arguments: the time at which a
            block that still waits is to be asked about again; inf for never.
        rows: for a full form, names of a block's whole numbers, all 0 at first.
        asks_uncached: uncached blocks are asked about too; else they go to the front unasked.
        remembers: what was evicted is remembered, for a block's ``ghost_tag`` and ``ghost_age``.
    """

    kind: str
    function: Callable[..., Any]
    description: str
    source: str
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    ask_again: Callable[..., float] | None = None
    rows: tuple[str, ...] = ()
    asks_uncached: bool = False
    remembers: bool = False

    @property
    def is_full(self) -> bool:
        """Whether it has a state of its own."""
        return isinstance(self.function, type)

    def read(self, written: Mapping[str, object]) -> dict[str, Value]:
        """Values of all parameters, those that are written and the defaults of the others.

        Raises:
            ValueError: an unknown parameter, or one with a wrong value.
        """
        for key in written:
            if key not in self.parameters:
                if not self.parameters:
                    raise ValueError(f"unknown parameter {show(key)}. It has none.")
                raise ValueError(unknown_name("parameter", key, self.parameters))
        values = {}
        for name, parameter in self.parameters.items():
            try:
                values[name] = parameter.read(written.get(name, parameter.default))
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        return values


def free_queue(
    description: str,
    *,
    source: str,
    ask_again: Callable[..., float] | None = None,
    rows: tuple[str, ...] = (),
    asks_uncached: bool = False,
    remembers: bool = False,
    **parameters: Parameter,
) -> Callable[[Callable[..., Any]], Policy]:
    """Make a free-queue order of a function, or of a class with a state of its own.

    The function takes a block's facts (`kvsim.policies.facts.BLOCK_FACTS`) and the parameters, and
    returns a number: the block with the lowest leaves first, of equals the one given back first.
    ``FRONT`` and ``BACK`` are the ends of the queue. Uncached blocks leave first, unasked.

    The class has three functions without ``self``: ``given_back(block, rows)`` for a cached block
    that nobody holds any more, ``found_again(block, rows)`` for one that a lookup found (of whose
    facts only ``block``, ``num_hits`` and ``now_s`` are told), and
    ``next_out(rows)``, which returns the id of the block that leaves; it has to be one that was
    given back and not held since. ``rows[i]`` has the fields named in ``rows`` for block i, whole
    numbers, 0 at first, and ``tag``, which is what a later `ghost_tag` says of a content; row 0 is
    of no block and free to use, as are those behind the last block, see `kvsim.policies.lists`.
    The parameters come last.

    Args:
        description: one line.
        source: where the idea is from.
        ask_again: see `Policy`.
        rows: see `Policy`.
        asks_uncached: see `Policy`; for a simple form.
        remembers: see `Policy`.
        parameters: of the policy, by name.
    """

    def made(function: Callable[..., Any]) -> Policy:
        return Policy(
            FREE_QUEUE,
            function,
            description,
            source,
            parameters,
            ask_again,
            rows,
            asks_uncached,
            remembers,
        )

    return made


def retention(
    description: str, *, source: str, **parameters: Parameter
) -> Callable[[Callable[..., Any]], Policy]:
    """Make a retention of a function from a boundary's facts to whether its run is kept.

    It is asked about each aligned boundary of each window or state group when the blocks before
    it are computed. See `kvsim.policies.facts.RUN_FACTS`.
    """

    def made(function: Callable[..., Any]) -> Policy:
        return Policy(RETENTION, function, description, source, parameters)

    return made


def host_eviction(
    description: str, *, source: str, **parameters: Parameter
) -> Callable[[type], Policy]:
    """Make a host tier's eviction of a class, see `kvsim.policies.host_eviction.HostEviction`."""

    def made(cls: type) -> Policy:
        return Policy(HOST_EVICTION, cls, description, source, parameters)

    return made
