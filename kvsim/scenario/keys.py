"""The keys of a scenario together, and what follows from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, PrivateAttr, Tag

from kvsim import catalog
from kvsim.capacity.memory import (
    ACTIVATION_RESERVE_BYTES,
    ACTIVATION_RESERVE_REASON,
    BlockDerivation,
    derive_num_blocks,
)
from kvsim.capacity.requests import longest_in_pool
from kvsim.capacity.reserve import Reserve, derive_reserve
from kvsim.capacity.sizes import BlockSizes, block_sizes
from kvsim.errors import UnknownNameError, show
from kvsim.planning.settings import HOPPER, Settings
from kvsim.policies.profiles import PROFILES
from kvsim.scenario.defaults import BatchDefaults, async_default, batch_defaults
from kvsim.scenario.fields import TOKENS_MAX, DirectoryName, kind_of
from kvsim.scenario.fleet import Fleet
from kvsim.scenario.model import CustomModel
from kvsim.scenario.node import Node
from kvsim.scenario.offload import CpuOffload, MooncakeOffload
from kvsim.scenario.parts import (
    PROFILE_DEFAULT,
    Cache,
    ConstantStepTime,
    Engine,
    Objective,
    Output,
    RooflineStepTime,
    TableStepTime,
)
from kvsim.scenario.policies import Setting, setting_name
from kvsim.scenario.sweep import Sweep
from kvsim.scenario.synthetic import SyntheticWorkload
from kvsim.scenario.validation import Section
from kvsim.scenario.workload import ScriptWorkload, TraceWorkload


def _catalog_model(value: str) -> str:
    if value not in catalog.model_names():
        raise UnknownNameError("model", value, catalog.model_names())
    return value


def _model(value: object) -> object:
    if not isinstance(value, str | Mapping | CustomModel):
        names = ", ".join(catalog.model_names())
        raise ValueError(
            f"{show(value)} is no model. Name one of {names}, or give config:, layers: or groups:."
        )
    return value


def _model_form(value: object) -> str:
    return "custom" if isinstance(value, Mapping | CustomModel) else "named"


class ScenarioKeys(Section):
    """A node, a model, a cache policy and a workload, each key right for itself."""

    name: DirectoryName = Field(description="name of the scenario; results go to results/<name>/")
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(
        default=0, description="all random draws follow from it"
    )
    model: Annotated[
        Annotated[str, AfterValidator(_catalog_model), Tag("named")]
        | Annotated[CustomModel, Tag("custom")],
        Discriminator(_model_form),
        BeforeValidator(_model),
    ] = Field(description="a model of the catalog, or config:, layers: or groups: of another")
    node: Node = Field(default=Node(), description="the machine")
    fleet: Fleet | None = Field(
        default=None, description="several nodes behind a router; null for one"
    )
    engine: Engine = Field(default=Engine(), description="how the engine is started")
    cache: Cache = Field(default=Cache(), description="the cache policy")
    offload: (
        Annotated[
            Annotated[CpuOffload, Tag("cpu")] | Annotated[MooncakeOffload, Tag("mooncake")],
            kind_of(None),
        ]
        | None
    ) = Field(default=None, description="tiers beyond the GPU's memory, kind: cpu or mooncake")
    step_time: Annotated[
        Annotated[RooflineStepTime, Tag("roofline")]
        | Annotated[ConstantStepTime, Tag("constant")]
        | Annotated[TableStepTime, Tag("table")],
        kind_of("roofline"),
    ] = Field(default=RooflineStepTime(), description="how long a step takes")
    workload: Annotated[
        Annotated[TraceWorkload, Tag("trace")]
        | Annotated[ScriptWorkload, Tag("script")]
        | Annotated[SyntheticWorkload, Tag("synthetic")],
        kind_of(None),
    ] = Field(description="where requests come from, kind: trace, script or synthetic")
    variants: dict[DirectoryName, dict[str, Any]] = Field(
        default={},
        description="named overrides run side by side instead of the base; {} is the base",
    )
    sweep: Sweep | None = Field(
        default=None, description="what `kvsim sweep` varies: grid, zip, list and seeds"
    )
    objective: Objective | None = Field(default=None, description="what counts as goodput")
    output: Output = Field(default=Output(), description="what is written down")
    _directory: Path = PrivateAttr(default_factory=Path)

    def model_post_init(self, context: Any, /) -> None:
        """Keep the directory that paths are relative to."""
        self._directory = (context or {}).get("directory", Path())

    @property
    def directory(self) -> Path:
        """What relative paths are relative to."""
        return self._directory

    @property
    def gpu_spec(self) -> catalog.Gpu | None:
        """The GPU, of the catalog or given; None where there is none."""
        gpu = self.node.gpu
        return catalog.gpu(gpu) if isinstance(gpu, str) else None if gpu is None else gpu.spec()

    @property
    def plan_settings(self) -> Settings:
        """How the engine is started, as far as the KV cache of a config depends on it."""
        engine, node, gpu = self.engine, self.node, self.gpu_spec
        capability = None if gpu is None else gpu.capability
        longest = engine.max_model_len
        return Settings(
            tensor_parallel=self.num_ranks,
            pipeline_parallel=node.pipeline_parallel,
            decode_context_parallel=node.decode_context_parallel,
            kv_cache_dtype=engine.kv_cache_dtype,
            block_size=engine.block_size,
            enable_prefix_caching=self.cache.enable_prefix_caching,
            max_model_len=longest if isinstance(longest, int) else None,
            max_num_batched_tokens=self.max_num_batched_tokens,
            async_scheduling=self.async_scheduling,
            draft_tokens=0 if engine.speculative is None else engine.speculative.tokens,
            prefix_match_unit=engine.prefix_match_unit,
            mamba_cache_mode=engine.mamba_cache_mode,
            mamba_block_size=engine.mamba_block_size,
            mamba_cache_dtype=engine.mamba_cache_dtype,
            mamba_ssm_cache_dtype=engine.mamba_ssm_cache_dtype,
            hybrid_manager=engine.hybrid_kv_cache_manager,
            capability=capability or HOPPER,
        )

    @property
    def max_in_flight_tokens(self) -> int:
        """Tokens that can be scheduled and not yet processed."""
        return self.plan_settings.max_in_flight_tokens

    @property
    def model_spec(self) -> catalog.Model:
        """The model, of the catalog or custom, its groups planned for the node and the engine.

        Raises:
            KvsimError: its config is not understood, or the engine would refuse the settings.
        """
        if isinstance(self.model, str):
            model = catalog.model(self.model, self.plan_settings)
            return model if self.engine.speculative is None else model.with_draft_layer()
        return self.model.spec(self.plan_settings, self._directory)

    def on_one_gpu(self) -> Self:
        """The same on one GPU, for what does not depend on how a node is divided."""
        one = {"tensor_parallel": 1, "pipeline_parallel": 1, "data_parallel": 1, "gpus": 1}
        sizes = {**one, "decode_context_parallel": 1, "expert_parallel": False}
        return self.model_copy(update={"node": self.node.model_copy(update=sizes), "fleet": None})

    @property
    def scheduler_block_tokens(self) -> int:
        """Unit of prefix hits in tokens: the least common multiple of the groups' block sizes."""
        model = self.model_spec
        if model.plan is not None:
            return model.plan.units.scheduler_block_size
        return math.lcm(*(group.block_size for group in model.groups))

    @property
    def max_model_len(self) -> int:
        """Longest sequence admitted, tokens: as set, the model's longest, or what fits (auto).

        Raises:
            KvsimError: with auto, nothing says how large the pool is, or none fits.
        """
        written, longest = self.engine.max_model_len, self.model_spec.max_model_len
        if isinstance(written, int):
            return written
        if written == "auto":
            return longest_in_pool(
                self.model_spec,
                derive_blocks(self).num_blocks,
                longest or TOKENS_MAX,
                self.max_in_flight_tokens,
            )
        return longest or TOKENS_MAX

    @property
    def batch_defaults(self) -> BatchDefaults:
        """What the engine takes for keys about a step's size that are left out."""
        gpu = self.gpu_spec
        return batch_defaults(*(None, None) if gpu is None else (gpu.name, gpu.hbm_bytes))

    @property
    def max_num_batched_tokens(self) -> int:
        """Tokens of a step: as set, or the engine's default on the GPU."""
        return self.engine.max_num_batched_tokens or self.batch_defaults.max_num_batched_tokens

    @property
    def max_num_seqs(self) -> int:
        """Requests that run at once: as set, or the engine's default on the GPU."""
        return self.engine.max_num_seqs or self.batch_defaults.max_num_seqs

    @property
    def async_scheduling(self) -> bool:
        """Whether steps overlap: as set, or as the profile does."""
        written = self.engine.async_scheduling
        return async_default(self.engine.profile)[0] if written is None else written

    @property
    def key_lookahead_tokens(self) -> int:
        """Tokens behind a block that its key covers for a drafter; 0 where hits drop a block."""
        speculative = self.engine.speculative
        if speculative is None or self.drops_lookahead_block:
            return 0
        return speculative.mtp_layers

    @property
    def drops_lookahead_block(self) -> bool:
        """Whether hits drop a block for a drafter."""
        speculative = self.engine.speculative
        if speculative is None:
            return any(group.eagle for group in self.model_spec.groups)
        return (
            self.offload is not None
            or (self.fleet is not None and self.fleet.pools is not None)
            or speculative.disable_lookahead_block_hashes
            or not PROFILES[self.engine.profile].has_key_lookahead
        )

    @property
    def num_ranks(self) -> int:
        """Tensor-parallel GPUs of a replica: as set, or what the other sizes leave of the node."""
        node = self.node
        others = node.pipeline_parallel * node.data_parallel
        return node.tensor_parallel or max(1, node.gpus // others)

    @property
    def is_fleet(self) -> bool:
        """Whether it is run, and told of, as several replicas, be it one."""
        node = self.node
        return self.fleet is not None or node.data_parallel > 1 or bool(node.cost_per_gpu_hour)

    @property
    def num_nodes(self) -> int:
        """Nodes at the start."""
        return 1 if self.fleet is None else self.fleet.nodes

    @property
    def balancing(self) -> str:
        """Who chooses the rank of an engine."""
        return "internal" if self.fleet is None else self.fleet.balancing

    @property
    def router(self) -> tuple[str, dict[str, Any]]:
        """Kind of the router and its own keys."""
        written = "round-robin" if self.fleet is None else self.fleet.router
        if isinstance(written, str):
            return written, {}
        return written["kind"], {key: value for key, value in written.items() if key != "kind"}

    @property
    def expert_ranks(self) -> int:
        """Data-parallel ranks that share the experts: those of the engine, which may span nodes."""
        return self.node.data_parallel * (self.num_nodes if self.balancing == "hybrid" else 1)

    @property
    def has_experts(self) -> bool:
        """Whether the model is a mixture of experts."""
        return self.model_spec.num_experts > 0

    @property
    def tier_block_sizes(self) -> BlockSizes:
        """Bytes of blocks in the tier next to the device, and on the link to it."""
        shared = isinstance(self.offload, MooncakeOffload)
        return block_sizes(self.model_spec, self.num_ranks, ranks_share_stores=shared)

    @property
    def free_queue(self) -> str:
        """The free-queue order in a few words: as set, or the profile's."""
        return setting_name(self.free_queue_setting)

    @property
    def free_queue_setting(self) -> Setting:
        """The free-queue order: as set, or the profile's."""
        written = self.cache.free_queue
        profile = PROFILES[self.engine.profile]
        return profile.free_queue.name if written == PROFILE_DEFAULT else written

    @property
    def retention_interval(self) -> int | None:
        """The retention interval in tokens, None for dense: as set, or the profile's."""
        written = self.cache.retention_interval
        if isinstance(written, str):
            return PROFILES[self.engine.profile].retention_interval
        return written


def derive_blocks(scenario: ScenarioKeys) -> BlockDerivation:
    """The size of a scenario's pool, as set or derived line by line.

    Raises:
        KvsimError: nothing says how large it is, or no memory is left for it.
    """
    node, reserve = scenario.node, reserve_of(scenario)
    return derive_num_blocks(
        scenario.model_spec,
        scenario.gpu_spec,
        scenario.num_ranks,
        node.gpu_memory_utilization,
        reserve.total_bytes,
        node.num_blocks,
        reserve.reason,
        pipeline_parallel=node.pipeline_parallel,
        data_parallel=scenario.expert_ranks,
        kv_cache_bytes=scenario.engine.kv_cache_memory,
    )


def reserve_of(scenario: ScenarioKeys) -> Reserve:
    """What a GPU of a scenario needs besides weights and KV, as set or derived."""
    node = scenario.node
    if node.activation_reserve is not None:
        return Reserve(node.activation_reserve, "node.activation_reserve")
    derived = derive_reserve(
        scenario.model_spec,
        scenario.num_ranks,
        scenario.num_ranks
        * node.pipeline_parallel
        * (scenario.expert_ranks if scenario.has_experts else 1),
        scenario.max_num_batched_tokens,
        scenario.max_num_seqs,
        scenario.engine.profile,
    )
    return derived or Reserve(ACTIVATION_RESERVE_BYTES, ACTIVATION_RESERVE_REASON)
