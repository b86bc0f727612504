"""Each of two pools as a fleet of its own, and what has to hold between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from kvsim.errors import KvsimError
from kvsim.scenario.fleet import Fleet, FleetEvent
from kvsim.scenario.keys import ScenarioKeys
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
    return scenario.model_copy(update={"node": node, "fleet": alone})


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
    if scenario.offload is not None:
        text = "a tier beside fleet.pools is not simulated yet. Leave one of them out."
        yield Problem("offload", text, ("fleet.pools",))
    if scenario.engine.speculative is not None:
        text = "drafts beside fleet.pools are not simulated yet: the prefill side drops its last "
        yield Problem("engine.speculative", f"{text}tokens. Leave one out.", ("fleet.pools",))
    if scenario.engine.profile != "vllm-0.33":
        text = f"{scenario.engine.profile} is set, and fleet.pools follow vllm-0.33. Use that."
        yield Problem("engine.profile", text, ("fleet.pools",))
    found = list(each_pool(scenario, broken))
    yield from found
    if not found:
        yield from _same_blocks(scenario)


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
    if any(group.eagle for one in sides for group in one.model_spec.groups):
        text = "draft layers beside fleet.pools are not simulated yet. Leave one of them out."
        yield Problem("model", text, ("fleet.pools",))
    if any(kind not in ("full", "sliding_window") for shape in shapes for kind, _, _ in shape):
        text = "has groups that are neither full nor sliding_window: their state is not handed over"
        yield Problem("model", f"{text} by fleet.pools yet. Leave pools out.", ("fleet.pools",))
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
