"""Runs side by side as a table for people: the only place where fractions become percent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

NO_FIGURE = "-"
"""Shown where a figure does not exist."""
_UNITS = (
    *((2.0**power, unit) for power, unit in ((50, "PiB"), (40, "TiB"), (30, "GiB"), (20, "MiB"))),
    *((10.0**power, unit) for power, unit in ((15, "PB"), (12, "TB"), (9, "GB"), (6, "MB"))),
    (1024.0, "KiB"),
    (1000.0, "KB"),
)
_MOST_IN_FULL = 1000  # counts from here on are shown with three digits
_MOST_DIGITS = 3  # of a difference in points or ms that has no noise to go by
_THOUSANDS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def summary_table(summaries: Mapping[str, Mapping[str, Any]], width: int | None = None) -> Table:
    """A row a variant, from summaries by name.

    Refused requests get a column where there are any, goodput where there is an objective, hits in
    a tier, as a share of the prompt tokens, where there is a tier, the share of the ceiling where
    that was asked for, and times where real ones are kept.

    Args:
        summaries: by variant.
        width: characters there are; columns that matter least are left out until the rest fits,
            which the caption says. None leaves none out.
    """
    from rich import box
    from rich.table import Table

    rows = {name: _row(summary) for name, summary in summaries.items()}
    shown = {
        _REFUSED: any(summary["num_refused"] for summary in summaries.values()),
        _TIER_HITS: any(summary.get("tiers") for summary in summaries.values()),
        _CEILING: any(_ceiling_share(summary) is not None for summary in summaries.values()),
        _GOODPUT: any(summary.get("goodput") is not None for summary in summaries.values()),
        _TIMES: any(summary["wall_s"] is not None for summary in summaries.values()),
    }
    headers = [
        header for header in (next(iter(rows.values())) if rows else {}) if shown.get(header, True)
    ]
    widths = {
        header: max(
            len(line)
            for cell in (header, *(row[header] for row in rows.values()))
            for line in cell.split("\n")
        )
        for header in headers
    }
    names = min(_NAME_CHARACTERS, max((len(name) for name in rows), default=0))
    left_out = 0
    for header in _LEAST_FIRST if width is not None else ():
        if header in headers and names + sum(widths[kept] + 1 for kept in headers) > (width or 0):
            headers.remove(header)
            left_out += 1
    # Folded, never cut: in a narrow terminal a figure in two lines is better than half of one.
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    table.add_column("variant", overflow="fold")
    for header in headers:
        table.add_column(header, justify="right", overflow="fold", min_width=widths[header])
    for name, row in rows.items():
        table.add_row(name, *(row[header] for header in headers))
    if left_out:
        table.caption = f"{left_out} more columns with --wide, or in a wider terminal"
        table.caption_justify = "left"
    return table


_REFUSED = "re-\nfused"
_TIER_HITS = "tier\nhits"
_CEILING = "of\nceiling"
_GOODPUT = "good-\nput"
_TIMES = "sim/real\ns"
_NAME_CHARACTERS = 24
_LEAST_FIRST = (
    _TIMES,
    "request\nhits",
    "hit /\nqueried",
    "req\n/s",
    "bytes\nout/in",
    "pre-\nempted",
    "evicted\nblocks",
    "output\ntok/s",
)
"""Columns in the order in which they make room."""


def _row(summary: Mapping[str, Any]) -> dict[str, str]:
    hit, queried = short(summary["hit_tokens"]), short(summary["queried_tokens"])
    mark = "*" if summary.get("overload") else ""
    ttft = [_plain_seconds(summary["ttft_s"][key]) for key in ("p50", "p90", "p99")]
    stored, loaded = short(summary["bytes_stored"]), short(summary["bytes_loaded"])
    took = [_plain_seconds(summary[key]) for key in ("simulated_s", "wall_s")]
    return {
        "token\nhits": percent(summary["token_hit_rate"]),
        _CEILING: percent(_ceiling_share(summary)),
        _TIER_HITS: percent(_tier_share(summary)),
        "hit /\nqueried": f"{hit}/{queried}",
        "request\nhits": percent(summary["request_hit_rate"]),
        _REFUSED: short(summary["num_refused"]),
        "TTFT s\np50/p90/p99": "/".join(ttft) + mark,
        "TPOT\np50": seconds(summary["tpot_s"]["p50"]),
        _GOODPUT: percent(summary.get("goodput")),
        "req\n/s": short(summary["requests_per_s"]),
        "output\ntok/s": short(summary["output_tokens_per_s"]),
        "pre-\nempted": short(summary["preemptions"]),
        "evicted\nblocks": short(summary["evicted_blocks"]),
        "bytes\nout/in": f"{stored}/{loaded}",
        _TIMES: "/".join(took),
    }


def _ceiling_share(summary: Mapping[str, Any]) -> float | None:
    """Share of the lower ceiling that was reached; None where none was asked for."""
    ceiling = summary.get("ceiling") or {}
    optimum, infinite = ceiling.get("share_of_optimum"), ceiling.get("share_of_infinite")
    return infinite if optimum is None else optimum


def _tier_share(summary: Mapping[str, Any]) -> float | None:
    """Share of the prompt tokens that came from a tier; None where no request ran."""
    split = summary.get("hit_split") or {}
    cpu, remote = split.get("cpu"), split.get("remote")
    return None if cpu is None or remote is None else cpu + remote


def percent(fraction: float | None) -> str:
    """A fraction as percent with one digit."""
    return NO_FIGURE if fraction is None else f"{100 * fraction:.1f}%"


def seconds(value_s: float | None) -> str:
    """A time with three digits, in ms below a second."""
    if value_s is None:
        return NO_FIGURE
    return f"{_three_digits(1000 * value_s)} ms" if value_s < 1 else f"{_three_digits(value_s)} s"


def short(value: float | None) -> str:
    """A count or rate with three digits, in thousands, millions and so on (powers of 1000)."""
    if value is None:
        return NO_FIGURE
    for size, letter in _THOUSANDS:
        if abs(value) >= 0.9995 * size:
            return f"{_three_digits(value / size)}{letter}"
    return str(value) if isinstance(value, int) else _three_digits(value)


def size(num_bytes: float | None) -> str:
    """A number of bytes that was counted, with three digits in decimal units, as in `1.52 TB`."""
    if num_bytes is None:
        return NO_FIGURE
    for factor, letter in _THOUSANDS:
        if abs(num_bytes) >= 0.9995 * factor:
            return f"{_three_digits(num_bytes / factor)} {'K' if letter == 'k' else letter}B"
    return f"{num_bytes:.0f} B"


def exact_size(num_bytes: float) -> str:
    """A size that was asked for, in the unit it is a short number of: `8 GiB`, `1.5 TB`."""
    for factor, unit in _UNITS:
        count = num_bytes / factor
        if count >= 1 and f"{count:.6g}" == f"{count:.4g}":
            return f"{count:.4g} {unit}"
    return size(num_bytes)


def notes_by_name(notes: Mapping[str, Iterable[str]]) -> list[str]:
    """Notes of several runs, each once, with the runs it is about where it is not about all."""
    about: dict[str, list[str]] = {}
    for name, texts in notes.items():
        for text in dict.fromkeys(texts):
            about.setdefault(text, []).append(name)
    return [
        text if len(names) == len(notes) else f"{', '.join(names)}: {text}"
        for text, names in about.items()
    ]


def difference_text(row: Mapping[Any, Any]) -> str:
    """A difference with its 95% interval, in no finer digits than its noise.

    Rates are in points, times in ms: "-1.6 points (-2.0 to -1.2)", "within noise (-0.3 to +0.8
    points)", "same".

    Args:
        row: of `kvsim.study.comparison.Comparison.table`.
    """
    if not exists(row["difference"]):
        return NO_FIGURE
    factor, unit = difference_unit(str(row["figure"]))
    difference = factor * row["difference"]
    figure = str(row["figure"])
    if not unit and ("bytes" in figure or abs(difference) >= _MOST_IN_FULL):
        return _amounts(figure, row)
    if not exists(row["low"]):
        if difference == 0 or (unit and round(difference, _MOST_DIGITS) == 0):
            return "same"
        digits = 1 + _digits(abs(difference))
        return f"{_signed(difference, min(digits, _MOST_DIGITS) if unit else digits)}{unit}"
    ends = [factor * row["low"], factor * row["high"]]
    digits = _digits(max(abs(end - difference) for end in ends))
    while row["beyond_noise"] and digits < 6 and any(round(end, digits) == 0 for end in ends):
        digits += 1
    low, high = (_signed(end, digits) for end in ends)
    if not row["beyond_noise"]:
        same = difference == 0 and ends == [0.0, 0.0]
        return "same" if same else f"within noise ({low} to {high}{unit})"
    return f"{_signed(difference, digits)}{unit} ({low} to {high})"


def _amounts(figure: str, row: Mapping[Any, Any]) -> str:
    """A difference of bytes, or of a large count, with its interval."""

    def signed(value: float) -> str:
        return ("+" if value > 0 else "-" if value < 0 else "") + figure_text(figure, abs(value))

    difference = signed(row["difference"])
    if row["difference"] == 0 and (not exists(row["low"]) or row["low"] == row["high"] == 0):
        return "same"
    if not exists(row["low"]) or row["low"] == row["high"]:
        return difference
    ends = f"{signed(row['low'])} to {signed(row['high'])}"
    return f"{difference} ({ends})" if row["beyond_noise"] else f"within noise ({ends})"


def difference_unit(figure: str) -> tuple[float, str]:
    """What differences of a figure are multiplied by to be shown, and their unit."""
    is_share = figure.endswith(("_rate", "_share", "_utilization")) or figure == "goodput"
    if is_share or figure.startswith(("hit_split.", "ceiling.")):
        return 100.0, " points"
    if "_s." in figure or figure.endswith("_s") and not figure.endswith("per_s"):
        return 1000.0, " ms"
    return 1.0, ""


def figure_text(figure: str, value: float | None) -> str:
    """A figure by its dotted name: a share in percent, a time, a size, or a count."""
    if value is None:
        return NO_FIGURE
    _, unit = difference_unit(figure)
    if unit == " points":
        return percent(value)
    if unit == " ms":
        return seconds(value)
    if "bytes" in figure:
        return f"{size(value)}/s" if figure.endswith("per_s") else size(value)
    is_count = not figure.endswith("per_s") and float(value).is_integer()
    return short(int(value) if is_count else value)


def exists(value: Any) -> bool:
    """Whether a figure is there: neither None nor NaN, which is what a frame holds for None."""
    return value is not None and bool(value == value)


def _digits(width: float) -> int:
    """Decimal places that show a width with one digit, or two where the first is 1."""
    if width <= 0:
        return 1
    place = math.floor(math.log10(width))
    return int(min(6, max(0, -place + (width / 10.0**place < 2))))


def _signed(value: float, digits: int) -> str:
    text = f"{value:+,.{digits}f}"
    return text if float(text.replace(",", "")) else text.lstrip("+-")


def _plain_seconds(value_s: float | None) -> str:
    return NO_FIGURE if value_s is None else _three_digits(value_s)


def _three_digits(value: float) -> str:
    if abs(value) >= 99.95:
        return f"{value:.0f}"
    if abs(value) >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}"
