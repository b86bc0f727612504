"""Who waits is known to compiled code in the order of the queue, whatever happens to that."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cache.manager import KVCache
from kvsim.cache.manager import Sequence as CacheSequence
from kvsim.engine.jobs import Job
from kvsim.engine.lanes import (
    END_TOKENS,
    HEAD,
    KNOWN,
    NUM_PROMPT,
    NUM_SPANS,
    NUM_WAITING,
    OUTPUT_UID,
    ROOM,
    SEAT,
    START,
    Lane,
)
from kvsim.engine.waiting import WaitingQueue
from tests.engine.stepped import case, request


def check(lane: Lane, waiting: WaitingQueue) -> None:
    """What compiled code would read is what waits."""
    arrays = lane.arrays
    jobs = list(waiting)
    known = int(arrays.meter[KNOWN])
    fresh = next((i for i, job in enumerate(jobs) if job.num_preemptions), len(jobs))
    assert known == min(ROOM, fresh)
    assert arrays.meter[NUM_WAITING] == len(jobs)
    columns = [(int(arrays.meter[HEAD]) + i) % ROOM for i in range(known)]
    assert len({int(arrays.waiting[column, SEAT]) for column in columns}) == known
    for job, column in zip(jobs, columns, strict=False):
        row = arrays.waiting[column]
        spans = slice(row[START], row[START] + row[NUM_SPANS])
        content = job.sequence.content
        assert arrays.spans[0, spans].tolist() == list(content.uids)
        assert arrays.spans[1, spans].tolist() == list(content.ends)
        assert row[NUM_PROMPT] == job.request.num_prompt_tokens
        assert row[OUTPUT_UID] == job.request.output_uid
        whole = job.request.num_prompt_tokens + job.request.num_output_tokens
        assert row[END_TOKENS] == min(whole, 1024)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(("arrive", "arrive", "arrive", "admit", "admit", "pop", "back", "remove")),
        st.integers(1, 40),
    ),
    max_size=60,
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(EVENTS, st.sampled_from((1, 3, 300)))
def test_the_queue_is_what_compiled_code_sees(events: list[tuple[str, int]], spans: int) -> None:
    made = case([])
    cache = KVCache(made.config)
    lane, waiting = Lane(cache, made.limits, spares_lone=False), WaitingQueue(by_priority=False)
    number = 0
    for what, count in events:
        if what == "arrive":
            for _ in range(count):
                number += 1
                one = request(number, 0.0, [(spans * number + i, 1) for i in range(spans)], count)
                sequence = CacheSequence(one.content, one.num_prompt_tokens)
                waiting.add(Job(one, sequence))
        elif what == "admit":
            for _ in range(min(count, int(lane.arrays.meter[KNOWN]))):
                first = waiting.first
                lane.arrays.meter[HEAD] = (lane.arrays.meter[HEAD] + 1) % ROOM
                job, hit = lane.take_admitted(waiting, [16, 0, 16])
                assert job is first
                assert job.sequence.slot >= 0
                assert hit.tokens == 16
                cache.let_go_of_slot(job.sequence.slot)
        elif waiting and what == "pop":
            waiting.pop()
        elif waiting and what == "back":
            job = waiting.pop()
            job.num_preemptions += 1
            waiting.put_back([job])
        elif waiting and what == "remove":
            waiting.remove(list(waiting)[count % len(waiting)])
        lane.take_in(waiting, 0)
        check(lane, waiting)
    slots = cache.core.tables.sequences
    assert len(slots) <= 4 * ROOM, "slots were lost"
