"""Logs with text: only hashes leave the reader, and prompts grow by their answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvsim.errors import KvsimError
from kvsim.workload.request import After, Request
from kvsim.workload.traces import TraceOptions, open_trace_file
from kvsim.workload.traces.text import Tokens, Transcript
from kvsim.workload.traces.trace import Trace

LONG = "The quick brown fox jumps over the lazy dog, and then it does so again. " * 5


def opened(tmp_path: Path, *rows: Any, document: bool = False, **options: Any) -> Trace:
    path = tmp_path / "log.jsonl"
    text = json.dumps(rows, indent=1) if document else "\n".join(map(json.dumps, rows))
    path.write_text(text)
    return open_trace_file(path, TraceOptions(**options), shown="t")


def common_tokens(one: Request, other: Request) -> int:
    known = dict(zip(other.content.uids.tolist(), other.content.ends.tolist(), strict=True))
    spans = zip(one.content.uids.tolist(), one.content.ends.tolist(), strict=True)
    return max((min(end, known[uid]) for uid, end in spans if uid in known), default=0)


def conversation(*turns: str) -> dict[str, Any]:
    roles = ("human", "gpt")
    said = [{"from": roles[n % 2], "value": text} for n, text in enumerate(turns)]
    return {"id": "x", "conversations": said}


@pytest.mark.parametrize("document", [False, True])
def test_sharegpt(tmp_path: Path, document: bool) -> None:
    trace = opened(
        tmp_path,
        conversation(LONG, LONG, "more", "yes"),
        conversation(LONG, "no"),
        document=document,
    )
    assert (trace.format, trace.block_tokens, trace.timed) == ("sharegpt", 16, False)
    one, two = trace.sessions()
    assert [turn.after for turn in one.turns] == [(), (After(0),)]
    first, second = (turn.request for turn in one.turns)
    # 360 characters are 90 tokens; the two lines with roles are 3 and 2.
    assert (first.num_prompt_tokens, first.num_output_tokens) == (90 + 2 + 2, 90)
    # The next prompt goes on behind the answer, whose blocks are those the engine made.
    assert second.num_prompt_tokens == first.num_prompt_tokens + 90 + 2 + 1 + 2
    answer_end = (first.num_prompt_tokens + 90) // 16 * 16
    spans = dict(zip(second.content.ends.tolist(), second.content.uids.tolist(), strict=True))
    assert spans[answer_end] == first.output_uid
    assert spans[second.num_prompt_tokens] != first.output_uid
    assert common_tokens(first, second) == first.num_prompt_tokens // 16 * 16
    assert common_tokens(first, two.turns[0].request) == first.num_prompt_tokens


def test_sharegpt_without_answers_or_with_one_first(tmp_path: Path) -> None:
    trace = opened(
        tmp_path,
        {"conversations": [{"from": "gpt", "value": "hello"}, {"from": "human", "value": "hi"}]},
        conversation("hi", "ho"),
    )
    assert len(list(trace.sessions())) == 1


def test_sharegpt_problems(tmp_path: Path) -> None:
    with pytest.raises(KvsimError) as caught:
        opened(tmp_path, {"conversations": [{"from": "human"}]}, conversation("a", "b"))
    assert str(caught.value) == (
        't: 1 problem\n  line 1: conversations.0: {"from": "human"} has no from and value of text.'
    )
    path = tmp_path / "cut.json"
    path.write_text(json.dumps([conversation("a", "b")] * 3, indent=1)[:-30])
    with pytest.raises(KvsimError, match=r"line \d+: not JSON: .*\. Fetch it again\."):
        list(open_trace_file(path, TraceOptions(), trace_format="sharegpt").sessions())


def chat(*contents: str, **more: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    said = [{"role": roles[n % 2], "content": text} for n, text in enumerate(contents)]
    return {"messages": said, **more}


def test_openai(tmp_path: Path) -> None:
    choices = {"choices": [{"message": {"role": "assistant", "content": LONG}}]}
    trace = opened(
        tmp_path,
        chat(LONG, response=choices, created=1_700_000_000, session_id="s"),
        chat(LONG, LONG, "and?", max_tokens=7, created=1_700_000_003, session_id="s"),
        {"body": chat(LONG), "created": 1_700_000_004, "usage": {"completion_tokens": 5}},
        {"prompt": LONG, "completion": "x", "timestamp": "2023-11-14T22:13:25Z"},
    )
    assert (trace.format, trace.has_sessions, trace.timed) == ("openai", True, True)
    first, second, third, fourth = trace.requests()
    assert [r.arrival_s for r in (first, second, third, fourth)] == [0.0, 3.0, 4.0, 5.0]
    assert [r.num_output_tokens for r in (first, second, third, fourth)] == [90, 7, 5, 1]
    assert first.num_prompt_tokens == third.num_prompt_tokens == 2 + 90 + 3
    assert common_tokens(first, third) == first.num_prompt_tokens
    assert common_tokens(first, second) == first.num_prompt_tokens // 16 * 16
    assert first.output_uid in second.content.uids
    (session, *_) = trace.sessions()
    assert [turn.request.arrival_s for turn in session.turns] == [0.0, 3.0]


def test_openai_without_times(tmp_path: Path) -> None:
    trace = opened(tmp_path, chat("a", max_tokens=3), chat("b", max_tokens=3))
    assert (trace.timed, trace.starts_recorded, trace.has_sessions) == (False, False, True)
    assert [session.start_s for session in trace.sessions()] == [None, None]


def test_parts_and_tools_count_as_text(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "u"}}]
    said = [{"role": "user", "content": parts}]
    one, two = opened(
        tmp_path,
        {"messages": said, "max_tokens": 1, "timestamp": 0},
        {"messages": said, "max_tokens": 1, "timestamp": 1, "tools": [{"name": "t"}]},
    ).requests()
    assert two.num_prompt_tokens > one.num_prompt_tokens > 10


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"messages": []}, "messages: [] is not a list of messages."),
        ({"messages": [{"content": "a"}]}, 'messages.0: {"content": "a"} has no role.'),
        ({"prompt": 5}, "prompt: 5 is not text."),
        (
            chat("a"),
            "the answer has neither text nor a length. Give response, usage, output_length or "
            "max_tokens.",
        ),
    ],
)
def test_openai_problems(tmp_path: Path, row: dict[str, Any], problem: str) -> None:
    with pytest.raises(KvsimError) as caught:
        list(opened(tmp_path, chat("a", max_tokens=1, created=1), {**row, "created": 2}).requests())
    assert str(caught.value) == f"t: 1 problem\n  line 2: {problem}"


def test_no_text_leaves_the_reader(tmp_path: Path) -> None:
    secret = "my secret plan " * 30
    for request in opened(tmp_path, chat(secret, response=secret, created=1)).requests():
        assert "secret" not in repr(request)


def test_a_transcript_is_the_same_however_it_grows() -> None:
    once, piece_by_piece = Transcript(Tokens()), Transcript(Tokens())
    once.say("user", LONG)
    piece_by_piece.begin("user")
    piece_by_piece.add(LONG)
    assert once.ids == piece_by_piece.ids
    assert once.all_ids()[:-1] == once.ids
    assert once.num_tokens == 2 + 90
    other = Transcript(Tokens())
    other.say("user", "T" + LONG[1:-1] + "!")
    assert [a == b for a, b in zip(once.all_ids(), other.all_ids(), strict=True)][-2:] == [
        True,
        False,
    ]


def test_a_tokenizer_of_one_s_own(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {"[UNK]": 0, "quick": 1, "fox": 2, "the": 3}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    file = tmp_path / "tokenizer.json"
    tokenizer.save(str(file))
    (request,) = opened(
        tmp_path,
        {"prompt": "the quick fox " * 20, "max_tokens": 2, "created": 1},
        tokenizer=str(file),
    ).requests()
    # <prompt> is three tokens.
    assert request.num_prompt_tokens == 3 + 60


def test_tokenizers_that_are_none(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    with pytest.raises(KvsimError) as caught:
        Tokens("gone.json")
    assert str(caught.value) == (
        "tokenizer: \"gone.json\" is no file. Give 'characters' or the path of a tokenizer.json."
    )
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    with pytest.raises(KvsimError, match=r"is not a tokenizer\.json \("):
        Tokens(str(bad))
