"""Reading a trace against simulating it, and how memory follows its length.

Run with ``pytest tests/benchmarks/test_traces.py --benchmark-enable``; a trace of 1,000,000
requests is written, read and counted, which takes a few minutes.
"""

from __future__ import annotations

import json
import time
import tracemalloc
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from kvsim.scenario import Scenario
from kvsim.workload.analysis import TraceBlocks
from kvsim.workload.traces import TraceOptions, open_trace_file

CONVERSATION = Path(__file__).parents[2] / "scenarios/traces/mooncake_conversation.jsonl.gz"
NUM_REQUESTS = 1_000_000

pytestmark = [
    pytest.mark.benchmark,
    pytest.mark.filterwarnings("ignore:Benchmark fixture was not used"),
]


@pytest.fixture(autouse=True)
def _only_when_asked(benchmark: BenchmarkFixture) -> None:
    if benchmark.disabled:
        pytest.skip("measures speed; run with --benchmark-enable")


def long_trace(path: Path, num_requests: int) -> Path:
    """The bundled hour over and over, each time with ids of its own."""
    with path.open("w") as file:
        written, lap = 0, 0
        while written < num_requests:
            trace = open_trace_file(CONVERSATION, TraceOptions())
            for request in islice(trace.requests(), num_requests - written):
                ids = (request.content.uids + 200_000 * lap).tolist()
                row = {
                    "timestamp": round(1000 * request.arrival_s) + 3_600_000 * lap,
                    "input_length": request.num_prompt_tokens,
                    "output_length": request.num_output_tokens,
                    "hash_ids": ids,
                }
                file.write(json.dumps(row) + "\n")
                written += 1
            lap += 1
    return path


def read(path: Path, limit: int | None = None) -> None:
    deque(open_trace_file(path, TraceOptions(limit=limit)).requests(), maxlen=0)


def test_reading_costs_less_than_simulating(benchmark: BenchmarkFixture) -> None:
    from kvsim.engine.simulation import simulate

    scenario = Scenario.from_data(
        {
            "name": "speed",
            "model": "deepseek-v4-pro",
            "node": {"gpu": "b300", "gpus": 8, "tensor_parallel": 8},
            "workload": {"kind": "trace", "path": str(CONVERSATION), "limit": 2000},
        },
        "speed",
        Path(),
    )
    simulate(scenario)  # loads the compiled code
    begin_s = time.perf_counter()
    simulate(scenario)
    simulating_s = time.perf_counter() - begin_s
    benchmark(read, CONVERSATION, 2000)
    assert benchmark.stats is not None
    benchmark.extra_info["simulating_s"] = simulating_s
    assert benchmark.stats["mean"] < simulating_s / 3


def test_memory_does_not_follow_the_length_of_a_trace(
    benchmark: BenchmarkFixture, tmp_path: Path
) -> None:
    def peak_bytes(path: Path) -> int:
        tracemalloc.start()
        read(path)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak

    short = long_trace(tmp_path / "short.jsonl", 5_000)
    long = long_trace(tmp_path / "long.jsonl", 50_000)
    peaks = [peak_bytes(short), benchmark.pedantic(peak_bytes, (long,), rounds=1)]
    benchmark.extra_info["peak_bytes"] = peaks
    assert peaks[1] < 1.2 * peaks[0] + 2**20


def test_a_million_requests(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    path = long_trace(tmp_path / "million.jsonl", NUM_REQUESTS)

    def count() -> tuple[float, float, float]:
        begin_s = time.perf_counter()
        blocks = TraceBlocks.from_requests(requests(path), 512)
        read_s = time.perf_counter()
        rate = blocks.lru_curve().token_hit_rate(10_000)
        return rate, read_s - begin_s, time.perf_counter() - read_s

    rate, reading_s, counting_s = benchmark.pedantic(count, rounds=1)
    benchmark.extra_info.update(reading_s=reading_s, counting_s=counting_s)
    # Each hour starts from what the one before has left: nothing of its own.
    assert rate == pytest.approx(0.2157, abs=0.001)
    assert counting_s < 120


def requests(path: Path) -> Iterator:  # type: ignore[type-arg]
    return open_trace_file(path, TraceOptions()).requests()
