"""A fleet over time, from its results: load and hit rate by replica, and what a loss cost.

Nothing is simulated. Times are cut into stretches of equal length; a request counts where it was
first admitted, so one that was sent again counts where it ran.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.errors import KvsimError
from kvsim.results.tables import seconds

if TYPE_CHECKING:
    import numpy.typing as npt
    import pandas as pd

    from kvsim.results.store import RunResult
    from kvsim.scenario import FleetEvent, Scenario

    Floats = npt.NDArray[np.float64]

NUM_STRETCHES = 60
"""Stretches that the arrivals of a run are cut into."""
NUM_WIDE = 30
"""The same where one line has to be read: fewer have less noise."""
CLOSE = 0.03
"""Hit rates of a stretch in two runs that count as the same."""
_LEAST_REQUESTS = 10  # of a stretch, so that a hit rate says something
_LEAST_OF_ONE = 3  # of a stretch on one replica
_COUNTS = (
    "used_blocks",
    "cached_blocks",
    "free_blocks",
    "running",
    "waiting",
    "free_cached_blocks",
)
_SHOWN = 0.98  # of the requests: sessions that last leave a long tail of few
_BEFORE = 4  # stretches before a loss that tell what was usual


@dataclass(frozen=True)
class ReplicaSeries:
    """A fleet over time.

    Attributes:
        edges_s: bounds of the stretches [stretches + 1].
        names: of the replicas: node, or node.rank, with the pool where there are two.
        replicas: their numbers.
        queue: requests running and waiting, mean over the stretch [replicas, stretches]; NaN where
            the replica was not there.
        hit_rate: prompt tokens found of those looked up [replicas, stretches]; NaN where too few
            requests were admitted to say.
        fleet_hit_rate: of all replicas together [stretches], likewise.
    """

    edges_s: Floats
    names: tuple[str, ...]
    replicas: tuple[int, ...]
    queue: Floats
    hit_rate: Floats
    fleet_hit_rate: Floats


@dataclass(frozen=True)
class Recovery:
    """What the loss of a node did to the hit rate of the fleet.

    Attributes:
        lost_s: when the node was lost.
        node: its number.
        before: hit rate of the fleet in the stretches before.
        noise: how far the stretches before were from that, at most; `CLOSE` at least.
        lowest: the least of a stretch from the loss on, for twice as long as the node was away (to
            the end where it did not return), or until the next loss.
        lowest_s: middle of that stretch.
        back_s: end of the first stretch from there on that is as good as before, within the noise;
            None where none was.
        returned_s: when the node took requests again; None where it did not.
        own: hit rate of the returned node in its first stretches.
        others: of the other nodes in the same.
    """

    lost_s: float
    node: int
    before: float
    noise: float
    lowest: float
    lowest_s: float
    back_s: float | None
    returned_s: float | None
    own: float | None
    others: float | None

    @property
    def is_dip(self) -> bool:
        """Whether it fell further than it went up and down before."""
        return self.lowest < self.before - self.noise


@dataclass(frozen=True)
class Shortfall:
    """What a run found less than one on the same requests in which no node came or went.

    Attributes:
        most: largest gap of the fleet's hit rate in a stretch, as a fraction.
        most_s: middle of that stretch.
        until_s: end of the last stretch in which the gap was more than `CLOSE`; None where there
            was none.
        num_tokens: prompt tokens not found that the other found, over the whole run.
    """

    most: float
    most_s: float
    until_s: float | None
    num_tokens: int


def is_fleet(result: RunResult) -> bool:
    """Whether a run is of several replicas."""
    return len((result.summary.get("fleet") or {}).get("replicas", ())) > 1


def fleet_events(scenario: Scenario) -> tuple[FleetEvent, ...]:
    """Nodes that come and go, in order of time."""
    events = () if scenario.fleet is None else scenario.fleet.events or ()
    return tuple(sorted(events, key=lambda event: event.at))


def event_words(scenario: Scenario) -> list[str]:
    """What happens to nodes, in words, in order of time."""
    told = []
    for event in fleet_events(scenario):
        what = "lost" if event.lose is not None else "drained" if event.drain is not None else ""
        at_s = event.at if what else event.at + event.ready_after
        pool = "" if event.pool is None else f"{event.pool} "
        told.append(f"{pool}node {event.node} {what or 'ready'} at {seconds(at_s)}")
    return told


def replica_series(
    result: RunResult, num_stretches: int = NUM_STRETCHES, edges_s: Floats | None = None
) -> ReplicaSeries:
    """Load and hit rate by replica over the time in which 98% of requests arrive.

    Args:
        result: a run of a fleet.
        num_stretches: at most; fewer where they would have few requests.
        edges_s: bounds of the stretches, as of another run; None for the run's own.

    Raises:
        KvsimError: it is a run of one replica.
    """
    if not is_fleet(result):
        raise KvsimError(
            "fleet: this is a run of one replica. Give a run with fleet.nodes or "
            "node.data_parallel of 2 or more."
        )
    rows = result.summary["fleet"]["replicas"]
    looked_up = _looked_up(result)
    if edges_s is None:
        end_s = float(result.requests["arrival_s"].quantile(_SHOWN))
        num = max(4, min(num_stretches, len(result.requests) // (2 * _LEAST_REQUESTS)))
        edges_s = np.linspace(0.0, end_s or 1.0, num + 1)
    num = len(edges_s) - 1
    looked_up = looked_up[looked_up["at_s"] <= edges_s[-1]]
    place = np.clip(np.searchsorted(edges_s, looked_up["at_s"], side="right") - 1, 0, num - 1)
    shape = (len(rows), num)
    order = {row["replica"]: number for number, row in enumerate(rows)}
    number = looked_up["replica"].map(order).to_numpy(dtype=int)
    hits, prompts, counts = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    np.add.at(counts, (number, place), 1)
    np.add.at(hits, (number, place), looked_up["hit_tokens"].to_numpy(dtype=float))
    np.add.at(prompts, (number, place), looked_up["prompt_tokens"].to_numpy(dtype=float))
    first = looked_up[looked_up["is_first"]]
    at = place[looked_up["is_first"].to_numpy()]
    all_hits, all_prompts = (
        np.bincount(at, first[name].to_numpy(dtype=float), minlength=num).astype(float)
        for name in ("hit_tokens", "prompt_tokens")
    )
    all_prompts[np.bincount(at, minlength=num) < _LEAST_REQUESTS] = 0
    prompts[counts < _LEAST_OF_ONE] = 0
    return ReplicaSeries(
        edges_s,
        replica_names(result),
        tuple(order),
        _queues(result, edges_s),
        _ratio(hits, prompts),
        _ratio(all_hits, all_prompts),
    )


def pool_timeline(result: RunResult) -> pd.DataFrame:
    """The timeline of a run, of all replicas together.

    Returns:
        `time_s` and the columns of blocks and requests of `TIMELINE_COLUMNS`, summed over the
        replicas that are there; of one replica the timeline as it is.
    """
    import pandas as pd

    timeline = result.timeline
    if "replica" not in timeline.columns or timeline["replica"].nunique() < 2:
        return timeline
    lost: dict[int, list[float]] = {}
    for row in result.summary["fleet"]["replicas"]:
        events = _events_of(result, row)
        lost[row["replica"]] = [event.at for event in events if event.lose is not None]
    times_s, changes = [], []
    for replica, rows in timeline.groupby("replica"):
        own_s = rows["time_s"].to_numpy(dtype=float)
        values = np.column_stack(
            [
                rows[list(_COUNTS)].to_numpy(dtype=float),
                np.array([*rows["group_cached_blocks"]], dtype=float),
            ]
        )
        for at_s in lost.get(int(str(replica)), ()):  # it has nothing from then on
            place = int(np.searchsorted(own_s, at_s, side="right"))
            own_s = np.insert(own_s, place, at_s)
            values = np.insert(values, place, 0.0, axis=0)
        times_s.append(own_s)
        changes.append(np.diff(values, axis=0, prepend=np.zeros((1, values.shape[1]))))
    order = np.argsort(np.concatenate(times_s), kind="stable")
    sums = np.cumsum(np.concatenate(changes)[order], axis=0)
    num = len(_COUNTS)
    together = pd.DataFrame(sums[:, :num], columns=list(_COUNTS))
    together.insert(0, "time_s", np.concatenate(times_s)[order])
    together["group_cached_blocks"] = pd.Series(sums[:, num:].tolist(), dtype="object")
    # The rows of one moment are those of several replicas: the last of them has all.
    return together.drop_duplicates("time_s", keep="last", ignore_index=True)


def replica_names(result: RunResult) -> tuple[str, ...]:
    """Names of the replicas of a run, in order: ``3``, ``0.1`` (node and rank), ``decode 2``."""
    rows = result.summary["fleet"]["replicas"]
    firsts: dict[int, int] = {}
    for row in rows:
        firsts.setdefault(row["node"], row["replica"])
    has_ranks = len(firsts) < len(rows)
    names = []
    for row in rows:
        name = str(row["node"])
        if has_ranks:
            name += f".{row['replica'] - firsts[row['node']]}"
        names.append(f"{row['pool']} {name}" if row.get("pool") else name)
    return tuple(names)


def recoveries(result: RunResult) -> list[Recovery]:
    """What each loss of a node did to the fleet's hit rate, in order of time."""
    if not is_fleet(result):
        return []
    series, events = replica_series(result, NUM_WIDE), fleet_events(result.scenario)
    losses = [event for event in events if event.lose is not None]
    found = []
    for event, later in zip(losses, [*losses[1:], None], strict=False):
        starts_s, ends_s = series.edges_s[:-1], series.edges_s[1:]
        before = np.flatnonzero((ends_s <= event.at) & ~np.isnan(series.fleet_hit_rate))[-_BEFORE:]
        returned_s, own, others = _returned(result, series, event, events)
        until_s = math.inf if later is None else later.at
        if returned_s is not None:
            until_s = min(until_s, event.at + 2 * (returned_s - event.at) + 2 * _width_s(series))
        after = np.flatnonzero(
            (starts_s >= event.at) & (ends_s <= until_s) & ~np.isnan(series.fleet_hit_rate)
        )
        if len(before) < 2 or not len(after):
            continue
        rates = series.fleet_hit_rate
        usual = float(rates[before].mean())
        noise = max(CLOSE, float(np.abs(rates[before] - usual).max()))
        lowest = int(after[np.argmin(rates[after])])
        back = [i for i in after if i >= lowest and rates[i] >= usual - noise]
        found.append(
            Recovery(
                event.at,
                event.node,
                usual,
                noise,
                float(rates[lowest]),
                float((starts_s[lowest] + ends_s[lowest]) / 2),
                float(ends_s[back[0]]) if back else None,
                returned_s,
                own,
                others,
            )
        )
    return found


def shortfall(result: RunResult, beside: RunResult) -> Shortfall:
    """What a run with events of nodes found less than one without, on the same requests."""
    other = replica_series(beside, NUM_WIDE)
    own = replica_series(result, edges_s=other.edges_s)
    gaps = np.nan_to_num(other.fleet_hit_rate - own.fleet_hit_rate)
    events = fleet_events(result.scenario)
    gaps[other.edges_s[1:] <= (events[0].at if events else 0.0)] = 0.0
    most = int(np.argmax(gaps))
    behind = np.flatnonzero(gaps > CLOSE)
    rates = [run.summary["token_hit_rate"] or 0.0 for run in (beside, result)]
    return Shortfall(
        float(gaps[most]),
        float((other.edges_s[most] + other.edges_s[most + 1]) / 2),
        float(other.edges_s[behind[-1] + 1]) if len(behind) else None,
        round((rates[0] - rates[1]) * result.summary["prompt_tokens"]),
    )


def _width_s(series: ReplicaSeries) -> float:
    """Length of a stretch."""
    return float(series.edges_s[1] - series.edges_s[0])


def _returned(
    result: RunResult, series: ReplicaSeries, loss: FleetEvent, events: tuple[FleetEvent, ...]
) -> tuple[float | None, float | None, float | None]:
    """When a lost node took requests again, and the first hit rates of it and of the others."""
    again = [
        event.at + event.ready_after
        for event in events
        if event.add == loss.node and event.at >= loss.at
    ]
    if not again:
        return None, None, None
    inside = np.flatnonzero(series.edges_s[:-1] >= again[0])[:_BEFORE]
    if not len(inside):
        return again[0], None, None
    nodes = {row["replica"]: row["node"] for row in result.summary["fleet"]["replicas"]}
    looked_up = _looked_up(result)
    until_s = series.edges_s[inside[-1] + 1]
    some = looked_up[(looked_up["at_s"] >= again[0]) & (looked_up["at_s"] < until_s)]
    is_own = some["replica"].map(nodes) == loss.node
    rates = []
    for part in (some[is_own], some[~is_own]):
        tokens = float(part["prompt_tokens"].sum())
        rates.append(float(part["hit_tokens"].sum()) / tokens if tokens else None)
    return again[0], rates[0], rates[1]


def _looked_up(result: RunResult) -> pd.DataFrame:
    """A row a prompt looked up by a replica: when, where, and what it found.

    Where prefill and decode are apart, a prompt is looked up on both sides; `is_first` says which
    of them counts for the fleet.
    """
    import pandas as pd

    requests = result.requests
    ran = requests[requests["hit_tokens"].notna() & requests["replica"].notna()]
    columns = ["prompt_tokens", "hit_tokens"]
    if "prefill_replica" not in ran.columns:
        return _rows(ran[columns], ran["arrival_s"] + ran["queue_s"], ran["replica"], first=True)
    split = ran["prefill_replica"].notna()
    apart, alone = ran[split], ran[~split]
    begun_s = apart["arrival_s"] + apart["prefill_queue_s"]
    received_s = begun_s + apart["prefill_s"] + apart["decode_queue_s"]
    behind = apart[columns].assign(hit_tokens=apart["decode_hit_tokens"])
    return pd.concat(
        [
            _rows(apart[columns], begun_s, apart["prefill_replica"], first=True),
            _rows(behind, received_s, apart["replica"], first=False),
            _rows(alone[columns], alone["arrival_s"] + alone["queue_s"], alone["replica"], True),
        ],
        ignore_index=True,
    ).dropna(subset=["at_s", "hit_tokens"])


def _rows(
    some: pd.DataFrame, at_s: pd.Series[float], replica: pd.Series[int], first: bool
) -> pd.DataFrame:
    return some.assign(at_s=at_s.astype(float), replica=replica.astype(int), is_first=first)


def _queues(result: RunResult, edges_s: Floats) -> Floats:
    """Requests running and waiting by replica, mean over each stretch; NaN where it was not."""
    queues = []
    timelines = dict(list(result.timeline.groupby("replica")))
    for row in result.summary["fleet"]["replicas"]:
        timeline = timelines.get(row["replica"])
        num = len(edges_s) - 1
        if timeline is None:
            queues.append(np.full(num, math.nan))
            continue
        times_s = timeline["time_s"].to_numpy(dtype=float)
        counts = (timeline["running"] + timeline["waiting"]).to_numpy(dtype=float)
        # Each entry holds to the next, so what has passed by a moment is linear between them.
        passed = np.concatenate([[0.0], np.cumsum(counts[:-1] * np.diff(times_s))])
        mean = np.diff(np.interp(edges_s, times_s, passed)) / np.diff(edges_s)
        mean[~_is_there(edges_s, _events_of(result, row))] = math.nan
        queues.append(mean)
    return np.array(queues)


def _events_of(result: RunResult, row: dict[str, Any]) -> list[FleetEvent]:
    """What happens to the node of a row of a summary's replicas, in order of time."""
    rows = result.summary["fleet"]["replicas"]
    first = min(one["node"] for one in rows if one["pool"] == row["pool"])
    return [
        event
        for event in fleet_events(result.scenario)
        if event.pool == row["pool"] and event.node == row["node"] - first
    ]


def _is_there(edges_s: Floats, own: list[FleetEvent]) -> npt.NDArray[np.bool_]:
    """In which stretches a node was there at all; one that drains is until it has nothing left."""
    there = np.ones(len(edges_s) - 1, dtype=bool)
    gone_s: float | None = 0.0 if own and own[0].add is not None else None
    for event in [*own, None]:
        begin_s = math.inf if event is None else event.at + event.ready_after
        if gone_s is not None and (event is None or event.add is not None):
            there &= ~((edges_s[:-1] >= gone_s) & (edges_s[1:] <= begin_s))
            gone_s = None
        if event is not None and event.lose is not None:
            gone_s = event.at
    return there


def _ratio(part: Floats, whole: Floats) -> Floats:
    rates: Floats = np.full(np.shape(whole), math.nan)
    np.divide(part, whole, out=rates, where=whole > 0)
    return rates
