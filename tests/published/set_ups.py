"""The four set-ups as scenarios; where the publication is silent, what is assumed is said."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from kvsim.scenario import Scenario

DATA = Path(__file__).parents[1] / "data" / "published"
STAGE_APART_S = 600.0
"""From the end of a stage's arrivals to the next stage: longer than any takes to drain. The load
generator waits until a stage is done; idle time changes no cache."""
LADDER = (
    *((15, 50), (3, 20), (10, 20), (15, 20), (20, 38), (22, 34), (25, 30), (30, 25), (35, 21)),
    *((40, 38), (43, 36), (46, 33), (49, 30), (52, 29), (55, 27), (57, 26), (60, 25)),
)
"""Requests a second and seconds of every stage; the first one warms up."""
LLM_D = {
    "precise": {
        "kind": "llm-d",
        "weights": {"prefix": 3, "kv-utilization": 2, "queue": 2},
        "sees": {"scraped": "50 ms", "events": "5 ms"},
    },
    "approximate": {
        "kind": "routers.py:Estimated2025",
        "weights": {"prefix": 1, "kv-utilization": 1, "queue": 1},
    },
    "random": {"kind": "random"},
    "load": {"kind": "llm-d", "weights": {"kv-utilization": 1, "queue": 1}},
}
SGLANG = {"round-robin": "round-robin", "cache-aware": "sglang-cache-aware"}
SMG = {
    "round-robin": "round-robin",
    "cache-aware": "sglang-cache-aware",
    "cache-aware, events": "routers.py:SmgEvents",
}


def ladder(
    router: Any, stages: tuple[tuple[float, float], ...] = LADDER, pods: int = 8
) -> Scenario:
    """llm-d, 2025-09-24, `benchmarking/73-capacity`: pods of 2 H100, every prompt again and again.

    750 prompts (150 groups of 5) in one shuffled order, repeated; 6,000 + 1,200 tokens, answers of
    1,000. Fewer pods have as many groups fewer.
    """
    rng = random.Random(0)
    groups = 150 * pods // 8
    prompts = [(f"g{group}", f"q{group}.{user}") for group in range(groups) for user in range(5)]
    rng.shuffle(prompts)
    requests, begin_s = [], 0.0
    for rate, duration_s in stages:
        for at_s in sorted(
            rng.uniform(0, duration_s) for _ in range(round(rate * duration_s * pods / 8))
        ):
            group, question = prompts[len(requests) % len(prompts)]
            spans = [[group, 6000], [question, 1200]]
            requests.append({"prompt": spans, "output": 1000, "at_s": begin_s + at_s})
        begin_s += duration_s + STAGE_APART_S
    return scenario(
        "llm-d-ladder",
        model="qwen3-32b",
        node={"gpu": "h100", "gpus": 2, "num_blocks": 307_328 // 64},
        engine={"block_size": 64, "max_model_len": 16_384},
        fleet={"nodes": pods, "router": router},
        workload={"kind": "script", "requests": requests},
    )


def shared_prefix(router: Any, workers: int = 8) -> Scenario:
    """SGLang #2170 and v0.4: the tool's own 64 groups of 16, 2,048 + 128 tokens, answers of 256.

    All arrive at once, shuffled, at Llama-3.1-8B on 8 A100 of 80 GB. Fewer workers have fewer
    groups.
    """
    rng = random.Random(0)
    requests = [
        {"prompt": [[f"g{group}", 2048], [f"q{group}.{user}", 128]], "output": 256}
        for group in range(8 * workers)
        for user in range(16)
    ]
    rng.shuffle(requests)
    a100 = {"hbm": "79.1 GiB", "bandwidth": "2.039 TB/s", "bf16": "312 TFLOP/s"}
    return scenario(
        "sglang-shared-prefix",
        model="llama-3.1-8b",
        node={"gpu": a100, "gpus": 1, "gpu_memory_utilization": 0.88, "activation_reserve": 0},
        engine={"max_model_len": 8192, "max_num_batched_tokens": 8192, "max_num_seqs": 1024},
        fleet={"nodes": workers, "router": router},
        workload={"kind": "script", "requests": requests},
    )


def prefix_repetition(
    router: Any, *, suffix_tokens: int = 256, output_tokens: int = 128, num_prefixes: int = 600
) -> Scenario:
    """smg #1771, #1652: 600 prefixes of 1,024 tokens three times each, 32 a second, 3 workers.

    Qwen2.5-32B's shape (the model's is not in the catalog: Qwen3-32B holds 256 KiB a token as
    well) on 2 H100 a worker. The suffix and the answer are not published; the tool's are 256, 128.
    """
    rng = random.Random(0)
    prefixes = [number for number in range(num_prefixes) for _ in range(3)]
    rng.shuffle(prefixes)
    requests, now_s = [], 0.0
    for number, prefix in enumerate(prefixes):
        now_s += rng.expovariate(32.0)
        spans = [[f"p{prefix}", 1024], [f"s{number}", suffix_tokens]]
        requests.append({"prompt": spans, "output": output_tokens, "at_s": now_s})
    return scenario(
        "smg-prefix-repetition",
        model="qwen3-32b",
        node={"gpu": "h100", "gpus": 2},
        engine={"max_model_len": 16_384},
        fleet={"nodes": 3, "router": router},
        workload={"kind": "script", "requests": requests},
    )


def agents(scale: int, sessions_each: int = 75, turns: int = 30) -> Scenario:
    """vLLM, 2026-05-06: sessions of 30 turns, 20K common and 10K own tokens, + 2,048, answers 900.

    A prefill node of 4 GB200 for every 12 GPUs, round robin, one store for all. Thinking times are
    drawn: with equal ones the sessions stay in step, and round robin brings each to its own node.
    """
    return scenario(
        "mooncake-agents",
        model="kimi-k2.6-nvfp4",
        node={"gpu": "gb200", "gpus": 4},
        engine={"max_model_len": 131_072},
        fleet={"nodes": scale, "router": "round-robin"},
        offload={"kind": "mooncake", "capacity": f"{scale} TiB"},
        workload={
            "kind": "synthetic",
            "num_sessions": scale * sessions_each,
            "sessions": {"concurrency": scale * sessions_each},
            "content": [
                {
                    "kind": "chat",
                    "system_tokens": 20_000,
                    "num_system_prompts": 1,
                    "turns": turns,
                    "first_tokens": 10_000,
                    "user_tokens": 2048,
                    "output_tokens": 900,
                    "think_s": "exponential(mean_s=1)",
                }
            ],
        },
    )


def scenario(name: str, **parts: Any) -> Scenario:
    return Scenario.from_data({"name": name, "seed": 0, **parts}, name, DATA)
