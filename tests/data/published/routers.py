"""Two routers as they were when they were measured, where kvsim's own are of another release."""

from kvsim.routing import Sees
from kvsim.routing.llm_d import LlmD
from kvsim.routing.llm_d_index import LlmdIndex
from kvsim.routing.lru_index import LruIndex
from kvsim.routing.prefix_index import EventIndex
from kvsim.routing.sglang import SglangCacheAware

EVENTS_AFTER_S = 0.005
"""From a step's end to a gateway that listens to its events. An assumption."""


class Index2025(LlmdIndex):
    """llm-d's approximate index as configured there: 256 blocks of 16 tokens, 31,250 a pod.

    `hashBlockSize: 64` were characters, taken as 4 a token; `maxPrefixBlocksToMatch: 256` leaves
    4,096 tokens of a prompt; `lruCapacityPerServer: 31250`.
    """

    def __init__(self, surroundings):
        super().__init__(surroundings, precise=False)
        self.block_tokens = 16
        self._lru = LruIndex(31_250)

    def _keys(self, request):
        return request.keys(16)[:256]

    def _num_blocks(self, request):
        return len(self._keys(request))


class Estimated2025(LlmD):
    """llm-d of September 2025 with its approximate index."""

    def __init__(self, parameters, surroundings):
        super().__init__(parameters, surroundings)
        self.index = Index2025(surroundings)


class SmgEvents(SglangCacheAware):
    """smg's cache-aware policy by events: longest overlap, the least loaded of equals."""

    sees = Sees(own=True, events_after_s=EVENTS_AFTER_S)

    def __init__(self, parameters, surroundings):
        super().__init__(parameters, surroundings)
        self.index = EventIndex(surroundings.block_tokens)

    def on_events(self, replica, stored, removed, now_s, tier="device"):
        self.index.remove(replica, removed)
        self.index.store(replica, stored)

    def _preferred(self, request, views):
        given, load = self.parameters, views.of(views.in_flight)
        most, least = int(load.max()), int(load.min())
        far = most - least > given.balance_abs_threshold
        if far and most > given.balance_rel_threshold * least:
            return views.replicas[int(load.argmin())]
        held = self.index.overlap(request.content, len(views.in_flight))
        return min(views.replicas, key=lambda one: (-held[one], views.in_flight[one], one))
