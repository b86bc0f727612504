"""An engine for the tests: a scheduler, a tier, and transfers that take whole steps."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvsim.cache.config import CacheConfig
from kvsim.cache.content import GROUP_BITS, NUMBER_BITS, Content, Ints
from kvsim.cache.manager import KVCache
from kvsim.cache.spec import GroupSpec
from kvsim.engine.jobs import SchedulerConfig, StepPlan
from kvsim.engine.scheduler import Scheduler
from kvsim.offload.connector import OffloadConnector
from kvsim.offload.cpu_tier import ChunkTier
from kvsim.workload.request import Request

FULL = (GroupSpec("full", 16),)
STATES = (GroupSpec("mamba", 16, checkpoint_alignment=1), GroupSpec("full", 16))
SPLIT_STATES = (GroupSpec("mamba", 16), GroupSpec("mamba", 16), GroupSpec("full", 16))
STATES_AND_WINDOW = (
    GroupSpec("full", 16),
    GroupSpec("sliding_window", 16, 40),
    GroupSpec("mamba", 16, checkpoint_alignment=1),
)
"""Groups of states: exported from inside a chunk, or at its end, and with a window beside them."""

HYBRID = (GroupSpec("full", 32), GroupSpec("sliding_window", 8, 8))
"""The two groups of the published mask tests."""
V4 = (
    GroupSpec("full", 256),
    GroupSpec("sliding_window", 64, 128),
    GroupSpec("sliding_window", 64, 128),
    GroupSpec("sliding_window", 4, 8),
    GroupSpec("sliding_window", 8, 128),
)

Keys = list[tuple[int, int, int]]
"""By chunk: group, uid, number within the group from 1."""


def named(keys: Ints) -> Keys:
    return [
        (
            key & ((1 << GROUP_BITS) - 1),
            key >> (GROUP_BITS + NUMBER_BITS),
            key >> GROUP_BITS & ((1 << NUMBER_BITS) - 1),
        )
        for key in keys.tolist()
    ]


def request(name: str, spans: list[tuple[int, int]], output: int = 1, uid: int = 0) -> Request:
    """A request; its answer has a uid of its own unless one is given."""
    content = Content.from_spans(spans)
    output_uid = uid or 1_000_000 + int(name.lstrip("abcdefghijklmnopqrstuvwxyz") or 0)
    return Request(name, 0.0, content, content.num_tokens, output, output_uid)


@dataclass
class Engine:
    groups: tuple[GroupSpec, ...] = FULL
    num_blocks: int = 200
    num_chunks: int = 1000
    interval: int | None = None
    blocks_per_chunk: int = 1
    prompt_only: bool = True
    eviction: str = "lru"
    budget: int = 2048
    max_seqs: int = 64
    load_steps: int = 1
    store_steps: int = 1
    unit: int | None = None
    offers: list[tuple[Keys, Keys | None, Keys]] = field(default_factory=list)
    loads: list[Keys] = field(default_factory=list)
    flushed: int = 0

    def __post_init__(self) -> None:
        self.cache = KVCache(
            CacheConfig(
                num_blocks=self.num_blocks,
                groups=self.groups,
                max_model_len=16384,
                max_in_flight_tokens=self.budget,
                retention_interval=self.interval,
                prefix_match_unit=self.unit,
            )
        )
        self.tier = ChunkTier(self.num_chunks, self.eviction)
        self.connector = OffloadConnector(
            self.cache,
            self.tier,
            blocks_per_chunk=self.blocks_per_chunk,
            prompt_only=self.prompt_only,
        )
        self.scheduler = Scheduler(
            self.cache,
            SchedulerConfig(
                max_num_batched_tokens=self.budget,
                max_num_seqs=self.max_seqs,
                max_model_len=16384,
            ),
            self.connector,
        )
        self.num_steps = 0
        self.due: dict[int, int] = {}

    def step(self) -> StepPlan:
        plan = self.scheduler.plan()
        transfers = plan.transfers
        assert transfers is not None
        for offer in transfers.offers:
            stored = None if offer.stored is None else named(offer.stored)
            self.offers.append((named(offer.offered), stored, named(offer.evicted)))
        self.loads += [named(keys) for keys in transfers.loaded]
        self.flushed += len(transfers.flushed)
        now = self.num_steps
        self.due |= {job.number: now + self.load_steps - 1 for job in transfers.loads}
        self.due |= {job.number: now + self.store_steps for job in transfers.stores}
        self.due |= dict.fromkeys(transfers.flushed, now)
        if plan.num_computing:
            self.scheduler.end_step()
        done = [number for number, due in self.due.items() if due <= now]
        for number in done:
            del self.due[number]
        self.scheduler.complete(done)
        self.num_steps += 1
        return plan

    def run(self, *requests: Request) -> None:
        """Let requests arrive at once, and go on until all is done and reported."""
        for each in requests:
            self.scheduler.add(each)
        start = self.num_steps
        while self.scheduler.has_work or self.scheduler.transfers_in_flight:
            plan = self.step()
            assert plan.stuck is None
            assert self.num_steps < start + 5000, "the scheduler does not come to an end"

    def offered(self) -> Keys:
        return [key for keys, _, _ in self.offers for key in keys]
