"""Results of small fleets, each made once."""

from __future__ import annotations

from functools import cache
from typing import Any

from kvsim.results.store import RunResult
from kvsim.results.variants import run_variant
from tests.fleet.small import CHAT, GROUPS, scenario

LOSS = [{"at": 4.0, "lose": 1}, {"at": 4.5, "add": 1, "ready_after": 1.5}]
MORE: dict[str, Any] = {**CHAT, "num_sessions": 150, "sessions": {"starts": "poisson(per_s=12)"}}


@cache
def routed(router: str) -> RunResult:
    """Three nodes behind a router."""
    return run_variant(scenario(MORE, fleet={"nodes": 3, "router": router}), router)


@cache
def with_loss(is_lost: bool) -> RunResult:
    """Three nodes that conversations stay on, of which one is lost and comes back, or none."""
    fleet: dict[str, Any] = {"nodes": 3, "router": "session"}
    if is_lost:
        fleet["events"] = LOSS
    return run_variant(scenario(MORE, fleet=fleet), "lost" if is_lost else "still")


@cache
def laid_out(ranks: int) -> RunResult:
    """Four GPUs as so many ranks."""
    node = {"gpus": 4, "data_parallel": ranks, "tensor_parallel": 4 // ranks}
    return run_variant(scenario(MORE, node=node), f"dp{ranks}")


@cache
def apart() -> RunResult:
    """A prefill and two decode nodes."""
    pools = {"prefill": {"nodes": 1}, "decode": {"nodes": 2, "router": "session"}}
    return run_variant(scenario(MORE, fleet={"pools": pools}), "apart")


@cache
def with_links(num: int, *, is_shared: bool = False) -> RunResult:
    """So many nodes of two ranks, each rank or node with a link to a tier in the host's memory."""
    made = scenario(
        MORE,
        model={"groups": [{**GROUPS[0], "bytes_per_block": 4096}]},
        node={"gpus": 2, "data_parallel": 2, "tensor_parallel": 1, "num_blocks": 100},
        fleet={"nodes": num, "router": "random"},
        offload={
            "kind": "cpu",
            "num_chunks": 300,
            "link": {"bandwidth": "4 MB/s", "span": "node" if is_shared else "rank"},
        },
    )
    return run_variant(made, "tiered")


@cache
def apart_with_loss() -> RunResult:
    """The same, of which the second decode node is lost and comes back."""
    pools = {"prefill": {"nodes": 1}, "decode": {"nodes": 2, "router": "session"}}
    events = [{**one, "pool": "decode"} for one in LOSS]
    return run_variant(scenario(MORE, fleet={"pools": pools, "events": events}), "apart-lost")
