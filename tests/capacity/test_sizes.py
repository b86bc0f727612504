"""Bytes of blocks in a tier and on the links."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvsim import catalog
from kvsim.capacity.sizes import block_sizes
from kvsim.catalog import KVGroup, Model

FLASH = catalog.model("deepseek-v4-flash")
LLAMA = Model("llama", (KVGroup("full", 16, bytes_per_block=1_600),), num_kv_heads=8)
RANK = catalog.link("pcie-gen6-x16")
NODE = replace(RANK, span="node")


def test_replicated_kv_is_stored_by_one_rank_and_loaded_by_all() -> None:
    sizes = block_sizes(FLASH, 4, ranks_share_stores=False)
    assert sizes.group_bytes == (823_680, 786_240, 1_002_240, 870_912, 656_640)
    assert sizes.pool_bytes == 1_002_240
    assert sizes.on_link(RANK, is_store=False) == sizes.group_bytes
    assert sizes.on_link(RANK, is_store=True) == sizes.group_bytes
    assert sizes.on_link(NODE, is_store=True) == sizes.group_bytes
    assert sizes.on_link(NODE, is_store=False)[2] == 4 * 1_002_240


def test_in_the_store_ranks_that_hold_the_same_share_the_work() -> None:
    sizes = block_sizes(FLASH, 4, ranks_share_stores=True)
    assert sizes.group_bytes[2] == 1_002_240
    assert sizes.on_link(RANK, is_store=True)[2] == 1_002_240 / 4
    assert sizes.on_link(NODE, is_store=True)[2] == 1_002_240
    assert sizes.on_link(RANK, is_store=False)[2] == 1_002_240


@pytest.mark.parametrize(
    ("ranks", "copies", "on_rank"), [(1, 1, 1_600), (4, 1, 400), (8, 1, 200), (16, 2, 200)]
)
def test_split_kv_is_kept_as_often_as_ranks_hold_it(ranks: int, copies: int, on_rank: int) -> None:
    sizes = block_sizes(LLAMA, ranks, ranks_share_stores=False)
    assert sizes.group_bytes == (1_600 * copies,)
    assert sizes.on_link(RANK, is_store=True) == (on_rank,)
    assert sizes.on_link(NODE, is_store=False) == (1_600 * copies,)
    shared = block_sizes(LLAMA, ranks, ranks_share_stores=True)
    assert shared.group_bytes == (1_600,)
    assert shared.on_link(NODE, is_store=True) == (1_600,)


def test_groups_without_bytes_take_a_mebibyte() -> None:
    model = Model("custom", (KVGroup("full", 16), KVGroup("full", 16, bytes_per_block=100)))
    sizes = block_sizes(model, 1, ranks_share_stores=False)
    assert sizes.group_bytes == (2**20, 100)
    assert sizes.pool_bytes == 2**20
    assert sizes.assumed == (0,)
