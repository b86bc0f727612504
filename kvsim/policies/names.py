"""A cache policy in a few words, the same in every table, plot and report."""

from __future__ import annotations

_QUEUES = {
    "append": "append",
    "prepend-uncached-window": "prepend window",
    "prepend-uncached": "prepend",
}


def policy_name(
    free_queue: str,
    retention_interval: int | None,
    *,
    retention: str | None = None,
    has_window_groups: bool = True,
    enable_caching: bool = True,
) -> str:
    """The free-queue order and the retention interval: "prepend, every 4,096", "append, dense".

    Args:
        free_queue: the order by its name in a scenario.
        retention_interval: tokens; None is dense, 0 keeps replay boundaries and junctions only.
        retention: a policy in place of the interval, in a few words.
        has_window_groups: without them the interval changes nothing and is left out.
        enable_caching: without it neither does anything.
    """
    if not enable_caching:
        return "no caching"
    queue = _QUEUES.get(free_queue, free_queue)
    kept = interval_name(retention_interval) if retention is None else retention
    return f"{queue}, {kept}" if has_window_groups else queue


def interval_name(retention_interval: int | None) -> str:
    """A retention interval in words: dense, boundary, every 4,096."""
    if retention_interval is None:
        return "dense"
    return "boundary" if retention_interval == 0 else f"every {retention_interval:,}"
