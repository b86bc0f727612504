"""Bytes of a model's blocks in a tier and on the links to it.

Across a link go a group's own bytes; a tier keeps blocks of the pool's width, the largest group's,
whichever group they are of. Where every rank holds the same KV (as with MLA) the CPU tier keeps one
copy for the node, which the first rank stores and every rank loads; else each rank's part, heads
that several ranks hold as often as they do. To the Mooncake store ranks that hold the same store in
turns, and every rank loads all it needs. (vLLM 0.33.0: kv_connector/v1/offloading/worker.py,
mooncake/store/worker.py.)
"""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.catalog import LinkSpec, Model
from kvsim.planning.specs import LATENT_KINDS

ASSUMED_BLOCK_BYTES = 2**20
"""Taken for a group of a custom model that does not say what its blocks need."""


@dataclass(frozen=True)
class BlockSizes:
    """Bytes of one block of each group.

    Attributes:
        group_bytes: what a tier is given of a block, one entry a group: its own bytes, all copies.
        pool_bytes: what a block of any group takes in a tier.
        rank_load_bytes: what crosses the link of one rank when a block is loaded, an entry a group.
        rank_store_bytes: the same when it is stored, for the rank that stores most.
        num_ranks: tensor-parallel ranks.
        assumed: groups whose bytes are not known and were taken as ``ASSUMED_BLOCK_BYTES``.
    """

    group_bytes: tuple[int, ...]
    pool_bytes: int
    rank_load_bytes: tuple[float, ...]
    rank_store_bytes: tuple[float, ...]
    num_ranks: int
    assumed: tuple[int, ...]

    def on_link(self, link: LinkSpec, is_store: bool) -> tuple[float, ...]:
        """Bytes that one block of each group puts on a link: one rank's, or those of all ranks."""
        if link.span == "rank":
            return self.rank_store_bytes if is_store else self.rank_load_bytes
        if is_store:
            return tuple(float(num_bytes) for num_bytes in self.group_bytes)
        return tuple(num_bytes * self.num_ranks for num_bytes in self.rank_load_bytes)


def block_sizes(model: Model, tensor_parallel: int, *, ranks_share_stores: bool) -> BlockSizes:
    """Sizes of a model's blocks.

    Args:
        model: its groups; what they do not say is assumed.
        tensor_parallel: number of ranks.
        ranks_share_stores: ranks that hold the same store in turns, and it is kept once (the
            Mooncake store); otherwise as the OffloadingConnector does.

    Raises:
        KvsimError: the KV heads cannot be split over this many ranks.
    """
    known = [group.bytes_per_block for group in model.groups]
    assumed = tuple(index for index, size in enumerate(known) if size is None)
    whole = [ASSUMED_BLOCK_BYTES if size is None else size for size in known]
    share = model.kv_share(tensor_parallel)
    # Ranks that hold the same: all of them where KV is replicated, else those beyond the KV heads.
    num_same = max(1, round(share * tensor_parallel))
    num_copies = 1 if share == 1.0 or ranks_share_stores else num_same
    stored = share / num_same if ranks_share_stores else share
    return BlockSizes(
        group_bytes=tuple(size * num_copies for size in whole),
        pool_bytes=max(whole) * num_copies,
        rank_load_bytes=tuple(size * share for size in whole),
        rank_store_bytes=tuple(size * stored for size in whole),
        num_ranks=tensor_parallel,
        assumed=assumed,
    )


def block_regions(model: Model) -> list[int]:
    """Pieces in memory of a block of each group: of each layer one, or keys and values apart."""
    plan = model.plan
    if plan is None:
        apart = 1 if model.kv_replicated else 2
        return [(group.num_layers or 1) * apart for group in model.groups]
    if plan.block_outer:
        return [1] * len(plan.groups)
    return [len(group.layers) * (1 if group.kind in LATENT_KINDS else 2) for group in plan.groups]
