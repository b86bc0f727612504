"""Request logs with text or token ids, as hashes.

OpenAI's form: an object a line with `messages` or `prompt` (also inside `body`, `request` or
`payload`; a prompt may be a list of token ids), the answer in `response` or `choices` where it was
kept, else its length in `usage`, `output_length` or `max_tokens`; `session_id` or
`conversation_id`; the time in `timestamp` (usually ms), `created` (seconds), or either as a date.
AIPerf's schedules with a `text` a line are read in the same way.

Token ids: an object a line (or a row of Parquet) with `prompt_token_ids`, `input_ids` or
`token_ids`, the answer in `output_token_ids` or `output_ids` where it was kept, else its length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvsim.workload.traces.clock import Clock
from kvsim.workload.traces.record import MAX_LENGTH_TOKENS, Row, is_length, shown
from kvsim.workload.traces.text import (
    Message,
    TokenIds,
    Tokens,
    Transcript,
    as_json,
    message_text,
)

PROMPTS = {"messages", "prompt", "text_input", "text"}
PROMPT_IDS = ("prompt_token_ids", "input_ids", "token_ids")
ANSWER_IDS = ("output_token_ids", "output_ids", "completion_token_ids", "response_token_ids")
TOKEN_IDS = "token ids"
TIME_KEYS = (
    ("timestamp", "ms"),
    ("created", "s"),
    ("created_at", "s"),
    ("arrival_time", "s"),
    ("start_time", "s"),
)
"""Keys that may hold a row's time, and its usual unit."""
_NO_ANSWER = (
    "the answer has neither text nor a length. Give response, usage, output_length or max_tokens."
)


class OpenAIRows:
    """Logged requests in OpenAI's form."""

    name = "openai"

    def __init__(self, tokens: Tokens, clocks: Mapping[str, Clock]) -> None:
        """Start at the first row; its time is in one of these keys, each on its clock."""
        self.time_names: tuple[str, ...] = tuple(clocks)
        self.seconds = next(iter(clocks.values())).seconds
        self._tokens = tokens
        self._clocks = clocks

    def parse(self, fields: dict[str, Any]) -> Row | list[str]:
        """What the row says, or everything that is wrong with it."""
        asked = asked_of(fields)
        messages = None if asked is None else list(_messages(asked))
        if asked is None or messages is None or any(isinstance(m, str) for m in messages):
            wrong = next((m for m in messages or [] if isinstance(m, str)), None)
            return [wrong or "messages, prompt: missing. A line needs one of them."]
        time_s, problems = _time(fields, self._clocks)
        if problems:
            return problems
        if len(messages) == 1 and not isinstance(messages[0], str) and messages[0][0] == TOKEN_IDS:
            return _row_of_ids(fields, asked["prompt"], time_s)
        transcript = Transcript(self._tokens)
        for message in messages:
            if isinstance(message, tuple):
                transcript.say(*message)
        if "messages" in asked:
            transcript.begin("assistant")
        num_prompt, num_whole = transcript.num_tokens, len(transcript.ids)
        if not is_length(num_prompt):
            return [f"prompt: {num_prompt} tokens. A request has 1 to {MAX_LENGTH_TOKENS}."]
        ids = transcript.all_ids()
        answer = _answer(fields)
        answer_ids: list[int] | None = None
        num_output: Any = None
        if answer is not None:
            transcript.add(answer)
            num_output = transcript.num_tokens - num_prompt
            answer_ids = transcript.ids[num_whole:]
        else:
            num_output = _answer_tokens(fields, asked)
            # AIPerf's schedules of texts leave out how long answers are.
            if not is_length(num_output, 0) and not (num_output is None and "text" in asked):
                return [_NO_ANSWER]
        return Row(
            time_s,
            num_prompt,
            num_output,
            ids,
            session_of(fields),
            answer_ids=answer_ids,
        )


class TokenIdRows:
    """Logged requests whose prompts are lists of token ids."""

    name = "token-ids"

    def __init__(self, clocks: Mapping[str, Clock]) -> None:
        """Start at the first row; its time is in one of these keys, each on its clock."""
        self.time_names: tuple[str, ...] = tuple(clocks)
        self.seconds = next(iter(clocks.values())).seconds
        self._clocks = clocks

    def parse(self, fields: dict[str, Any]) -> Row | list[str]:
        """What the row says, or everything that is wrong with it."""
        name = next((key for key in PROMPT_IDS if key in fields), None)
        if name is None:
            return [f"{', '.join(PROMPT_IDS)}: missing. A line needs one of them."]
        time_s, problems = _time(fields, self._clocks)
        if not _are_token_ids(fields[name]) or not fields[name]:
            problems.append(f"{name}: {shown(fields[name])} is not a list of token ids.")
        return problems or _row_of_ids(fields, fields[name], time_s)


def _row_of_ids(fields: dict[str, Any], prompt: list[int], time_s: float | None) -> Row | list[str]:
    """The row of a prompt of token ids."""
    transcript = Transcript(TokenIds())
    transcript.add_ids(prompt)
    num_whole, ids = len(transcript.ids), transcript.all_ids()
    name = next((key for key in ANSWER_IDS if fields.get(key) is not None), None)
    answer_ids: list[int] | None = None
    if name is not None:
        if not _are_token_ids(fields[name]):
            return [f"{name}: {shown(fields[name])} is not a list of token ids."]
        transcript.add_ids(fields[name])
        num_output: Any = len(fields[name])
        answer_ids = transcript.ids[num_whole:]
    else:
        num_output = _answer_tokens(fields, fields)
        if not is_length(num_output, 0):
            return [_NO_ANSWER]
    return Row(time_s, len(prompt), num_output, ids, session_of(fields), answer_ids=answer_ids)


def _are_token_ids(ids: Any) -> bool:
    return (
        type(ids) is list
        and set(map(type, ids)) <= {int}
        and (not ids or (min(ids) >= 0 and max(ids) < 2**63))
    )


def _time(fields: dict[str, Any], clocks: Mapping[str, Clock]) -> tuple[float | None, list[str]]:
    """The time of a row, None where it has none; and what is wrong with it."""
    for key, clock in clocks.items():
        if fields.get(key) is not None:
            problems = list(clock.problems(fields, key))
            return None if problems else clock.seconds(fields[key]), problems
    return None, []


def session_of(fields: dict[str, Any]) -> str | None:
    """The session that a row names."""
    session_id = fields.get("session_id", fields.get("conversation_id"))
    return None if session_id is None else str(session_id)


def asked_of(fields: dict[str, Any]) -> dict[str, Any] | None:
    """The part of a logged row that has the prompt."""
    for part in (fields, *(fields.get(key) for key in ("body", "request", "payload"))):
        if isinstance(part, dict) and PROMPTS & part.keys():
            return part
    return None


def _messages(asked: dict[str, Any]) -> Iterator[Message | str]:
    """The messages of a request, or what is wrong with one."""
    if "messages" not in asked:
        prompt = next(
            (asked[key] for key in ("prompt", "text_input", "text") if key in asked), None
        )
        if isinstance(prompt, str):
            yield "prompt", prompt
        elif _are_token_ids(prompt) and prompt:
            yield TOKEN_IDS, ""
        else:
            yield f"prompt: {shown(prompt)} is not text."
        return
    messages = asked["messages"]
    if not isinstance(messages, list) or not messages:
        yield f"messages: {shown(messages)} is not a list of messages."
        return
    if asked.get("tools"):
        yield "tools", as_json(asked["tools"])
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            yield f"messages.{number}: {shown(message)} has no role."
            return
        yield message["role"], message_text(message)


def _answer(fields: dict[str, Any]) -> str | None:
    """The text of the answer, or None where it was not kept."""
    answer = fields.get("response", fields.get("completion"))
    if isinstance(answer, str):
        return answer
    answer = fields if answer is None else answer
    if isinstance(answer, dict) and isinstance(answer.get("body"), dict):
        answer = answer["body"]
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return None
    if isinstance(choices[0].get("message"), dict):
        return message_text(choices[0]["message"])
    text = choices[0].get("text")
    return text if isinstance(text, str) else None


def _answer_tokens(fields: dict[str, Any], asked: dict[str, Any]) -> Any:
    """The length of an answer whose text was not kept."""
    response = fields.get("response")
    for part in (fields, response if isinstance(response, dict) else {}):
        usage = part.get("usage")
        if isinstance(usage, dict) and "completion_tokens" in usage:
            return usage["completion_tokens"]
    for key in ("output_length", "max_completion_tokens", "max_tokens"):
        for part in (fields, asked):
            if part.get(key) is not None:
                return part[key]
    return None
