"""The counted closed loop against the simulator, and how engines differ."""

from __future__ import annotations

import numpy as np
import pytest
import simpy

from kvsim import catalog
from kvsim.cache.config import CacheConfig
from kvsim.cache.content import Content
from kvsim.cache.manager import KVCache
from kvsim.cache.spec import GroupSpec
from kvsim.engine.clock import Clock
from kvsim.engine.jobs import SchedulerConfig
from kvsim.engine.replica import Replica
from kvsim.engine.scheduler import Scheduler
from kvsim.metrics.records import RequestLog, TimelineLog
from kvsim.times.closed_loop import (
    APART,
    MIXED,
    PROMPT_TOKENS,
    SEQUENCES,
    TOKENS,
    WHOLE,
    Ints,
    Loop,
    loop_seconds,
    run_closed_loop,
)
from kvsim.times.roofline import roofline
from kvsim.times.step_time import StepTimeParams
from kvsim.times.work import Layout
from kvsim.workload.request import Request

MODELS = (
    ("llama-3.3-70b", "h200", Layout(8)),
    ("gpt-oss-120b", "b200", Layout(2)),
    ("deepseek-v4-flash", "b300", Layout(4)),
)


def loop(prompts: Ints, outputs: Ints, concurrency: int, **changes: object) -> Loop:
    given = {
        "num_ranks": 1,
        "plan": MIXED,
        "hold_steps": 0,
        "step_tokens": 2048,
        "max_sequences": 1 << 20,
        "kv_bytes": 0.0,
        "held_bytes": np.array([1.0]),
        "held_cap": np.array([1 << 40]),
        "tokens_a_step": 1.0,
    }
    return Loop(prompts, outputs, concurrency, **(given | changes))  # type: ignore[arg-type]


def simulated(
    params: StepTimeParams, prompts: Ints, outputs: Ints, concurrency: int, step_tokens: int
) -> tuple[list[float], list[float]]:
    """TTFT and TPOT of each request as the simulator has them."""
    group = GroupSpec("full", 16, None, False)
    cache = KVCache(
        CacheConfig(
            num_blocks=100_000,
            groups=(group,),
            max_model_len=100_000,
            max_in_flight_tokens=step_tokens,
            enable_caching=False,
        )
    )
    clock, log = Clock(), RequestLog()
    scheduler = Scheduler(
        cache,
        SchedulerConfig(
            max_num_batched_tokens=step_tokens,
            max_num_seqs=len(prompts),
            max_model_len=100_000,
            asynchronous=False,
        ),
    )
    replica = Replica(clock, scheduler, params, log, TimelineLog())

    numbers = iter(range(len(prompts)))

    def client() -> simpy.events.ProcessGenerator:
        for number in numbers:
            content = Content.from_spans([(2 * number + 1, int(prompts[number]))])
            own = int(prompts[number]), int(outputs[number]), 2 * number + 2
            done = clock.event()
            replica.submit(Request(str(number), clock.now, content, *own), done)
            yield done

    for _ in range(concurrency):
        clock.process(client())
    clock.run()
    frame = log.frame().sort_values("request_id", key=lambda ids: ids.astype(int))
    return frame["ttft_s"].tolist(), frame["tpot_s"].tolist()


@pytest.mark.parametrize(("name", "gpu", "layout"), MODELS)
@pytest.mark.parametrize("concurrency", [1, 7, 40])
def test_times_are_those_of_the_simulator(
    name: str, gpu: str, layout: Layout, concurrency: int
) -> None:
    none_outside = {"request_s": 0.0, "request_token_s": 0.0}
    params = roofline(catalog.model(name), catalog.gpu(gpu), layout, override=none_outside)
    random = np.random.default_rng(concurrency)
    num = max(2 * concurrency, 4)
    prompts, outputs = random.integers(2, 3000, num), random.integers(1, 120, num)
    steps = run_closed_loop(params, loop(prompts, outputs, concurrency))
    ttft_s, tpot_s = loop_seconds(params, steps, outputs)
    expected_ttft_s, expected_tpot_s = simulated(params, prompts, outputs, concurrency, 2048)
    assert ttft_s == pytest.approx(expected_ttft_s, rel=1e-9)
    several = outputs > 1
    assert tpot_s[several] == pytest.approx(np.array(expected_tpot_s)[several], rel=1e-9)


@pytest.fixture(scope="module")
def params() -> StepTimeParams:
    return roofline(catalog.model("llama-3.3-70b"), catalog.gpu("h200"), Layout(8))


def lengths(seed: int, num: int) -> tuple[Ints, Ints]:
    random = np.random.default_rng(seed)
    return random.integers(2, 1500, num), random.integers(1, 60, num)


@pytest.mark.parametrize("plan", [MIXED, APART, WHOLE])
@pytest.mark.parametrize("ranks", [1, 4])
def test_every_token_is_computed_once(params: StepTimeParams, plan: int, ranks: int) -> None:
    prompts, outputs = lengths(1, 60)
    steps = run_closed_loop(params, loop(prompts, outputs, 16, plan=plan, num_ranks=ranks))
    assert (steps.first >= steps.arrival).all() and (steps.end >= steps.first).all()
    if ranks == 1:
        assert steps.rows[:, TOKENS].sum() == prompts.sum() + outputs.sum() - len(outputs)
        assert steps.rows[:, PROMPT_TOKENS].sum() == prompts.sum()
    assert steps.rows[:, SEQUENCES].max() <= 16


def test_engines_plan_prompts_differently(params: StepTimeParams) -> None:
    prompts, outputs = lengths(2, 40)
    rows = {
        plan: run_closed_loop(params, loop(prompts, outputs, 8, plan=plan)).rows
        for plan in (MIXED, APART, WHOLE)
    }
    decodes = {plan: row[:, TOKENS] - row[:, PROMPT_TOKENS] for plan, row in rows.items()}
    with_prompts = {plan: row[:, PROMPT_TOKENS] > 0 for plan, row in rows.items()}
    assert decodes[MIXED][with_prompts[MIXED]].max() > 0
    assert decodes[APART][with_prompts[APART]].max() == 0
    # Whole prompts end in the step they begin in.
    assert len(np.unique(rows[WHOLE][with_prompts[WHOLE], PROMPT_TOKENS])) > 5


@pytest.mark.parametrize("plan", [WHOLE, APART])
def test_prompts_wait_until_every_rank_has_one(params: StepTimeParams, plan: int) -> None:
    prompts, outputs = lengths(3, 60)
    held, free = (
        run_closed_loop(
            params, loop(prompts, outputs, 16, plan=plan, num_ranks=4, hold_steps=steps)
        )
        for steps in (30, 0)
    )
    waits = (held.first - held.arrival).mean()
    assert waits > (free.first - free.arrival).mean()
    prompt_steps = [int((steps.rows[:, PROMPT_TOKENS] > 0).sum()) for steps in (held, free)]
    assert prompt_steps[0] < prompt_steps[1]


def test_memory_bounds_how_many_run(params: StepTimeParams) -> None:
    prompts, outputs = np.full(12, 1000), np.full(12, 50)
    tight = run_closed_loop(params, loop(prompts, outputs, 6, kv_bytes=3200.0))
    assert tight.rows[:, SEQUENCES].max() == 3
    reserved = run_closed_loop(params, loop(prompts, outputs, 6, kv_bytes=3120.0, plan=WHOLE))
    assert reserved.rows[:, SEQUENCES].max() == 2
    assert reserved.rows[:, TOKENS].sum() == prompts.sum() + outputs.sum() - 12


def test_drafts_shorten_the_loop(params: StepTimeParams) -> None:
    prompts, outputs = np.full(8, 100), np.full(8, 80)
    plain = run_closed_loop(params, loop(prompts, outputs, 4))
    drafted = run_closed_loop(params, loop(prompts, outputs, 4, tokens_a_step=2.0))
    assert len(drafted.rows) == pytest.approx(len(plain.rows) / 2, rel=0.1)


def test_runs_of_decodes_are_taken_as_single_steps_would_be(params: StepTimeParams) -> None:
    prompts, outputs = lengths(4, 30)
    quick = run_closed_loop(params, loop(prompts, outputs, 6))
    # A fraction above 1 that yields no whole token in so few steps takes every step alone.
    slow = run_closed_loop(params, loop(prompts, outputs, 6, tokens_a_step=1.0 + 1e-9))
    assert (quick.rows.shape, quick.end.tolist()) == (slow.rows.shape, slow.end.tolist())
    assert quick.rows == pytest.approx(slow.rows, rel=1e-9)
