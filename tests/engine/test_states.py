"""Models with states, run: what follows from where states are kept, and the blocks they take."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim import catalog
from kvsim.cache.config import CacheConfig
from kvsim.cache.content import Content
from kvsim.cache.manager import KVCache, Sequence
from kvsim.cache.spec import GroupSpec
from kvsim.capacity.memory import group_spec, num_blocks_of_request
from kvsim.engine.jobs import SchedulerConfig
from kvsim.engine.scheduler import Scheduler
from kvsim.engine.simulation import make_cache, simulate
from kvsim.errors import Problems
from kvsim.scenario import Scenario
from kvsim.workload.request import Request
from tests.properties.strategies import bounded

pytestmark = pytest.mark.bounds

HYBRIDS = ("qwen3-next-80b-a3b", "nemotron-3-nano-30b-a3b", "granite-4.0-h-small", "jamba-v0.1")


def request(name: str, spans: list[tuple[int, int]], num_output: int = 4) -> Request:
    content = Content.from_spans(spans)
    uid = 1_000_000 + int(name)
    return Request(name, 0.0, content, content.num_tokens, num_output, uid)


def chunks(block: int, unit: int | None, num_tokens: int, **options: Any) -> list[int]:
    """Tokens of each step of one prompt, in a model with a state and full attention."""
    groups = (GroupSpec("mamba", block, **options), GroupSpec("full", block))
    cache = KVCache(CacheConfig(400, groups, 65_536, 8192, 0, prefix_match_unit=unit))
    scheduler = Scheduler(cache, SchedulerConfig(8192, 8, 65_536))
    scheduler.add(request("0", [(1, num_tokens)], num_output=1))
    found = []
    while scheduler.has_work:
        scheduler.plan()
        found += [num for _, num in scheduler.scheduled()]
        scheduler.end_step()
    return found


def test_chunks_end_where_a_state_is_kept() -> None:
    # Three whole blocks of 2,096 tokens fit in a step of 8,192; the end of the last is exported.
    assert chunks(2096, None, 20_000, checkpoint_alignment=1) == [6288, 6288, 7424]
    assert chunks(2096, None, 20_000) == [6288, 6288, 6288, 1136]
    # With finer hits a backend that exports nothing stops once more, at the prompt's last unit.
    assert chunks(2096, 16, 20_000) == [6288, 6288, 6288, 1120, 16]
    # A block wider than a step is filled by several.
    assert chunks(20_000, None, 30_000) == [8192, 8192, 3616, 8192, 1808]


def test_what_later_turns_and_siblings_find() -> None:
    groups = (GroupSpec("mamba", 100, checkpoint_alignment=1), GroupSpec("full", 100))
    cache = KVCache(CacheConfig(400, groups, 10_000, 1000, 0))
    scheduler = Scheduler(cache, SchedulerConfig(1000, 8, 10_000))
    hits = []

    def run(name: str, spans: list[tuple[int, int]]) -> None:
        scheduler.add(request(name, spans, num_output=50))
        while scheduler.has_work:
            plan = scheduler.plan()
            hits.extend(hit.tokens for _, hit in plan.started)
            scheduler.end_step()

    run("0", [(1, 580)])
    run("1", [(1, 580), (1_000_000, 50), (2, 300)])  # the next turn: the last block of the prompt
    run("2", [(3, 420), (4, 200)])
    run("3", [(3, 420), (5, 200)])  # shows the junction, and stops there
    run("4", [(3, 420), (6, 200)])  # is served from it
    run("5", [(7, 90)])
    run("6", [(7, 90), (8, 5)])  # a prompt shorter than a block leaves nothing
    assert hits == [0, 500, 0, 0, 400, 0, 0]


@pytest.mark.parametrize("name", HYBRIDS)
def test_models_of_the_catalog_run(name: str) -> None:
    spans = [["system", 5000], ["question", 3000]]
    requests = [{"prompt": spans, "output": 40, "at_s": 3.0 * number} for number in range(3)]
    script = {"kind": "script", "requests": requests}
    data: dict[str, Any] = {
        "name": "s",
        "model": name,
        "node": {"gpu": "h200", "gpus": 2},
        "workload": script,
    }
    made = Scenario.from_data(data)
    block = made.scheduler_block_tokens
    ran = simulate(made).requests.frame()
    assert ran["hit_tokens"].tolist() == [0, *[7999 // block * block] * 2]
    assert ran["hit_ended"].tolist()[1] == "end of prompt"
    off = Scenario.from_data({**data, "cache": {"enable_prefix_caching": False}})
    assert simulate(off).requests.frame()["hit_tokens"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_decode_steps_taken_in_one_go_are_the_same(asynchronous: bool) -> None:
    requests = [
        {"prompt": [["A", 900], [name, 700]], "output": 300, "at_s": 1.2 * number}
        for number, name in enumerate("xyzx")
    ]
    state = {"kind": "mamba", "block_size": 64, "checkpoint_alignment": 1}
    made = Scenario.from_data(
        {
            "name": "s",
            "model": {"groups": [state, state, {"kind": "full", "block_size": 64}]},
            "node": {"num_blocks": 120},
            "engine": {
                "async_scheduling": asynchronous,
                "speculative": {"tokens": 2, "acceptance": 0.6},
                "prefix_match_unit": 16,
                "max_model_len": 4096,
                "max_num_batched_tokens": 512,
            },
            "step_time": {"kind": "constant", "step_s": 0.01, "token_s": 0.0001},
            "workload": {"kind": "script", "requests": requests},
        }
    )
    one, other = (simulate(made, one_by_one=by_one) for by_one in (False, True))
    assert one.requests.frame().equals(other.requests.frame())
    assert one.counters == other.counters
    hits = one.requests.frame()["hit_tokens"].tolist()
    assert hits[0] == 0
    assert hits[3] == 1584, "a resend ends inside a block, at the last unit"


def test_drafts_have_states_of_their_own() -> None:
    data = {
        "name": "s",
        "model": "qwen3.5-35b-a3b",
        "node": {"gpu": "h200", "gpus": 2},
        "engine": {"speculative": {"tokens": 2, "acceptance": 0.7}},
        "workload": {
            "kind": "script",
            "requests": [{"prompt": [["a", 9000]], "output": 60, "at_s": 0.0}] * 2,
        },
    }
    made = Scenario.from_data(data)
    states = [group for group in make_cache(made).config.groups if group.kind == "mamba"]
    assert {group.num_drafts for group in states} == {2}
    ran = simulate(made)
    assert ran.counters.num_steps < 100
    assert ran.requests.frame()["refused"].isna().all()


def test_what_cannot_be_run() -> None:
    data = {
        "name": "s",
        "model": "jamba-v0.1",
        "node": {"gpu": "h200", "gpus": 2},
        "workload": {"kind": "script", "requests": [{"prompt": [["A", 100]]}]},
    }

    def refused(**other: Any) -> str:
        with pytest.raises(Problems) as caught:
            simulate(Scenario.from_data({**data, **other}))
        return str(caught.value)

    text = refused(
        offload={"kind": "cpu", "capacity": "10 GiB"}, cache={"enable_prefix_caching": False}
    )
    assert "offload: takes a model's states only where they are kept at boundaries" in text
    text = refused(
        offload={
            "kind": "cpu",
            "capacity": "10 GiB",
            "below": {"capacity": "1 TiB", "link": "nvme-gen5-x4"},
        },
        engine={"prefix_match_unit": 16, "speculative": {"tokens": 1, "acceptance": 0.5}},
    )
    keys = "with keys every 16 tokens, so hits inside a block of states, yet"
    assert f"offload.below: a disk is not simulated {keys}" in text
    assert f"engine.speculative: drafts and a tier are not simulated {keys}" in text
    assert "engine.profile: vllm-0.32 is not known to run the model's states. Use vllm-0.33" in (
        refused(engine={"profile": "vllm-0.32"})
    )
    assert "engine.mamba_cache_mode: none keeps no states to find" in (
        refused(engine={"mamba_cache_mode": "none"})
    )


@bounded(25)
@given(
    st.sampled_from(HYBRIDS),
    st.integers(1, 30_000),
    st.sampled_from((0, 1, 3)),
    st.sampled_from((None, 0)),
    st.booleans(),
)
def test_requests_hold_what_capacity_says(
    name: str, num_tokens: int, num_drafts: int, interval: int | None, caching: bool
) -> None:
    """States take no more than the closed form says; long prompts reach it where states export."""
    settings = Scenario.from_data(
        {
            "name": "s",
            "model": name,
            "node": {"gpu": "h200", "gpus": 2},
            "cache": {"enable_prefix_caching": caching},
            "workload": {"kind": "script", "requests": [{"prompt": [["A", 100]]}]},
        }
    ).plan_settings
    model = catalog.model(name, settings)
    groups = tuple(group_spec(group) for group in model.groups)
    groups = tuple(
        group
        if group.kind != "mamba"
        else GroupSpec(
            "mamba",
            group.block_size,
            num_drafts=num_drafts,
            checkpoint_alignment=group.checkpoint_alignment,
            one_state=group.one_state,
        )
        for group in groups
    )
    longest = model.max_model_len or 0
    counted = num_blocks_of_request(groups, num_tokens, 8192)
    config = CacheConfig(sum(counted) + 1, groups, longest, 8192, interval, caching)
    cache = KVCache(config)
    sequence = Sequence(Content.from_spans([(1, num_tokens)]), num_tokens)
    start, most = 0, [0] * len(groups)
    hit = cache.lookup(sequence)
    while start < num_tokens:
        cache.begin_step()
        num_new = cache.chunk(sequence, start, min(8192, num_tokens - start), 8192)
        first = hit if start == 0 else None
        assert cache.allocate(sequence, num_new, hit=first, full_fit=start == 0)
        start += num_new
        held = [int((cache.block_table(sequence, g) > 0).sum()) for g in range(len(groups))]
        most = list(map(max, most, held))
        cache.let_go_of_copies()
    for group, seen, count in zip(groups, most, counted, strict=True):
        assert seen <= count
        if group.kind == "full" or group.one_state:
            assert seen == count
    assert cache.num_blocks_to_admit(num_tokens) <= sum(counted)


@pytest.mark.parametrize(
    ("unit", "kind", "resend", "after_eviction"),
    [(None, "cpu", 1152, 4608), (None, "mooncake", 1152, 4608), (64, "mooncake", 1216, 4672)],
)
def test_a_tier_serves_states(
    unit: int | None, kind: str, resend: int, after_eviction: int
) -> None:
    """Two blocks of 576 tokens beyond the local hit, then all there are; or up to the last unit."""
    shared = ["a", 4000]
    prompts = [[shared, [f"q{number}", 700]] for number in (0, 1, 2, 3, 4, 5, 0)]
    prompts += [[["b", 9000]], [shared, ["q1", 700]]]
    made = Scenario.from_data(
        {
            "name": "s",
            "model": "qwen3-next-80b-a3b",
            "node": {"gpu": "h200", "gpus": 2, "num_blocks": 40},
            "engine": {} if unit is None else {"prefix_match_unit": unit},
            "offload": {"kind": kind, "capacity": "200 GiB"},
            "workload": {
                "kind": "script",
                "requests": [
                    {"prompt": prompt, "output": 8, "at_s": 3.0 * number}
                    for number, prompt in enumerate(prompts)
                ],
            },
        }
    )
    external = simulate(made).requests.frame()["external_hit_tokens"].tolist()
    assert external == [0, 0, 0, 0, 0, 0, resend, 0, after_eviction]
