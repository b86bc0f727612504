"""Where requests come from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, Strict, model_validator

from kvsim.config.fields import TOKENS_MAX, Count, Positive, Seconds, Text, Tokens
from kvsim.config.validation import Section
from kvsim.errors import show


def _span(value: object) -> object:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError(f"{show(value)} is no span. Write [name, tokens], as in [A, 1000].")
    return tuple(value)


class TraceWorkload(Section):
    """Requests replayed from a trace file."""

    kind: Literal["trace"] = Field(description="kind of workload")
    format: Literal["mooncake"] = Field(default="mooncake", description="format of the file")
    path: Text = Field(description="trace file, relative to the file that names it")
    limit: Count | None = Field(default=None, description="requests replayed; null for all")
    time_scale: Positive = Field(
        default=1.0, description="factor on all times; 2 halves the request rate"
    )
    start_s: Seconds = Field(
        default=0.0,
        description="requests before this time of the trace are left out; time starts there",
    )
    _directory: Path = PrivateAttr(default_factory=Path)

    def model_post_init(self, context: Any, /) -> None:
        """Keep the directory that the path is relative to."""
        self._directory = (context or {}).get("directory", Path())

    @property
    def file(self) -> Path:
        """Where the trace is: the path from the directory of the file that names it."""
        return self._directory / self.path


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
