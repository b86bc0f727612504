"""The published fleets at a small size, and the tables of the full runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvsim.policies.finding import policies_are_trusted, trust_policies
from tests.published import set_ups
from tests.published.figures import of_burst, of_ladder, saved
from tests.published.tables import VALIDATION, part, replaced


@pytest.fixture(autouse=True, scope="module")
def trusted() -> Iterator[None]:
    before = policies_are_trusted()
    trust_policies()
    yield
    trust_policies(before)


def test_the_document_shows_the_figures_of_the_full_runs() -> None:
    text = VALIDATION.read_text(encoding="utf-8")
    assert replaced(text, part(saved())) == text


def test_the_full_runs_are_in_the_published_order() -> None:
    ladder, repeated = saved()["ladder"], saved()["prefix-repetition"]
    rates = {name: one["output_tokens_per_s"] for name, one in ladder.items()}
    assert sorted(rates, key=lambda name: -rates[name])[:2] == ["precise", "approximate"]
    for lengths in ("256 + 128", "1024 + 512"):
        robin, aware, events = (repeated[f"{name}, {lengths}"]["hit_rate"] for name in set_ups.SMG)
        assert robin < min(aware, events)


def test_precise_beats_approximate_beats_random_on_two_pods() -> None:
    stages = ((15.0, 50.0), (30.0, 25.0))
    figures = [
        of_ladder(set_ups.ladder(set_ups.LLM_D[name], stages, pods=2), stages)
        for name in ("precise", "approximate", "random")
    ]
    hits = [one["hit_rate"] for one in figures]
    assert hits[0] > 0.9
    assert hits == sorted(hits, reverse=True)
    rates = [one["output_tokens_per_s"] for one in figures]
    assert rates[0] > rates[2]


def test_cache_aware_keeps_each_shared_prefix_on_one_worker() -> None:
    robin, aware = (
        of_burst(set_ups.shared_prefix(router, workers=4)) for router in set_ups.SGLANG.values()
    )
    # One miss a group, 2,048 of 2,176 tokens shared: at most 15 / 16 of 94.1 %.
    assert aware["hit_rate"] == pytest.approx(15 / 16 * 2048 / 2176, abs=0.03)
    assert robin["hit_rate"] < aware["hit_rate"] - 0.1
    assert aware["input_tokens_per_s"] > robin["input_tokens_per_s"]


def test_round_robin_finds_fewer_prefixes_than_trees_or_events() -> None:
    robin, aware, events = (
        of_burst(set_ups.prefix_repetition(router, num_prefixes=150))["hit_rate"]
        for router in set_ups.SMG.values()
    )
    # Two of three find theirs, four fifths of the prompt; on a third of the workers by chance.
    assert aware == pytest.approx(2 / 3 * 0.8, abs=0.03)
    assert robin == pytest.approx(0.2963 * 0.8, abs=0.04)
    assert robin < events <= aware + 0.01


def test_one_store_finds_agents_turns_on_any_node() -> None:
    made = set_ups.agents(3, sessions_each=2, turns=6)
    figures, alone = of_burst(made), of_burst(made.replace({"offload": None}))
    new = 6 * 10_000 + 6 * 5 * (2048 + 900) + 20_000  # each once; answers are not put
    all_tokens = sum(6 * (30_000 + turn * 2948) for turn in range(6))
    assert figures["hit_rate"] == pytest.approx(1 - new / all_tokens, abs=0.03)
    assert alone["hit_rate"] < figures["hit_rate"] - 0.05
