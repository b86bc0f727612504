"""`kvsim-mooncake/1`: the scheduler with a connector to a Mooncake store, step by step."""

from __future__ import annotations

from typing import Any

from kvsim.cache.manager import KVCache
from kvsim.cache.spec import MAX_BLOCKS
from kvsim.offload.mooncake_states import store_connector
from kvsim.offload.mooncake_store import MooncakeStore
from kvsim.offload.transfers import Connector, Transfers
from kvsim.verify.offload import TieredEngine, follow_engine
from kvsim.verify.reading import Transcript
from kvsim.verify.report import Following

_HEAD_LENGTH = 12
"""So many ids of the free queue stand in a step."""


def follow(transcript: Transcript) -> Following:
    """Let the requests arrive, run step after step, and yield every answer beside the core's.

    Raises:
        TranscriptError: a request that stands twice or is longer than the model takes.
    """
    yield from follow_engine(transcript, _Mooncake(transcript))


class _Mooncake(TieredEngine):
    """A scheduler and a store of its own, which nothing ever leaves."""

    def _connect(self, transcript: Transcript, cache: KVCache) -> Connector:
        self._store = MooncakeStore(MAX_BLOCKS)
        self._connector = store_connector(cache, self._store)
        self._num_loads = 0
        return self._connector

    def _tier_answers(self, transfers: Transfers) -> dict[str, Any]:
        self._num_loads += len(transfers.loads)
        return {
            "saves": [[job.name, *self._connector.saving(job.number)] for job in transfers.stores],
            "loads": [job.name for job in transfers.loads],
        }

    def _end_answers(self) -> dict[str, Any]:
        return {"queue": self._scheduler.cache.free_queue(_HEAD_LENGTH).tolist()}

    def _tier_totals(self) -> dict[str, Any]:
        return {
            "external_queries": self._connector.external_queries,
            "external_hits": self._connector.external_hits,
            "saved": self._store.num_used,
            "loaded": self._num_loads,
        }
