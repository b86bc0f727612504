"""Prefill and decode apart: the two pools, what carries KV between them, and what is not split."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Tag

from kvsim.scenario.fields import Count, Fraction, Seconds, Tokens, kind_of
from kvsim.scenario.node import Node
from kvsim.scenario.offload import FIXED_S, LinkSetting
from kvsim.scenario.routers import RouterSetting
from kvsim.scenario.validation import Section

DESCRIPTOR_S = 2e-6
"""Seconds to post one descriptor. vllm #50913: blocks of 64 in place of 16 tokens save 58 ms of a
pull of "tens of thousands" of them, three quarters: 1.5 us of 50,000, 3.9 us of 20,000."""


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


LoadFailure = Literal["fail", "recompute"]
_LOAD_FAILURE = (
    "what the decode side does with a request whose KV cannot be loaded, its prefill node being "
    "gone: fail it, and fleet.lost_requests says what becomes of it, or compute its prompt"
)


class NixlPull(Section):
    """The decode side reads from the prefill side, as the engine's NixlConnector."""

    kind: Literal["nixl-pull"] = Field(default="nixl-pull", description="kind of connector")
    link: LinkSetting = Field(
        default="net-400g", description="network adapters, each way, of either side"
    )
    fixed_s: Seconds = Field(default=FIXED_S, description="time of a transfer whatever its size")
    descriptor_s: Seconds = Field(
        default=DESCRIPTOR_S,
        description="time to post a descriptor: a block of a layer, twice where keys and values "
        "lie apart",
    )
    lease: Seconds = Field(
        default=30.0, description="how long the prefill side keeps blocks that nobody reads"
    )
    renew_every: Seconds | None = Field(
        default=5.0,
        description="from one renewal to the next while the request is on the decode side; null "
        "for none",
    )
    renew_to: Seconds = Field(default=20.0, description="how long a renewed lease still holds")
    kv_load_failure_policy: LoadFailure = Field(default="fail", description=_LOAD_FAILURE)


class MooncakePush(Section):
    """The prefill side writes when the decode side has asked, as the engine's MooncakeConnector."""

    kind: Literal["mooncake-push"] = Field(description="kind of connector")
    link: LinkSetting = Field(
        default="net-400g", description="network adapters, each way, of either side"
    )
    fixed_s: Seconds = Field(default=FIXED_S, description="time of a transfer whatever its size")
    descriptor_s: Seconds = Field(
        default=DESCRIPTOR_S,
        description="time to post a descriptor: a run of blocks, contiguous on both sides, of a "
        "layer, twice where keys and values lie apart",
    )
    lease: Seconds = Field(
        default=480.0, description="how long the prefill side keeps blocks that nobody asks for"
    )
    kv_load_failure_policy: LoadFailure = Field(
        default="fail",
        description=_LOAD_FAILURE.replace(
            "its prefill node", "its prefill node, or what that kept,"
        ),
    )


Transfer = Annotated[
    Annotated[NixlPull, Tag("nixl-pull")] | Annotated[MooncakePush, Tag("mooncake-push")],
    kind_of("nixl-pull"),
]


class Split(Section):
    """Which requests are computed by the decode side alone."""

    uncached_tokens: Tokens | None = Field(
        default=None,
        description="those of which the chosen decode node lacks fewer tokens; null for none",
    )
    share: Fraction | None = Field(
        default=None,
        description="those of which it lacks a smaller share of the prompt; with uncached_tokens "
        "only those that are below both; null for none",
    )
    prefill_busy: Tokens | None = Field(
        default=None,
        description="all while every prefill node has so many prompt tokens before their first "
        "token, by its router's count; null for none",
    )
