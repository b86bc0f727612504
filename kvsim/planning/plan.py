"""The whole way: a config and settings to layers, groups, bytes and units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvsim.errors import KvsimError
from kvsim.planning.backends import BLOCK_OUTER, Backend, check_parallel, choose_backend
from kvsim.planning.blocks import BlockSizes, resolve_block_sizes, spec_of
from kvsim.planning.config import Config
from kvsim.planning.drafts import draft_layers_of
from kvsim.planning.families import layers_of
from kvsim.planning.fit import blocks_of_request, bytes_per_block, longest_that_fits
from kvsim.planning.groups import Group, group_layers
from kvsim.planning.layers import Layer
from kvsim.planning.settings import Settings
from kvsim.planning.specs import CHUNKED, LATENT_KINDS, STATE, LayerSpec
from kvsim.planning.units import Units, resolve_units


@dataclass(frozen=True)
class Plan:
    """What the engine makes of a model on its GPUs, but for the size of the pool.

    Attributes:
        settings: what it was told.
        max_model_len: longest request, tokens.
        specs: a layer each, in the engine's order, of all stages.
        stage_layers: how many of them each pipeline stage holds.
        groups: in the engine's order.
        block_outer: all layers of a block lie together in memory.
        backend: attention backends; None where the layers were given by hand.
        block_sizes: as resolved; None likewise.
        hash_lookahead_tokens: tokens behind a block that its key covers.
        layers: what the specs were made of; empty where they were given.
    """

    settings: Settings
    max_model_len: int
    specs: tuple[LayerSpec, ...]
    stage_layers: tuple[int, ...]
    groups: tuple[Group, ...]
    block_outer: bool
    backend: Backend | None = None
    block_sizes: BlockSizes | None = None
    hash_lookahead_tokens: int = 0
    layers: tuple[Layer, ...] = ()

    @property
    def stages(self) -> tuple[tuple[Group, ...], ...]:
        """The groups' parts on each pipeline stage."""
        found, first = [], 0
        for held in self.stage_layers:
            found.append(tuple(group.part(first, first + held) for group in self.groups))
            first += held
        return tuple(found)

    @property
    def bytes_per_block(self) -> tuple[int, ...]:
        """Bytes one block of the pool costs a rank, of each stage."""
        return tuple(bytes_per_block(stage, block_outer=self.block_outer) for stage in self.stages)

    def blocks_of_request(self, num_tokens: int | None = None) -> tuple[int, ...]:
        """Blocks that a request takes of each group; None for the longest."""
        return blocks_of_request(
            self.stages[0],
            self.max_model_len if num_tokens is None else num_tokens,
            self.settings.max_in_flight_tokens,
            self.settings.decode_context_parallel,
        )

    def num_blocks(self, available_bytes: Sequence[int]) -> int:
        """Blocks of the pool, block 0 included, of so many bytes a rank of each stage."""
        pairs = zip(available_bytes, self.bytes_per_block, strict=True)
        return min(available // of_block for available, of_block in pairs)

    def fits(self, available_bytes: Sequence[int]) -> bool:
        """Whether a request of ``max_model_len`` fits beside block 0, on every stage."""
        return all(
            of_block * sum(self._stage_blocks(stage)) <= available - of_block
            for stage, of_block, available in zip(
                self.stages, self.bytes_per_block, available_bytes, strict=True
            )
        )

    def longest_that_fits(self, available_bytes: int, stage: int = 0) -> int:
        """The longest request that a stage holds, up to ``max_model_len``; 0 where none does."""
        return longest_that_fits(
            self.stages[stage],
            self.bytes_per_block[stage],
            available_bytes,
            self.max_model_len,
            self.settings.max_in_flight_tokens,
            self.settings.decode_context_parallel,
        )

    def _stage_blocks(self, stage: Sequence[Group]) -> tuple[int, ...]:
        settings = self.settings
        return blocks_of_request(
            stage,
            self.max_model_len,
            settings.max_in_flight_tokens,
            settings.decode_context_parallel,
        )

    @property
    def units(self) -> Units:
        """In what units prefixes are keyed and found.

        Raises:
            KvsimError: a ``prefix_match_unit`` that the blocks are no multiples of.
        """
        return resolve_units(self.groups, self.settings)

    @property
    def kv_replicas(self) -> int:
        """Neighbouring ranks that hold the same KV: all of them, of latents alone."""
        latent = all(spec.kind in LATENT_KINDS for spec in self.specs)
        shared = latent and self.settings.decode_context_parallel == 1
        return self.settings.tensor_parallel if shared else 1

    def rank_share(self, tensor_parallel: int) -> float:
        """Part of the KV that one of so many ranks holds: of latents all, else its heads' share.

        Where heads or states of several numbers stand side by side every rank counts for itself.

        Raises:
            KvsimError: the heads cannot be split over this many ranks.
        """
        context = self.settings.decode_context_parallel
        if self.layers and all(layer.is_latent for layer in self.layers):
            return 1.0 / context
        heads = {layer.kv_heads for layer in self.layers if layer.kind != STATE}
        for count in heads:
            if count % tensor_parallel and tensor_parallel % count:
                raise KvsimError(
                    f"node.tensor_parallel: {tensor_parallel} neither divides the {count} KV heads "
                    "nor is a multiple of them. Use one that does."
                )
        if len(heads) == 1 and not self.has_states:
            count = heads.pop()
            return max(1, count // tensor_parallel) / count / context
        return 1.0 / tensor_parallel

    @property
    def has_states(self) -> bool:
        """Whether a layer keeps states."""
        return any(spec.kind == STATE for spec in self.specs)


def make_plan(config: Config, settings: Settings, given: Sequence[Layer] | None = None) -> Plan:
    """What the engine makes of a model.

    Args:
        config: of the checkpoint.
        settings: how the engine is started.
        given: its layers, where they do not follow from the architecture; drafts come last.

    Raises:
        KvsimError: the model is not known, or the engine would refuse the settings.
    """
    if given is None:
        own = layers_of(config)
        drafts = draft_layers_of(config) if settings.draft_tokens else []
    else:
        own = [layer for layer in given if not layer.draft]
        drafts = [layer for layer in given if layer.draft]
    found = [*own, *drafts]
    check_parallel(config, found, settings)
    longest = config.max_model_len
    max_model_len = settings.max_model_len or longest
    if max_model_len is None:
        raise KvsimError(
            f"{config.where}: max_position_embeddings: is missing. Give engine.max_model_len."
        )
    backend = choose_backend(config, found, settings)
    sizes = resolve_block_sizes(config, found, settings, backend, max_model_len)
    specs = tuple(spec_of(layer, config, settings, backend, sizes) for layer in found)
    block_outer = backend.layout == BLOCK_OUTER
    # The engine has no look-ahead for chunks: a drafter turns its hybrid manager off.
    chunked = bool(drafts) and any(spec.kind == CHUNKED for spec in specs)
    hybrid = settings.hybrid_manager and not chunked
    groups = group_layers(specs, block_outer=block_outer, hybrid_manager=hybrid)
    stages = _stages(own, drafts, _decoder_layers(config, own), settings.pipeline_parallel)
    lookahead = 1 if drafts and settings.enable_prefix_caching else 0
    return Plan(
        settings,
        max_model_len,
        specs,
        stages,
        groups,
        block_outer,
        backend,
        sizes,
        lookahead,
        tuple(found),
    )


def plan_specs(
    specs: Sequence[LayerSpec],
    settings: Settings,
    max_model_len: int,
    *,
    block_outer: bool = False,
) -> Plan:
    """The same of layers given with their blocks, on one stage.

    Raises:
        KvsimError: pages that cannot be made equal.
    """
    groups = group_layers(specs, block_outer=block_outer, hybrid_manager=settings.hybrid_manager)
    return Plan(settings, max_model_len, tuple(specs), (len(specs),), groups, block_outer)


def _decoder_layers(config: Config, own: Sequence[Layer]) -> int:
    """Layers that pipeline stages divide: the numbering that the layers were given."""
    return max(config.num_layers, max((layer.decoder_layer for layer in own), default=0) + 1)


def layers_of_stages(num_layers: int, stages: int) -> tuple[int, ...]:
    """Decoder layers of each stage; what does not divide goes to the stages before the last."""
    share, left = divmod(num_layers, stages)
    parts = [share] * stages
    for back in range(2, left + 2):
        parts[-back] += 1
    return tuple(parts)


def _stages(
    own: Sequence[Layer], drafts: Sequence[Layer], num_layers: int, stages: int
) -> tuple[int, ...]:
    """KV layers of each stage."""
    held, first = [], 0
    for size in layers_of_stages(num_layers, stages):
        held.append(sum(first <= layer.decoder_layer < first + size for layer in own))
        first += size
    held[-1] += len(drafts)
    return tuple(held)
