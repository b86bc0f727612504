"""Scripts: names become content, answers can come back, and order is by time or as given."""

from __future__ import annotations

from typing import Any

import pytest

from kvsim.scenario import ScriptRequest, ScriptWorkload
from kvsim.workload import Request, open_workload
from kvsim.workload.script import ContentNames


def script(*prompts: Any, concurrency: Any = None) -> list[Request]:
    """Open a script; a prompt alone or `(prompt, other keys)`."""
    asked = [prompt if isinstance(prompt, tuple) else (prompt, {}) for prompt in prompts]
    config = ScriptWorkload(
        kind="script",
        requests=tuple(ScriptRequest(prompt=tuple(map(tuple, p)), **more) for p, more in asked),
        concurrency=concurrency,
    )
    return list(open_workload(config, 256).requests)


def shared_tokens(first: Request, second: Request) -> int:
    """Length of the longest common prefix, token by token, as the core identifies prefixes."""

    def prefixes(request: Request) -> list[tuple[int, int]]:
        uids = [uid for uid, tokens in request.content.spans() for _ in range(tokens)]
        return [(uid, position) for position, uid in enumerate(uids, start=1)]

    pairs = zip(prefixes(first), prefixes(second), strict=False)
    return sum(1 for one, other in pairs if one == other)


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        ([["A", 1000]], [["A", 1000]], 1000),
        ([["A", 1000]], [["A", 600], ["B", 9]], 600),
        ([["A", 1000]], [["B", 1000]], 0),
        # The same name after something else, or after less of it, is other content.
        ([["A", 50], ["C", 10]], [["B", 50], ["C", 10]], 0),
        ([["A", 50], ["C", 10]], [["A", 40], ["C", 20]], 40),
        ([["A", 50], ["C", 10], ["D", 5]], [["A", 50], ["C", 10], ["D", 3]], 63),
        # A name again starts from its beginning again.
        ([["A", 50], ["A", 50]], [["A", 100]], 50),
        ([["A", 50], ["A", 50]], [["A", 50], ["A", 30]], 80),
    ],
)
def test_what_two_prompts_share(first: Any, second: Any, shared: int) -> None:
    one, other = script(first, second)
    assert shared_tokens(one, other) == shared
    assert shared_tokens(other, one) == shared


def test_an_answer_can_stand_in_a_later_prompt() -> None:
    first, second = script(
        ([["A", 1000]], {"output": 200, "output_name": "A1"}),
        [["A", 1000], ["A1", 200], ["B", 50]],
    )
    assert second.content.spans()[:2] == [
        (first.content.spans()[0][0], 1000),
        (first.output_uid, 200),
    ]
    assert second.num_prompt_tokens == 1250


def test_an_answer_of_another_prompt_is_other_content() -> None:
    first, shorter = script(
        ([["A", 1000]], {"output_name": "A1"}),
        [["A", 900], ["A1", 200]],
    )
    assert first.output_uid not in shorter.content.uids


def test_answers_are_the_same_only_by_name_and_prompt() -> None:
    same = [["A", 10]]
    named = {"output_name": "X"}
    a, b, c, d = script((same, named), (same, named), same, same)
    assert a.output_uid == b.output_uid
    assert len({a.output_uid, c.output_uid, d.output_uid}) == 3


def test_a_name_that_looks_like_a_number_is_not_an_unnamed_answer() -> None:
    first, second = script([["A", 10]], [["A", 10], ["1", 5]])
    assert first.output_uid not in second.content.uids


def test_lengths_and_defaults() -> None:
    (request,) = script([["A", 10], ["B", 5]])
    assert request.request_id == "0000001"
    assert request.arrival_s == 0.0
    assert request.num_prompt_tokens == request.content.num_tokens == 15
    assert request.num_output_tokens == 1


def test_by_arrival_with_ties_as_given() -> None:
    prompt = [["A", 10]]
    requests = script(*((prompt, {"at_s": at_s}) for at_s in (2.0, 1.0, 2.0, 0.5)))
    assert [request.request_id[-1] for request in requests] == ["4", "2", "1", "3"]


def test_one_after_another_stays_as_given() -> None:
    prompt = [["A", 10]]
    requests = script((prompt, {"at_s": 2.0}), (prompt, {"at_s": 1.0}), concurrency=1)
    assert [request.request_id[-1] for request in requests] == ["1", "2"]


def test_the_workload_says_how_it_runs() -> None:
    request = ScriptRequest(prompt=(("A", 10),))
    config = ScriptWorkload(kind="script", requests=(request,) * 4, concurrency=1)
    workload = open_workload(config, 256)
    assert workload.concurrency == 1
    assert workload.warnings == []
    assert workload.block_tokens is None
    assert workload.share_read() == 0.0
    next(workload.requests)
    assert workload.share_read() == 0.25
    list(workload.requests)
    assert workload.share_read() == 1.0


def test_uids_are_small_and_dense() -> None:
    names = ContentNames()
    assert names.spans([("A", 5), ("B", 5)]) == [(0, 5), (1, 5)]
    assert names.spans([("A", 7), ("B", 5)]) == [(0, 7), (2, 5)]
