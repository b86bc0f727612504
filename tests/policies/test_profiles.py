from __future__ import annotations

import pytest

from kvsim.policies.free_queue import FREE_QUEUE_POLICIES
from kvsim.policies.profiles import PROFILES, retention_problem


def test_profiles_set_the_order_and_the_interval() -> None:
    seen = {
        name: (profile.free_queue.name, profile.retention_interval, profile.has_junctions)
        for name, profile in PROFILES.items()
    }
    assert seen == {
        "vllm-0.22": ("append", None, False),
        "vllm-0.23": ("prepend-uncached-window", None, False),
        "vllm-0.32": ("prepend-uncached", 0, True),
        "vllm-0.33": ("prepend-uncached", 0, True),
    }


def test_only_the_orders_prepend_what_they_say() -> None:
    assert {name: sorted(p.prepend_uncached) for name, p in FREE_QUEUE_POLICIES.items()} == {
        "append": [],
        "prepend-uncached-window": ["sliding_window"],
        "prepend-uncached": ["chunked_local", "full", "mamba", "sliding_window"],
    }


@pytest.mark.parametrize(
    ("interval", "profile", "has_windows", "problem"),
    [
        (None, "vllm-0.22", True, None),
        (0, "vllm-0.33", False, None),
        (512, "vllm-0.33", True, None),
        (
            -256,
            "vllm-0.33",
            True,
            "-256 is not a multiple of the scheduler block (256). Use 0, 256, 512, ... or null.",
        ),
        (
            100,
            "vllm-0.23",
            True,
            "100 is not a multiple of the scheduler block (256). Use 0, 256, 512, ... or null.",
        ),
        (
            256,
            "vllm-0.33",
            False,
            "256 needs a sliding-window group, and the model has none. Use 0 or null.",
        ),
        (
            0,
            "vllm-0.22",
            True,
            "0 is set, and engine.profile vllm-0.22 has no retention interval: it is dense. "
            "Use null, or a later profile.",
        ),
    ],
)
def test_intervals_the_engine_refuses(
    interval: int | None, profile: str, has_windows: bool, problem: str | None
) -> None:
    assert retention_problem(interval, profile, 256, has_windows) == problem
