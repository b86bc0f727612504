"""Each of two pools as a fleet of its own, and what has to hold between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from kvsim.errors import KvsimError
from kvsim.scenario.fleet import Fleet, FleetEvent
from kvsim.scenario.keys import ScenarioKeys
from kvsim.scenario.offload import MooncakeOffload
from kvsim.scenario.pools import NixlPull
from kvsim.scenario.validation import Problem

SIDES = ("prefill", "decode")
KeysT = TypeVar("KeysT", bound=ScenarioKeys)


def pool_scenario(scenario: KeysT, side: str) -> KeysT:
    """One pool of a split fleet as a scenario of its own, with the whole workload."""
    fleet = scenario.fleet
    if fleet is None or fleet.pools is None:
        raise ValueError("the scenario has no pools")
    pool = fleet.pools.prefill if side == "prefill" else fleet.pools.decode
    alone = Fleet(
        nodes=pool.nodes,
        router=pool.router,
        router_replicas=fleet.router_replicas,
        balancing=fleet.balancing,
        clients=fleet.clients,
        events=tuple(_without_pool(event) for event in _events_of(fleet, side)) or None,
    )
    node = scenario.node if pool.node is None else pool.node
    offload = scenario.offload
    if side == "decode" and isinstance(offload, MooncakeOffload):
        offload = None  # who only decodes neither stores nor loads (kv_role: kv_consumer)
    engine, drafts = scenario.engine, scenario.engine.speculative
    if drafts is not None:  # with whatever carries KV, hits drop a block for the drafter
        drafts = drafts.model_copy(update={"disable_lookahead_block_hashes": True})
        engine = engine.model_copy(update={"speculative": drafts})
    update = {"node": node, "fleet": alone, "engine": engine, "offload": offload}
    return scenario.model_copy(update=update)


def left_tokens(scenario: ScenarioKeys) -> int:
    """Tokens at the end of a prompt that the prefill side leaves to the decode side.

    A model with states hands over the one before its last token, from which that is computed. Of
    several draft layers one behind the other, each reads one token further: what the last ones
    would have of drafts nobody has checked is not made. (vLLM 0.33.0: `_prefill_backoff` of
    kv_connector/v1/nixl/base_scheduler.py; the connector of Mooncake looks at states alone.)
    """
    fleet, drafts = scenario.fleet, scenario.engine.speculative
    for_states = int(any(group.kind == "mamba" for group in scenario.model_spec.groups))
    if fleet is None or drafts is None or not isinstance(fleet.transfer, NixlPull):
        return for_states
    return max(for_states, drafts.mtp_layers - 1)


def _events_of(fleet: Fleet, side: str) -> list[FleetEvent]:
    """What happens to the nodes of a pool, as written."""
    return [event for event in fleet.events or () if event.pool == side]


def _without_pool(event: FleetEvent) -> FleetEvent:
    return event.model_copy(update={"pool": None})


def pool_problems(
    scenario: ScenarioKeys, broken: Callable[[ScenarioKeys], Iterator[Problem]]
) -> Iterator[Problem]:
    """Every rule that a split fleet breaks.

    Args:
        scenario: with pools.
        broken: finds what a scenario without pools breaks.
    """
    fleet = scenario.fleet
    assert fleet is not None
    assert fleet.pools is not None
    for key in ("nodes", "router"):
        if getattr(fleet, key) != Fleet.model_fields[key].default:
            text = f"{getattr(fleet, key)!r} stands beside pools, which have their own."
            yield Problem(f"fleet.{key}", f"{text} Leave it out.", ("fleet.pools",))
    for number, event in enumerate(fleet.events or ()):
        if event.pool is None:
            text = "is missing beside fleet.pools. Give the pool of the node: prefill or decode."
            yield Problem(f"fleet.events.{number}.pool", text, ("fleet.pools",))
    yield from _tier(scenario)
    if scenario.engine.profile != "vllm-0.33":
        text = f"{scenario.engine.profile} is set, and fleet.pools follow vllm-0.33. Use that."
        yield Problem("engine.profile", text, ("fleet.pools",))
    found = list(each_pool(scenario, broken))
    yield from found
    if not found:
        yield from _same_blocks(scenario)


def _tier(scenario: ScenarioKeys) -> Iterator[Problem]:
    """What keeps a tier from standing beside pools."""
    tier = scenario.offload
    if tier is None:
        return
    if tier.overlap_loads:
        text = "steps do not wait for loads, but do for what is handed over. Use false, or leave"
        yield Problem("offload.overlap_loads", f"true: {text} pools out.", ("fleet.pools",))
    try:
        has_states = any(group.kind == "mamba" for group in scenario.model_spec.groups)
    except KvsimError:
        return  # said of the model
    if has_states:
        text = "a tier of states beside fleet.pools is not simulated: which of both has the state"
        yield Problem("offload", f"{text} of a prompt is not known. Leave one out.", ("model",))


def each_pool(
    scenario: ScenarioKeys, look: Callable[[ScenarioKeys], Iterator[Problem]]
) -> Iterator[Problem]:
    """What is found in either pool as a scenario of its own, once, at the key that it rests on."""
    found: set[tuple[str, str]] = set()
    fleet = scenario.fleet
    for side in SIDES:
        one = pool_scenario(scenario, side)
        events = () if fleet is None else fleet.events or ()
        numbers = [number for number, event in enumerate(events) if event.pool == side]
        for problem in look(one):
            own_node = one.node is not scenario.node
            moved = _moved(problem, f"fleet.pools.{side}", numbers, own_node=own_node)
            if (moved.place, moved.text) not in found:
                found.add((moved.place, moved.text))
                yield moved


def _moved(problem: Problem, pool: str, numbers: list[int], *, own_node: bool) -> Problem:
    """A finding about a pool's scenario, where it was written; ``numbers`` of its events."""

    def place(written: str) -> str:
        if written.startswith("node") and own_node:
            return f"{pool}.{written}"
        if written.startswith(("fleet.router", "fleet.nodes")):
            return f"{pool}.{written.removeprefix('fleet.')}"
        if written.startswith("fleet.events."):
            _, _, number, *rest = written.split(".")
            return ".".join(["fleet.events", str(numbers[int(number)]), *rest])
        return written

    return Problem(place(problem.place), problem.text, tuple(map(place, problem.about)))


def _same_blocks(scenario: ScenarioKeys) -> Iterator[Problem]:
    """What is read has to lie in the same blocks on both sides."""
    sides = [pool_scenario(scenario, side) for side in SIDES]
    try:
        shapes = [
            [(g.kind, g.block_size, g.sliding_window) for g in one.model_spec.groups]
            for one in sides
        ]
    except KvsimError:
        return  # said of the model
    if any(kind == "chunked_local" for shape in shapes for kind, _, _ in shape):
        text = "has chunked local groups: what is handed over of them by fleet.pools is not known."
        yield Problem("model", f"{text} Leave pools out.", ("fleet.pools",))
        return
    has_states = any(kind == "mamba" for kind, _, _ in shapes[0])
    if has_states and sides[0].num_ranks != sides[1].num_ranks:
        ranks = f"{sides[0].num_ranks} on the prefill and {sides[1].num_ranks} on the decode side"
        text = f"tensor_parallel is {ranks}: how ranks share the model's states is not simulated."
        yield Problem("fleet.pools", f"{text} Use the same on both.", ("node", "model"))
        return
    if shapes[0] != shapes[1]:
        sizes = [", ".join(str(size) for _, size, _ in shape) for shape in shapes]
        text = f"blocks hold {sizes[0]} tokens on the prefill and {sizes[1]} on the decode side. "
        yield Problem(
            "fleet.pools",
            f"{text}Give both the same node, or one engine.block_size.",
            ("node", "engine.block_size"),
        )
    parallel = [one.node.decode_context_parallel for one in sides]
    if parallel[0] != parallel[1]:
        text = f"decode_context_parallel is {parallel[0]} on one side and {parallel[1]} on the "
        yield Problem("fleet.pools", f"{text}other. Use one of them on both.", ("node",))
