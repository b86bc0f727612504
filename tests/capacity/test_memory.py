"""Blocks from memory, and the concurrency the engine reports."""

from __future__ import annotations

import pytest

from kvsim import catalog
from kvsim.cache.spec import GroupSpec
from kvsim.capacity.memory import (
    ACTIVATION_RESERVE_BYTES,
    GIB,
    BlockDerivation,
    bytes_per_block_of_rank,
    derive_num_blocks,
    group_spec,
    num_blocks_of_request,
    reported_concurrency,
    reported_concurrency_before_0_33,
)
from kvsim.catalog import Gpu, KVGroup, Model
from kvsim.errors import KvsimError, Problems
from kvsim.planning.settings import Settings

PRO = catalog.model("deepseek-v4-pro")
B300 = catalog.gpu("b300")
PRO_GROUPS = [group_spec(group) for group in PRO.groups]


def derive_quick_start() -> BlockDerivation:
    return derive_num_blocks(PRO, B300, 8, 0.92, ACTIVATION_RESERVE_BYTES)


def test_quick_start_node_holds_about_106500_blocks() -> None:
    derivation = derive_quick_start()
    assert derivation.bytes_per_block == 1_435_968
    assert derivation.num_blocks == pytest.approx(106_500, abs=100)


def test_the_lines_tell_the_derivation_in_order() -> None:
    lines = derive_quick_start().lines
    order = ["268.00 GiB HBM", "x 0.92", "- 100.70 GiB weights", "- 3.40 GiB reserve"]
    order += ["= 142.4", "/ 1,435,968 bytes", "= 106,5"]
    assert len(lines) == len(order)
    for line, part in zip(lines, order, strict=True):
        assert part in line
    assert "assumption: " in lines[0]
    assert "assumption: " in lines[3]


def test_the_lines_add_up() -> None:
    gpu = Gpu("small", hbm_bytes=10 * GIB, hbm_bytes_per_s=1e12)
    model = Model("m", (KVGroup("full", 16, bytes_per_block=2**20),), weight_bytes=4 * GIB)
    derivation = derive_num_blocks(model, gpu, 2, 0.5, GIB)
    # 5 GiB usable, 2 GiB weights a rank, 1 GiB reserve; half of the KV heads a rank
    assert derivation.bytes_per_block == 2**19
    assert derivation.num_blocks == 2 * GIB // 2**19


def test_an_override_is_taken_as_it_is() -> None:
    derivation = derive_num_blocks(PRO, B300, 8, 0.92, num_blocks_override=1000)
    assert derivation.num_blocks == 1000
    assert derivation.bytes_per_block == 1_435_968
    assert "not derived" in derivation.lines[0]
    bare = Model("bare", (KVGroup("full", 16),))
    assert derive_num_blocks(bare, B300, 8, 0.92, num_blocks_override=9).bytes_per_block is None


def test_too_little_memory_says_how_much_is_missing() -> None:
    with pytest.raises(
        KvsimError, match=r"weights of deepseek-v4-pro over 1 GPU take 805\.59"
    ) as e:
        derive_num_blocks(PRO, B300, 1, 0.92)
    assert "so nothing is left" in str(e.value)
    assert "Use more GPUs" in str(e.value)


def test_a_model_without_bytes_names_every_missing_key() -> None:
    bare = Model("bare", (KVGroup("full", 16), KVGroup("full", 16, bytes_per_block=1)))
    with pytest.raises(Problems) as e:
        derive_num_blocks(bare, B300, 1, 0.9)
    assert [problem.split(":")[0] for problem in e.value.problems] == [
        "weight_bytes",
        "groups[0].bytes_per_block",
    ]


def test_replicated_kv_is_not_divided_and_heads_are() -> None:
    assert bytes_per_block_of_rank(PRO, 8) == bytes_per_block_of_rank(PRO, 1) == 1_435_968
    llama = catalog.model("llama-3.1-70b", Settings(tensor_parallel=8))
    assert bytes_per_block_of_rank(llama, 8) == 5_242_880 // 8
    given = Model("given", llama.groups)
    assert bytes_per_block_of_rank(given, 2) == 2_621_440


@pytest.mark.parametrize(
    ("kv_gib", "bytes_per_block", "num_blocks"),
    [
        (26.09, 1_473_408, 19_015),
        (26.09, 1_315_008, 21_306),
        (26.46, 1_308_672, 21_709),
        (26.46, 1_228_800, 23_120),
    ],
)
def test_published_gb200_block_counts(kv_gib: float, bytes_per_block: int, num_blocks: int) -> None:
    """vLLM #48993, DeepSeek V4 Pro on GB200; the GiB are rounded, so within 3 blocks."""
    model = Model("pro", (KVGroup("full", 256, bytes_per_block=bytes_per_block),), weight_bytes=0.0)
    gpu = Gpu("gb200", hbm_bytes=round(kv_gib * GIB), hbm_bytes_per_s=8e12)
    derivation = derive_num_blocks(model, gpu, 1, 1.0, 0.0)
    assert derivation.num_blocks == pytest.approx(num_blocks, abs=3)


def test_blocks_of_a_request_of_a_million_tokens() -> None:
    assert num_blocks_of_request(PRO_GROUPS, 1_048_576, 8192) == (131, 131, 4096, 1041, 2051)
    # a window never holds more than the sequence and one block
    assert num_blocks_of_request(PRO_GROUPS, 256, 8192) == (5, 5, 1, 33, 65)


def test_reported_concurrency_is_blocks_over_the_sum() -> None:
    assert reported_concurrency(74_500, PRO_GROUPS, 1_048_576, 8192) == 10.0
    full = [GroupSpec("full", 16)]
    assert reported_concurrency(1000, full, 1600, 8192) == 10.0


def test_earlier_concurrency_weighs_groups_by_their_bytes() -> None:
    groups = [GroupSpec("full", 16), GroupSpec("sliding_window", 8, 9)]
    # 10 full blocks of 300 bytes, and ceil((8 + 16) / 8) + 1 = 4 of 100: 3,400 bytes, 12 pages
    assert reported_concurrency_before_0_33(36, groups, [300, 100], 160, 16) == 3.0
    assert reported_concurrency(42, groups, 160, 16) == 3.0


def test_published_concurrency_of_14_5_is_near() -> None:
    """The 14.5x of #43447 (June 2026), read as 103,254 blocks and 1,048,576 tokens.

    The layout of that time is not published in full. The bytes of 0.33 with its full page of
    1,482,048 give 15.3 by the earlier formula and 13.9 by that of 0.33: around it, not equal.
    """
    sizes = [
        1_482_048 if group.name == "full" else group.bytes_per_block or 0 for group in PRO.groups
    ]
    before = reported_concurrency_before_0_33(103_254, PRO_GROUPS, sizes, 1_048_576, 8192)
    later = reported_concurrency(103_254, PRO_GROUPS, 1_048_576, 8192)
    assert later == pytest.approx(13.86, abs=0.01)
    assert before == pytest.approx(15.33, abs=0.01)


def test_states_take_a_few_blocks_whatever_the_length() -> None:
    groups = (
        GroupSpec("mamba", 16),
        GroupSpec("mamba", 16, num_drafts=3, checkpoint_alignment=1),
        GroupSpec("mamba", 4096, num_drafts=1, one_state=True),
    )
    assert num_blocks_of_request(groups, 1000, 100) == (2, 6, 2)
    assert num_blocks_of_request(groups, 100_000, 100) == (2, 6, 2)
