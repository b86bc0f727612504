"""Growing prompts: what was handed out stays as it was."""

from __future__ import annotations

from kvsim.workload.conversation import Conversation


def test_contents_stay_what_they_were_when_the_prompt_grows() -> None:
    prompt = Conversation()
    contents = []
    for uid in range(40):
        prompt.append(uid, 10)
        contents.append(prompt.content())
    for number, content in enumerate(contents):
        assert content.spans() == [(uid, 10) for uid in range(number + 1)]
    assert prompt.num_tokens == 400


def test_turns_share_their_memory() -> None:
    prompt = Conversation()
    for uid in range(5):
        prompt.append(uid, 3)
    first = prompt.content()
    prompt.append(5, 3)
    assert first.uids.base is prompt.content().uids.base


def test_a_branch_leaves_its_parent_alone() -> None:
    parent = Conversation()
    parent.append(1, 5)
    branch = Conversation(parent.content())
    branch.append(2, 5)
    parent.append(3, 7)
    assert branch.content().spans() == [(1, 5), (2, 5)]
    assert parent.content().spans() == [(1, 5), (3, 7)]


def test_spans_without_tokens_are_left_out() -> None:
    prompt = Conversation()
    prompt.append(1, 0)
    assert (prompt.num_tokens, prompt.content().spans()) == (0, [])
