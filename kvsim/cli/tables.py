"""Tables that stay readable however narrow the terminal is: columns are left out, never cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

Wide = Annotated[bool, typer.Option("--wide", help="All columns, however wide the terminal is.")]
_NAME_CHARACTERS = 24
_FIGURE_CHARACTERS = 40


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table for people.

    Attributes:
        header: lines of its heading.
        cells: a text a row.
        leaves: when it makes room, 1 before 2; None for a column that always stays.
        is_name: whether it holds names, which stand left and may be folded, and not figures.
    """

    header: str
    cells: Sequence[str]
    leaves: int | None = None
    is_name: bool = False

    @property
    def width(self) -> int:
        """Characters that it needs; a long name is folded."""
        lines = [line for text in (self.header, *self.cells) for line in text.split("\n")]
        most = _NAME_CHARACTERS if self.is_name else _FIGURE_CHARACTERS
        return min(most, max(len(line) for line in lines))


def fitted(columns: Sequence[Column], width: int | None) -> Table:
    """A table of the columns that fit.

    Args:
        columns: in their order.
        width: characters there are; None shows all columns.
    """
    from rich import box
    from rich.table import Table

    shown = list(columns)
    leaving = sorted(
        (column for column in columns if column.leaves is not None),
        key=lambda column: column.leaves or 0,
    )
    for column in leaving if width is not None else ():
        if sum(one.width + 1 for one in shown) > (width or 0):
            shown.remove(column)
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    for column in shown:
        table.add_column(
            column.header,
            justify="left" if column.is_name else "right",
            overflow="fold",
            min_width=column.width,
            max_width=column.width,
        )
    for row in zip(*(column.cells for column in shown), strict=True):
        table.add_row(*row)
    if left_out := len(columns) - len(shown):
        table.caption = f"{left_out} more columns with --wide, or in a wider terminal"
        table.caption_justify = "left"
    return table


def figure_heading(figure: str) -> str:
    """A figure's dotted name on lines of their own."""
    return "\n".join(half for part in figure.split(".") for half in _halves(part))


def heading(key: str, others: Sequence[str]) -> str:
    """The last part of a dotted key on lines of its own, with the section where it is needed."""
    section, dot, last = key.rpartition(".")
    alone = sum(other.rpartition(".")[2] == last for other in others) == 1
    return "\n".join(([] if alone or not dot else [f"{section}."]) + _halves(last))


def _halves(name: str) -> list[str]:
    """A long name in two lines, cut at the underscore nearest to its middle."""
    cuts = [at for at, letter in enumerate(name) if letter == "_"]
    if len(name) <= 10 or not cuts:
        return [name]
    cut = min(cuts, key=lambda at: abs(at - len(name) / 2)) + 1
    return [name[:cut], name[cut:]]
