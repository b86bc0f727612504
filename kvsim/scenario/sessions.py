"""When sessions start, and whether their turns wait for answers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from kvsim.scenario.draws import Starts
from kvsim.scenario.fields import Count
from kvsim.scenario.validation import Section


class Sessions(Section):
    """How sessions are played."""

    loop: Literal["closed", "open"] = Field(
        default="closed",
        description="closed: a turn waits for the answer before it; open: it arrives by time",
    )
    starts: Starts = Field(
        default=None, description="when sessions start; null: with concurrency, or as recorded"
    )
    concurrency: Count | None = Field(
        default=None, description="sessions alive at once, the next starting as one ends"
    )

    @model_validator(mode="after")
    def _one_way(self) -> Sessions:
        if self.concurrency is not None and self.starts is not None:
            raise ValueError("gives both starts and concurrency. Leave one out.")
        if self.concurrency is not None and self.loop == "open":
            raise ValueError("concurrency needs loop: closed. Change one.")
        return self
