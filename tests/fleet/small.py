"""Small fleets to try things with."""

from __future__ import annotations

from typing import Any

import pandas as pd

from kvsim.engine.simulation import simulate
from kvsim.fleet.outcome import FleetSimulation
from kvsim.fleet.simulation import simulate_fleet
from kvsim.scenario import Scenario

EXPERTS = {"weight_bytes": 100, "expert_bytes": 50, "num_experts": 8, "experts_per_token": 2}
GROUPS = [{"kind": "full", "block_size": 16}]
CHAT = {
    "kind": "synthetic",
    "num_sessions": 40,
    "sessions": {"starts": "poisson(per_s=8)"},
    "content": [
        {
            "kind": "chat",
            "system_tokens": 128,
            "num_system_prompts": 3,
            "turns": "geometric(mean=3)",
            "first_tokens": 60,
            "user_tokens": "uniform(low=5, high=60)",
            "output_tokens": "uniform(low=2, high=40)",
            "think_s": "exponential(mean_s=0.5)",
        }
    ],
}


def scenario(workload: Any = None, **parts: Any) -> Scenario:
    """Groups of 16-token blocks, 400 of them a rank; a step takes 10 ms."""
    if isinstance(workload, list):
        workload = {"kind": "script", "requests": workload}
    data: dict[str, Any] = {
        "name": "small",
        "model": {"groups": GROUPS},
        "engine": {"max_model_len": 4096, "max_num_batched_tokens": 256, "max_num_seqs": 8},
        "step_time": {"kind": "constant", "step_s": 0.01, "token_s": 1e-5},
        "workload": workload or CHAT,
        **parts,
    }
    data["node"] = {"num_blocks": 400, **data.get("node", {})}
    return Scenario.from_data(data)


def frame_of(run: FleetSimulation) -> pd.DataFrame:
    return run.requests.frame(fleet=True)


def alone(made: Scenario, **options: Any) -> pd.DataFrame:
    return simulate(made, **options).requests.frame()


def fleet(made: Scenario, **options: Any) -> pd.DataFrame:
    return frame_of(simulate_fleet(made, **options))
