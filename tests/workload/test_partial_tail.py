"""How far the ranking of retention intervals depends on what a coarse id hides.

The agents' trace has ids of 16 tokens, so what its prompts share is known. Written with ids of 512
tokens it is as coarse as Mooncake's, and both readings of it can be held against the truth.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.engine.simulation import simulate
from kvsim.scenario import Scenario
from kvsim.workload.analysis import ideal_hit_tokens
from kvsim.workload.traces import TraceOptions, open_trace_file
from kvsim.workload.traces.writing import write_mooncake

AGENTS = Path(__file__).parents[2] / "scenarios/traces/mini_swe_agent.jsonl.gz"


@pytest.fixture(scope="module")
def coarse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traces") / "coarse.jsonl"
    write_mooncake(path, open_trace_file(AGENTS, TraceOptions()).requests(), 512)
    return path


def hit_rate(path: Path, interval: int | None, partial_tail: str) -> float:
    scenario = Scenario.from_data(
        {
            "name": "tails",
            "model": "deepseek-v4-flash",
            "node": {"num_blocks": 4000},
            "cache": {"retention_interval": interval},
            "step_time": {"kind": "constant", "step_s": 0.01},
            "workload": {"kind": "trace", "path": str(path), "partial_tail": partial_tail},
        },
        "tails",
        Path(),
    )
    counters = simulate(scenario).counters
    return counters.hit_tokens / counters.queried_tokens


def test_the_truth_lies_between_the_bounds(coarse: Path) -> None:
    rates = []
    for path, shared_tails in ((coarse, False), (AGENTS, False), (coarse, True)):
        trace = open_trace_file(path, TraceOptions(shared_tails=shared_tails))
        hit_tokens, num_tokens = ideal_hit_tokens(trace.requests())
        rates.append(hit_tokens / num_tokens)
    assert rates == sorted(rates)
    assert [round(rate, 3) for rate in rates] == [0.896, 0.934, 0.936]


def test_as_recorded_coarse_ids_turn_the_ranking_around(coarse: Path) -> None:
    known, distinct, shared = (
        [hit_rate(path, interval, tail) for interval in (None, 4096, 0)]
        for path, tail in ((AGENTS, "distinct"), (coarse, "distinct"), (coarse, "shared"))
    )
    # In truth the intervals find nearly the same, and the sparsest no less than dense.
    assert max(known) - min(known) < 0.002
    # Coarse ids hide the ends of prompts, which a sparse cache lives on.
    assert distinct[0] > distinct[1] > distinct[2]
    assert distinct[0] - distinct[2] > 0.015
    # Here the upper bound is next to the truth.
    assert shared == pytest.approx(known, abs=0.002)
