"""The engine, the cache policy, step times, and what is asked of a run."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PrivateAttr,
    Strict,
)

from kvsim.errors import show
from kvsim.policies.contract import FREE_QUEUE, RETENTION
from kvsim.scenario.fields import TOKENS_MAX, Bytes, Count, Fraction, Seconds, Text, Tokens
from kvsim.scenario.kv_cache import KVCacheKeys
from kvsim.scenario.policies import policy_setting
from kvsim.scenario.validation import Section

PROFILE_DEFAULT = "profile"
"""Written for a cache key: what the engine's version does."""


def _retention_interval(value: object) -> object:
    if value is None or value == PROFILE_DEFAULT:
        return value
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(
            f"{show(value)} is not an interval. Use 0, a number of tokens, null (dense) or "
            f"'{PROFILE_DEFAULT}' (what engine.profile does)."
        )
    if value < 0:
        raise ValueError(f"{value} is negative. Use 0, a number of tokens, or null (dense).")
    return value


def _max_model_len(value: object) -> object:
    if value is None or value == "auto":
        return value
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{show(value)} is not a length. Use tokens, auto, or null.")
    if value < 1:
        raise ValueError(f"{value} is below 1. Use 1 or more.")
    if value > TOKENS_MAX:
        raise ValueError(f"{value} is above {TOKENS_MAX}. Use {TOKENS_MAX} or less.")
    return value


MaxModelLen = Annotated[int | None | Literal["auto"], BeforeValidator(_max_model_len)]
RetentionInterval = Annotated[int | None | Literal["profile"], BeforeValidator(_retention_interval)]


def _acceptance(value: object) -> object:
    """Rates per position cannot rise: a draft counts only where those before it are accepted."""
    if isinstance(value, list | tuple) and any(
        later > earlier
        for earlier, later in pairwise(value)
        if isinstance(earlier, int | float) and isinstance(later, int | float)
    ):
        raise ValueError(
            f"{list(value)} rises. Give for each position the share of steps whose draft "
            "there is accepted, as engines log it, as in [0.8, 0.6]."
        )
    return value


Rate = Annotated[float, Field(ge=0, le=1)]


class Speculative(Section):
    """Draft tokens: MTP or EAGLE, whose drafter is part of the model."""

    tokens: Annotated[int, Field(ge=1, le=64)] = Field(
        default=1, description="draft tokens a request has checked in a step"
    )
    acceptance: Annotated[
        Rate | Annotated[tuple[Rate, ...], Strict(False)], BeforeValidator(_acceptance)
    ] = Field(
        description="chance that a draft is accepted if those before it are; or a list with, for "
        "each position, the share of steps whose draft there is accepted"
    )
    mtp_layers: Annotated[int, Field(ge=1, le=64)] = Field(
        default=1, description="draft layers one behind the other; each reads one token further"
    )
    disable_lookahead_block_hashes: bool = Field(
        default=False,
        description="hits drop a block for the drafter, as they do with offload, instead of keys "
        "that cover what it reads behind a block",
    )

    @property
    def chances(self) -> tuple[float, ...]:
        """The chance of each draft where those before it are accepted."""
        if isinstance(self.acceptance, float):
            return (self.acceptance,) * self.tokens
        rates = (1.0, *self.acceptance)
        return tuple(later / earlier if earlier else 0.0 for earlier, later in pairwise(rates))


class Engine(KVCacheKeys):
    """How the engine is started; defaults are its own unless said."""

    profile: Literal["vllm-0.22", "vllm-0.23", "vllm-0.32", "vllm-0.33"] = Field(
        default="vllm-0.33", description="version whose cache decisions are made"
    )
    max_model_len: MaxModelLen = Field(
        default=None,
        description="longest sequence admitted, tokens; null for the model's longest, auto for the "
        "longest that fits the pool",
    )
    async_scheduling: bool | None = Field(
        default=None,
        description="plan a step while the one before it runs; null for what the profile does",
    )
    max_num_batched_tokens: Tokens | None = Field(
        default=None,
        description="most tokens of one step; null for the engine's default on the GPU",
    )
    max_num_seqs: Count | None = Field(
        default=None,
        description="most requests running at once; null for the engine's default on the GPU",
    )
    max_num_active_seqs: Count | None = Field(
        default=None, description="fewer requests running at once than that; null for as many"
    )
    long_prefill_token_threshold: Annotated[int, Field(ge=0, le=TOKENS_MAX)] = Field(
        default=0,
        description="most prompt tokens of one request in a step while others wait; 0 for no cap",
    )
    policy: Literal["fcfs", "priority"] = Field(
        default="fcfs",
        description="who is served first and preempted last: by arrival, or by request priority",
    )
    watermark: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0,
        description="fraction of the pool an admission leaves free while others run",
    )
    scheduler_reserve_full_isl: bool = Field(
        default=True, description="admit a request only if its whole prompt fits"
    )
    prefill_schedule_interval: Count = Field(
        default=1,
        description="steps from one that computes prompts to the next, while others decode",
    )
    kv_cache_memory: Bytes | None = Field(
        default=None,
        description="bytes of a GPU for KV; null for what utilization, weights and the reserve "
        "leave",
    )
    speculative: Speculative | None = Field(
        default=None, description="draft tokens (MTP, EAGLE); null for none"
    )


FreeQueue = Annotated[str | dict[str, Any], BeforeValidator(policy_setting(FREE_QUEUE, "profile"))]


class Cache(Section):
    """The cache policy: which blocks are found again, and which go first."""

    free_queue: FreeQueue = Field(
        default="profile",
        description="which blocks leave first: an order by name or {name: ..., parameters}, as "
        "`kvsim policies` lists them, or your own as path/to/file.py:name; profile for the "
        "engine's",
    )
    retention_interval: RetentionInterval = Field(
        default="profile",
        description="tokens between boundaries whose window blocks are kept, a multiple of the "
        "scheduler block; 0 keeps replay boundaries and junctions only, null (dense) all",
    )
    retention: Annotated[
        str | dict[str, Any] | None, BeforeValidator(policy_setting(RETENTION, or_none=True))
    ] = Field(
        default=None,
        description="in place of retention_interval: which runs of window blocks are kept, by name "
        "or {name: ..., parameters}, as `kvsim policies` lists them, or your own; null for the "
        "interval",
    )
    enable_prefix_caching: bool = Field(default=True, description="false finds no prefix again")


class RooflineStepTime(Section):
    """Step time from compute, memory traffic and a fixed overhead."""

    kind: Literal["roofline"] = Field(default="roofline", description="step-time model")
    engine: Literal["vllm", "sglang", "tensorrt-llm"] = Field(
        default="vllm", description="engine whose fitted constants are used; timing alone"
    )
    constants: Text | None = Field(
        default=None,
        description="file of constants, as `kvsim calibrate` writes one, relative to the file "
        "that names it; null for those of the catalog",
    )
    compute_efficiency: Fraction | None = Field(
        default=None,
        description="fraction of peak FLOP/s that products reach; null for the fitted constants",
    )
    memory_efficiency: Fraction | None = Field(
        default=None,
        description="fraction of peak bandwidth that reads reach; null for the fitted constants",
    )
    overhead_s: Seconds | None = Field(
        default=None,
        description="time of a step, layers included; null for the fitted constants",
    )
    _directory: Path = PrivateAttr(default_factory=Path)

    def model_post_init(self, context: Any, /) -> None:
        """Keep the directory that the path is relative to."""
        self._directory = (context or {}).get("directory", Path())

    @property
    def constants_file(self) -> Path | None:
        """Where the constants are; None for those of the catalog."""
        return None if self.constants is None else self._directory / self.constants


class ConstantStepTime(Section):
    """Step time from two constants, for tests and measured engines."""

    kind: Literal["constant"] = Field(description="step-time model")
    step_s: Seconds = Field(description="time of a step")
    token_s: Seconds = Field(default=0.0, description="time of each token scheduled in it, on top")


class TableStepTime(Section):
    """Step time from measured steps."""

    kind: Literal["table"] = Field(description="step-time model")
    path: Text = Field(description="CSV file of measured steps, relative to the file that names it")
    _directory: Path = PrivateAttr(default_factory=Path)

    def model_post_init(self, context: Any, /) -> None:
        """Keep the directory that the path is relative to."""
        self._directory = (context or {}).get("directory", Path())

    @property
    def file(self) -> Path:
        """Where the table is."""
        return self._directory / self.path


class Objective(Section):
    """What a request has to meet to count as goodput."""

    ttft_s: Seconds | None = Field(
        default=None, description="longest time to first token; null for any"
    )
    tpot_s: Seconds | None = Field(
        default=None, description="longest time per output token after the first; null for any"
    )


class Output(Section):
    """What is written down of a run."""

    timeline_interval_s: Annotated[Seconds, Field(gt=0)] = Field(
        default=1.0, description="simulated time between rows of timeline.parquet"
    )
    compare_caches: bool = Field(
        default=True,
        description="of a fleet: what other replicas had cached is looked up at every arrival; "
        "false leaves these figures null, and replicas whose router needs no state of theirs then "
        "run in processes of their own",
    )
    reasons: bool = Field(
        default=False,
        description="note why each prompt token that was not hit was not; takes a quarter of the "
        "run's time, and more where much is evicted",
    )
