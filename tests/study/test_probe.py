"""The retention probe: what each interval keeps, asked with a script."""

from __future__ import annotations

from typing import Any

import pytest

from kvsim.errors import KvsimError
from kvsim.results.variants import run_variant
from kvsim.scenario import Scenario
from kvsim.study.probe import is_probe, read_probe, retention_probe


def scenario(workload: dict[str, Any], num_blocks: int = 20_000) -> Scenario:
    return Scenario.from_data(
        {
            "name": "probe",
            "model": "deepseek-v4-pro",
            "node": {"num_blocks": num_blocks},
            "step_time": {"kind": "constant", "step_s": 0.01},
            "workload": workload,
        }
    )


def test_what_intervals_keep() -> None:
    probe = scenario(retention_probe(30, 16_000, answer_tokens=10), 12_000)
    results = {
        name: run_variant(probe.replace({"cache.retention_interval": interval}))
        for name, interval in (("dense", None), ("every 2,048", 2048), ("boundary", 0))
    }
    assert all(is_probe(result) for result in results.values())
    table = read_probe(results).set_index("label")
    kept = table["sessions_kept"]
    assert 0 < kept["dense"] < kept["every 2,048"] <= kept["boundary"] <= 30
    assert list(table["num_sessions"]) == [30, 30, 30]
    # 16,000 tokens are 62 whole scheduler blocks of 256: all of them but the last 128 tokens.
    assert list(table["resend"]) == [15_872 / 16_000] * 3
    # The shared half ends at 8,000: its last boundary is at 7,936 (dense), 6,144 (2,048), none (0).
    assert list(table["branch"]) == [7_936 / 8_000, 6_144 / 8_000, 0.0]
    assert list(table["policy"]) == ["prepend, dense", "prepend, every 2,048", "prepend, boundary"]


def test_numbers_that_are_too_small_are_named_together() -> None:
    with pytest.raises(KvsimError) as caught:
        retention_probe(2, 1, 0)
    assert str(caught.value) == (
        "num_sessions: 2 is below 3. Give 3 or more.\n"
        "session_tokens: 1 is below 2. Give 2 or more.\n"
        "answer_tokens: 0 is below 1. Give 1 or more."
    )


def test_other_runs_are_no_probe() -> None:
    requests = [{"prompt": [[name, 100]]} for name in "ABCDEF"]
    result = run_variant(scenario({"kind": "script", "requests": requests}))
    assert not is_probe(result)
    with pytest.raises(KvsimError) as caught:
        read_probe({"mine": result})
    assert str(caught.value) == (
        "mine: is no run of a retention probe. Run one of retention_probe."
    )


def test_a_refused_request_is_said() -> None:
    probe = scenario(retention_probe(3, 40_000, answer_tokens=1), num_blocks=20_000)
    short = probe.replace({"engine.max_model_len": 40_100})
    result = run_variant(short)
    with pytest.raises(KvsimError, match=r"^p: a request was refused \(.*\)\. Use shorter sess"):
        read_probe({"p": result})
