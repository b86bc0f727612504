"""Errors that users see: where, what (the value), the rule, the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence


class KvsimError(Exception):
    """Something the user can put right. The command line prints it alone and exits with 2."""


class Problems(KvsimError):  # noqa: N818 - the plural is the point
    """All problems of one file at once.

    Attributes:
        where: the file, or what stands for it.
        problems: one line each, ``dotted.key: value, rule, remedy``.
    """

    def __init__(self, where: str, problems: Sequence[str]) -> None:
        """Collect problems under the place they were found in."""
        self.where = where
        self.problems = list(problems)
        # What it was made from, so that it can be made again: in another process, or by SimPy.
        super().__init__(where, self.problems)

    def __str__(self) -> str:
        """The place, the number of problems, and each on a line of its own."""
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        return "\n  ".join([f"{self.where}: {count}", *self.problems])


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like the one written, or None where none is near."""
    choices = {choice.lower(): choice for choice in known}
    found = difflib.get_close_matches(name.lower(), choices, n=1)
    if found and not found[0].startswith(name[:1].lower()):
        # Another beginning is another thing (mi300x is no b300) unless nearly all the rest agrees.
        found = difflib.get_close_matches(name.lower(), choices, n=1, cutoff=0.75)
    return choices[found[0]] if found else None


class UnknownNameError(ValueError):
    """A name that is none of the known ones.

    Attributes:
        near: the known name most like it, or None.
    """

    def __init__(self, what: str, name: str, known: Iterable[str]) -> None:
        """Say what was named, and the nearest known name or all of them."""
        known = list(known)
        self.near = nearest(name, known)
        super().__init__(unknown_name(what, name, known))


def unknown_name(what: str, name: str, known: Iterable[str]) -> str:
    """``unknown <what> '<name>'`` with the nearest known name, or all of them."""
    known = list(known)
    near = nearest(name, known)
    advice = f"Did you mean '{near}'?" if near else f"Known: {', '.join(known)}."
    return f"unknown {what} {show(name)}. {advice}"


def show(value: object) -> str:
    """A value as YAML users know it, on one line, in at most 60 characters."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, list | tuple):
        return "a list" if value else "an empty list"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
