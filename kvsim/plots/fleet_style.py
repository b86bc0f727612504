"""A colour for each router, as each policy has one; layouts take others in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kvsim.plots.style import PolicyStyle, policy_styles
from kvsim.study.frames import layout_name, router_name, scenario_policy

if TYPE_CHECKING:
    from kvsim.scenario import Scenario

_OF_ROUTERS = {
    "random": "#9a9a9a",
    "round-robin": "#6b6b6b",
    "least-requests": "#c79a3b",
    "power-of-two": "#e0c27a",
    "session": "#00795c",
    "sticky-until-saturated": "#6fb79c",
    "vllm-dp": "#d55e00",
    "production-stack": "#8c5a9e",
    "sglang-cache-aware": "#b0446f",
    "aibrix-prefix": "#7a6ff0",
    "llm-d": "#5aa9e6",
    "dynamo-kv": "#0b5aa5",
    "oracle": "#1a1a1a",
}
_MARKERS = "osD^vP*X"
_HATCHES = ("", "///", "\\\\\\", "xxx", "...", "++")
DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (1, 1)), (0, (6, 1, 1, 1)))
COLORS = ("#0b5aa5", "#00795c", "#d55e00", "#8c5a9e", "#c79a3b", "#5aa9e6", "#b0446f")


def router_styles(names: Sequence[str]) -> list[PolicyStyle]:
    """A style a run by its router or layout: colours by name, hatches where a name comes again.

    Dashes and markers go by place, so that lines are told apart without colours.
    """
    seen: dict[str, int] = {}
    order = list(dict.fromkeys(name for name in names if name not in _OF_ROUTERS))
    styles = []
    for number, name in enumerate(names):
        again = seen.get(name, 0)
        seen[name] = again + 1
        color = _OF_ROUTERS.get(name) or COLORS[order.index(name) % len(COLORS)]
        dash, marker = DASHES[number % len(DASHES)], _MARKERS[number % len(_MARKERS)]
        styles.append(PolicyStyle(color, dash, marker, _HATCHES[again % len(_HATCHES)]))
    return styles


def run_styles(scenarios: Sequence[Scenario]) -> list[PolicyStyle]:
    """A style a run: by policy; where that is alike by layout, or by router."""
    policies = [scenario_policy(scenario) for scenario in scenarios]
    if len(set(policies)) < 2:
        for name_of in (layout_name, router_name):
            names = [name_of(scenario) for scenario in scenarios]
            if len(set(names)) > 1:
                return router_styles(names)
    return policy_styles(policies)
