"""The keys of a scenario together, and what follows from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, PrivateAttr, Tag

from kvsim import catalog
from kvsim.capacity.sizes import BlockSizes, block_sizes
from kvsim.errors import UnknownNameError, show
from kvsim.policies.profiles import PROFILES
from kvsim.scenario.defaults import BatchDefaults, async_default, batch_defaults
from kvsim.scenario.fields import TOKENS_MAX, DirectoryName, kind_of
from kvsim.scenario.model import CustomModel
from kvsim.scenario.offload import CpuOffload, MooncakeOffload
from kvsim.scenario.parts import (
    PROFILE_DEFAULT,
    Cache,
    ConstantStepTime,
    Engine,
    Node,
    Objective,
    Output,
    RooflineStepTime,
    TableStepTime,
)
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
        raise ValueError(f"{show(value)} is no model. Name one of {names}, or give groups:.")
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
    ] = Field(description="a model of the catalog, or groups: and more of a custom one")
    node: Node = Field(default=Node(), description="the machine")
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
        default={}, description="named overrides run side by side instead of the base"
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
    def model_spec(self) -> catalog.Model:
        """The model, of the catalog or custom; with its draft layer where it drafts."""
        if not isinstance(self.model, str):
            return self.model.spec()
        model = catalog.model(self.model)
        return model if self.engine.speculative is None else model.with_draft_layer()

    @property
    def scheduler_block_tokens(self) -> int:
        """Unit of prefix hits in tokens: the least common multiple of the groups' block sizes."""
        return math.lcm(*(group.block_size for group in self.model_spec.groups))

    @property
    def max_model_len(self) -> int:
        """Longest sequence admitted, tokens: as set, or the model's longest."""
        return self.engine.max_model_len or self.model_spec.max_model_len or TOKENS_MAX

    @property
    def batch_defaults(self) -> BatchDefaults:
        """What the engine takes for keys about a step's size that are left out."""
        gpu = self.node.gpu
        return batch_defaults(gpu, None if gpu is None else catalog.gpu(gpu).hbm_bytes)

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
    def max_in_flight_tokens(self) -> int:
        """Tokens that can be scheduled and not yet processed."""
        return (2 if self.async_scheduling else 1) * self.max_num_batched_tokens

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
            or speculative.disable_lookahead_block_hashes
            or not PROFILES[self.engine.profile].has_key_lookahead
        )

    @property
    def num_ranks(self) -> int:
        """Tensor-parallel GPUs of a replica: as set, or all of the node."""
        return self.node.tensor_parallel or self.node.gpus

    @property
    def tier_block_sizes(self) -> BlockSizes:
        """Bytes of blocks in the tier next to the device, and on the link to it."""
        shared = isinstance(self.offload, MooncakeOffload)
        return block_sizes(self.model_spec, self.num_ranks, ranks_share_stores=shared)

    @property
    def free_queue(self) -> str:
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
