"""Why each prompt token that was not hit was not: one reason a token, by its first obstacle.

The prompt is cut at the positions to which lookups in better and better worlds would have come, so
that each reason is the difference of two of them and the sum is exact:

- the hit there was, with what a tier had;
- what would have been hit, had nothing been evicted (up to here: *evicted*, or *preempted* where
  the last to hold the block was preempted);
- had every run been kept as well (*not retained*);
- had no look-ahead block been dropped (*look-ahead*);
- had hits come in single tokens (*below a unit*), and the last token not to be computed (*last*);
- what anybody had computed; had all who were admitted before computed all they have (*not
  computed*, or *preempted* where who would have computed it was preempted before);
- the rest was *never seen*; of a trace whose ids stand for many tokens the first unseen id may have
  been shared in part (*coarse id*).

An evicted token belongs to the group whose lookup stopped short of it, in the order in which groups
are asked. In full attention its own block says who took it, or where that is still cached the first
missing one before it; in a window group the block that the run at the upper end lacks, or where
nothing was ever kept so low the eviction that made a hit end there.
"""

from __future__ import annotations

from kvsim.cache.block_pool import EVICTED as NUM_EVICTED
from kvsim.cache.block_pool import NUM_GROUPS_MAX, Pool, Rows, find_block
from kvsim.cache.content import Ints, block_key, span_at
from kvsim.cache.coordinator import (
    CUTS,
    HIT,
    NUM_CUTS,
    Arrays,
    assemble,
    longest_hit_kept,
)
from kvsim.cache.groups import COMPUTED, ENTERED
from kvsim.cache.ledger import (
    NUM_CAUSES,
    cause_of,
    eviction_of,
    find_known,
    is_remembered,
    know_spans,
)
from kvsim.jit import njit
from kvsim.policies.retention import DENSE

# Entries of an answer: tokens by reason, in the order of `kvsim.metrics.misses.MISS_REASONS`; the
# last is an eviction that is remembered no longer. Then what else is told of the request.
NEVER_SEEN, COARSE_ID, NOT_COMPUTED, LOST_WITH_HOLDER, LAST_TOKEN, BELOW_UNIT = range(6)
LOOK_AHEAD, NOT_RETAINED, EVICTED, EARLIER = 6, 7, 8, 8 + NUM_CAUSES
NUM_REASONS = EARLIER + 1
# Hits had everything been kept, and had nothing been evicted; numbers of the request with the most
# in common, and of the one that was to compute what nobody has; groups; of the missing block next
# to the hit: when it was evicted, last used, for whom, and evictions since; tokens times the ms
# from last use to eviction, and the tokens of which that is known.
(
    BEST,
    KEPT,
    SHARED_WITH,
    AWAITED,
    NOT_RETAINED_GROUP,
    EVICTED_GROUP,
    EVICTED_MS,
    USED_MS,
    TAKER,
    SINCE,
    LIFE_MS,
    LIFE_TOKENS,
) = range(NUM_REASONS, NUM_REASONS + 12)
# Tokens not retained, and evicted, by group.
LOST_BY_GROUP = LIFE_TOKENS + 1
REASONS_SIZE = LOST_BY_GROUP + 2 * NUM_GROUPS_MAX
NOBODY = -1

_UNKNOWN, _PRESENT = -1, -2


# --- what is known of a prompt ---


@njit
def _known_prefix(known: Rows, uids: Ints, ends: Ints, admitted: bool) -> tuple[int, int]:
    """The longest prefix that somebody computed, or was admitted with; and who has it last."""
    prefix, who = 0, NOBODY
    for span in range(len(ends)):
        row = known[find_known(known, uids[span])]
        if row.uid == 0:
            break
        reach, by = row.computed, row.computed_by
        if admitted and row.admitted >= reach:
            reach, by = row.admitted, row.admitted_by
        if reach > prefix:
            prefix, who = min(reach, ends[span]), by
        if reach < ends[span]:
            break
    return prefix, who


@njit
def _awaited(known: Rows, uids: Ints, ends: Ints, position: int) -> int:
    """Who was admitted with the token behind a position."""
    row = known[find_known(known, uids[span_at(ends, len(ends), position + 1)])]
    who: int = row.admitted_by
    return who if row.uid != 0 else NOBODY


# --- who has taken what is missing ---


@njit
def _event_of_missing(pool: Pool, groups: Rows, group: int, uid: int, index: int) -> int:
    """The event in which a block that a spec lacks was evicted, or that there is none."""
    while group >= 0:
        key = block_key(uid, index, group)
        if find_block(pool, key) == 0:
            event = eviction_of(pool.ledger, key)
            return event if event > 0 else _UNKNOWN
        group = groups[group].mate
    return _PRESENT


@njit
def _charge(pool: Pool, reasons: Ints, group: int, event: int, num_tokens: int) -> None:
    """Tokens are lost to an eviction."""
    if num_tokens == 0:
        return
    reason = EARLIER
    if is_remembered(pool.ledger, event):
        row = pool.ledger.events[event & (len(pool.ledger.events) - 1)]
        reason = EVICTED + cause_of(row.taker)
        if row.user & 1:
            reason = LOST_WITH_HOLDER
        reasons[LIFE_MS] += num_tokens * (row.evicted_ms - row.used_ms)
        reasons[LIFE_TOKENS] += num_tokens
    reasons[reason] += num_tokens
    if reason != LOST_WITH_HOLDER:
        reasons[LOST_BY_GROUP + NUM_GROUPS_MAX + group] += num_tokens


@njit
def _tell(pool: Pool, reasons: Ints, group: int, event: int) -> None:
    """The block next to the hit is the one to tell of."""
    reasons[EVICTED_GROUP] = group
    reasons[TAKER] = NOBODY
    if is_remembered(pool.ledger, event):
        row = pool.ledger.events[event & (len(pool.ledger.events) - 1)]
        reasons[EVICTED_MS] = row.evicted_ms
        reasons[USED_MS] = row.used_ms
        reasons[TAKER] = row.taker
        reasons[SINCE] = pool.totals[NUM_EVICTED] - row.number


@njit
def _charge_full(
    pool: Pool,
    groups: Rows,
    group: int,
    uids: Ints,
    ends: Ints,
    low: int,
    high: int,
    num_computed: int,
    reasons: Ints,
) -> int:
    """Tokens from low to high that full attention lacks, block after block; the first event."""
    size, ahead = groups[group].block_size, groups[group].key_lookahead
    num_spans = len(ends)
    span = span_at(ends, num_spans, min(num_computed, low + 1 + ahead))
    place = _PRESENT
    first = _UNKNOWN
    pending = 0  # tokens that are still cached, before the first that is not
    position = low
    # Where a look-ahead block was dropped, the one that is missing lies behind.
    while position < high or place == _PRESENT:
        index = position // size + 1
        end = index * size
        if end + ahead > num_computed:
            break
        while span < num_spans - 1 and ends[span] < end + ahead:
            span += 1
        found = _event_of_missing(pool, groups, group, uids[span], index)
        tokens = max(0, min(end, high) - position)
        if found != _PRESENT:
            if place == _PRESENT:
                first = found
                _tell(pool, reasons, group, found)
                _charge(pool, reasons, group, found, pending)
                pending = 0
            place = found
        if place == _PRESENT:
            pending += tokens
        else:
            _charge(pool, reasons, group, place, tokens)
        position = end
    if place == _PRESENT:
        place = _UNKNOWN
        _tell(pool, reasons, group, place)
    _charge(pool, reasons, group, place, pending + max(0, high - position))
    return first


@njit
def _charge_window(
    pool: Pool,
    groups: Rows,
    group: int,
    uids: Ints,
    ends: Ints,
    low: int,
    high: int,
    num_computed: int,
    alignment: int,
    reasons: Ints,
) -> int:
    """Tokens from low to high that a window group lacks: what its run at the upper end lacks.

    Returns:
        The event of that eviction; `_UNKNOWN`, and nothing is charged, where the group never had
        what it lacks: only the loss of what lies beyond has made it needed.
    """
    row = groups[group]
    size, ahead = row.block_size, row.key_lookahead
    needed = max(1, row.num_to_resume + row.eagle)
    boundary = high // alignment * alignment
    place = _UNKNOWN
    while boundary > low and place == _UNKNOWN:
        index = boundary // size + row.eagle
        for number in range(index, max(0, index - needed), -1):
            if number * size + ahead > num_computed:
                continue
            span = span_at(ends, len(ends), number * size + ahead)
            found = _event_of_missing(pool, groups, group, uids[span], number)
            if found >= 0:
                place = found
                break
        boundary -= alignment
    if place != _UNKNOWN:
        _tell(pool, reasons, group, place)
        _charge(pool, reasons, group, place, high - low)
    return place


# --- the reasons ---


@njit
def find_reasons(
    arrays: Arrays,
    answer: Ints,
    reasons: Ints,
    uids: Ints,
    ends: Ints,
    output_uid: int,
    num_hit: int,
    num_external: int,
    coarse_tokens: int,
) -> None:
    """Why the lookup that was made last did not hit more.

    Args:
        arrays: the cache, with a ledger that has room for the spans.
        answer: int64 [`ANSWER_SIZE`], scratch.
        reasons: int64 [`REASONS_SIZE`], all 0; written.
        uids: the spans of the prompt, at least one.
        ends: their ends in tokens.
        output_uid: of the span that its answer is written to.
        num_hit: tokens of the hit.
        num_external: tokens beyond it that a tier has.
        coarse_tokens: tokens that an id of the trace stands for; 0 where content is exact.
    """
    core = assemble(arrays)
    pool, groups, rules = core.pool, core.tables.groups, core.rules[0]
    known = pool.ledger.known
    know_spans(pool.ledger, uids, output_uid)
    reasons[SHARED_WITH : TAKER + 1] = NOBODY
    total = ends[-1]
    found = min(total, num_hit + num_external)
    computed, _ = _known_prefix(known, uids, ends, False)
    seen, who = _known_prefix(known, uids, ends, True)
    computed = max(computed, found)
    seen = max(seen, computed)
    apart = seen
    if coarse_tokens > 0 and seen < total:
        apart = min(total, (seen // coarse_tokens + 1) * coarse_tokens)
    reasons[SHARED_WITH] = who
    reasons[NEVER_SEEN] = total - apart
    reasons[COARSE_ID] = apart - seen
    reasons[NOT_COMPUTED] = seen - computed
    if seen > computed:
        reasons[AWAITED] = _awaited(known, uids, ends, computed)
    top = computed
    if top == total and top > found:
        reasons[LAST_TOKEN] = 1
        top -= 1
    whole = max(found, top // rules.alignment * rules.alignment)
    reasons[BELOW_UNIT] = top - whole
    reasons[BEST] = whole
    reasons[KEPT] = whole
    if whole == found:
        return
    longest_hit_kept(arrays, answer, uids, ends, COMPUTED, computed)
    best = max(found, min(whole, answer[HIT]))
    reasons[LOOK_AHEAD] = whole - best
    reasons[BEST] = best
    reasons[KEPT] = best
    if best == found:
        return
    kept = best
    has_window = False
    for group in groups:
        has_window |= group.sliding_window != 0
    if has_window and rules.retention_interval != DENSE:
        longest_hit_kept(arrays, answer, uids, ends, ENTERED, computed)
        kept = max(found, min(best, answer[HIT]))
        reasons[NOT_RETAINED] = best - kept
        reasons[KEPT] = kept
        for i in range(answer[NUM_CUTS]):
            group = answer[CUTS + 3 * i]
            low, high = answer[CUTS + 3 * i + 1], answer[CUTS + 3 * i + 2]
            lost = min(best, high) - max(kept, low)
            if lost > 0:
                reasons[NOT_RETAINED_GROUP] = group
                reasons[LOST_BY_GROUP + group] += lost
    last_group, last_event = 0, _UNKNOWN
    for i in range(core.answer[NUM_CUTS]):
        group = core.answer[CUTS + 3 * i]
        low = max(found, core.answer[CUTS + 3 * i + 1])
        high = min(kept, core.answer[CUTS + 3 * i + 2])
        if low >= high:
            continue
        if groups[group].sliding_window == 0:
            event = _charge_full(pool, groups, group, uids, ends, low, high, computed, reasons)
        else:
            event = _charge_window(
                pool, groups, group, uids, ends, low, high, computed, rules.alignment, reasons
            )
            if event == _UNKNOWN:
                _charge(pool, reasons, last_group, last_event, high - low)
                continue
        last_group, last_event = group, event
