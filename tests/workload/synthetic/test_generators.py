"""What each generator's prompts share, and what follows from the seed."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsim.errors import Problems
from kvsim.scenario import Scenario, SyntheticWorkload
from kvsim.workload import open_workload
from kvsim.workload.request import Session
from kvsim.workload.synthetic import GENERATORS, synthetic_sessions
from kvsim.workload.synthetic.building import PathUids, Uids

CONTENTS: list[dict[str, Any]] = [
    {"kind": "chat", "num_system_prompts": 5},
    {"kind": "agentic", "subagent_share": 0.2, "compact_at_tokens": 20_000},
    {"kind": "rag", "num_documents": 30},
    {"kind": "document-qa", "num_documents": 30},
    {"kind": "few-shot"},
    {"kind": "samples", "num_rounds": 2},
    {"kind": "one-off"},
    {"kind": "cycle", "num_prompts": 3},
]


def config(*content: dict[str, Any], **changes: Any) -> SyntheticWorkload:
    data = {
        "kind": "synthetic",
        "num_sessions": 50,
        "sessions": {"starts": "poisson(per_s=1)"},
        "content": list(content),
        **changes,
    }
    scenario = Scenario.from_data(
        {
            "name": "synthetic",
            "model": {"groups": [{"kind": "full", "block_size": 16}]},
            "node": {"num_blocks": 10},
            "step_time": {"kind": "constant", "step_s": 0.01},
            "workload": data,
        }
    )
    assert isinstance(scenario.workload, SyntheticWorkload)
    return scenario.workload


def sessions(*content: dict[str, Any], seed: int = 0, **changes: Any) -> list[Session]:
    return list(synthetic_sessions(config(*content, **changes), seed))


def spans(session: Session) -> list[list[tuple[int, int]]]:
    return [turn.request.content.spans() for turn in session.turns]


def facts(session: Session) -> tuple[Any, ...]:
    return (
        session.session_id,
        session.start_s,
        [
            (
                turn.request.request_id,
                turn.request.arrival_s,
                turn.request.content.spans(),
                turn.request.num_output_tokens,
                turn.request.output_uid,
                turn.after,
            )
            for turn in session.turns
        ],
    )


def test_every_kind_has_its_generator() -> None:
    assert [content["kind"] for content in CONTENTS] == list(GENERATORS)


@pytest.mark.parametrize("content", CONTENTS, ids=lambda content: content["kind"])
def test_sessions_follow_from_the_seed(content: dict[str, Any]) -> None:
    made = [facts(session) for session in sessions(content)]
    assert made == [facts(session) for session in sessions(content)]
    assert made != [facts(session) for session in sessions(content, seed=1)]


@pytest.mark.parametrize("content", CONTENTS, ids=lambda content: content["kind"])
def test_what_is_made_is_sound(content: dict[str, Any]) -> None:
    """Lengths add up, nobody waits for later turns, and a uid has one place and one past."""
    before: dict[int, tuple[tuple[int, int], ...]] = {}
    outputs: dict[int, int] = {}
    names = set()
    for session in sessions(content):
        assert session.turns
        for index, turn in enumerate(session.turns):
            request = turn.request
            assert request.session_id == session.session_id
            names.add(request.request_id)
            assert request.num_prompt_tokens == request.content.num_tokens >= 1
            assert request.num_output_tokens >= 1
            assert all(after.turn < index for after in turn.after)
            assert turn.after or request.arrival_s == 0
            prompt = request.content.spans()
            # Half of a beam may go on behind another answer, but never behind another past.
            for number, (uid, _) in enumerate(prompt):
                past = tuple(prompt[:number])
                assert before.setdefault(uid, past) == past
            assert before.setdefault(request.output_uid, tuple(prompt)) == tuple(prompt)
            assert outputs.setdefault(request.output_uid, index) == index
    assert len(names) == sum(len(session.turns) for session in sessions(content))


def test_chat_grows_by_answer_and_question() -> None:
    content = {
        "kind": "chat",
        "turns": 3,
        "system_tokens": 100,
        "user_tokens": 10,
        "output_tokens": 7,
        "think_s": 4.0,
    }
    first, second = sessions(content, num_sessions=2)
    turns = first.turns
    assert [turn.request.num_prompt_tokens for turn in turns] == [110, 127, 144]
    prompts = spans(first)
    assert prompts[1][:2] == prompts[0]
    assert prompts[1][2] == (turns[0].request.output_uid, 7)
    assert [(a.turn, a.delay_s) for turn in turns for a in turn.after] == [(0, 4.0), (1, 4.0)]
    assert [turn.request.arrival_s for turn in turns] == [0.0, 4.0, 8.0]
    # The system prompt is shared, nothing else.
    assert prompts[0][0] == spans(second)[0][0]
    assert prompts[0][1] != spans(second)[0][1]


def test_answers_can_be_rewritten_or_dropped() -> None:
    content = {"kind": "chat", "turns": 2, "answers": "rewritten", "output_tokens": 7}
    (session,) = sessions(content, num_sessions=1)
    first, second = spans(session)
    assert second[:2] == first
    assert second[2][1] == 7
    assert second[2][0] != session.turns[0].request.output_uid
    (session,) = sessions({**content, "answers": "dropped", "user_tokens": 5}, num_sessions=1)
    first, second = spans(session)
    assert second[:2] == first
    assert second[2:] == [(second[2][0], 5)]


def test_the_first_turn_can_be_longer() -> None:
    content = {"kind": "chat", "turns": 3, "first_tokens": 1000, "user_tokens": 5}
    (session,) = sessions(content, num_sessions=1)
    assert [tokens for _, tokens in spans(session)[-1]] == [1000, 1000, 200, 5, 200, 5]


def test_each_session_can_have_its_own_document() -> None:
    content = {"kind": "document-qa", "num_documents": None, "questions": 2}
    made = sessions(content, num_sessions=9)
    assert all(spans(session)[0][:2] == spans(session)[1][:2] for session in made)
    assert len({spans(session)[0][1] for session in made}) == 9


def test_system_prompts_are_as_popular_as_they_should_be() -> None:
    content = {"kind": "chat", "turns": 1, "num_system_prompts": 4, "system_zipf": 1.0}
    made = sessions(content, num_sessions=6000)
    counts = np.bincount([spans(session)[0][0][0] for session in made])
    expected = np.array([1, 1 / 2, 1 / 3, 1 / 4])
    expected *= 6000 / expected.sum()
    assert counts == pytest.approx(expected, abs=200)


def test_system_prompts_without_tokens_are_all_the_same() -> None:
    content = {
        "kind": "rag",
        "system_tokens": 0,
        "num_system_prompts": 9,
        "num_documents": 1,
        "documents_per_prompt": 1,
    }
    assert len({spans(session)[0][0] for session in sessions(content)}) == 1


def test_an_agent_grows_by_answer_and_tool_result() -> None:
    content = {
        "kind": "agentic",
        "turns": 4,
        "system_tokens": 100,
        "task_tokens": 50,
        "output_tokens": 10,
        "tool_tokens": 20,
        "tool_s": 3.0,
    }
    (session,) = sessions(content, num_sessions=1)
    assert [turn.request.num_prompt_tokens for turn in session.turns] == [150, 180, 210, 240]
    prompts = spans(session)
    for earlier, later in itertools.pairwise(prompts):
        assert later[: len(earlier)] == earlier


def test_compaction_rewrites_history() -> None:
    content = {
        "kind": "agentic",
        "turns": 4,
        "system_tokens": 100,
        "task_tokens": 50,
        "output_tokens": 10,
        "tool_tokens": 20,
        "compact_at_tokens": 200,
        "summary_tokens": 40,
    }
    (session,) = sessions(content, num_sessions=1)
    turns, prompts = session.turns, spans(session)
    # Two turns, the summary over 210 tokens, then 100 + 40 and on from there.
    assert [turn.request.num_prompt_tokens for turn in turns] == [150, 180, 210, 140, 170]
    assert [turn.request.num_output_tokens for turn in turns] == [10, 10, 40, 10, 10]
    assert prompts[3][0] == prompts[0][0]
    assert not set(prompts[3][1:]) & set(prompts[2])
    assert [after.turn for turn in turns for after in turn.after] == [0, 1, 2, 3]


@pytest.mark.parametrize("see", ["system", "context"])
def test_subagents_share_how_their_prompts_begin(see: str) -> None:
    content = {
        "kind": "agentic",
        "turns": 2,
        "subagent_share": 1.0,
        "num_subagents": 3,
        "subagent_turns": 2,
        "subagents_see": see,
        "system_tokens": 100,
        "task_tokens": 50,
        "output_tokens": 10,
        "tool_tokens": 20,
    }
    (session,) = sessions(content, num_sessions=1)
    turns, prompts = session.turns, spans(session)
    assert len(turns) == 1 + 3 * 2 + 1
    firsts = [index for index, turn in enumerate(turns) if [a.turn for a in turn.after] == [0]]
    assert firsts == [1, 3, 5]
    shared = 3 if see == "context" else 1  # system, task and answer, or the system prompt
    for one, other in itertools.combinations(firsts, 2):
        assert prompts[one][:shared] == prompts[other][:shared]
        assert prompts[one][shared] != prompts[other][shared]
    assert prompts[1][0] == prompts[0][0]
    # The parent goes on when all of them have ended.
    assert [after.turn for after in turns[-1].after] == [2, 4, 6]
    assert prompts[-1][: len(prompts[0])] == prompts[0]


def test_rag_shares_documents_up_to_where_the_order_differs() -> None:
    content = {
        "kind": "rag",
        "num_documents": 3,
        "documents_per_prompt": 2,
        "document_tokens": 100,
        "system_tokens": 50,
        "question_tokens": 9,
    }
    made = sessions(content, num_sessions=300)
    assert all([n for _, n in spans(session)[0]] == [50, 100, 100, 9] for session in made)
    # 3 first documents, 3 x 2 ordered pairs, and no question twice.
    assert [len({spans(s)[0][place] for s in made}) for place in range(4)] == [1, 3, 6, 300]


def test_document_qa_asks_again_about_the_same_document() -> None:
    content = {"kind": "document-qa", "num_documents": 3, "questions": 4, "document_tokens": 500}
    made = sessions(content, num_sessions=20)
    for session in made:
        prompts = spans(session)
        assert len(prompts) == 4
        assert len({tuple(prompt[:2]) for prompt in prompts}) == 1
        assert len({prompt[2] for prompt in prompts}) == 4
    assert len({spans(session)[0][1] for session in made}) == 3


def test_few_shot_shares_its_prefix() -> None:
    made = sessions({"kind": "few-shot", "prefix_tokens": 77}, num_sessions=10)
    assert {spans(session)[0][0] for session in made} == {(0, 77)}
    assert len({spans(session)[0][1] for session in made}) == 10


def test_best_of_n_and_beams() -> None:
    content = {"kind": "samples", "num_samples": 4, "num_rounds": 3, "output_tokens": 5}
    (session,) = sessions(content, num_sessions=1)
    prompts = spans(session)
    assert len(prompts) == 12
    assert len({tuple(prompt) for prompt in prompts[:4]}) == 1
    assert len({turn.request.output_uid for turn in session.turns}) == 12
    answers = {turn.request.output_uid for turn in session.turns[:4]}
    for turn, prompt in zip(session.turns[4:8], prompts[4:8], strict=True):
        assert prompt[-1][0] in answers
        assert [after.turn for after in turn.after] == [0, 1, 2, 3]
    assert [turn.request.num_prompt_tokens for turn in session.turns[::4]] == [1000, 1005, 1010]


def test_cycle_comes_again_in_the_same_order() -> None:
    content = {"kind": "cycle", "num_prompts": 3, "prompt_tokens": "uniform(low=10, high=10000)"}
    made = [spans(session)[0] for session in sessions(content, num_sessions=7)]
    assert made[:3] == made[3:6]
    assert made[6] == made[0]
    assert len({tuple(prompt) for prompt in made}) == 3


def test_a_mixture_follows_its_weights_and_leaves_its_parts_alone() -> None:
    mixed = sessions(
        {"kind": "one-off", "weight": 1, "output_tokens": 1},
        {"kind": "few-shot", "weight": 3, "output_tokens": 2},
        num_sessions=4000,
    )
    shares = np.bincount([session.turns[0].request.num_output_tokens for session in mixed])
    assert shares[2] / 4000 == pytest.approx(0.75, abs=0.03)


def test_starts_do_not_move_lengths() -> None:
    one = sessions(CONTENTS[0])
    other = sessions(CONTENTS[0], sessions={"concurrency": 4})
    assert [facts(s)[2] for s in one] == [facts(s)[2] for s in other]
    assert {s.start_s for s in other} == {0.0}


def test_sessions_end_before_prompts_that_are_too_long() -> None:
    content = {"kind": "chat", "turns": 50, "system_tokens": 100, "user_tokens": 100}
    (session,) = sessions(content, num_sessions=1, max_prompt_tokens=1000)
    assert [turn.request.num_prompt_tokens for turn in session.turns] == [200, 500, 800]
    with pytest.raises(Problems) as caught:
        sessions({"kind": "few-shot"}, {**content, "weight": 1e9}, max_prompt_tokens=150)
    assert caught.value.problems == [
        "content.1 (chat): a session begins with a prompt of 200 tokens, more than "
        "max_prompt_tokens (150). Raise it, or give shorter lengths."
    ]


def test_an_open_loop_counts_delays_from_arrival_to_arrival() -> None:
    content = {"kind": "chat", "turns": 3, "think_s": 4.0}
    workload = open_workload(
        config(content, num_sessions=2, sessions={"loop": "open", "starts": "constant(per_s=1)"}),
        16,
    )
    assert workload.sessions is None
    assert [r.arrival_s for r in workload.requests] == [0.0, 1.0, 4.0, 5.0, 8.0, 9.0]
    assert workload.share_read() == 1.0


def test_paths_are_forgotten_and_never_mixed_up() -> None:
    paths = PathUids(Uids(), num_max=2)
    first = paths.uid("a", 0, 10)
    assert paths.uid("a", 0, 10) == first
    assert len({first, paths.uid("a", 1, 10), paths.uid("a", 0, 11)}) == 3
    assert paths.uid("a", 0, 10) == 3  # long ago: counts as new


def test_uids_run_out_with_a_message() -> None:
    uids = Uids()
    assert uids.take(2**35) == 0
    with pytest.raises(Problems, match=r"more than 2\*\*35 different things"):
        uids.take(1)


def test_memory_does_not_grow_with_the_number_of_sessions() -> None:
    contents = [{**content} for content in CONTENTS]
    contents[2].update(num_documents=5, documents_per_prompt=2)
    # Few sessions are alive at once.
    starts = {"loop": "open", "starts": "constant(per_s=0.05)"}
    endless = config(*contents, num_sessions=2**31 - 1, sessions=starts)
    stream: Iterator[Any] = open_workload(endless, 16).requests
    memory_bytes = []
    tracemalloc.start()
    try:
        for num in (1000, 1000, 3000):
            for _ in itertools.islice(stream, num):
                pass
            memory_bytes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert memory_bytes[2] - memory_bytes[1] < 1e6


def test_recorded_lengths_and_starts_come_from_the_trace(tmp_path: Path) -> None:
    lines = [
        f'{{"timestamp": {1000 * n + 5000}, "input_length": {10 + n}, "output_length": {n + 1}, '
        f'"hash_ids": [{n}]}}\n'
        for n in range(4)
    ]
    (tmp_path / "t.jsonl").write_text("".join(lines))
    data = {
        "kind": "synthetic",
        "num_sessions": 4,
        "sessions": {"starts": "recorded"},
        "path": str(tmp_path / "t.jsonl"),
        "content": [
            {
                "kind": "one-off",
                "prompt_tokens": "recorded-prompt",
                "output_tokens": "recorded-output",
            }
        ],
    }
    workload = SyntheticWorkload.model_validate(data)
    made = list(synthetic_sessions(workload, 0))
    assert [session.start_s for session in made] == [0.0, 1.0, 2.0, 3.0]
    assert all(10 <= s.turns[0].request.num_prompt_tokens <= 13 for s in made)
    assert all(1 <= s.turns[0].request.num_output_tokens <= 4 for s in made)
    too_many = SyntheticWorkload.model_validate({**data, "num_sessions": 5})
    with pytest.raises(Problems, match="num_sessions: 5 are more than the 4 requests of .*t.jsonl"):
        list(synthetic_sessions(too_many, 0))
