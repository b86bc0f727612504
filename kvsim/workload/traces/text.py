"""Request logs with text, as hashes: ShareGPT's conversations and logs in OpenAI's form.

Text is cut into tokens and then into blocks of 16; a block's id is a hash of it and of all before
it, and only hashes leave this module. Every message is cut by itself, behind a line that names its
role, so a prompt with its answer is the beginning of the next prompt where the log has the answer.
What a model's own chat template adds is not known here.

ShareGPT: objects with `conversations`, a list of `{"from": "human" or "gpt", "value": text}`. Every
answer is a request; there are no times.

OpenAI: an object a line with `messages` or `prompt` (also inside `body`, `request` or `payload`),
the answer in `response` or `choices` where it was kept, else its length in `usage`,
`output_length` or `max_tokens`; `session_id` or `conversation_id`; the time in `timestamp` (ms),
`created` (seconds), or either as a date.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from kvsim.errors import KvsimError
from kvsim.workload.request import After, Request, Session, Turn
from kvsim.workload.traces.contents import TraceUids
from kvsim.workload.traces.lengths_only import unix_seconds
from kvsim.workload.traces.record import MAX_LENGTH_TOKENS, Row, as_number, is_length, shown

BLOCK_TOKENS = 16
CHARACTERS = "characters"
CHARACTERS_PER_TOKEN = 4
"""Characters taken for a token where no tokenizer is chosen: a usual mean for English text."""
_ANSWERING = {"gpt", "assistant", "chatgpt", "model", "bot", "bard", "bing"}
_HASHED = 2**63
"""Set in every id, so that hashes never meet small ids."""

Message = tuple[str, str]
"""A role and a text."""


class Tokens:
    """Cuts messages into tokens, each token as 8 bytes or a piece of text as its characters."""

    def __init__(self, tokenizer: str = CHARACTERS) -> None:
        """Choose how text is cut.

        Args:
            tokenizer: "characters", or the path of a `tokenizer.json`.

        Raises:
            KvsimError: the package `tokenizers` is missing, or the file is no tokenizer.
        """
        self._encode: Any = None
        if tokenizer == CHARACTERS:
            return
        try:
            from tokenizers import Tokenizer
        except ImportError:
            text = "needs the package tokenizers. Install it with: pip install 'kvsim[text]'."
            raise KvsimError(f"tokenizer: {shown(tokenizer)} {text}") from None
        if not Path(tokenizer).is_file():
            text = "is no file. Give 'characters' or the path of a tokenizer.json."
            raise KvsimError(f"tokenizer: {shown(tokenizer)} {text}")
        try:
            self._encode = Tokenizer.from_file(tokenizer).encode
        except Exception as error:  # the package raises nothing more special
            text = f"is not a tokenizer.json ({str(error).splitlines()[0]})."
            raise KvsimError(f"tokenizer: {shown(tokenizer)} {text}") from None

    def cut(self, text: str) -> bytes:
        """The tokens of a text, a fixed number of bytes each."""
        if self._encode is None:
            whole = -(-len(text) // CHARACTERS_PER_TOKEN) * CHARACTERS_PER_TOKEN
            return text.ljust(whole, "\0").encode("utf-32-le")
        ids = self._encode(text, add_special_tokens=False).ids
        return b"".join(token.to_bytes(self.token_bytes, "little") for token in ids)

    @property
    def token_bytes(self) -> int:
        """Bytes of a token in what `cut` returns."""
        return 4 * CHARACTERS_PER_TOKEN if self._encode is None else 8


class Transcript:
    """Hashes of a conversation as it grows."""

    def __init__(self, tokens: Tokens) -> None:
        """Start empty."""
        self._tokens = tokens
        self._digest = hashlib.blake2b(digest_size=8)
        self._open = b""
        self.num_tokens = 0
        self.ids: list[int] = []

    def say(self, role: str, text: str) -> None:
        """Add a whole message."""
        self.begin(role)
        self.add(text)

    def begin(self, role: str) -> None:
        """Add the line that begins a message."""
        self._add(self._tokens.cut(f"<{role}>\n"))

    def add(self, text: str) -> None:
        """Add the text of the message begun."""
        self._add(self._tokens.cut(text))

    def _add(self, cut: bytes) -> None:
        self.num_tokens += len(cut) // self._tokens.token_bytes
        self._open += cut
        block_bytes = BLOCK_TOKENS * self._tokens.token_bytes
        for begin in range(0, len(self._open) - block_bytes + 1, block_bytes):
            self._digest.update(self._open[begin : begin + block_bytes])
            self.ids.append(_HASHED | int.from_bytes(self._digest.digest(), "little") >> 1)
        self._open = self._open[len(self._open) // block_bytes * block_bytes :]

    def all_ids(self) -> list[int]:
        """The ids so far, with one for the block that is open."""
        if not self._open:
            return list(self.ids)
        digest = self._digest.copy()
        digest.update(b"open" + self._open)
        return [*self.ids, _HASHED | int.from_bytes(digest.digest(), "little") >> 1]


class ShareGPTSessions:
    """Conversations whose every answer is a request."""

    name = "sharegpt"
    number = 0

    def __init__(self, tokens: Tokens) -> None:
        """Start at the first conversation."""
        self._tokens = tokens
        self._num_sessions = 0

    def end(self) -> list[Session]:
        """Nothing is left over."""
        return []

    def parse(self, fields: dict[str, Any], uids: TraceUids) -> list[Session] | list[str]:
        """The session of a conversation, or everything that is wrong with it."""
        said = fields.get("conversations")
        if not isinstance(said, list):
            return ["conversations: missing. An object needs a list of messages."]
        problems = [
            f"conversations.{number}: {shown(message)} has no from and value of text."
            for number, message in enumerate(said)
            if not isinstance(message, dict)
            or not isinstance(message.get("from"), str)
            or not isinstance(message.get("value"), str)
        ]
        if problems:
            return problems
        self._num_sessions += 1
        session_id = f"{self._num_sessions:07d}"
        session = Session(session_id, None, [], timed=False)
        transcript = Transcript(self._tokens)
        for message in said:
            role = message["from"].lower()
            is_answer = role in _ANSWERING and transcript.num_tokens > 0
            transcript.begin(role)
            if is_answer:
                session.turns.append(self._turn(session, transcript, message["value"], uids))
            else:
                transcript.add(message["value"])
        return [session] if session.turns else []

    def _turn(self, session: Session, transcript: Transcript, answer: str, uids: TraceUids) -> Turn:
        """The request for an answer, which is then part of the transcript."""
        own_uid = uids.own()
        num_prompt, num_whole = transcript.num_tokens, len(transcript.ids)
        content = uids.content(transcript.all_ids(), num_prompt, BLOCK_TOKENS, own_uid)
        transcript.add(answer)
        for content_id in transcript.ids[num_whole:]:
            uids.name(content_id, own_uid)
        before = len(session.turns) - 1
        return Turn(
            Request(
                f"{session.session_id}-{before + 2:05d}",
                0.0,
                content,
                num_prompt,
                transcript.num_tokens - num_prompt,
                own_uid,
                session.session_id,
            ),
            (After(before),) if before >= 0 else (),
        )


class OpenAIRows:
    """Logged requests in OpenAI's form."""

    name = "openai"
    time_names: tuple[str, ...] = ("timestamp", "created", "created_at")

    def __init__(self, tokens: Tokens, begin_s: float) -> None:
        """Start at the first row; the trace's clock begins at `begin_s` of the file's."""
        self._tokens = tokens
        self._begin_s = begin_s

    def seconds(self, time: Any) -> float | None:
        """Only in order or not: dates and numbers of one file are alike."""
        value = as_number(time)
        return unix_seconds(time) if value is None else value

    def parse(self, fields: dict[str, Any]) -> Row | list[str]:
        """What the row says, or everything that is wrong with it."""
        asked = asked_of(fields)
        messages = None if asked is None else list(_messages(asked))
        if asked is None or messages is None or any(isinstance(m, str) for m in messages):
            wrong = next((m for m in messages or [] if isinstance(m, str)), None)
            return [wrong or "messages, prompt: missing. A line needs one of them."]
        time_s = logged_seconds(fields)
        if time_s is not None and time_s < self._begin_s:
            time_s = self._begin_s
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
            if not is_length(num_output, 0):
                text = "the answer has neither text nor a length. Give response, usage,"
                return [f"{text} output_length or max_tokens."]
        session_id = fields.get("session_id", fields.get("conversation_id"))
        return Row(
            None if time_s is None else time_s - self._begin_s,
            num_prompt,
            num_output,
            ids,
            None if session_id is None else str(session_id),
            answer_ids=answer_ids,
        )


def asked_of(fields: dict[str, Any]) -> dict[str, Any] | None:
    """The part of a logged row that has the prompt."""
    for part in (fields, *(fields.get(key) for key in ("body", "request", "payload"))):
        if isinstance(part, dict) and {"messages", "prompt", "text_input"} & part.keys():
            return part
    return None


def logged_seconds(fields: dict[str, Any]) -> float | None:
    """The time of a logged row on the file's clock, seconds."""
    for key, unit_s in (("timestamp", 1e-3), ("created", 1.0), ("created_at", 1.0)):
        if fields.get(key) is not None:
            value = as_number(fields[key])
            return unix_seconds(fields[key]) if value is None else value * unit_s
    return None


def _messages(asked: dict[str, Any]) -> Iterator[Message | str]:
    """The messages of a request, or what is wrong with one."""
    if "messages" not in asked:
        prompt = asked.get("prompt", asked.get("text_input"))
        if isinstance(prompt, str):
            yield "prompt", prompt
        else:
            yield f"prompt: {shown(prompt)} is not text."
        return
    messages = asked["messages"]
    if not isinstance(messages, list) or not messages:
        yield f"messages: {shown(messages)} is not a list of messages."
        return
    if asked.get("tools"):
        yield "tools", json.dumps(asked["tools"], sort_keys=True)
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            yield f"messages.{number}: {shown(message)} has no role."
            return
        yield message["role"], _text(message)


def _text(message: dict[str, Any]) -> str:
    """The text of a message; parts that are no text stand as their JSON."""
    content = message.get("content")
    parts: Sequence[Any] = content if isinstance(content, list) else [content]
    texts: Iterable[str] = (
        part
        if isinstance(part, str)
        else part["text"]
        if isinstance(part, dict) and isinstance(part.get("text"), str)
        else json.dumps(part, sort_keys=True)
        for part in parts
        if part is not None
    )
    calls = message.get("tool_calls")
    return "".join([*texts, json.dumps(calls, sort_keys=True) if calls else ""])


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
        return _text(choices[0]["message"])
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
