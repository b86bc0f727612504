"""What the engine does where a key is left out: by the GPU's memory and by its release."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.policies.profiles import PROFILES

_GIB = 2**30


@dataclass(frozen=True)
class BatchDefaults:
    """How much a step may hold.

    Attributes:
        max_num_batched_tokens: tokens of a step.
        max_num_seqs: requests that run at once.
        reason: why these.
    """

    max_num_batched_tokens: int
    max_num_seqs: int
    reason: str


def batch_defaults(gpu: str | None, hbm_bytes: int | None) -> BatchDefaults:
    """The server's defaults on a GPU (vLLM 0.33, ``EngineArgs.get_batch_defaults``).

    Args:
        gpu: its name; None where none is named.
        hbm_bytes: its memory; None likewise.
    """
    if hbm_bytes is None:
        reason = "the engine's default from 70 GiB on; no GPU is named"
        return BatchDefaults(8192, 1024, reason)
    memory = f"on a {gpu} ({hbm_bytes / _GIB:.0f} GiB)"
    if hbm_bytes >= 160 * _GIB:
        return BatchDefaults(16384, 1024, f"the engine's default {memory}: 160 GiB or more")
    if hbm_bytes >= 70 * _GIB:
        return BatchDefaults(8192, 1024, f"the engine's default {memory}: 70 to 160 GiB")
    return BatchDefaults(2048, 256, f"the engine's default {memory}: below 70 GiB")


def async_default(profile: str) -> tuple[bool, str]:
    """Whether steps overlap where the scenario does not say, and why."""
    if PROFILES[profile].has_async:
        return True, f"default of {profile}"
    return False, f"how steps of {profile} overlap is not recorded"
