"""Sessions of one prompt: few-shot batches, one-off prompts, and distinct prompts in turn."""

from __future__ import annotations

import numpy as np

from kvsim.scenario.synthetic import Cycle, FewShot, OneOff
from kvsim.workload.synthetic.building import SessionBuilder, Uids, conversation
from kvsim.workload.synthetic.drawing import Lengths, Recorded


class FewShotGenerator:
    """One prefix, and a question of its own for each prompt."""

    def __init__(
        self, config: FewShot, uids: Uids, rng: np.random.Generator, recorded: Recorded | None
    ) -> None:
        """Give the prefix its uid."""
        self._uids = uids
        self._prefix = (uids.take(1), config.prefix_tokens)
        self._question_tokens = Lengths(config.question_tokens, recorded)
        self._output_tokens = Lengths(config.output_tokens, recorded)

    def build(self, session: SessionBuilder, rng: np.random.Generator) -> None:
        """Add one prompt."""
        uid = self._uids.take(2)
        prompt = conversation(self._prefix, (uid, self._question_tokens.one(rng)))
        session.add(prompt.content(), self._output_tokens.one(rng), uid + 1)


class OneOffGenerator:
    """Prompts that share nothing and never come again; long ones flush the cache."""

    def __init__(
        self, config: OneOff, uids: Uids, rng: np.random.Generator, recorded: Recorded | None
    ) -> None:
        """Share nothing."""
        self._uids = uids
        self._prompt_tokens = Lengths(config.prompt_tokens, recorded)
        self._output_tokens = Lengths(config.output_tokens, recorded)

    def build(self, session: SessionBuilder, rng: np.random.Generator) -> None:
        """Add one prompt."""
        uid = self._uids.take(2)
        prompt = conversation((uid, self._prompt_tokens.one(rng)))
        session.add(prompt.content(), self._output_tokens.one(rng), uid + 1)


class CycleGenerator:
    """Distinct prompts in turn, then the same ones again: the cache's microbenchmark."""

    def __init__(
        self, config: Cycle, uids: Uids, rng: np.random.Generator, recorded: Recorded | None
    ) -> None:
        """Draw the prompts' lengths."""
        self._uids = uids
        self._lengths = Lengths(config.prompt_tokens, recorded).draw(rng, config.num_prompts)
        self._first_uid = uids.take(config.num_prompts)
        self._output_tokens = Lengths(config.output_tokens, recorded)
        self._num_built = 0

    def build(self, session: SessionBuilder, rng: np.random.Generator) -> None:
        """Add the next prompt of the cycle."""
        number = self._num_built % len(self._lengths)
        self._num_built += 1
        prompt = conversation((self._first_uid + number, self._lengths[number]))
        session.add(prompt.content(), self._output_tokens.one(rng), self._uids.take(1))
