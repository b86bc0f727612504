"""Variants on several cores: the same results, in any order, with what is wrong beside them."""

from __future__ import annotations

from kvsim.errors import KvsimError
from kvsim.results.store import RunResult
from kvsim.results.variants import run_variant
from kvsim.scenario import Scenario
from kvsim.scenario.reading import expand_variants
from kvsim.study.side_by_side import run_side_by_side

SCRIPT = {
    "name": "script",
    "model": {"groups": [{"kind": "full", "block_size": 16}]},
    "node": {"num_blocks": 50},
    "step_time": {"kind": "constant", "step_s": 0.01},
    "workload": {
        "kind": "script",
        "concurrency": 1,
        "requests": [{"prompt": [["a", 200]], "output": 4}] * 3,
    },
    "variants": {
        "small": {"node.num_blocks": 5},  # no request fits
        "large": {"node.num_blocks": 90},
        "off": {"cache.enable_prefix_caching": False},
    },
}


def test_two_jobs_give_what_one_gives() -> None:
    variants = expand_variants(Scenario.from_data(SCRIPT))
    told: list[tuple[str, float]] = []
    outcomes = dict(run_side_by_side(variants, jobs=2, on_progress=lambda *what: told.append(what)))
    assert set(outcomes) == set(variants)
    assert isinstance(outcomes["small"], KvsimError)
    for name in ("large", "off"):
        result = outcomes[name]
        assert isinstance(result, RunResult)
        alone = run_variant(variants[name], name)
        assert result.requests.equals(alone.requests)
        assert {**result.summary, "wall_s": 0} == {**alone.summary, "wall_s": 0}
    assert {name for name, _ in told} <= set(variants)
