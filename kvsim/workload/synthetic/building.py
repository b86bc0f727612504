"""What generators build sessions of: uids, shared prompts, turns."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Protocol

import numpy as np

from kvsim.cache.content import UID_BITS, Content
from kvsim.errors import Problems
from kvsim.scenario.synthetic import WithSystemPrompt
from kvsim.workload.conversation import Conversation
from kvsim.workload.request import After, Request, Session, Turn
from kvsim.workload.synthetic.drawing import Lengths, Recorded, Zipf

NUM_PATHS_MAX = 2**18
"""Shared spans behind different beginnings that are remembered; see `PathUids`."""


class Uids:
    """Numbers for spans, each given once."""

    def __init__(self) -> None:
        """Start from 0."""
        self._next = 0

    def take(self, num: int) -> int:
        """The first of `num` fresh uids in a row.

        Raises:
            Problems: there are no more.
        """
        first = self._next
        self._next += num
        if self._next > 1 << UID_BITS:
            text = f"says more than 2**{UID_BITS} different things. Use fewer num_sessions."
            raise Problems("workload", [text])
        return first


class PathUids:
    """Uids for shared content that may stand behind different beginnings.

    The same name behind the same span at the same position is the same content. The last
    `NUM_PATHS_MAX` such places are remembered: one that comes again later than that counts as new,
    so memory is bounded and a hit is at most missed, never invented.
    """

    def __init__(self, uids: Uids, num_max: int = NUM_PATHS_MAX) -> None:
        """Remember up to `num_max` places."""
        self._uids = uids
        self._num_max = num_max
        self._known: OrderedDict[tuple[Hashable, int, int], int] = OrderedDict()

    def uid(self, name: Hashable, uid_before: int, position: int) -> int:
        """The uid of a name behind another span, at a position in tokens."""
        place = (name, uid_before, position)
        uid = self._known.get(place)
        if uid is not None:
            self._known.move_to_end(place)
            return uid
        if len(self._known) >= self._num_max:
            self._known.popitem(last=False)
        uid = self._known[place] = self._uids.take(1)
        return uid


class SystemPrompts:
    """Prompts that sessions begin with, some more often than others."""

    def __init__(
        self,
        config: WithSystemPrompt,
        uids: Uids,
        rng: np.random.Generator,
        recorded: Recorded | None,
    ) -> None:
        """Draw the length of each; what is drawn later is which."""
        self._popularity = Zipf(config.num_system_prompts, config.system_zipf)
        self._lengths = Lengths(config.system_tokens, recorded).draw(rng, config.num_system_prompts)
        self._first_uid = uids.take(config.num_system_prompts)

    def draw(self, rng: np.random.Generator) -> tuple[int, int]:
        """The uid and the tokens of one of them."""
        rank = self._popularity.one(rng)
        # Prompts without tokens are all the same.
        return self._first_uid + (rank if self._lengths[rank] else 0), self._lengths[rank]


class SessionBuilder:
    """Turns of one session, as a generator adds them."""

    def __init__(self, session_id: str, max_prompt_tokens: int, what: str) -> None:
        """Start without turns.

        Args:
            session_id: unique in the run.
            max_prompt_tokens: longest prompt.
            what: the content's place, for messages.
        """
        self.session_id = session_id
        self.turns: list[Turn] = []
        self._max_prompt_tokens = max_prompt_tokens
        self._what = what

    def add(
        self,
        content: Content,
        num_output_tokens: int,
        output_uid: int,
        after: Sequence[After] = (),
    ) -> int | None:
        """Add a turn.

        Args:
            content: the whole prompt.
            num_output_tokens: length of the answer.
            output_uid: uid of the answer.
            after: what it waits for; in an open loop its time follows from the same delays,
                counted from arrival to arrival.

        Returns:
            Its index, or None where the prompt is too long and the session must not go on so.

        Raises:
            Problems: the first prompt is too long, so there is no session.
        """
        num_tokens = content.num_tokens
        if num_tokens > self._max_prompt_tokens:
            if self.turns:
                return None
            text = (
                f"a session begins with a prompt of {num_tokens} tokens, more than "
                f"max_prompt_tokens ({self._max_prompt_tokens}). Raise it, or give shorter lengths."
            )
            raise Problems("workload", [f"{self._what}: {text}"])
        index = len(self.turns)
        arrival_s = 0.0
        for wait in after:
            arrival_s = max(arrival_s, self.turns[wait.turn].request.arrival_s + wait.delay_s)
        request = Request(
            f"{self.session_id}.{index:04d}",
            arrival_s,
            content,
            num_tokens,
            num_output_tokens,
            output_uid,
            self.session_id,
        )
        self.turns.append(Turn(request, tuple(after)))
        return index

    def session(self, start_s: float) -> Session:
        """What has been added, as a session."""
        return Session(self.session_id, start_s, self.turns)


class Generator(Protocol):
    """Makes sessions of one content; knows the spans that sessions share."""

    def build(self, session: SessionBuilder, rng: np.random.Generator) -> None:
        """Add the turns of the next session, drawn from `rng` alone."""


def conversation(*spans: tuple[int, int]) -> Conversation:
    """A conversation that begins with spans `(uid, tokens)`."""
    begun = Conversation()
    for uid, num_tokens in spans:
        begun.append(uid, num_tokens)
    return begun
