"""`kvsim describe`."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping
from typing import Annotated, NamedTuple

import typer

from kvsim.cli.terminal import Json, print_json
from kvsim.errors import KvsimError, unknown_name

_UNITS = (
    ("_tokens_per_s", "tokens/s"),
    ("_bytes_per_s", "bytes/s"),
    ("_per_s", "1/s"),
    ("_s", "s"),
    ("_rate", "0 to 1"),
    ("_share", "0 to 1"),
    ("_utilization", "0 to 1"),
    ("_tokens", "tokens"),
    ("_bytes", "bytes"),
    ("bytes_stored", "bytes"),
    ("bytes_loaded", "bytes"),
    ("used_bytes_max", "bytes"),
    ("_blocks", "blocks"),
)
_WIDTH = 80
_INDENT = " " * 6


class _Topic(NamedTuple):
    what: str
    entries: Mapping[str, str]


def describe(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="A topic, or a key, column or figure by its name."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what keys, columns and figures mean, with their units.

    Topics: keys (of a scenario), summary, tiers, fleets (in summary.json), requests and timeline
    (.parquet), sweep (sweep.parquet), reuse and more. Without a name, all topics.
    """
    topics = _topics()
    if name is None:
        chosen = topics
    elif name in topics:
        chosen = {name: topics[name]}
    else:
        chosen = {
            topic: _Topic(what, found)
            for topic, (what, entries) in topics.items()
            if (found := {key: text for key, text in entries.items() if _names(name, key)})
        }
    if not chosen:
        known = [*topics, *(key for topic in topics.values() for key in topic.entries)]
        raise KvsimError(f"NAME: {unknown_name('topic, key or figure', str(name), known)}")
    if as_json:
        print_json({topic: dict(entries) for topic, (_, entries) in chosen.items()})
    elif name is None:
        width = max(map(len, chosen)) + 1
        lines = [f"{topic:<{width}}{what} ({len(e)})" for topic, (what, e) in chosen.items()]
        sys.stdout.write("\n".join([*lines, "", "kvsim describe TOPIC shows one."]) + "\n")
    else:
        sys.stdout.write("\n\n".join(_shown(topic) for topic in chosen.values()) + "\n")


def _topics() -> dict[str, _Topic]:
    from kvsim.metrics.fleet import EXPECTED_KEYS, FLEET_KEYS, LINK_KEYS, REPLICA_KEYS
    from kvsim.metrics.handoff import HANDOFF_COLUMNS, POOLS_KEYS, SIDE_KEYS
    from kvsim.metrics.misses import MISS_REASONS
    from kvsim.metrics.overload import OVERLOAD_KEYS
    from kvsim.metrics.records import FLEET_COLUMNS, REQUEST_COLUMNS, TIMELINE_COLUMNS
    from kvsim.metrics.summary import SUMMARY_KEYS
    from kvsim.metrics.tiers import TIER_KEYS
    from kvsim.scenario.glossary import scenario_keys
    from kvsim.study.reuse import REUSE_COLUMNS
    from kvsim.study.sweep_table import RUN_COLUMNS

    keys: dict[str, str] = {}
    for key in scenario_keys():
        where = f"{key.place} ({key.kind})" if key.kind else key.place
        choices = f" One of {', '.join(key.choices)}." if len(key.choices) > 1 else ""
        keys[where] = f"{key.meaning}.{choices} Default: {key.default}."
    return {
        "keys": _Topic("keys of a scenario, with default and choices", keys),
        "summary": _Topic("figures of a run in summary.json", SUMMARY_KEYS),
        "overload": _Topic("figures of an overload in summary.json", OVERLOAD_KEYS),
        "reasons": _Topic("why a prompt token was missed, of missed_tokens", MISS_REASONS),
        "tiers": _Topic("figures of each tier in summary.json", TIER_KEYS),
        "fleets": _Topic("figures of a fleet in summary.json, under fleet", FLEET_KEYS),
        "replicas": _Topic("figures of each replica of a fleet in summary.json", REPLICA_KEYS),
        "links": _Topic("figures of each link of a fleet in summary.json", LINK_KEYS),
        "expected_hits": _Topic("hits that routers of a fleet expected", EXPECTED_KEYS),
        "handoffs": _Topic("figures of prefill and decode apart, under fleet.pools", POOLS_KEYS),
        "sides": _Topic("figures of either side of these", SIDE_KEYS),
        "requests": _Topic(
            "columns of requests.parquet, a row a request, with fleets'",
            {**REQUEST_COLUMNS, **FLEET_COLUMNS, **HANDOFF_COLUMNS},
        ),
        "timeline": _Topic("columns of timeline.parquet, a row a moment", TIMELINE_COLUMNS),
        "sweep": _Topic("first columns of sweep.parquet; axes and figures follow", RUN_COLUMNS),
        "reuse": _Topic("columns of kvsim.study.reuse: what a workload offers", REUSE_COLUMNS),
    }


def _names(name: str, key: str) -> bool:
    """Whether a name is a key, or a part of its dotted place."""
    place = key.partition(" ")[0]
    return name == place or place.startswith(f"{name}.") or place.rpartition(".")[2] == name


def _unit(name: str) -> str:
    return next((unit for ending, unit in _UNITS if name.endswith(ending)), "")


def _shown(topic: _Topic) -> str:
    lines = [f"{topic.what}:".capitalize()]
    for name, meaning in topic.entries.items():
        unit = _unit(name)
        lines.append(f"  {name}" + (f"  [{unit}]" if unit else ""))
        lines += textwrap.wrap(meaning, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT)
    return "\n".join(lines)
