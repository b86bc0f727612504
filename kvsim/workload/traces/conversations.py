"""Recorded conversations with text, each a session whose every answer is a request, as hashes.

- ShareGPT: objects with `conversations`, a list of `{"from": "human" or "gpt", "value": text}`.
- WildChat and LMSYS-Chat: objects (or rows of Parquet) with `conversation`, a list of `{"role",
  "content"}`; in WildChat with the `timestamp` of a conversation and of its answers.
- Agents' trajectories: objects with `messages`, `trajectory` or `history`, a list of `{"role",
  "content" or "text"}` with calls of tools and what came back.

There are no times but WildChat's, which are those at which answers were complete.
Sources: the data set cards of allenai/WildChat-1M and lmsys/lmsys-chat-1m.
"""

from __future__ import annotations

from typing import Any

from kvsim.workload.request import After, Request, Session, Turn
from kvsim.workload.traces.clock import unix_seconds
from kvsim.workload.traces.contents import TraceUids
from kvsim.workload.traces.record import LeaveOut, shown
from kvsim.workload.traces.text import BLOCK_TOKENS, Tokens, Transcript, message_text

LISTS: dict[str, tuple[str, ...]] = {
    "sharegpt": ("conversations",),
    "wildchat": ("conversation",),
    "lmsys": ("conversation",),
    "trajectories": ("history", "messages", "trajectory"),
}
"""Formats, and the keys that hold their messages."""
_ANSWERING = {"gpt", "assistant", "chatgpt", "model", "bot", "bard", "bing", "ai"}
_ROLES = ("from", "role")
_TEXTS = ("value", "content", "text")


class ConversationSessions:
    """Conversations whose every answer is a request."""

    number = 0
    leave_out: LeaveOut | None = None

    def __init__(self, name: str, tokens: Tokens, *, timed: bool) -> None:
        """Start at the first conversation.

        Args:
            name: of the format.
            tokens: cuts text.
            timed: conversations have times, and are given by their start when the file ends.
        """
        self.name = name
        self._tokens = tokens
        self._timed = timed
        self._num_sessions = 0
        self._sessions: list[Session] = []

    def end(self) -> list[Session]:
        """Conversations with times, by their start; the clock begins at the first."""
        self._sessions.sort(key=lambda session: session.start_s or 0.0)
        begin_s = (self._sessions[0].start_s or 0.0) if self._sessions else 0.0
        for session in self._sessions:
            session.start_s = (session.start_s or 0.0) - begin_s
        return self._sessions

    def parse(self, fields: dict[str, Any], uids: TraceUids) -> list[Session] | list[str]:
        """The session of a conversation, or everything that is wrong with it."""
        said = messages_of(fields, self.name)
        if said is None:
            return [f"{LISTS[self.name][0]}: missing. An object needs a list of messages."]
        key = next(key for key in LISTS[self.name] if fields.get(key) is said)
        problems = [
            f"{key}.{number}: {shown(message)} has no {self._needed()}."
            for number, message in enumerate(said)
            if not is_message(message)
        ]
        if problems:
            return problems
        times_s = _times_s(fields, said) if self._timed else {}
        if self._timed and not times_s:
            return ["timestamp: missing, or not a date and time, where other lines have one."]
        self._num_sessions += 1
        start_s = min(times_s.values()) if times_s else None
        session = Session(f"{self._num_sessions:07d}", start_s, [], timed=False)
        transcript = Transcript(self._tokens)
        answer_times: list[float | None] = []
        for number, message in enumerate(said):
            role = _role(message)
            text = message_text(message, _TEXTS)
            is_answer = role in _ANSWERING and transcript.num_tokens > 0
            transcript.begin(role)
            if is_answer:
                session.turns.append(self._turn(session, transcript, text, uids))
                answer_times.append(times_s.get(number))
            else:
                transcript.add(text)
        if not session.turns:
            return []
        if start_s is not None and None not in answer_times:
            _set_times(session, [(time_s or 0.0) - start_s for time_s in answer_times])
        if not self._timed:
            return [session]
        self._sessions.append(session)
        return []

    def _needed(self) -> str:
        return "from and value of text" if self.name == "sharegpt" else "role and content of text"

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


def messages_of(fields: dict[str, Any], name: str) -> list[Any] | None:
    """The messages of a conversation of a format; None where there are none."""
    lists = [fields[key] for key in LISTS[name] if isinstance(fields.get(key), list)]
    # SWE-agent's files have steps under one of the keys and messages under another.
    return next((said for said in lists if said and all(map(is_message, said))), None) or next(
        iter(lists), None
    )


def is_message(message: Any) -> bool:
    """Whether something has a role, and text or calls of tools."""
    if not isinstance(message, dict) or not _role(message):
        return False
    texts = [message[key] for key in _TEXTS if message.get(key) is not None]
    return all(isinstance(text, str | list) for text in texts[:1]) and (
        bool(texts) or "content" in message or bool(message.get("tool_calls"))
    )


def has_answers(said: list[Any]) -> bool:
    """Whether messages hold an answer."""
    return all(map(is_message, said)) and any(_role(message) in _ANSWERING for message in said)


def has_times(fields: dict[str, Any]) -> bool:
    """Whether all answers of a conversation of WildChat have a time."""
    said = fields.get("conversation")
    return isinstance(said, list) and all(
        unix_seconds(message.get("timestamp")) is not None
        for message in said
        if is_message(message) and _role(message) in _ANSWERING
    )


def _role(message: dict[str, Any]) -> str:
    role = next((message[key] for key in _ROLES if isinstance(message.get(key), str)), "")
    return role.lower()


def _times_s(fields: dict[str, Any], said: list[Any]) -> dict[int, float]:
    """Unix seconds of messages by their number; of the conversation at -1 where none has one."""
    times = {number: unix_seconds(message.get("timestamp")) for number, message in enumerate(said)}
    known = {number: time_s for number, time_s in times.items() if time_s is not None}
    if known:
        return known
    time_s = unix_seconds(fields.get("timestamp"))
    return {} if time_s is None else {-1: time_s}


def _set_times(session: Session, times_s: list[float]) -> None:
    """Turns at recorded times, each as long after the one before as recorded."""
    session.timed, session.delays_recorded = True, len(times_s) == 1
    for number, (turn, time_s) in enumerate(zip(session.turns, times_s, strict=True)):
        turn.request.arrival_s = time_s
        if number:
            turn.after = (After(number - 1, max(0.0, time_s - times_s[number - 1])),)
        else:
            turn.not_before_s = time_s
