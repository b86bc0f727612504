"""What a request costs on fleets of several sizes, as ratios of runs side by side."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from kvsim.fleet.simulation import simulate_fleet
from kvsim.scenario import Scenario
from kvsim.scenario.reading import expand_variants, load_scenario

pytestmark = pytest.mark.benchmark

SCENARIO = Path(__file__).parents[2] / "scenarios" / "routers.yaml"
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
