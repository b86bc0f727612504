"""What `kvsim trace inspect` prints for people."""

from __future__ import annotations

from typing import Any

from kvsim.cli.terminal import make_console

_WHO_SAYS = {
    "format": "as the format has it",
    "file": "as the file says",
    "given": "as given",
    "inferred": "inferred from lengths and numbers of ids",
    "chosen": "chosen, as the trace has no ids",
}


def show(figures: dict[str, Any]) -> None:
    """Print the figures of `kvsim trace inspect` for people."""
    from rich.table import Table

    from kvsim.results.tables import percent, seconds, short

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column()

    def spread(lengths: dict[str, float]) -> str:
        named = [f"{name} {value:,.0f}" for name, value in lengths.items() if name != "sum"]
        return ", ".join(named)

    span = f"{figures['span_s']:,.0f} s"
    if figures["requests_per_s"] is not None:
        span += f", {figures['requests_per_s']:.3g} requests/s"
    table.add_row("format", figures["format"])
    sessions = figures["sessions"]
    text = f"{figures['requests']:,}" + (f" in {sessions:,} sessions" if sessions else "")
    table.add_row("requests", text)
    unit = figures["time_unit"]
    written = f", in {unit}" if unit in ("s", "ms", "us", "ns") else ""
    table.add_row("span", f"{span} (times: {figures['times']}{written})")
    table.add_row("prompt tokens", spread(figures["prompt_tokens"]))
    table.add_row("output tokens", spread(figures["output_tokens"]))
    who = _WHO_SAYS[figures["block_tokens_from"]]
    table.add_row("block", f"{figures['block_tokens']} tokens, {who}")
    single = percent(figures["single_use_share"])
    table.add_row("different blocks", f"{figures['blocks']:,}, {single} of them used once")
    reuse = figures["reuse_time_s"]
    if reuse is not None:
        named = [f"{name} {seconds(value)}" for name, value in reuse.items()]
        table.add_row("reused after", ", ".join(named))
    ideal = f"{percent(figures['ideal_token_hit_rate'])} of tokens, if nothing is evicted"
    upper = figures["ideal_token_hit_rate_shared_tails"]
    if upper is not None:
        ideal += f" (partial tails distinct; {percent(upper)} if shared)"
    table.add_row("ideal hits", ideal)
    working = [window["blocks"] for window in figures["working_set"]]
    if working:
        each_s = figures["span_s"] / len(working)
        least, most = short(min(working)), short(max(working))
        table.add_row("working set", f"{least} to {most} blocks in {seconds(each_s)}")
    console = make_console()
    console.print(table, highlight=False)
    capacities = Table(box=None, pad_edge=False)
    policy = figures["capacities"][0]["policy"].upper()
    capacities.add_column(f"{policy} blocks", justify="right")
    capacities.add_column("token hits", justify="right")
    for point in figures["capacities"]:
        capacities.add_row(f"{point['blocks']:,}", percent(point["token_hit_rate"]))
    console.print()
    console.print(capacities, highlight=False)
    if figures["window"] != "all":
        console.print(f"Hits of the {figures['window'].replace('-', ' ')} of the requests.")
    for notice in figures["notices"]:
        console.print(f"Note: {notice}", style="yellow", highlight=False, markup=False)
