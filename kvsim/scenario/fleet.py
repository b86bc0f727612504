"""Several nodes behind a router: how many, who sends requests where, and what happens to them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Strict

from kvsim.scenario.fields import Count, Seconds
from kvsim.scenario.pools import NixlPull, Pools, Split, Transfer
from kvsim.scenario.routers import RouterSetting
from kvsim.scenario.validation import Section

NodeNumber = Annotated[int, Field(ge=0, le=2**31 - 1)]


class FleetEvent(Section):
    """A node that comes or goes."""

    at: Seconds = Field(description="when, on the clock of the run")
    pool: Literal["prefill", "decode"] | None = Field(
        default=None,
        description="beside pools: the one whose node it is; nodes are counted from 0 in each",
    )
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
        default="resend",
        description="what becomes of requests whose node fails, or, beside pools, whose KV could "
        "not be loaded",
    )
    events: Annotated[tuple[FleetEvent, ...], Strict(False)] | None = Field(
        default=None, description="nodes that come and go; null for none"
    )
    pools: Pools | None = Field(
        default=None, description="prefill and decode apart, instead of nodes; null: together"
    )
    transfer: Transfer = Field(
        default=NixlPull(), description="what carries KV from one pool to the other"
    )
    split: Split = Field(
        default=Split(), description="requests that the decode pool computes alone"
    )
