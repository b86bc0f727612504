"""Several nodes behind a router: how many, who sends requests where, and what happens to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, Strict

from kvsim.errors import show
from kvsim.scenario.fields import Count, Seconds
from kvsim.scenario.node import Node
from kvsim.scenario.validation import Section

NodeNumber = Annotated[int, Field(ge=0, le=2**31 - 1)]


def _router(value: object) -> object:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, Mapping) and isinstance(value.get("kind"), str) and value["kind"]:
        return dict(value)
    if isinstance(value, Mapping):
        raise ValueError("names no kind. Write {kind: round-robin}, with the router's own keys.")
    raise ValueError(f"{show(value)} is no router. Name one, or write {{kind: round-robin}}.")


RouterSetting = Annotated[
    str | dict[str, Any],
    BeforeValidator(_router, json_schema_input_type=str | dict[str, Any]),
]


class FleetEvent(Section):
    """A node that comes or goes."""

    at: Seconds = Field(description="when, on the clock of the run")
    lose: NodeNumber | None = Field(
        default=None, description="number of the node that fails; what it was doing is lost"
    )
    drain: NodeNumber | None = Field(
        default=None, description="number of the node that is given nothing more, and then leaves"
    )
    add: NodeNumber | None = Field(
        default=None, description="number of the node that is started, with cold caches"
    )
    ready_after: Seconds = Field(
        default=0.0, description="from the start of an added node to its first request"
    )

    @property
    def node(self) -> int:
        """The node it is about."""
        return next(n for n in (self.lose, self.drain, self.add) if n is not None)


class Pool(Section):
    """Nodes that do one of the two halves of a request."""

    nodes: Count = Field(default=1, description="nodes of the pool")
    node: Node | None = Field(default=None, description="its nodes; null: as `node`")
    router: RouterSetting = Field(
        default="round-robin", description="who chooses a node of the pool"
    )


class Pools(Section):
    """Prefill and decode apart."""

    prefill: Pool = Field(description="nodes that compute prompts")
    decode: Pool = Field(description="nodes that make answers")


class Fleet(Section):
    """Nodes behind a router."""

    nodes: Count = Field(default=1, description="nodes, each as `node` says")
    router: RouterSetting = Field(
        default="round-robin",
        description="who chooses the node of a request (the rank, where balancing is external): a "
        "name, or kind: with the router's own keys",
    )
    router_replicas: Count = Field(
        default=1, description="routers side by side, each with a view of its own"
    )
    balancing: Literal["internal", "hybrid", "external"] = Field(
        default="internal",
        description="who chooses the rank: API servers of a node, which is an engine of its own; "
        "the same where one engine spans all nodes (hybrid); or the router (external)",
    )
    clients: Count | None = Field(
        default=None,
        description="API servers of a node, each with counts of its own; null: one a rank, and one "
        "where balancing is external",
    )
    lost_requests: Literal["resend", "refuse"] = Field(
        default="resend", description="what becomes of the requests of a node that fails"
    )
    events: Annotated[tuple[FleetEvent, ...], Strict(False)] | None = Field(
        default=None, description="nodes that come and go; null for none"
    )
    pools: Pools | None = Field(
        default=None, description="prefill and decode apart, instead of nodes; null: together"
    )
