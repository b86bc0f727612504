"""A coding agent: a context that grows by tool calls, sub-agents beside it, compaction."""

from __future__ import annotations

import numpy as np

from kvsim.scenario.synthetic import Agentic
from kvsim.workload.conversation import Conversation
from kvsim.workload.request import After
from kvsim.workload.synthetic.building import SessionBuilder, SystemPrompts, Uids, conversation
from kvsim.workload.synthetic.drawing import Durations, Lengths, Recorded


class AgenticGenerator:
    """A loop of answers and tool results.

    A turn's answer calls a tool, whose result is appended. Some turns call sub-agents instead,
    which run at the same time and share how their prompts begin; the main agent waits for all and
    is handed one result. Where the context has reached `compact_at_tokens`, one more turn over all
    of it makes a summary, and the system prompt and the summary stand for the history from then on.
    """

    def __init__(
        self, config: Agentic, uids: Uids, rng: np.random.Generator, recorded: Recorded | None
    ) -> None:
        """Draw the system prompts."""
        self._config = config
        self._uids = uids
        self._system = SystemPrompts(config, uids, rng, recorded)
        self._task_tokens = Lengths(config.task_tokens, recorded)
        self._turns = Lengths(config.turns, recorded)
        self._output_tokens = Lengths(config.output_tokens, recorded)
        self._tool_tokens = Lengths(config.tool_tokens, recorded)
        self._tool_s = Durations(config.tool_s)
        self._num_subagents = Lengths(config.num_subagents, recorded)
        self._subagent_turns = Lengths(config.subagent_turns, recorded)
        self._summary_tokens = Lengths(config.summary_tokens, recorded)

    def build(self, session: SessionBuilder, rng: np.random.Generator) -> None:
        """Add the main agent's turns, with those of its sub-agents where they start."""
        config = self._config
        system = self._system.draw(rng)
        prompt = conversation(system)
        prompt.append(self._uids.take(1), self._task_tokens.one(rng))
        num_turns = self._turns.one(rng)
        forks = rng.random(num_turns) < config.subagent_share
        output_tokens = self._output_tokens.draw(rng, num_turns)
        tool_tokens = self._tool_tokens.draw(rng, num_turns)
        tool_s = self._tool_s.draw(rng, num_turns)
        after: tuple[After, ...] = ()
        for turn in range(num_turns):
            at = config.compact_at_tokens
            if at is not None and turn and prompt.num_tokens >= at:
                summary_uid = self._uids.take(1)
                num_tokens = self._summary_tokens.one(rng)
                index = session.add(prompt.content(), num_tokens, summary_uid, after)
                if index is None:
                    return
                after = (After(index),)
                # Behind the system prompt the summary is other content than behind the history.
                prompt = conversation(system, (self._uids.take(1), num_tokens))
            output_uid = self._uids.take(2)
            index = session.add(prompt.content(), output_tokens[turn], output_uid, after)
            if index is None:
                return
            prompt.append(output_uid, output_tokens[turn])
            after = (After(index, tool_s[turn]),)
            if forks[turn] and turn + 1 < num_turns:
                after = self._subagents(session, rng, system, prompt, index) or after
            prompt.append(output_uid + 1, tool_tokens[turn])

    def _subagents(
        self,
        session: SessionBuilder,
        rng: np.random.Generator,
        system: tuple[int, int],
        prompt: Conversation,
        index: int,
    ) -> tuple[After, ...]:
        """Add sub-agents that start when turn `index` has ended; the last turn of each."""
        begin = prompt if self._config.subagents_see == "context" else conversation(system)
        last = []
        for _ in range(self._num_subagents.one(rng)):
            own = Conversation(begin.content())
            own.append(self._uids.take(1), self._task_tokens.one(rng))
            num_turns = self._subagent_turns.one(rng)
            output_tokens = self._output_tokens.draw(rng, num_turns)
            tool_tokens = self._tool_tokens.draw(rng, num_turns)
            tool_s = self._tool_s.draw(rng, num_turns)
            uid = self._uids.take(2 * num_turns)
            after, at = After(index), None
            for turn in range(num_turns):
                made = session.add(own.content(), output_tokens[turn], uid, (after,))
                if made is None:
                    break
                own.append(uid, output_tokens[turn])
                own.append(uid + 1, tool_tokens[turn])
                after, at, uid = After(made, tool_s[turn]), made, uid + 2
            if at is not None:
                last.append(After(at))
        return tuple(last)
