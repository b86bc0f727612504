"""Tiers beyond the GPU's memory, and the links to them."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from kvsim import catalog
from kvsim.errors import UnknownNameError, show
from kvsim.policies.contract import HOST_EVICTION
from kvsim.scenario.fields import Count, Fraction, Seconds
from kvsim.scenario.policies import policy_setting
from kvsim.scenario.validation import Section
from kvsim.units import parse_bytes, parse_bytes_per_s

FIXED_S = 3e-4
"""Seconds of a transfer whatever its size: what is left at 128 tokens (0.54 ms) of the times of the
Mooncake connector, Qwen3-8B on 8 NICs (Mooncake, docs, vllm-v1-pd-performance.md)."""


def _catalog_link(value: str) -> str:
    if value not in catalog.link_names():
        raise UnknownNameError("link", value, catalog.link_names())
    return value


def _link_form(value: object) -> str:
    return "named" if isinstance(value, str) else "own"


def _link(value: object) -> object:
    if not isinstance(value, str | dict | OwnLink):
        names = ", ".join(catalog.link_names())
        raise ValueError(f"{show(value)} is no link. Name one of {names}, or give bandwidth:.")
    return value


class OwnLink(Section):
    """A link with figures of one's own."""

    bandwidth: Annotated[
        float, BeforeValidator(parse_bytes_per_s, json_schema_input_type=float | str), Field(gt=0)
    ] = Field(description="nominal bandwidth each way, bytes a second or with a unit")
    efficiency: Fraction = Field(
        default=1.0, description="fraction of the bandwidth that large transfers reach"
    )
    latency_s: Seconds = Field(
        default=0.0, description="before the first byte arrives, once for each transfer"
    )
    sharing: Literal["fifo", "fair"] = Field(
        default="fifo", description="one transfer after another, or all at once in equal parts"
    )
    span: Literal["rank", "node"] = Field(
        default="rank", description="a link for every tensor-parallel rank, or one for the node"
    )


LinkSetting = Annotated[
    Annotated[str, AfterValidator(_catalog_link), Tag("named")] | Annotated[OwnLink, Tag("own")],
    Discriminator(_link_form),
    BeforeValidator(_link),
]
Capacity = Annotated[
    int, BeforeValidator(parse_bytes, json_schema_input_type=int | str), Field(gt=0, le=2**62)
]


def link_spec(setting: str | OwnLink, efficiency: float | None = None) -> catalog.LinkSpec:
    """The link that is meant, of the catalog or one's own (named ``own``).

    Args:
        setting: as written.
        efficiency: in place of the link's, if one is given.
    """
    if isinstance(setting, str):
        link = catalog.link(setting)
        if efficiency is None:
            return link
        origins = {**link.origins, "efficiency": "as set"}
        return replace(link, efficiency=efficiency, origins=origins)
    return catalog.LinkSpec(
        name="own",
        store_bytes_per_s=setting.bandwidth,
        load_bytes_per_s=setting.bandwidth,
        efficiency=setting.efficiency if efficiency is None else efficiency,
        latency_s=setting.latency_s,
        sharing=setting.sharing,
        span=setting.span,
    )


class DiskTier(Section):
    """A disk below the CPU tier: every chunk stored there is written on to it."""

    kind: Literal["disk"] = Field(default="disk", description="kind of tier")
    capacity: Capacity = Field(default=8 * 2**40, description="bytes of the disk that are used")
    link: LinkSetting = Field(
        default="nvme-gen5-x4", description="between the host's memory and the disk"
    )
    link_efficiency: Fraction | None = Field(
        default=None, description="fraction of its bandwidth that is reached; null for the link's"
    )


def _retention_interval(value: object) -> object:
    if value is None or value == "cache":
        return value
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(
            f"{show(value)} is not an interval. Use 0, a number of tokens, null (dense) or 'cache' "
            "(that of the pool)."
        )
    return value


class CpuOffload(Section):
    """Chunks of blocks in the host's memory, as the engine's OffloadingConnector keeps them."""

    kind: Literal["cpu"] = Field(description="kind of tier")
    capacity: Capacity = Field(
        default=2**40, description="bytes of host memory, for a rank or for the node"
    )
    shared_by: Literal["rank", "node"] = Field(
        default="rank",
        description="whose the tier is: each data-parallel rank has one, as the engine's do, or "
        "all ranks of a node have one together",
    )
    num_chunks: Count | None = Field(
        default=None, description="chunks the tier holds; null for what the capacity gives"
    )
    blocks_per_chunk: Count = Field(default=1, description="blocks of one group in a chunk")
    eviction: Annotated[str | dict[str, Any], BeforeValidator(policy_setting(HOST_EVICTION))] = (
        Field(
            default="lru",
            description="which chunks leave when room is needed, as `kvsim policies` lists them, "
            "or your own as path/to/file.py:name",
        )
    )
    retention_interval: Annotated[
        int | None | Literal["cache"], BeforeValidator(_retention_interval)
    ] = Field(
        default="cache",
        description="tokens between boundaries whose window chunks are stored, as "
        "cache.retention_interval says it for the pool; cache for the same",
    )
    prompt_only: bool = Field(default=True, description="false stores generated tokens as well")
    link: LinkSetting = Field(
        default="pcie-gen6-x16", description="between the GPUs and the host's memory"
    )
    link_efficiency: Fraction | None = Field(
        default=None, description="fraction of its bandwidth that is reached; null for the link's"
    )
    overlap_loads: bool = Field(
        default=False,
        description="true starts a step while its loads are under way, layer by layer; false waits",
    )
    below: DiskTier | None = Field(default=None, description="a disk tier below this one")


class MooncakeOffload(Section):
    """The Mooncake store: a pool of memory that nodes share over a network."""

    kind: Literal["mooncake"] = Field(description="kind of tier")
    capacity: Capacity = Field(default=2**40, description="bytes of the store, all nodes together")
    high_watermark: Fraction = Field(
        default=0.9, description="share of the capacity above which a batch of blocks leaves"
    )
    eviction_ratio: Fraction = Field(
        default=0.05,
        description="share of the blocks in a batch, beyond what is over high_watermark",
    )
    lease: Seconds = Field(
        default=10.0, description="how long a block that was looked up or read stays in any case"
    )
    link: LinkSetting = Field(default="net-400g", description="between the GPUs and the store")
    link_efficiency: Fraction | None = Field(
        default=None, description="fraction of its bandwidth that is reached; null for the link's"
    )
    fixed_s: Seconds = Field(default=FIXED_S, description="time of a transfer whatever its size")
    descriptor_s: Seconds = Field(
        default=0.0,
        description="time to post a descriptor, a block of a layer, twice where keys and values "
        "lie apart; not measured for the store",
    )
    overlap_loads: bool = Field(
        default=False,
        description="true starts a step while its loads are under way, layer by layer; false waits",
    )
