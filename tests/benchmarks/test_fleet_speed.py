"""What a request costs on fleets of several sizes and on long runs, as ratios of runs side by side.

A million requests on 64 nodes have a mark of their own: `pytest -n 0 -s -m million`.
"""

from __future__ import annotations

import gzip
import json
import multiprocessing
import re
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kvsim.fleet.simulation import simulate_fleet
from kvsim.results.variants import run_variant, write_variant
from kvsim.scenario import Scenario
from kvsim.scenario.reading import expand_variants, load_scenario

SCENARIOS = Path(__file__).parents[2] / "scenarios"
SCENARIO = SCENARIOS / "routers.yaml"
LARGE_FLEET = SCENARIOS / "fleet_scale.yaml"
TRACE = SCENARIOS / "traces" / "mooncake_conversation.jsonl.gz"
TRACE_SPAN_MS = 3_600_000
TURNS_A_SESSION = 4
MOST_BYTES = 4 * 2**30
SESSIONS_A_REPLICA = 24
SESSIONS_A_REPLICA_PER_S = 0.75


def fleet(num_replicas: int, router: Any) -> Scenario:
    """Chats on so many replicas, each with the same load."""
    made = expand_variants(load_scenario(SCENARIO))["random"]
    return made.replace(
        {
            "fleet.nodes": num_replicas,
            "fleet.router": router,
            "workload.num_sessions": SESSIONS_A_REPLICA * num_replicas,
            "workload.sessions.starts": f"poisson(per_s={SESSIONS_A_REPLICA_PER_S * num_replicas})",
        }
    )


def cpu_s_a_request(made: Scenario) -> float:
    """CPU time of this process for a request."""
    start_s = time.process_time()
    run = simulate_fleet(made)
    return (time.process_time() - start_s) / len(run.requests)


@pytest.mark.benchmark
@pytest.mark.parametrize("router", [{"kind": "dynamo-kv"}, "session"])
def test_eight_times_the_replicas_cost_a_request_hardly_more(benchmark: Any, router: Any) -> None:
    few, many = fleet(8, router), fleet(64, router)
    simulate_fleet(fleet(2, router))  # loads the compiled code
    costs = [cpu_s_a_request(few) for _ in range(4)]
    many_s = benchmark.pedantic(cpu_s_a_request, args=(many,), rounds=1)
    costs += [cpu_s_a_request(few) for _ in range(4)]
    ratio = many_s / sorted(costs)[len(costs) // 2]
    benchmark.extra_info["ms_a_request_with_8"] = round(sorted(costs)[len(costs) // 2] * 1e3, 2)
    benchmark.extra_info["ms_a_request_with_64"] = round(many_s * 1e3, 2)
    benchmark.extra_info["times_as_much_with_64_replicas_as_with_8"] = round(ratio, 2)
    print(f"{router}: {many_s * 1e3:.2f} ms a request with 64 replicas, {ratio:.2f} times with 8")
    assert ratio < 1.8


@dataclass(frozen=True)
class Cost:
    """What a run cost, from the scenario to the files of its result."""

    num_requests: int
    cpu_s: float
    wall_s: float
    peak_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.num_requests:,} requests: {1e6 * self.cpu_s / self.num_requests:.0f} us each, "
            f"{self.wall_s:.0f} s, {self.peak_bytes / 2**30:.2f} GiB"
        )


def chat(num_requests: int, _: Path) -> Scenario:
    """The large fleet as it ships, with about so many requests."""
    sessions = num_requests // TURNS_A_SESSION
    return load_scenario(LARGE_FLEET, [f"workload.num_sessions={sessions}"])


def conversation(num_requests: int, directory: Path) -> Scenario:
    """The conversation trace, 60 times as fast, over and over with new content each time."""
    path = directory / "trace.jsonl"
    with gzip.open(TRACE, "rt") as file:
        rows = [json.loads(line) for line in file]
    num_ids = 1 + max(max(row["hash_ids"]) for row in rows)
    with path.open("w") as file:
        for number in range(num_requests):
            again, place = divmod(number, len(rows))
            row = dict(rows[place])
            row["timestamp"] += again * TRACE_SPAN_MS
            row["hash_ids"] = [again * num_ids + content_id for content_id in row["hash_ids"]]
            file.write(json.dumps(row) + "\n")
    data = load_scenario(LARGE_FLEET).written()
    data["node"] = {"gpu": "h200", "gpus": 8, "tensor_parallel": 8}
    data["workload"] = {"kind": "trace", "format": "mooncake", "path": str(path)}
    data["workload"]["time_scale"] = 1 / 60
    return Scenario.from_data(data)


WORKLOADS = {"chat": chat, "conversation": conversation}


def run_to_files(workload: str, num_requests: int, directory: Path) -> Cost:
    """Run a large fleet and write its result; to be called in a process of its own."""
    made = WORKLOADS[workload](num_requests, directory)
    simulate_fleet(fleet(2, "session"))  # loads the compiled code
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    result = run_variant(made)
    write_variant(directory / "results", result)
    cpu_s, wall_s = time.process_time() - start_cpu_s, time.perf_counter() - start_s
    return Cost(len(result.requests), cpu_s, wall_s, peak_bytes())


def peak_bytes() -> int:
    """Most memory that this process has had at once, without that of its parent where known."""
    status = Path("/proc/self/status")
    if status.exists() and (found := re.search(r"VmHWM:\s*(\d+) kB", status.read_text())):
        return 1024 * int(found[1])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def apart(workload: str, num_requests: int, directory: Path) -> Cost:
    """The same in a new process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(run_to_files, workload, num_requests, directory).result()


@pytest.mark.benchmark
@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_request_of_a_longer_run_costs_hardly_more(
    benchmark: Any, workload: str, tmp_path: Path, num_requests: int = 10_000
) -> None:
    few = apart(workload, num_requests // 2, tmp_path)
    many = benchmark.pedantic(apart, args=(workload, num_requests, tmp_path), rounds=1)
    costs_us = [1e6 * cost.cpu_s / cost.num_requests for cost in (few, many)]
    benchmark.extra_info |= {"us_a_request": round(costs_us[1]), "peak_bytes": many.peak_bytes}
    print(f"{workload}: {many}; half as many: {costs_us[0]:.0f} us each")
    assert costs_us[1] < 1.5 * costs_us[0]
    assert many.peak_bytes < MOST_BYTES


@pytest.mark.million
@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_million_requests_fit_into_memory(workload: str, tmp_path: Path) -> None:
    cost = apart(workload, 1_000_000, tmp_path)
    print(f"{workload}: {cost}")
    assert cost.num_requests > 900_000
    assert cost.peak_bytes < MOST_BYTES
