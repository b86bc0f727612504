from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Kvsim

TRACE = Path(__file__).parents[2] / "scenarios" / "traces" / "mooncake_conversation.jsonl.gz"


def test_the_core_is_timed_on_a_trace(kvsim: Kvsim) -> None:
    answer = kvsim("bench", "core", TRACE, "--limit", "50", "--json")
    assert answer.code == 0, answer.err
    figures = json.loads(answer.out)
    assert list(figures) == [
        "requests",
        "seconds",
        "ms_per_request",
        "hit_tokens",
        "tokens",
        "loop_seconds",
    ]
    assert figures["requests"] == 50
    assert figures["ms_per_request"] == pytest.approx(1000 * figures["seconds"] / 50)
    assert figures["loop_seconds"] > 0


@pytest.mark.parametrize(
    ("options", "hit_tokens"),
    [
        (["--groups", "dsv4", "--retention", "0"], 9_325_056),
        (["--groups", "dsv4", "--retention", "null"], 2_092_544),
        (["--groups", "full", "--retention", "null"], 5_953_520),
    ],
)
def test_hits_of_the_first_3000_requests_are_the_engines(
    kvsim: Kvsim, options: list[str], hit_tokens: int
) -> None:
    figures = json.loads(kvsim("bench", "core", TRACE, "--limit", 3000, "--json", *options).out)
    assert (figures["hit_tokens"], figures["tokens"]) == (hit_tokens, 40_550_180)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--groups", "dsv"], "--groups: unknown groups 'dsv'. Did you mean 'dsv4'?"),
        (["--retention", "none"], "--retention: 'none' is no interval. Use null, 0 or a number"),
        (["--retention", "100"], "bench core: retention_interval: 100 is not a multiple of the"),
        (["--num-blocks", "100"], "does not fit in 99 blocks. Give a larger --num-blocks."),
    ],
)
def test_what_cannot_be_timed(kvsim: Kvsim, options: list[str], message: str) -> None:
    answer = kvsim("bench", "core", TRACE, "--limit", "20", *options)
    assert answer.code == 2
    assert message in answer.err
