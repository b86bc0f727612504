"""Several answers to one prompt at once: best of n, and beams that are cut and go on."""

from __future__ import annotations

import numpy as np

from kvsim.scenario.synthetic import Samples
from kvsim.workload.conversation import Conversation
from kvsim.workload.request import After
from kvsim.workload.synthetic.building import SessionBuilder, Uids, conversation
from kvsim.workload.synthetic.drawing import Lengths, Recorded


class SamplesGenerator:
    """The same prompt `num_samples` times at once.

    With rounds, the beams of a round start when all of the round before have ended; each goes on
    from one of those, drawn at random, so some are cut and some are continued more than once.
    """

    def __init__(
        self, config: Samples, uids: Uids, rng: np.random.Generator, recorded: Recorded | None
    ) -> None:
        """Share nothing between sessions."""
        self._uids = uids
        self._num_samples, self._num_rounds = config.num_samples, config.num_rounds
        self._prompt_tokens = Lengths(config.prompt_tokens, recorded)
        self._output_tokens = Lengths(config.output_tokens, recorded)

    def build(self, session: SessionBuilder, rng: np.random.Generator) -> None:
        """Add all answers to one prompt."""
        begin = conversation((self._uids.take(1), self._prompt_tokens.one(rng)))
        prompts = [begin] * self._num_samples
        after: tuple[After, ...] = ()
        for _ in range(self._num_rounds):
            output_tokens = self._output_tokens.draw(rng, self._num_samples)
            uid = self._uids.take(self._num_samples)
            indices, beams = [], []
            for number, prompt in enumerate(prompts):
                index = session.add(prompt.content(), output_tokens[number], uid + number, after)
                if index is None:
                    return
                indices.append(index)
                beam = Conversation(prompt.content())
                beam.append(uid + number, output_tokens[number])
                beams.append(beam)
            after = tuple(After(index) for index in indices)
            parents = rng.integers(0, self._num_samples, self._num_samples).tolist()
            prompts = [beams[parent] for parent in parents]
