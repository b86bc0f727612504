"""Shared prefixes drawn for traces of lengths only."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from kvsim.errors import KvsimError
from kvsim.workload.traces import TraceOptions, open_trace_file
from kvsim.workload.traces.reuse import SharedPrefixes


def prefixes(model: SharedPrefixes, count: int, num_tokens: int = 500) -> list[int]:
    draw = model.contents()
    return [int(draw(num_tokens, 2**34 + n).uids[0]) for n in range(count)]


def test_popularity_follows_zipf() -> None:
    drawn = Counter(prefixes(SharedPrefixes(4, 100, 1.0, seed=3), 20_000))
    shares = np.array([drawn[k] for k in range(4)]) / 20_000
    expected = np.array([1, 1 / 2, 1 / 3, 1 / 4]) / (1 + 1 / 2 + 1 / 3 + 1 / 4)
    # Three standard deviations of a share of 20,000 draws are 1 %.
    assert shares == pytest.approx(expected, abs=0.011)
    equal = Counter(prefixes(SharedPrefixes(4, 100, 0.0, seed=3), 20_000))
    assert [equal[k] / 20_000 for k in range(4)] == pytest.approx([0.25] * 4, abs=0.011)


def test_draws_follow_the_seed() -> None:
    one, same, other = (prefixes(SharedPrefixes(9, 100, 1.0, seed), 50) for seed in (1, 1, 2))
    assert one == same != other


def test_prompts_begin_with_the_prefix_and_go_on_alone() -> None:
    draw = SharedPrefixes(1, 100, 1.0, seed=0).contents()
    assert draw(500, 2**34).spans() == [(0, 100), (2**34, 400)]
    assert draw(60, 2**34).spans() == [(0, 60)]


def test_in_a_trace_of_lengths(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        + "".join(f"2023-11-16 18:17:0{n},{200 + n},5\n" for n in range(5))
    )
    model = SharedPrefixes(1, 150, 1.0, seed=0)
    requests = list(open_trace_file(path, TraceOptions(reuse=model)).requests())
    assert all(a.content.spans()[0] == b.content.spans()[0] for a, b in pairwise(requests))
    assert [request.content.num_tokens for request in requests] == [200, 201, 202, 203, 204]


def test_traces_that_say_what_is_shared_take_none(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [1]}\n')
    with pytest.raises(KvsimError) as caught:
        open_trace_file(path, TraceOptions(reuse=SharedPrefixes(1, 5, 1.0, 0)), shown="t")
    assert str(caught.value) == (
        "t: 1 problem\n  reuse: format mooncake says what prompts share. Leave it out."
    )
