"""`kvsim capacity`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from kvsim.cli.terminal import (
    Json,
    Only,
    ScenarioFile,
    Settings,
    chosen_variants,
    make_console,
    print_json,
    print_table,
)
from kvsim.errors import KvsimError

if TYPE_CHECKING:
    from rich.console import Console

    from kvsim.study.layouts import SplitRow
    from kvsim.study.node_capacity import NodeCapacity


def capacity(
    path: ScenarioFile,
    length: Annotated[
        list[int],
        typer.Option(metavar="TOKENS", help="Length of a session. May be given again."),
    ] = [],  # noqa: B006 - typer copies it
    interval: Annotated[
        list[str],
        typer.Option(metavar="TOKENS", help="Retention interval, or 'dense'. May be given again."),
    ] = [],  # noqa: B006
    answer: Annotated[
        int, typer.Option(metavar="TOKENS", help="Answer that a next turn goes on from.")
    ] = 1,
    sessions: Annotated[
        int | None,
        typer.Option(metavar="K", help="Also say what K sessions of the longest length need."),
    ] = None,
    only: Only = [],  # noqa: B006
    settings: Settings = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Say what a node holds: memory, requests at once, sessions that stay cached.

    Nothing is simulated: closed forms, for any model that can be planned.
    """
    from kvsim.scenario.reading import load_scenario
    from kvsim.study.node_capacity import node_capacity

    loaded = load_scenario(path, overrides=settings)
    intervals = [_interval(text) for text in interval] or None
    found = {
        name: node_capacity(
            variant,
            lengths=length,
            intervals=intervals,
            answer_tokens=answer,
            num_sessions=sessions,
        )
        for name, variant in chosen_variants(loaded, only, path).items()
    }
    if as_json:
        print_json({name: one.as_json() for name, one in found.items()})
        return
    console = make_console()
    for number, (name, one) in enumerate(found.items()):
        if number:
            console.print()
        if len(found) > 1:
            console.print(f"[bold]{name}[/bold]")
        _show(console, one)


def _interval(text: str) -> int | None:
    if text in ("dense", "null"):
        return None
    if not text.isdecimal():
        raise KvsimError(f"--interval: {text!r} is no number of tokens. Write one, or dense.")
    return int(text)


def _show(console: Console, one: NodeCapacity) -> None:
    from rich.table import Table

    def table(title: str, *columns: str) -> Table:
        made = Table(title=title, title_justify="left", box=None, pad_edge=False)
        for place, column in enumerate(columns):
            made.add_column(column, justify="left" if place == 0 else "right")
        return made

    console.print(f"{one.model}: memory of one GPU", highlight=False)
    for line in one.memory:
        console.print(f"  {line}", highlight=False, soft_wrap=True)
    groups = table(
        "\nGroups, in order", "group", "layers", "block", "window", "bytes/block", "/token"
    )
    for group in one.groups:
        groups.add_row(
            group.name,
            _number(group.num_layers),
            f"{group.block_size:,}",
            _number(group.sliding_window),
            _number(group.bytes_per_block),
            "" if group.bytes_per_token is None else f"{group.bytes_per_token:,.0f}",
        )
    print_table(console, groups)
    said = ", ".join(f"{x:.2f} ({name})" for name, x in one.concurrency.items())
    console.print(
        f"\nThe engine logs {one.kv_cache_tokens:,} KV tokens, and room at once for this many\n"
        f"requests of {one.max_model_len:,} tokens: {said}",
        highlight=False,
    )
    lengths = table(
        f"\nSessions that stay cached, hits in units of {one.unit_tokens:,} tokens",
        "length",
        "at once",
        "interval",
        "sessions",
        "resend",
        "branch",
        "next turn",
    )
    for row in one.lengths:
        for place, of in enumerate(row.intervals):
            most = "" if of.sessions == of.sessions_at_most else f"-{of.sessions_at_most:,}"
            lengths.add_row(
                "" if place else f"{row.num_tokens:,}",
                "" if place else f"{row.at_once:,.2f}",
                "dense" if of.retention_interval is None else f"{of.retention_interval:,}",
                f"{of.sessions:,}{most}",
                f"{of.resend_tokens:,}",
                f"{of.branch_tokens:,}",
                f"{of.next_turn_tokens:,}",
            )
    print_table(console, lengths)
    for tier in one.tiers:
        held = ", ".join(f"{n:,} of {length:,}" for length, n in tier.sessions.items())
        console.print(
            f"\nTier {tier.kind}: {tier.num_chunks:,} chunks of {tier.chunk_bytes:,} bytes; "
            f"sessions, all kept: {held}",
            highlight=False,
        )
    if one.splits:
        show_layouts(console, one.splits)
    if one.needed is not None:
        _show_needed(console, one)


def show_layouts(console: Console, splits: Sequence[SplitRow]) -> None:
    """A table of the ways to divide a node's GPUs, and why others cannot be."""
    from rich.table import Table

    made = Table(title="\nThe same GPUs otherwise", title_justify="left", box=None, pad_edge=False)
    columns = ("TP x DP", "DCP", "weights/GPU", "KV tokens/rank", "/node", "at once", "sessions")
    for place, column in enumerate(columns):
        made.add_column(column, justify="left" if place == 0 else "right")
    for split in splits:
        weights = split.weight_bytes
        made.add_row(
            f"{split.tensor_parallel} x {split.data_parallel}",
            str(split.decode_context_parallel),
            "" if weights is None else f"{weights / 2**30:,.1f} GiB",
            _number(split.rank_tokens),
            _number(split.node_tokens),
            "" if split.at_once is None else f"{split.at_once:,.2f}",
            _number(split.sessions),
        )
    print_table(console, made)
    for split in splits:
        if split.problem is not None:
            sizes = f"{split.tensor_parallel} x {split.data_parallel}"
            console.print(f"{sizes}: {split.problem}", highlight=False, style="dim")


def _show_needed(console: Console, one: NodeCapacity) -> None:
    needed = one.needed
    if needed is None:
        return
    part = needed.gpu_memory_utilization
    ways = [
        f"gpu_memory_utilization {part:.3f} here" if part is not None else "more memory than here"
    ]
    if needed.gpus is not None:
        ways.append(f"{needed.gpus} such GPU{'s' * (needed.gpus > 1)}, tensor-parallel")
    console.print(
        f"\n{needed.num_sessions:,} sessions of {needed.num_tokens:,} tokens need "
        f"{needed.num_blocks:,} blocks: {', or '.join(ways)}.",
        highlight=False,
    )


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
