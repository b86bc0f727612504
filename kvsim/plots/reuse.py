"""What a trace offers a cache."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from kvsim.errors import KvsimError
from kvsim.plots.style import styled
from kvsim.scenario.writing import replacing

if TYPE_CHECKING:
    from kvsim.workload.inspection import Inspection


@styled
def trace_reuse(inspection: Inspection, title: str, path: Path) -> None:
    """Draw what a trace offers a cache: hit rate by LRU capacity, reuse times, the working set.

    Args:
        inspection: of the trace.
        title: written above.
        path: the file; its ending says which format: .png, .svg or .pdf.

    Raises:
        KvsimError: the ending is of no format, or the file cannot be written.
    """
    figures, curve, blocks = inspection.figures, inspection.curve, inspection.blocks
    figure = Figure(figsize=(12, 3.8), layout="constrained")
    by_size, by_time, working = figure.subplots(1, 3)
    figure.suptitle(title)

    rates = curve.token_hit_rates
    sizes = [size for size in range(len(rates)) if size]
    by_size.step(sizes or [1], 100 * rates[1:] if sizes else [0.0], where="post")
    by_size.axhline(100 * figures["ideal_token_hit_rate"], color="gray", linestyle=":")
    by_size.annotate(
        f"nothing evicted: {100 * figures['ideal_token_hit_rate']:.1f}%",
        (0.03, 100 * figures["ideal_token_hit_rate"]),
        xycoords=("axes fraction", "data"),
        xytext=(0, -12),
        textcoords="offset points",
        color="gray",
    )
    by_size.set(
        xscale="log",
        xlabel=f"LRU blocks of {figures['block_tokens']} tokens",
        ylabel="tokens found, %",
        ylim=(0, None),
    )

    shares = [number / 200 for number in range(1, 200)]
    times_s = blocks.reuse_time_quantiles_s(shares)
    if times_s is not None:
        by_time.plot([max(time_s, 1e-3) for time_s in times_s], [100 * s for s in shares])
        by_time.set(xscale="log")
    by_time.set(
        xlabel="seconds since the last use (0 drawn as 0.001)",
        ylabel="reuses of blocks no later, %",
        ylim=(0, 100),
    )

    ends_s = [window["until_s"] for window in figures["working_set"]]
    counts = [window["blocks"] for window in figures["working_set"]]
    if len(ends_s) > 1:
        width_s = ends_s[1] - ends_s[0]
        begins_min = [(end_s - width_s) / 60 for end_s in ends_s]
        working.bar(begins_min, counts, width=0.9 * width_s / 60, align="edge")
    working.set(xlabel="minutes", ylabel="different blocks used")
    try:
        with replacing(path) as new:
            figure.savefig(new, dpi=120)
    except ValueError:
        text = "is no name for a figure. Let it end in .png, .svg or .pdf."
        raise KvsimError(f"{path}: {text}") from None
    except OSError as error:
        raise KvsimError(f"{path}: cannot be written: {error.strerror}.") from None
