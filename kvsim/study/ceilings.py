"""How far a run is from what any policy could reach on its workload."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvsim.cache.content import POSITION_BITS
from kvsim.study.optimum import Tree
from kvsim.study.reuse import ordered_requests, reuse

if TYPE_CHECKING:
    import pandas as pd

    from kvsim.results.store import RunResult
    from kvsim.scenario import Scenario

CEILING_KEYS: dict[str, str] = {
    "infinite": "token hit rate of a pool in which nothing is ever evicted",
    "optimum": "token hit rate of the offline optimum in a pool of this size; with several KV "
    "cache groups a bound: only full attention takes room, and windows can resume anywhere; null "
    "without full attention",
    "share_of_infinite": "token_hit_rate / infinite",
    "share_of_optimum": "token_hit_rate / optimum",
}
"""What `ceiling` holds, each with its meaning. In both a request's prompt and answer are there for
all that arrive after it, and the whole pool is the cache's."""


def ceilings(scenario: Scenario, requests: pd.DataFrame, num_blocks: int) -> dict[str, Any]:
    """The figures of `CEILING_KEYS` but for the shares.

    Args:
        scenario: without variants.
        requests: of its run, for their order.
        num_blocks: of the pool, block 0 included.
    """
    table = reuse(scenario, requests)
    prompts = int(table["prompt_tokens"].sum())
    infinite = int(table["reusable_tokens"].sum()) / prompts if prompts else None
    return {"infinite": infinite, "optimum": _optimum(scenario, requests, num_blocks, prompts)}


def with_ceiling(result: RunResult) -> RunResult:
    """The run with `ceiling` in its summary.

    Raises:
        KvsimError: its workload cannot be read.
    """
    summary = result.summary
    found = ceilings(result.scenario, result.requests, summary["num_blocks"])
    rate = summary["token_hit_rate"]
    for key in ("infinite", "optimum"):
        most = found[key]
        found[f"share_of_{key}"] = None if rate is None or not most else rate / most
    return replace(result, summary={**summary, "ceiling": found})


def _optimum(
    scenario: Scenario, requests: pd.DataFrame, num_blocks: int, prompts: int
) -> float | None:
    groups = [group for group in scenario.model_spec.groups if group.kind == "full"]
    if not groups or not prompts:
        return None
    unit = scenario.scheduler_block_tokens
    blocks_per_unit = sum(unit // group.block_size for group in groups)
    tree = Tree()
    for request in ordered_requests(scenario, requests):
        ids, counted = _units(request, unit)
        tree.walk(ids, counted)
    return tree.hit_tokens([(num_blocks - 1) // blocks_per_unit])[0] / prompts


def _units(request: Any, unit: int) -> tuple[list[int], list[int]]:
    """Whole units of a prompt and its answer: what names each, and the tokens that count."""
    uids, ends = request.content.uids.tolist(), request.content.ends.tolist()
    num_prompt = request.num_prompt_tokens
    last = num_prompt + request.num_output_tokens - 1  # the last token is never computed
    uids.append(request.output_uid)
    ends.append(last)
    most = (num_prompt - 1) // unit
    span, ids = 0, []
    for number in range(1, last // unit + 1):
        while ends[span] < number * unit:
            span += 1
        ids.append(uids[span] << POSITION_BITS | number)
    return ids, [unit if number < most else 0 for number in range(len(ids))]
