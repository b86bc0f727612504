"""`kvsim describe`: the meanings in the code, by topic and by name."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from kvsim.cli import app
from kvsim.errors import KvsimError
from kvsim.metrics.fleet import EXPECTED_KEYS, FLEET_KEYS, LINK_KEYS, REPLICA_KEYS
from kvsim.metrics.handoff import HANDOFF_COLUMNS, POOLS_KEYS, SIDE_KEYS
from kvsim.metrics.records import FLEET_COLUMNS, REQUEST_COLUMNS, TIMELINE_COLUMNS
from kvsim.metrics.summary import SUMMARY_KEYS
from kvsim.metrics.tiers import TIER_KEYS
from kvsim.scenario.glossary import scenario_keys


def said(*words: str) -> str:
    result = CliRunner().invoke(app, ["describe", *words], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


@pytest.mark.parametrize(
    ("topic", "entries"),
    [
        ("summary", SUMMARY_KEYS),
        ("tiers", TIER_KEYS),
        ("fleets", FLEET_KEYS),
        ("replicas", REPLICA_KEYS),
        ("links", LINK_KEYS),
        ("expected_hits", EXPECTED_KEYS),
        ("handoffs", POOLS_KEYS),
        ("sides", SIDE_KEYS),
        ("requests", {**REQUEST_COLUMNS, **FLEET_COLUMNS, **HANDOFF_COLUMNS}),
        ("timeline", TIMELINE_COLUMNS),
    ],
)
def test_every_figure_is_described_with_its_unit(topic: str, entries: dict[str, str]) -> None:
    text = said(topic)
    assert json.loads(said(topic, "--json")) == {topic: entries}
    assert max(map(len, text.splitlines())) <= 80
    for name in entries:
        assert f"  {name}" in text
    if topic == "requests":
        assert "  arrival_s  [s]\n      arrival on the clock of the run\n" in text


def test_every_key_is_described_with_default_and_choices() -> None:
    text = said("keys")
    assert max(map(len, text.splitlines())) <= 80
    for key in scenario_keys():
        assert f"  {key.place}" in text
        assert key.meaning
    one = " ".join(said("cache.free_queue").split())
    assert "as `kvsim policies` lists them" in one
    assert "Default: profile." in one
    assert "One of fcfs, priority." in " ".join(said("engine.policy").split())


def test_a_name_is_found_wherever_it_stands() -> None:
    text = said("ttft_s")
    assert "objective.ttft_s" in text
    assert "arrival to first token" in text


def test_topics_come_without_a_name() -> None:
    text = said()
    assert text.startswith("keys ")
    assert max(map(len, text.splitlines())) <= 80


def test_an_unknown_name_names_the_nearest() -> None:
    with pytest.raises(KvsimError, match="Did you mean 'ttft_s'"):
        said("ttftt_s")
