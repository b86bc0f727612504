"""Sessions made at random: what they say, how they follow one another, and in which mixture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, Strict, Tag

from kvsim.scenario.draws import Duration, Length, LengthOr0
from kvsim.scenario.fields import Count, Positive, Text, Tokens, kind_of
from kvsim.scenario.sessions import Sessions
from kvsim.scenario.validation import Section

NonNegative = Annotated[float, Field(ge=0, le=20)]
Share = Annotated[float, Field(ge=0, le=1)]


class Content(Section):
    """What all contents have."""

    weight: Positive = Field(default=1.0, description="share of the sessions, relative to others")
    output_tokens: Length = Field(default=200, description="tokens of an answer")


class WithSystemPrompt(Content):
    """Content behind a system prompt that sessions share."""

    system_tokens: LengthOr0 = Field(
        default=1000, description="tokens of a system prompt, drawn once for each; 0 for none"
    )
    num_system_prompts: Count = Field(default=1, description="different system prompts")
    system_zipf: NonNegative = Field(
        default=1.0, description="popularity of system prompt k is k**-system_zipf"
    )


class Chat(WithSystemPrompt):
    """People: a conversation of several turns."""

    kind: Literal["chat"] = Field(description="kind of content")
    turns: Length = Field(default="geometric(mean=4)", description="turns of a session")
    first_tokens: Length | None = Field(
        default=None, description="tokens a user adds in the first turn; null: as in the others"
    )
    user_tokens: Length = Field(
        default="lognormal(median=60, sigma=1)", description="tokens a user adds in a turn"
    )
    think_s: Duration = Field(
        default="exponential(mean_s=30)", description="from an answer to the next question"
    )
    answers: Literal["return", "rewritten", "dropped"] = Field(
        default="return",
        description="what the next prompt holds of an answer: what was made, other text, or "
        "nothing",
    )


class Agentic(WithSystemPrompt):
    """A coding agent: a context that grows by tool calls, sub-agents, compaction."""

    kind: Literal["agentic"] = Field(description="kind of content")
    task_tokens: Length = Field(
        default="lognormal(median=500, sigma=1)", description="tokens of the task at the start"
    )
    turns: Length = Field(default="geometric(mean=30)", description="turns of the main agent")
    tool_tokens: LengthOr0 = Field(
        default="lognormal(median=600, sigma=1.3)", description="tokens a tool's result adds"
    )
    tool_s: Duration = Field(
        default="lognormal(median_s=2, sigma=1.2)", description="from a call to its result"
    )
    subagent_share: Share = Field(default=0.0, description="share of turns that start sub-agents")
    num_subagents: Length = Field(default=3, description="sub-agents started together")
    subagent_turns: Length = Field(default="geometric(mean=8)", description="turns of a sub-agent")
    subagents_see: Literal["system", "context"] = Field(
        default="system", description="what a sub-agent's prompt begins with"
    )
    compact_at_tokens: Tokens | None = Field(
        default=None, description="context at which history is rewritten; null: never"
    )
    summary_tokens: Length = Field(
        default=2000, description="tokens that stand for the history after it is rewritten"
    )


class Rag(WithSystemPrompt):
    """Questions about retrieved documents, in random order behind a system prompt."""

    kind: Literal["rag"] = Field(description="kind of content")
    num_documents: Annotated[int, Field(ge=1, le=10_000_000)] = Field(
        default=10_000, description="documents there are"
    )
    document_zipf: NonNegative = Field(
        default=0.8, description="popularity of document k is k**-document_zipf"
    )
    document_tokens: Length = Field(
        default=500, description="tokens of a document, drawn once for each"
    )
    documents_per_prompt: Length = Field(default=5, description="different documents in a prompt")
    question_tokens: Length = Field(default=50, description="tokens of the question at the end")


class DocumentQa(WithSystemPrompt):
    """Several questions about one long document, each without those before it."""

    kind: Literal["document-qa"] = Field(description="kind of content")
    num_documents: Annotated[int, Field(ge=1, le=10_000_000)] | None = Field(
        default=1000, description="documents there are; null: each session has its own"
    )
    document_zipf: NonNegative = Field(
        default=0.8, description="popularity of document k is k**-document_zipf"
    )
    document_tokens: Length = Field(
        default=50_000, description="tokens of a document, drawn once for each"
    )
    questions: Length = Field(default=5, description="questions of a session")
    question_tokens: Length = Field(default=50, description="tokens of a question")
    think_s: Duration = Field(
        default="exponential(mean_s=30)", description="from an answer to the next question"
    )


class FewShot(Content):
    """A batch of questions behind one few-shot prefix; a session is one of them."""

    kind: Literal["few-shot"] = Field(description="kind of content")
    prefix_tokens: Tokens = Field(default=2000, description="tokens that all prompts begin with")
    question_tokens: Length = Field(default=100, description="tokens of a question")


class Samples(Content):
    """Several answers to one prompt at once: best of n, or beams that are cut and go on."""

    kind: Literal["samples"] = Field(description="kind of content")
    prompt_tokens: Length = Field(default=1000, description="tokens of the prompt")
    num_samples: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=8, description="answers made at once: n of best-of-n, or the beams"
    )
    num_rounds: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=1,
        description="1 is best-of-n; in each further round every beam continues one before",
    )


class OneOff(Content):
    """A prompt that never comes again."""

    kind: Literal["one-off"] = Field(description="kind of content")
    prompt_tokens: Length = Field(default=100_000, description="tokens of the prompt")


class Cycle(Content):
    """Distinct prompts in turn, then again: session k has prompt k modulo num_prompts."""

    kind: Literal["cycle"] = Field(description="kind of content")
    num_prompts: Count = Field(description="different prompts")
    prompt_tokens: Length = Field(
        default=32_768, description="tokens of a prompt, drawn once for each"
    )


AnyContent = Annotated[
    Annotated[Chat, Tag("chat")]
    | Annotated[Agentic, Tag("agentic")]
    | Annotated[Rag, Tag("rag")]
    | Annotated[DocumentQa, Tag("document-qa")]
    | Annotated[FewShot, Tag("few-shot")]
    | Annotated[Samples, Tag("samples")]
    | Annotated[OneOff, Tag("one-off")]
    | Annotated[Cycle, Tag("cycle")],
    kind_of(None),
]


class SyntheticWorkload(Section):
    """Sessions made at random from the scenario's seed."""

    kind: Literal["synthetic"] = Field(description="kind of workload")
    num_sessions: Count = Field(description="sessions in all")
    sessions: Sessions = Field(description="when sessions start: starts or concurrency")
    content: Annotated[tuple[AnyContent, ...], Strict(False)] = Field(
        min_length=1, description="what sessions say: one or more contents, mixed by weight"
    )
    max_prompt_tokens: Tokens = Field(
        default=1_000_000,
        description="a session ends before a longer prompt; one that starts longer is refused",
    )
    path: Text | None = Field(
        default=None, description="trace that recorded lengths and starts are taken from"
    )
    _directory: Path = PrivateAttr(default_factory=Path)

    def model_post_init(self, context: Any, /) -> None:
        """Keep the directory that the path is relative to."""
        self._directory = (context or {}).get("directory", Path())

    @property
    def directory(self) -> Path:
        """What the path is relative to."""
        return self._directory

    @property
    def file(self) -> Path | None:
        """Where the trace is, None where none is named."""
        return None if self.path is None else self._directory / self.path
