"""Where requests come from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, Strict, model_validator

from kvsim.errors import show
from kvsim.scenario.fields import TOKENS_MAX, Count, Positive, Seconds, Text, Tokens
from kvsim.scenario.sessions import Sessions
from kvsim.scenario.validation import Section


def _span(value: object) -> object:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError(f"{show(value)} is no span. Write [name, tokens], as in [A, 1000].")
    return tuple(value)


class Reuse(Section):
    """What prompts share in a trace that records lengths only."""

    kind: Literal["shared-prefix"] = Field(
        default="shared-prefix", description="every prompt begins with one of some system prompts"
    )
    num_prefixes: Count = Field(default=1, description="different system prompts")
    prefix_tokens: Tokens = Field(description="tokens of each; a shorter prompt is a part of it")
    zipf_exponent: Annotated[float, Field(ge=0, le=10)] = Field(
        default=1.0, description="popularity of prefix k is k**-zipf_exponent; 0: all alike"
    )


class Columns(Section):
    """Names of the columns of a table with a request a row."""

    time: Text | None = Field(default=None, description="arrival: a number, or a date and time")
    prompt: Text | None = Field(default=None, description="tokens of the prompt")
    output: Text | None = Field(default=None, description="tokens of the answer")
    session: Text | None = Field(default=None, description="name of the session")
    ids: Text | None = Field(
        default=None, description="ids of the prompt's blocks: a list, or numbers with spaces"
    )
    delay: Text | None = Field(
        default=None, description="time from the answer of the turn before, in the unit of time"
    )
    keep_priority: Text | None = Field(
        default=None,
        description="how much its blocks are to be kept, 0 to 100, for orders such as priority; "
        "an empty cell says nothing",
    )
    keep_tokens: Text | None = Field(
        default=None, description="how many of its first tokens that is about; empty for all"
    )
    keep_s: Text | None = Field(
        default=None,
        description="seconds for which that holds after its end; empty for ever",
    )

    def named(self) -> dict[str, str]:
        """The columns that are given."""
        return {key: value for key, value in self if value is not None}


class TraceWorkload(Section):
    """Requests replayed from a trace file."""

    kind: Literal["trace"] = Field(description="kind of workload")
    format: Literal[
        "auto",
        "mooncake",
        "mooncake-delta",
        "aiperf",
        "agentic-mooncake",
        "applied-compute",
        "dynamo-requests",
        "weka",
        "qwen-bailian",
        "azure",
        "burstgpt",
        "table",
        "sessions",
        "opentelemetry",
        "sharegpt",
        "wildchat",
        "lmsys",
        "trajectories",
        "openai",
        "token-ids",
    ] = Field(default="auto", description="format of the file; auto recognises it")
    path: Text = Field(description="trace file, relative to the file that names it")
    limit: Count | None = Field(default=None, description="requests replayed; null for all")
    time_scale: Positive = Field(
        default=1.0, description="factor on all times; 2 halves the request rate"
    )
    start_s: Seconds = Field(
        default=0.0,
        description="requests before this time of the trace are left out; time starts there",
    )
    block_tokens: Tokens | None = Field(
        default=None,
        description="prompt tokens an id stands for; null for what the file says, or else what its "
        "lengths and numbers of ids say",
    )
    time_unit: Literal["auto", "s", "ms", "us", "ns"] = Field(
        default="auto",
        description="of the file's times; auto for the format's own, or what they look like, which "
        "is then said",
    )
    columns: Columns | None = Field(
        default=None,
        description="which column is what in a table (CSV, JSON lines or Parquet); null for "
        "columns of usual names",
    )
    partial_tail: Literal["distinct", "shared"] = Field(
        default="distinct",
        description="what prompts share inside an id that ends one of them: nothing (distinct, as "
        "recorded, a lower bound), or the whole tail of the shorter one (shared, an upper bound)",
    )
    strict: bool = Field(
        default=False,
        description="true refuses what is put right with a notice: times out of order, answers "
        "of 0 tokens",
    )
    on_bad: Literal["refuse", "skip"] = Field(
        default="refuse",
        description="lines that cannot be used: refused with all that is wrong, or skipped and "
        "counted by reason, up to 5 % of them",
    )
    tokenizer: Text = Field(
        default="characters",
        description="what cuts the text of request logs: characters (4 a token), or a "
        "tokenizer.json relative to the file that names it",
    )
    reuse: Reuse | None = Field(
        default=None,
        description="what prompts share where the trace has lengths only; null for nothing",
    )
    sessions: Sessions | None = Field(
        default=None,
        description="how sessions are played; null for requests at their recorded times",
    )
    _directory: Path = PrivateAttr(default_factory=Path)

    def model_post_init(self, context: Any, /) -> None:
        """Keep the directory that the path is relative to."""
        self._directory = (context or {}).get("directory", Path())

    @property
    def file(self) -> Path:
        """Where the trace is: the path from the directory of the file that names it."""
        return self._directory / self.path

    @property
    def tokenizer_file(self) -> str:
        """What cuts text: "characters", or where the tokenizer.json is."""
        if self.tokenizer == "characters":
            return self.tokenizer
        return str(self._directory / self.tokenizer)


class ScriptRequest(Section):
    """One request of a script."""

    prompt: Annotated[
        tuple[Annotated[tuple[Text, Tokens], BeforeValidator(_span)], ...],
        Strict(False),
    ] = Field(
        min_length=1,
        description="spans [name, tokens]; a name is the same content after the same content",
    )
    output: Tokens = Field(default=1, description="tokens of the answer; 1 needs no decode step")
    output_name: Text | None = Field(
        default=None, description="name of the answer, for later prompts"
    )
    at_s: Seconds = Field(default=0.0, description="arrival")
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] = Field(
        default=0, description="with engine.policy priority: lower numbers are served first"
    )
    keep_priority: Annotated[int, Field(ge=0, le=100)] | None = Field(
        default=None,
        description="for orders such as priority: how much its blocks are to be kept; null for "
        "the order's default",
    )
    keep_tokens: Tokens | None = Field(
        default=None,
        description="how many of its first tokens keep_priority is about; null for all",
    )
    keep_s: Seconds | None = Field(
        default=None, description="how long keep_priority holds after its end; null for ever"
    )

    @model_validator(mode="after")
    def _fits(self) -> ScriptRequest:
        num_tokens = sum(tokens for _, tokens in self.prompt) + self.output
        if num_tokens > TOKENS_MAX:
            raise ValueError(
                f"prompt and output are {num_tokens} tokens. Use at most {TOKENS_MAX}."
            )
        return self


class ScriptWorkload(Section):
    """Requests written down in the scenario."""

    kind: Literal["script"] = Field(description="kind of workload")
    requests: Annotated[tuple[ScriptRequest, ...], Strict(False)] = Field(
        min_length=1, description="requests"
    )
    concurrency: Literal[1, None] = Field(
        default=None,
        description="null runs them by arrival, 1 one after another in the order given",
    )
