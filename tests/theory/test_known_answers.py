"""Small cases whose answers the engine's own code gave (vLLM 0.33.0 and 0.22.1)."""

from __future__ import annotations

from collections.abc import Sequence as Many
from pathlib import Path

import pytest

from kvsim.cache.config import CacheConfig
from kvsim.cache.content import Content
from kvsim.cache.manager import KVCache, Sequence
from kvsim.cache.spec import GroupSpec
from kvsim.engine.simulation import simulate
from kvsim.scenario import Scenario

FULL_16 = (GroupSpec("full", 16),)
FULL_AND_WINDOW = (GroupSpec("full", 16), GroupSpec("sliding_window", 16, 128))
DSV4 = (
    GroupSpec("full", 256),
    GroupSpec("sliding_window", 64, 128),
    GroupSpec("sliding_window", 64, 128),
    GroupSpec("sliding_window", 4, 8),
    GroupSpec("sliding_window", 8, 128),
)
Spans = list[tuple[int, int]]


def make_cache(
    groups: tuple[GroupSpec, ...],
    usable: int,
    interval: int | None = None,
    *,
    profile: str = "vllm-0.33",
    chunk: int = 8192,
    eagle: bool = False,
) -> KVCache:
    """A cache with so many usable blocks; null, 0 or an interval in tokens."""
    return KVCache(
        CacheConfig(
            num_blocks=usable + 1,
            groups=groups,
            max_model_len=1 << 20,
            max_in_flight_tokens=chunk,
            retention_interval=interval,
            use_eagle=eagle,
            profile=profile,
        )
    )


def hits(cache: KVCache, prompts: Many[Spans]) -> list[int]:
    """Serve prompts one after another, each computed in chunks and given back; their hits."""
    found = []
    for spans in prompts:
        content = Content.from_spans(spans)
        sequence = Sequence(content, content.num_tokens)
        hit = cache.lookup(sequence)
        found.append(hit.tokens)
        first, done = hit, hit.tokens
        while done < content.num_tokens:
            num_new = min(content.num_tokens - done, cache.config.max_in_flight_tokens)
            assert cache.allocate(sequence, num_new, hit=first, full_fit=first is not None)
            first, done = None, done + num_new
        cache.free(sequence)
    return found


def letters(order: str, num_tokens: int) -> list[Spans]:
    """One prompt a letter; the same letter is the same prompt."""
    return [[(ord(letter), num_tokens)] for letter in order]


@pytest.mark.parametrize(("num_tokens", "second"), [(1000, 992), (1024, 1008)])
def test_a1_a_prompt_twice(num_tokens: int, second: int) -> None:
    assert hits(make_cache(FULL_16, 500), letters("AA", num_tokens)) == [0, second]


@pytest.mark.parametrize(
    ("usable", "later"),
    [(12_500, 99_984), (12_000, 92_000), (9_375, 50_000), (6_251, 16), (6_250, 0)],
)
def test_a2_two_prompts_in_turn(usable: int, later: int) -> None:
    assert hits(make_cache(FULL_16, usable), letters("ABABA", 100_000)) == [
        0,
        0,
        later,
        later,
        later,
    ]


@pytest.mark.parametrize(("profile", "again"), [("vllm-0.22", 400), ("vllm-0.33", 496)])
def test_a3_short_prompts_flush_only_where_blocks_are_appended(profile: str, again: int) -> None:
    others: list[Spans] = [[(uid, 8)] for uid in range(1000, 1040)]
    prompts = [[(1, 512)], *others, [(1, 512)]]
    assert hits(make_cache(FULL_16, 65, profile=profile), prompts)[-1] == again


@pytest.mark.parametrize(
    ("interval", "usable", "replay"),
    [
        (0, 1_166, 0),
        (0, 1_167, 8_176),
        (4096, 1_175, 0),
        (4096, 1_176, 8_176),
        (None, 1_543, 0),
        (None, 1_544, 6_144),
        (None, 1_545, 6_160),
        (None, 1_670, 8_160),
        (None, 1_671, 8_176),
    ],
)
def test_a4_a_replay_is_whole_or_nothing_where_runs_are_sparse(
    interval: int | None, usable: int, replay: int
) -> None:
    cache = make_cache(FULL_AND_WINDOW, usable, interval, chunk=2048)
    assert hits(cache, letters("ABA", 8_192))[-1] == replay


def test_a5_p6_three_times_sixteen_thousand() -> None:
    cache = make_cache(DSV4, 40_999, 32_768)
    assert hits(cache, letters("AAA", 16_007)) == [0, 15_872, 15_872]


@pytest.mark.parametrize(
    ("profile", "interval", "second"),
    [
        ("vllm-0.22", None, 0),
        ("vllm-0.33", None, 32_512),
        ("vllm-0.33", 4096, 32_512),
        ("vllm-0.33", 0, 32_512),
    ],
)
def test_a6_a_second_pass(profile: str, interval: int | None, second: int) -> None:
    cache = make_cache(DSV4, 40_999, interval, profile=profile)
    assert hits(cache, letters("ABCDEFGH" * 2, 32_768))[8:] == [second] * 8


@pytest.mark.parametrize(
    ("profile", "interval", "num_prompts", "replay"),
    [
        ("vllm-0.22", None, 2, 0),
        ("vllm-0.33", None, 2, 999_936),
        ("vllm-0.33", None, 3, 0),
        ("vllm-0.33", 4096, 10, 999_936),
        ("vllm-0.33", 4096, 12, 0),
        ("vllm-0.33", 32_768, 22, 999_936),
        ("vllm-0.33", 32_768, 23, 0),
        ("vllm-0.33", 0, 26, 999_936),
        ("vllm-0.33", 0, 27, 0),
    ],
)
def test_a7_long_prompts_that_stay(
    profile: str, interval: int | None, num_prompts: int, replay: int
) -> None:
    cache = make_cache(DSV4, 108_024, interval, profile=profile)
    prompts: list[Spans] = [[(uid, 1_000_000)] for uid in range(num_prompts)]
    assert hits(cache, [*prompts, prompts[0]])[-1] == replay


@pytest.mark.parametrize(
    ("interval", "shared"), [(None, 499_968), (4096, 499_712), (32_768, 491_520), (0, 0)]
)
def test_a8_a_branch_in_the_middle(interval: int | None, shared: int) -> None:
    cache = make_cache(DSV4, 108_024, interval)
    assert hits(cache, [[(1, 1_000_000)], [(1, 500_000), (2, 500_000)]])[-1] == shared


@pytest.mark.parametrize(
    ("interval", "answers"), [(None, [0, 2000, 2000]), (0, [0, 0, 2000]), (1024, [0, 1024, 2000])]
)
def test_a9_with_interval_0_a_prefix_is_hit_at_its_third_sighting(
    interval: int | None, answers: list[int]
) -> None:
    prompts: list[Spans] = [[(1, 2000), (uid, 500)] for uid in (10, 11, 12)]
    assert hits(make_cache(FULL_AND_WINDOW, 5000, interval), prompts) == answers


def test_a10_the_coarsest_group_sets_the_unit() -> None:
    groups = (GroupSpec("full", 16_384), GroupSpec("sliding_window", 128, 128))
    assert hits(make_cache(groups, 5000), letters("AA", 46_240))[-1] == 32_768


@pytest.mark.parametrize(
    ("num_tokens", "second"), [(255, 0), (256, 0), (257, 256), (512, 256), (513, 512), (1000, 768)]
)
def test_a11_around_boundaries(num_tokens: int, second: int) -> None:
    assert hits(make_cache(DSV4, 41_000), letters("AA", num_tokens))[-1] == second


def run_steps(requests: list[dict[str, object]], num_blocks: int) -> Scenario:
    """One full-attention group of 16-token blocks, a step of 0.01 s, 8,192 tokens batched."""
    return Scenario.from_data(
        {
            "name": "known-answer",
            "model": {"groups": [{"kind": "full", "block_size": 16}]},
            "node": {"num_blocks": num_blocks},
            "engine": {"max_model_len": 65_536, "max_num_batched_tokens": 8192},
            "step_time": {"kind": "constant", "step_s": 0.01},
            "workload": {"kind": "script", "requests": requests},
        }
    )


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize(
    ("usable", "figures"),
    [
        (200, (1_471, 1, 2_048, 0, 1_601, 1_152, 4_542)),
        (256, (1_024, 0, 2_048, 0, 0, 0, 4_094)),
    ],
)
def test_a12_two_requests_that_outgrow_the_pool(
    usable: int, figures: tuple[int, ...], one_by_one: bool
) -> None:
    requests = [{"prompt": [[name, 1024]], "output": 1024} for name in "AB"]
    counters = simulate(run_steps(requests, usable + 1), one_by_one=one_by_one).counters
    assert (
        counters.num_steps,
        counters.preemptions,
        counters.queried_tokens,
        counters.hit_tokens,
        counters.preempted_queried_tokens,
        counters.preempted_hit_tokens,
        counters.scheduled_tokens,
    ) == figures


def test_a13_ten_identical_prompts_in_one_step() -> None:
    requests = [{"prompt": [["A", 512]], "output": 2} for _ in range(10)]
    counters = simulate(run_steps(requests, 1001)).counters
    assert (counters.hit_tokens, counters.queried_tokens) == (4_464, 5_120)
    assert (counters.num_steps, counters.scheduled_tokens) == (2, 666)


def test_a14_blocks_are_hit_while_their_prompt_is_computed() -> None:
    requests = [
        {"prompt": [["A", 40_000]], "output": 2},
        {"prompt": [["A", 40_000]], "output": 2, "at_s": 0.02},
    ]
    simulation = simulate(run_steps(requests, 10_001))
    assert simulation.requests.frame()["hit_tokens"].tolist() == [0, 39_984]
    assert simulation.counters.num_steps == 6
    assert simulation.counters.scheduled_tokens == 40_018


@pytest.mark.parametrize(
    ("num_tokens", "second"), [(100, 80), (160, 128), (1000, 976), (1024, 992), (1025, 1008)]
)
def test_a15_a_look_ahead_block_is_dropped(num_tokens: int, second: int) -> None:
    cache = make_cache(FULL_16, 1000, eagle=True)
    assert hits(cache, letters("AA", num_tokens))[-1] == second


SCRIPT = """\
model: {{groups: [{{kind: full, block_size: 16}}, {{kind: sliding_window, block_size: 16,
                  sliding_window: 128}}]}}
node: {{num_blocks: 5001}}
cache: {{retention_interval: {interval}}}
step_time: {{kind: constant, step_s: 0.01}}
workload:
  kind: script
  concurrency: 1
  requests:
    - {{prompt: [[A, 2000], [x, 500]]}}
    - {{prompt: [[A, 2000], [y, 500]]}}
    - {{prompt: [[A, 2000], [z, 500]]}}
"""


def test_a9_written_down_as_a_scenario(tmp_path: Path) -> None:
    from kvsim.scenario.reading import load_scenario

    for interval, answers in (("null", [0, 2000, 2000]), ("0", [0, 0, 2000])):
        path = tmp_path / "a9.yaml"
        path.write_text(SCRIPT.format(interval=interval))
        frame = simulate(load_scenario(path)).requests.frame()
        assert frame["hit_tokens"].tolist() == answers
