"""What the report says and shows of fleets: routers, layouts, replicas, nodes that come and go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from kvsim.report.markup import safe
from kvsim.results.tables import NO_FIGURE, exists, percent, seconds
from kvsim.study.fleet_findings import has_fleets
from kvsim.study.fleets import event_words, fleet_events, is_fleet
from kvsim.study.runs import Runs, mean_rows

if TYPE_CHECKING:
    import pandas as pd

    from kvsim.scenario import Scenario

Drawn = tuple[Callable[..., object], str, int]
"""A plot: what to call on new axes, its caption, and how many axes."""


def what_is_chosen(runs: Runs) -> str:
    """What runs that differ in routers or layouts are a choice of."""
    layouts, routers = (runs.frame[name].nunique() > 1 for name in ("layout", "router"))
    if layouts and runs.frame["router"].replace("", None).nunique() > 1:
        return "layouts and routers"
    if layouts:
        return "layouts"
    return "routers" if routers else "fleets"


def with_choice(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with the layout, or the router where layouts are alike, in place of the policy."""
    layouts = frame["layout"].nunique() > 1
    return frame.assign(policy=frame["layout"] if layouts else "router " + frame["router"])


def machines(scenario: Scenario) -> str:
    """The GPUs of a scenario, of all nodes."""
    node, fleet = scenario.node, scenario.fleet
    name = node.gpu.upper() if isinstance(node.gpu, str) else "GPU"
    if fleet is not None and fleet.pools is not None:
        pools = fleet.pools
        return f"{pools.prefill.nodes} prefill and {pools.decode.nodes} decode nodes"
    of = f"{node.gpus} x {name}"
    if scenario.num_nodes > 1:
        return f"{scenario.num_nodes} nodes of {of}"
    return f"one node of {of}" if node.gpus > 1 else f"one {name}"


def setup_rows(runs: Runs) -> dict[str, str]:
    """Rows of the set-up that are of fleets."""
    if not has_fleets(runs):
        return {}

    def listed(name: str) -> str:
        return "; ".join(dict.fromkeys(text for text in runs.frame[name].astype(str) if text))

    rows = {"Layout": listed("layout"), "Router": listed("router")}
    events = [event_words(result.scenario) for result in runs.results.values()]
    return {**rows, "Nodes come and go": "; ".join(next(filter(None, events), []))}


_COLUMNS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("Misrouted", "fleet.misrouted_share", percent),
    ("Copies", "fleet.duplicate_share", percent),
    ("Requests, largest / mean", "fleet.imbalance.requests", lambda value: f"{value:.2f}"),
    ("Computed tokens", "fleet.imbalance.scheduled_tokens", lambda value: f"{value:.2f}"),
    ("Load", "fleet.imbalance.load", lambda value: f"{value:.2f}"),
    ("Age of counts seen, p99", "fleet.view_age_s.p99", seconds),
    ("Events of caches after", "fleet.events_after_s", seconds),
    ("Messages on their way", "fleet.events_under_way.mean", lambda value: f"{value:.2g}"),
    (
        "Expected hits off by, tokens",
        "fleet.expected_hits.mean_error_tokens",
        lambda v: f"{v:,.0f}",
    ),
    ("Over-rated", "fleet.expected_hits.over_share", percent),
    ("Under-rated", "fleet.expected_hits.under_share", percent),
    ("Sent again", "fleet.num_resent", lambda value: f"{value:,.0f}"),
    ("GPU-hours", "fleet.gpu_hours", lambda value: f"{value:.3g}"),
    ("Cost / M output tokens", "fleet.cost_per_million_output_tokens", lambda v: f"{v:.3g}"),
)


def fleet_section(runs: Runs) -> str:
    """A table of what is there of fleets alone; nothing where there is none."""
    if not has_fleets(runs):
        return ""
    means = mean_rows(runs.frame)
    shown = [
        (name, column, text)
        for name, column, text in _COLUMNS
        if column in means.columns and means[column].notna().any()
        and (column != "fleet.num_resent" or means[column].any())
    ]  # fmt: skip
    head = "".join(f"<th>{safe(name)}</th>" for name in ("Run", "Layout", "Router"))
    head += "".join(f"<th>{safe(name)}</th>" for name, _, _ in shown)
    body = []
    for row in means.to_dict("records"):
        cells = [str(row["label"]), str(row["layout"]), str(row["router"] or NO_FIGURE)]
        cells += [text(row[c]) if exists(row[c]) else NO_FIGURE for _, c, text in shown]
        body.append(f"<tr>{''.join(f'<td>{safe(cell)}</td>' for cell in cells)}</tr>")
    return (
        '<div class="wide"><table class="numbers"><thead><tr>'
        f"{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
        "<p>Misrouted: prompt tokens that another replica had cached when the request was routed, "
        "beyond what the chosen one had. Copies: cached tokens that another replica holds too. "
        "Over-rated: requests that found less on their replica than its router expected; "
        "under-rated: more.</p>"
    )


def fleet_plots(runs: Runs, best: str | None) -> Iterator[Drawn]:
    """The plots of fleets that these runs can give."""
    from kvsim import plots

    if not has_fleets(runs):
        return
    means = mean_rows(runs.frame)
    if not runs.axes and len(means) > 1:
        if means["layout"].nunique() > 1:
            yield (
                lambda axes: plots.layouts_side_by_side(means, axes=axes),
                "Layouts side by side: hit rate, TTFT and TPOT of the same load.",
                3,
            )
        yield (
            lambda axes: plots.routers_side_by_side(means, axes=axes),
            "Routers side by side: hits, hits lost to routing, TTFT, and load of the busiest "
            "replica over the mean.",
            4,
        )
    fleets = {label: result for label, result in runs.results.items() if is_fleet(result)}
    eventful = [label for label, one in fleets.items() if fleet_events(one.scenario)]
    if eventful:
        yield (
            lambda ax: plots.recovery(fleets, ax=ax),
            "Recovery: hit rate of the fleet where nodes come and go.",
            1,
        )
    chosen = [best] if best in fleets else []
    for label in dict.fromkeys([*(eventful or list(fleets))[:1], *chosen]):
        yield (
            lambda axes, r=fleets[label], n=label: plots.replicas_over_time(r, name=n, axes=axes),
            f"{label}, replicas over time: requests on each, and token hit rate.",
            2,
        )
        if fleets[label].summary["fleet"].get("links"):
            yield (
                lambda axes, r=fleets[label], n=label: plots.links_by_bytes(r, name=n, axes=axes),
                f"{label}, links: bytes stored and loaded by each, and how busy it was over time.",
                2,
            )
