from __future__ import annotations

import numpy as np
import pytest

from kvsim.cache.content import Content, block_key, span_at
from kvsim.cache.spec import GroupSpec, scheduler_block_size


def test_spans_become_uids_and_ends() -> None:
    content = Content.from_spans([(5, 10), (6, 0), (7, 3)])
    assert content.uids.tolist() == [5, 7]
    assert content.ends.tolist() == [10, 13]
    assert content.num_tokens == 13
    assert content.spans() == [(5, 10), (7, 3)]
    assert Content.from_spans([]).num_tokens == 0


@pytest.mark.parametrize("spans", [[(1, -1)], [(1, 1 << 24)], [(-1, 5)], [(1 << 35, 5)]])
def test_what_is_no_content(spans: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="must"):
        Content.from_spans(spans)


def test_the_span_that_holds_the_token_before_a_position() -> None:
    ends = np.array([10, 13, 40])
    assert [span_at(ends, 3, position) for position in (1, 10, 11, 13, 14, 40)] == [
        0,
        0,
        1,
        1,
        2,
        2,
    ]


def test_keys_tell_span_block_and_group_apart() -> None:
    keys = {block_key(u, i, g) for u in (0, 1, 2**34) for i in (1, 2, 2**21) for g in (0, 1, 63)}
    assert len(keys) == 27
    assert all(0 < key < 2**63 for key in keys)


def test_what_a_group_needs_to_resume() -> None:
    assert GroupSpec("full", 16).blocks_to_resume == 0
    assert [GroupSpec("sliding_window", b, w).blocks_to_resume for b, w in
            ((64, 128), (4, 8), (8, 128), (16, 1))] == [2, 2, 16, 0]  # fmt: skip
    assert GroupSpec("sliding_window", 4, 8).admission_cap(8192, 1 << 20) == 2051
    assert GroupSpec("sliding_window", 4, 8).admission_cap(8192, 100) == 26
    assert GroupSpec("full", 4).admission_cap(8192, 100) is None


def test_the_scheduler_block() -> None:
    assert scheduler_block_size((GroupSpec("full", 48), GroupSpec("sliding_window", 32, 64))) == 96


@pytest.mark.parametrize(
    ("kind", "block", "window", "message"),
    [
        ("linear", 16, None, "kind 'linear' is none of"),
        ("full", 0, None, "block_size 0 is below 1 token"),
        ("full", 16, 128, "sliding_window belongs to"),
        ("sliding_window", 16, None, "sliding_window belongs to"),
        ("sliding_window", 16, 0, "sliding_window 0 is below 1 token"),
    ],
)
def test_what_is_no_group(kind: str, block: int, window: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GroupSpec(kind, block, window)
