"""The engine's releases as sets of rules: what changed in the prefix cache, and when."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.policies.free_queue import (
    APPEND,
    PREPEND_UNCACHED,
    PREPEND_UNCACHED_WINDOW,
    FreeQueuePolicy,
)


@dataclass(frozen=True)
class EngineProfile:
    """How one release of the engine behaves.

    Attributes:
        name: as written in a scenario.
        free_queue: its free-queue order.
        retention_interval: its default, in tokens; None is dense.
        has_retention: it knows a retention interval at all.
        has_junctions: it keeps the run at a shared-prefix junction.
        follows_eagle: it has the newest rules about EAGLE: two replay boundaries; its lookup may
            read the last token; the end of a prompt is entered in the index.
        masks_follow_eagle: masks and the index give an EAGLE group its block beyond a boundary.
        keeps_before_junction: an EAGLE group keeps the run a block before a junction as well.
        keeps_whole_units: every block of a window group is worth keeping whose size is the unit of
            hits; else a window of one token keeps none.
        cuts_every_hit: every full-attention group is cut back to the hit, not only those of the
            first spec: the others keep what their own lookup found.
        counts_lookups: prefix-cache counters count every lookup of a request that waits; else the
            one it is admitted with.
        spares_lone_prefills: a chunk is not cut to the long-prefill threshold while its request is
            the only one.
        goes_on_without_victim: where priorities make a running request take its own blocks, those
            behind it can still be scheduled in that step.
        has_prefill_interval: an engine by itself keeps the interval between steps with prompts;
            else only engines that data parallelism ties together do.
        has_async: how its steps overlap is known; they do by default.
        has_key_lookahead: with a drafter a block's key covers what it reads behind the block; and
            a group flagged for EAGLE drops its block only where EAGLE does that, not always.
        has_states: how it keeps the states of Mamba groups is known.
    """

    name: str
    free_queue: FreeQueuePolicy
    retention_interval: int | None
    has_retention: bool
    has_junctions: bool
    follows_eagle: bool
    masks_follow_eagle: bool
    keeps_whole_units: bool
    cuts_every_hit: bool
    counts_lookups: bool
    spares_lone_prefills: bool
    keeps_before_junction: bool = False
    goes_on_without_victim: bool = False
    has_prefill_interval: bool = False
    has_async: bool = False
    has_key_lookahead: bool = False
    has_states: bool = False


PROFILES = {
    profile.name: profile
    for profile in (
        EngineProfile(
            "vllm-0.22",
            APPEND,
            None,
            has_retention=False,
            has_junctions=False,
            follows_eagle=False,
            masks_follow_eagle=False,
            keeps_whole_units=True,
            cuts_every_hit=False,
            counts_lookups=True,
            spares_lone_prefills=False,
        ),
        EngineProfile(
            "vllm-0.23",
            PREPEND_UNCACHED_WINDOW,
            None,
            has_retention=True,
            has_junctions=False,
            follows_eagle=False,
            masks_follow_eagle=True,
            keeps_whole_units=False,
            cuts_every_hit=False,
            counts_lookups=True,
            spares_lone_prefills=False,
        ),
        EngineProfile(
            "vllm-0.32",
            PREPEND_UNCACHED,
            0,
            has_retention=True,
            has_junctions=True,
            follows_eagle=True,
            masks_follow_eagle=True,
            keeps_whole_units=False,
            cuts_every_hit=True,
            counts_lookups=False,
            spares_lone_prefills=True,
            has_async=True,
        ),
        EngineProfile(
            "vllm-0.33",
            PREPEND_UNCACHED,
            0,
            has_retention=True,
            has_junctions=True,
            follows_eagle=True,
            masks_follow_eagle=True,
            keeps_whole_units=False,
            cuts_every_hit=True,
            counts_lookups=False,
            spares_lone_prefills=True,
            keeps_before_junction=True,
            goes_on_without_victim=True,
            has_prefill_interval=True,
            has_async=True,
            has_key_lookahead=True,
            has_states=True,
        ),
    )
}


def retention_problem(
    interval: int | None, profile: str, scheduler_block_tokens: int, has_window_groups: bool
) -> str | None:
    """Why the engine would refuse a retention interval, or None where it would not.

    Args:
        interval: tokens, 0, or None for dense.
        profile: the engine's release by name.
        scheduler_block_tokens: unit of prefix hits in tokens.
        has_window_groups: the model has a sliding-window or Mamba group.
    """
    if interval is None:
        return None
    unit = scheduler_block_tokens
    if not PROFILES[profile].has_retention:
        return (
            f"{interval} is set, and engine.profile {profile} has no retention interval: it is "
            "dense. Use null, or a later profile."
        )
    if interval > 0 and not has_window_groups:
        return f"{interval} needs a sliding-window group, and the model has none. Use 0 or null."
    if interval < 0 or interval % unit:
        return (
            f"{interval} is not a multiple of the scheduler block ({unit}). "
            f"Use 0, {unit}, {2 * unit}, ... or null."
        )
    return None
