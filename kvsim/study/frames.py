"""Runs as one frame: a row a run, with its policy by name, for plots, findings and reports."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvsim.errors import KvsimError
from kvsim.metrics.figures import FOUND_RATE, flat_figures
from kvsim.metrics.tiers import SOURCES
from kvsim.policies.names import policy_name
from kvsim.results.tables import exact_size
from kvsim.scenario.policies import setting_name
from kvsim.scenario.pool_rules import SIDES, pool_scenario

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd

    from kvsim.results.store import RunResult
    from kvsim.scenario import Scenario
    from kvsim.study.sweep_table import SweepResult

    Floats = npt.NDArray[np.float64]
    Results = RunResult | Mapping[str, RunResult] | Iterable[RunResult]

POLICY_KEYS = ("cache.free_queue", "cache.retention_interval", "cache.enable_prefix_caching")
"""Keys that make a policy; an axis over one of them is part of the run's policy, not beside it."""
_SIZES = {"capacity", "activation_reserve", "weight_bytes", "expert_bytes", "bytes_per_block"}
"""Last parts of keys that are a size in bytes."""
LINK_COLUMN = "link_bytes_per_s"
"""Column: bandwidth, efficiency included, at which the tier next to the device is read; NaN without
one."""
FLEET_COLUMNS = ("router", "layout")
"""Columns: who chose the replica, empty where there is one; and how GPUs share the model."""
_LAYOUT_KEYS = (
    "gpus",
    "tensor_parallel",
    "pipeline_parallel",
    "data_parallel",
    "expert_parallel",
    "decode_context_parallel",
)


def is_fleet_key(key: str) -> bool:
    """Whether a dotted key says how GPUs and nodes are put together, or who is sent where."""
    section, _, last = key.partition(".")
    return section == "fleet" or (section == "node" and last in _LAYOUT_KEYS)


def router_name(scenario: Scenario) -> str:
    """The kind of the router of a scenario without variants; empty where there is one replica."""
    fleet = scenario.fleet
    if fleet is not None and fleet.pools is not None:
        sides = [pool_scenario(scenario, side).router[0] for side in SIDES]
        return ", ".join(sides)
    if scenario.num_nodes == 1 and scenario.balancing != "external":
        return "vllm-dp" if scenario.node.data_parallel > 1 else ""
    return scenario.router[0]


def layout_name(scenario: Scenario) -> str:
    """How the GPUs of a scenario without variants share the model: ``TP2 x DP4``, ``4 x TP8``."""
    fleet = scenario.fleet
    if fleet is not None and fleet.pools is not None:
        return " + ".join(f"{side} {layout_name(pool_scenario(scenario, side))}" for side in SIDES)
    node = scenario.node
    parts = [
        (f"TP{scenario.num_ranks}", scenario.num_ranks > 1),
        (f"PP{node.pipeline_parallel}", node.pipeline_parallel > 1),
        (f"DCP{node.decode_context_parallel}", node.decode_context_parallel > 1),
        (f"DP{node.data_parallel}", node.data_parallel > 1),
    ]
    of_node = " x ".join(text for text, shown in parts if shown) or "TP1"
    experts = " + EP" if node.expert_parallel else ""
    nodes = f"{scenario.num_nodes} x " if scenario.num_nodes > 1 else ""
    return f"{nodes}{of_node}{experts}"


def axis_text(axis: str, value: Any) -> str:
    """A value of an axis for people: numbers in full, sizes in their unit."""
    import pandas as pd

    if pd.isna(value):
        return "null"
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if axis.rpartition(".")[2] in _SIZES:
        return exact_size(value)
    if axis.endswith(".bandwidth"):
        return f"{exact_size(value)}/s"
    return f"{value:,.6g}" if abs(value) < 1e6 else f"{value:,.0f}"


def named_results(results: Results) -> dict[str, RunResult]:
    """Results by the name they go under: as given, or by variant.

    Raises:
        KvsimError: there are none, or two go under one name.
    """
    from kvsim.results.store import RunResult

    if isinstance(results, RunResult):
        return {results.variant: results}
    if isinstance(results, Mapping):
        named = dict(results)
    else:
        listed = list(results)
        named = {result.variant: result for result in listed}
        if len(named) < len(listed):
            raise KvsimError(
                "results: two have the same variant. Give a mapping from name to result."
            )
    if not named:
        raise KvsimError("results: there are none. Give one or more.")
    return named


def scenario_policy(scenario: Scenario) -> str:
    """The policy of a scenario without variants, by name."""
    kept = scenario.cache.retention
    return policy_name(
        scenario.free_queue,
        scenario.retention_interval,
        retention=None if kept is None else setting_name(kept),
        has_window_groups=any(group.kind != "full" for group in scenario.model_spec.groups),
        enable_caching=scenario.cache.enable_prefix_caching,
    )


def results_frame(results: Results) -> pd.DataFrame:
    """A row a result.

    Returns:
        Columns `label` (the name), `policy`, the figures of the summary by dotted name, as in
        `ttft_s.p50`, with `found_rate`, `LINK_COLUMN` and `FLEET_COLUMNS`.
    """
    import pandas as pd

    return pd.DataFrame(
        [
            {
                "label": name,
                "policy": scenario_policy(result.scenario),
                **_figures(result.summary),
                LINK_COLUMN: _link_bytes_per_s(result.scenario),
                "router": router_name(result.scenario),
                "layout": layout_name(result.scenario),
            }
            for name, result in named_results(results).items()
        ]
    )


def sweep_frame(sweep: SweepResult) -> pd.DataFrame:
    """A row a finished run of a sweep.

    Returns:
        `sweep.table` without failed runs, with `label` and `policy` in front, and `found_rate` and
        `LINK_COLUMN` and `FLEET_COLUMNS` behind. The label is the variant, the policy where there
        are no variants, or both where an axis changes the policy.
    """
    from kvsim.scenario.reading import expand_variants

    table = sweep.table[sweep.table["status"] == "done"].reset_index(drop=True)
    variants = expand_variants(sweep.scenario)
    # An axis that may change the link would need each run's own scenario.
    tiers_alike = not any(axis == "offload" or "link" in axis for axis in sweep.axes)
    keys = [key for key in POLICY_KEYS if key in table.columns]
    of_fleet = [axis for axis in sweep.axes if is_fleet_key(axis)]
    policies, labels, links, routers, layouts = [], [], [], [], []
    for row in table.to_dict("records"):
        scenario = variants[row["variant"]]
        links.append(_link_bytes_per_s(scenario) if tiers_alike else math.nan)
        # An axis holds the resolved value; null is a value of its own there (dense).
        changes = {key: _written(row[key]) for key in keys}
        policy = scenario_policy(scenario.replace(changes) if changes else scenario)
        policies.append(policy)
        placed = {key: _written(row[key]) for key in of_fleet if row[key] is not None}
        fleet = scenario.replace(placed) if placed else scenario
        routers.append(router_name(fleet))
        layouts.append(layout_name(fleet))
        if row["variant"] == "default":
            labels.append(policy)
        else:
            labels.append(f"{row['variant']}: {policy}" if keys else row["variant"])
    # Figures as in a result's frame.
    table[FOUND_RATE] = [_found_rate(row) for row in table.to_dict("records")]
    table[LINK_COLUMN] = links
    table["router"], table["layout"] = routers, layouts
    table.insert(0, "policy", policies)
    table.insert(0, "label", labels)
    return table


@dataclass(frozen=True)
class Series:
    """One line of a plot over runs that differ in one figure.

    Attributes:
        label: what it is called.
        policy: its policy, by name.
        x: rising.
        y: mean over seeds at each x.
        low: least over seeds.
        high: most over seeds.
        num_seeds: most seeds at one x.
    """

    label: str
    policy: str
    x: Floats
    y: Floats
    low: Floats
    high: Floats
    num_seeds: int


def series_of(frame: pd.DataFrame, x: str, y: str) -> list[Series]:
    """The lines of `y` over `x`, one a label, in order of appearance.

    Args:
        frame: with columns `label`, `policy`, `x`, `y`, and `seed` where there are several.
        x: name of a column of numbers.
        y: likewise; rows in which one of the two is missing are left out.

    Raises:
        KvsimError: a column is missing, or runs of one label and seed share an `x`, so that
            something else differs between them too.
    """
    import pandas as pd

    needed(frame, "label", "policy", x, y)
    known = frame.assign(
        **{column: pd.to_numeric(frame[column], errors="coerce") for column in {x, y}}
    ).dropna(subset=[x, y])
    seeds = ["seed"] if "seed" in known.columns else []
    if known.duplicated(["label", x, *seeds]).any():
        raise KvsimError(
            f"several runs of one label have the same {x}, so something else differs too. "
            "Keep the rows of one value of it."
        )
    lines = []
    for label, rows in known.groupby("label", sort=False):
        by_x = rows.groupby(x)[y]
        middle = by_x.mean()
        lines.append(
            Series(
                str(label),
                str(rows["policy"].iloc[0]),
                middle.index.to_numpy(dtype=float),
                middle.to_numpy(dtype=float),
                by_x.min().to_numpy(dtype=float),
                by_x.max().to_numpy(dtype=float),
                int(by_x.size().max()),
            )
        )
    return lines


def needed(frame: pd.DataFrame, *columns: str) -> None:
    """Refuse a frame that lacks a column.

    Raises:
        KvsimError: with all that are missing.
    """
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise KvsimError(
            f"frame: has no column {', '.join(missing)}. Make it with kvsim.plots.frame, or give "
            "the name of a column it has."
        )


def _figures(summary: Mapping[str, Any]) -> dict[str, float | int | None]:
    figures = flat_figures(summary)
    return figures | {FOUND_RATE: _found_rate(figures)}


def _found_rate(figures: Mapping[Any, Any]) -> float | None:
    """What the device and the tiers next to it had of the prompts."""
    on_device = figures["token_hit_rate"]
    if on_device is None:
        return None
    shares = [figures.get(f"hit_split.{source}") for source in SOURCES if source != "device"]
    return float(on_device + sum(share for share in shares if share and share > 0))


def _link_bytes_per_s(scenario: Scenario) -> float:
    from kvsim.scenario.offload import link_spec

    if scenario.offload is None:
        return math.nan
    link = link_spec(scenario.offload.link, scenario.offload.link_efficiency)
    return link.load_bytes_per_s * link.efficiency


def _written(value: object) -> object:
    """A value of a sweep's axis as a scenario has it."""
    import pandas as pd

    if pd.isna(value):  # type: ignore[call-overload]
        return None
    if isinstance(value, str):
        # Axes of mixed values are kept as JSON text.
        try:
            return json.loads(value)
        except ValueError:
            return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value.item() if hasattr(value, "item") else value
