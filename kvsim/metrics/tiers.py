"""The figures of a tier: what went into it, what came back, and whether that paid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

TIER_KEYS: dict[str, str] = {
    "bytes_stored": "bytes of the groups' own that were stored, all copies",
    "bytes_loaded": "the same of what was loaded, counted once whatever ranks load it",
    "chunks_stored": "chunks that were new to the tier and stored",
    "chunks_loaded": "chunks loaded, each time",
    "chunks_evicted": "chunks that had to leave for others",
    "stores_refused": "offers there was no room for",
    "capacity_bytes": "what the tier has room for, in whole chunks",
    "used_bytes_max": "the most it ever held, in chunks of the pool's block width",
    "loaded_share": "share of the bytes stored that were ever loaded, 0 to 1",
    "store_utilization": "share of the simulated time in which the link carried stores, 0 to 1",
    "load_utilization": "the same for loads",
    "break_even_bytes_per_s": "bandwidth of the link, efficiency included, below which computing "
    "again all that was loaded would have been quicker; null where nothing was",
    "by_group": "by KV cache group, in order: `chunks_stored`, `bytes_stored`, `chunks_loaded`, "
    "`bytes_loaded`",
}
"""Keys of a tier in `summary.json`, each with its meaning."""

SOURCES = ("device", "cpu", "remote")
"""Where a token of a prompt can come from instead of being computed."""


@dataclass(frozen=True, slots=True)
class TierFigures:
    """A tier at the end of a run; see `TIER_KEYS` for what each figure means.

    Attributes:
        name: as in the summary.
        source: of `SOURCES`, where its tokens count; None for one that is not next to the device.
        chunks_stored: by group, as are the next three.
        bytes_stored: see above.
        chunks_loaded: see above.
        bytes_loaded: see above.
        bytes_loaded_once: of the bytes stored, those that were loaded at least once.
        chunks_evicted: as in `TIER_KEYS`, as are the others.
        stores_refused: see above.
        capacity_bytes: see above.
        used_bytes_max: see above.
        store_utilization: see above.
        load_utilization: see above.
        break_even_bytes_per_s: see above.
    """

    name: str
    source: str | None
    chunks_stored: Sequence[int]
    bytes_stored: Sequence[int]
    chunks_loaded: Sequence[int]
    bytes_loaded: Sequence[int]
    bytes_loaded_once: int
    chunks_evicted: int
    stores_refused: int
    capacity_bytes: int
    used_bytes_max: int
    store_utilization: float | None
    load_utilization: float | None
    break_even_bytes_per_s: float | None

    def as_json(self) -> dict[str, Any]:
        """The keys of `TIER_KEYS`, plain Python."""
        stored = sum(self.bytes_stored)
        figures = {
            "bytes_stored": stored,
            "bytes_loaded": sum(self.bytes_loaded),
            "chunks_stored": sum(self.chunks_stored),
            "chunks_loaded": sum(self.chunks_loaded),
            "chunks_evicted": self.chunks_evicted,
            "stores_refused": self.stores_refused,
            "capacity_bytes": self.capacity_bytes,
            "used_bytes_max": self.used_bytes_max,
            "loaded_share": self.bytes_loaded_once / stored if stored else None,
            "store_utilization": self.store_utilization,
            "load_utilization": self.load_utilization,
            "break_even_bytes_per_s": self.break_even_bytes_per_s,
            "by_group": [
                {
                    "chunks_stored": chunks_stored,
                    "bytes_stored": bytes_stored,
                    "chunks_loaded": chunks_loaded,
                    "bytes_loaded": bytes_loaded,
                }
                for chunks_stored, bytes_stored, chunks_loaded, bytes_loaded in zip(
                    self.chunks_stored,
                    self.bytes_stored,
                    self.chunks_loaded,
                    self.bytes_loaded,
                    strict=True,
                )
            ],
        }
        return {key: figures[key] for key in TIER_KEYS}
