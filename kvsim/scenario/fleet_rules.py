"""What has to hold between a fleet, its node and what happens to it."""

from __future__ import annotations

from collections.abc import Iterator

from kvsim.routing import check_router
from kvsim.scenario.fleet import Fleet
from kvsim.scenario.keys import ScenarioKeys
from kvsim.scenario.validation import Problem


def fleet_problems(scenario: ScenarioKeys) -> Iterator[Problem]:
    """Every rule of a fleet that a scenario breaks."""
    if scenario.node.expert_parallel and not scenario.has_experts:
        text = f"true is set, and {scenario.model_spec.name} has no experts. Use false."
        yield Problem("node.expert_parallel", text, ("model",))
    fleet = scenario.fleet
    if fleet is None:
        return
    yield from _router(scenario)
    for key in ("transfer", "split"):
        if getattr(fleet, key) != Fleet.model_fields[key].default:
            text = "stands without fleet.pools, between which it is. Give pools, or leave it out."
            yield Problem(f"fleet.{key}", text, ("fleet.pools",))
    yield from _events(scenario, fleet)


def _router(scenario: ScenarioKeys) -> Iterator[Problem]:
    """A router there is, with keys it has."""
    kind, written = scenario.router
    for key, text in check_router(kind, written, scenario.directory)[1]:
        place = "fleet.router" if key == "kind" else f"fleet.router.{key}"
        yield Problem(place, text)


def _events(scenario: ScenarioKeys, fleet: Fleet) -> Iterator[Problem]:
    """Events about nodes that are there, in the order in which they happen."""
    events = fleet.events or ()
    sound = []
    for number, event in enumerate(events):
        place = f"fleet.events.{number}"
        if event.pool is not None:
            text = f"{event.pool} stands without fleet.pools. Give pools, or leave it out."
            yield Problem(f"{place}.pool", text, ("fleet.pools",))
        given = [key for key in ("lose", "drain", "add") if getattr(event, key) is not None]
        if len(given) != 1:
            text = f"gives {' and '.join(given)}. Keep one" if given else "does nothing. Give one"
            yield Problem(place, f"{text} of lose, drain and add, with the number of a node.")
            continue
        if event.ready_after and event.add is None:
            text = f"{event.ready_after:g} stands beside {given[0]}. It is for add: leave it out."
            yield Problem(f"{place}.ready_after", text)
        sound.append((event.at, number, given[0], event.node))
    if len(sound) < len(events):
        return
    if events and fleet.balancing == "hybrid" and scenario.has_experts and fleet.nodes > 1:
        text = (
            "one engine spans all nodes (balancing: hybrid), its experts too, and does not outlive "
            "the change of one. Use internal, or leave the events out."
        )
        yield Problem("fleet.events", text, ("fleet.balancing", "model"))
        return
    there, known = set(range(fleet.nodes)), fleet.nodes
    for at, number, what, node in sorted(sound):
        place = f"fleet.events.{number}.{what}"
        about = ("fleet.nodes", "fleet.events")
        if what == "add":
            if node in there:
                text = f"{node} is a node that is there at {at:g} s. Use {_next_to(there, known)}."
                yield Problem(place, text, about)
            elif node > known:
                text = f"{node} leaves numbers out. Use {_next_to(there, known)}."
                yield Problem(place, text, about)
            there.add(node)
            known = max(known, node + 1)
        elif node not in there:
            shown = ", ".join(str(one) for one in sorted(there)[:8]) or "none"
            more = ", ..." if len(there) > 8 else ""
            text = f"{node} is no node that is there at {at:g} s. Nodes there: {shown}{more}."
            yield Problem(place, text, about)
        else:
            there.remove(node)


def _next_to(there: set[int], known: int) -> str:
    """Numbers that a node that comes may have."""
    gone = sorted(set(range(known)) - there)
    return " or ".join(str(number) for number in [*gone[:3], known])
