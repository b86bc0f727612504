"""The links of a fleet, from its results: what each carried, and how busy it was over time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.study.fleets import replica_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    import pandas as pd

    from kvsim.results.store import RunResult

    Floats = npt.NDArray[np.float64]

_NUM_STRETCHES = 60
_NAMES = {"cpu": "CPU", "disk": "disk", "mooncake": "Mooncake", "transfer": "other pool"}


@dataclass(frozen=True)
class LinkSeries:
    """Links of a fleet over time.

    Attributes:
        edges_s: bounds of the stretches [stretches + 1].
        names: whose and where to, by link.
        stored_bytes: carried away from the GPUs by each link [links].
        loaded_bytes: carried towards them [links].
        utilization: shares of what it could carry in its node's time, stored and loaded
            [links, 2]; NaN in results that do not say.
        busy: share of each stretch in which it was busy, stored and loaded [links, 2, stretches];
            NaN where that was not noted.
    """

    edges_s: Floats
    names: tuple[str, ...]
    stored_bytes: Floats
    loaded_bytes: Floats
    utilization: Floats
    busy: Floats


def link_series(result: RunResult, num_most: int) -> LinkSeries | None:
    """The links of a run, those that carried most where there are too many, in order.

    Args:
        result: a run of a fleet.
        num_most: how many at most.

    Returns:
        The series; None where there is no link.
    """
    links = (result.summary.get("fleet") or {}).get("links") or []
    if not links:
        return None
    carried = [link["stored_bytes"] + link["loaded_bytes"] for link in links]
    chosen = sorted(np.argsort(np.negative(carried), kind="stable")[:num_most].tolist())
    shown = [links[number] for number in chosen]
    replicas = result.summary["fleet"]["replicas"]
    names = dict(zip((one["replica"] for one in replicas), replica_names(result), strict=True))
    timelines = {}
    if "replica" in result.timeline.columns:
        timelines = dict(list(result.timeline.groupby("replica")))
    end_s = max((float(rows["time_s"].iloc[-1]) for rows in timelines.values()), default=1.0)
    edges_s = np.linspace(0.0, end_s or 1.0, _NUM_STRETCHES + 1)
    busy = np.full((len(shown), 2, _NUM_STRETCHES), math.nan)
    utilization = np.full((len(shown), 2), math.nan)
    for number, link in enumerate(shown):
        own = _replica_of(link, replicas, timelines)
        columns = _columns_of(link, links)
        if columns is not None and own is not None and own in timelines:
            for way, column in enumerate(columns):
                busy[number, way] = _means(timelines[own], column, edges_s)
        if "store_utilization" in link:
            utilization[number] = link["store_utilization"], link["load_utilization"]
    return LinkSeries(
        edges_s,
        tuple(
            f"{_whose(link, replicas, names)}: {_NAMES.get(link['to'], link['to'])}"
            for link in shown
        ),
        np.array([link["stored_bytes"] for link in shown], dtype=float),
        np.array([link["loaded_bytes"] for link in shown], dtype=float),
        utilization,
        busy,
    )


def _replica_of(
    link: dict[str, Any],
    replicas: Sequence[dict[str, Any]],
    timelines: dict[Any, pd.DataFrame],
) -> int | None:
    """A replica in whose timeline a link is: its own; of those that share it, that says most."""
    if link["replica"] is not None:
        return int(link["replica"])
    sharing = [int(one["replica"]) for one in replicas if one["node"] == link["node"]]
    return max(sharing, key=lambda one: len(timelines.get(one, ())), default=None)


def _whose(link: dict[str, Any], replicas: Sequence[dict[str, Any]], names: dict[int, str]) -> str:
    if link["replica"] is not None:
        return names[link["replica"]]
    pool = next((one["pool"] for one in replicas if one["node"] == link["node"]), None)
    return f"{pool + ' ' if pool else ''}node {link['node']}"


def _columns_of(link: dict[str, Any], links: Sequence[dict[str, Any]]) -> tuple[str, str] | None:
    """The columns of a timeline that are of a link; None where they are of another."""
    if link["to"] == "disk":
        return "disk_store_utilization", "disk_load_utilization"
    has_tier = any(
        other["to"] not in ("disk", "transfer") and other["node"] == link["node"] for other in links
    )
    if link["to"] == "transfer" and has_tier:
        return None
    return "store_utilization", "load_utilization"


def _means(timeline: pd.DataFrame, column: str, edges_s: Floats) -> Floats:
    """Mean of a share by stretch; a row tells of the time since the one before it."""
    known = timeline[timeline[column].notna()]
    if not len(known):
        return np.full(len(edges_s) - 1, math.nan)
    times_s = known["time_s"].to_numpy(dtype=float)
    shares = known[column].to_numpy(dtype=float)
    lengths_s = np.diff(times_s, prepend=0.0)
    # Seconds in which it was busy, up to each row; linear between them, as nothing more is known.
    passed_s = np.cumsum(shares * lengths_s)
    busy_s = np.interp(edges_s, np.append(0.0, times_s), np.append(0.0, passed_s))
    means: Floats = np.diff(busy_s) / np.diff(edges_s)
    means[edges_s[:-1] >= times_s[-1]] = math.nan
    return means
