"""Documents that many prompts hold: in random order (RAG), or one long one asked about."""

from __future__ import annotations

import numpy as np

from kvsim.scenario.synthetic import DocumentQa, Rag
from kvsim.workload.request import After
from kvsim.workload.synthetic.building import (
    PathUids,
    SessionBuilder,
    SystemPrompts,
    Uids,
    conversation,
)
from kvsim.workload.synthetic.drawing import Durations, Lengths, Recorded, Zipf


class RagGenerator:
    """A system prompt, some different documents in random order, and a question."""

    def __init__(
        self, config: Rag, uids: Uids, rng: np.random.Generator, recorded: Recorded | None
    ) -> None:
        """Draw the system prompts and the documents' lengths."""
        self._uids = uids
        self._paths = PathUids(uids)
        self._system = SystemPrompts(config, uids, rng, recorded)
        self._popularity = Zipf(config.num_documents, config.document_zipf)
        lengths = Lengths(config.document_tokens, recorded)
        self._document_tokens = lengths.draw(rng, config.num_documents)
        self._num_documents = Lengths(config.documents_per_prompt, recorded)
        self._question_tokens = Lengths(config.question_tokens, recorded)
        self._output_tokens = Lengths(config.output_tokens, recorded)

    def build(self, session: SessionBuilder, rng: np.random.Generator) -> None:
        """Add one question."""
        uid_before, num_tokens = self._system.draw(rng)
        prompt = conversation((uid_before, num_tokens))
        for document in self._popularity.distinct(rng, self._num_documents.one(rng)):
            uid_before = self._paths.uid(document, uid_before, prompt.num_tokens)
            prompt.append(uid_before, self._document_tokens[document])
        uid = self._uids.take(2)
        prompt.append(uid, self._question_tokens.one(rng))
        session.add(prompt.content(), self._output_tokens.one(rng), uid + 1)


class DocumentQaGenerator:
    """A system prompt, one document, and a question; then the next question about the same."""

    def __init__(
        self, config: DocumentQa, uids: Uids, rng: np.random.Generator, recorded: Recorded | None
    ) -> None:
        """Draw the system prompts and the documents' lengths."""
        self._uids = uids
        self._paths = PathUids(uids)
        self._system = SystemPrompts(config, uids, rng, recorded)
        self._lengths = Lengths(config.document_tokens, recorded)
        num = config.num_documents or 0
        self._popularity = Zipf(num, config.document_zipf) if num else None
        self._document_tokens = self._lengths.draw(rng, num)
        self._questions = Lengths(config.questions, recorded)
        self._question_tokens = Lengths(config.question_tokens, recorded)
        self._output_tokens = Lengths(config.output_tokens, recorded)
        self._think_s = Durations(config.think_s)

    def build(self, session: SessionBuilder, rng: np.random.Generator) -> None:
        """Add the questions about one document."""
        system = self._system.draw(rng)
        shared = (system, self._document(rng, system))
        num_questions = self._questions.one(rng)
        question_tokens = self._question_tokens.draw(rng, num_questions)
        output_tokens = self._output_tokens.draw(rng, num_questions)
        think_s = self._think_s.draw(rng, num_questions)
        uid = self._uids.take(2 * num_questions)
        after: tuple[After, ...] = ()
        for number in range(num_questions):
            prompt = conversation(*shared, (uid, question_tokens[number]))
            index = session.add(prompt.content(), output_tokens[number], uid + 1, after)
            if index is None:
                return
            after = (After(index, think_s[number]),)
            uid += 2

    def _document(self, rng: np.random.Generator, system: tuple[int, int]) -> tuple[int, int]:
        """The uid and the tokens of a document behind a system prompt."""
        if self._popularity is None:
            return self._uids.take(1), self._lengths.one(rng)
        document = self._popularity.one(rng)
        return self._paths.uid(document, *system), self._document_tokens[document]
