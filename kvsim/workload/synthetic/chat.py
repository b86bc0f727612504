"""People: a conversation of several turns behind a system prompt."""

from __future__ import annotations

import numpy as np

from kvsim.scenario.synthetic import Chat
from kvsim.workload.request import After
from kvsim.workload.synthetic.building import SessionBuilder, SystemPrompts, Uids, conversation
from kvsim.workload.synthetic.drawing import Durations, Lengths, Recorded


class ChatGenerator:
    """Each prompt is the one before, its answer, and what the user says next."""

    def __init__(
        self, config: Chat, uids: Uids, rng: np.random.Generator, recorded: Recorded | None
    ) -> None:
        """Draw the system prompts."""
        self._uids = uids
        self._system = SystemPrompts(config, uids, rng, recorded)
        self._turns = Lengths(config.turns, recorded)
        self._first_tokens = Lengths(config.first_tokens or config.user_tokens, recorded)
        self._user_tokens = Lengths(config.user_tokens, recorded)
        self._output_tokens = Lengths(config.output_tokens, recorded)
        self._think_s = Durations(config.think_s)
        self._answers = config.answers

    def build(self, session: SessionBuilder, rng: np.random.Generator) -> None:
        """Add a conversation."""
        prompt = conversation(self._system.draw(rng))
        num_turns = self._turns.one(rng)
        user_tokens = [self._first_tokens.one(rng), *self._user_tokens.draw(rng, num_turns - 1)]
        output_tokens = self._output_tokens.draw(rng, num_turns)
        think_s = self._think_s.draw(rng, num_turns)
        uid = self._uids.take(3 * num_turns)
        after: tuple[After, ...] = ()
        for turn in range(num_turns):
            prompt.append(uid, user_tokens[turn])
            index = session.add(prompt.content(), output_tokens[turn], uid + 1, after)
            if index is None:
                return
            if self._answers != "dropped":
                returned = uid + 1 if self._answers == "return" else uid + 2
                prompt.append(returned, output_tokens[turn])
            after = (After(index, think_s[turn]),)
            uid += 3
