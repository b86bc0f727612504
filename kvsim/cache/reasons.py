"""Why each prompt token that was not hit was not: one reason a token, by its first obstacle.

One file because the reasons are differences: where one world changes, its neighbours do.

The prompt is cut at the positions to which lookups in better and better worlds would have come, so
that each reason is the difference of two of them and the sum is exact:

- the hit there was, with what a tier had;
- what would have been hit, had nothing been evicted (up to here: *evicted*, or *preempted* where
  the last to hold the block was preempted);
- had every run been kept as well, and every state (*not retained*, *no state*);
- had no look-ahead block been dropped (*look-ahead*);
- had hits come in single tokens (*below a unit*), and the last token not to be computed (*last*);
- what anybody had computed; had all who were admitted before computed all they have (*not
  computed*, or *preempted* where who would have computed it was preempted before);
- the rest was *never seen*; of a trace whose ids stand for many tokens the first unseen id may have
  been shared in part (*coarse id*); a fleet tells what was on another replica (*elsewhere*).

An evicted token belongs to the group whose lookup stopped short of it, in the order in which groups
are asked. In full attention its own block says who took it, or where that is still cached the first
missing one before it; in a window group the block that the run at the upper end lacks, in a group
of states the last one there was, or where nothing was ever kept so low the eviction that made a hit
end there.
"""

from __future__ import annotations

from kvsim.cache.block_pool import EVICTED as NUM_EVICTED
from kvsim.cache.block_pool import NOTED, NUM_GROUPS_MAX, RETAINED, Pool, Rows, find_block
from kvsim.cache.content import Ints, block_key, span_at
from kvsim.cache.coordinator import HIT, NUM_ARRAYS, Arrays, assemble, longest_hit_kept
from kvsim.cache.hybrid import hybrid_hit_kept
from kvsim.cache.ledger import (
    COMPUTED,
    CUTS_SIZE,
    ENTERED,
    NUM_CAUSES,
    Ledger,
    cause_of,
    eviction_of,
    is_remembered,
    ledger_at,
)
from kvsim.cache.progress import find_known, know_spans
from kvsim.jit import njit, njit_apart
from kvsim.policies.retention import DENSE

# Entries of an answer: tokens by reason, in the order of `kvsim.metrics.misses.MISS_REASONS`; the
# last is an eviction that is remembered no longer. Then what else is told of the request.
NEVER_SEEN, ELSEWHERE, COARSE_ID, NOT_COMPUTED, LOST_WITH_HOLDER, LAST_TOKEN, BELOW_UNIT = range(7)
LOOK_AHEAD, NOT_RETAINED, NO_STATE, EVICTED, EARLIER = 7, 8, 9, 10, 10 + NUM_CAUSES
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
# Tokens not retained (states too), and evicted, by group.
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
def _event_of_missing(
    pool: Pool, ledger: Ledger, groups: Rows, group: int, uid: int, index: int
) -> int:
    """The event in which a block that a spec lacks was evicted, or that there is none."""
    while group >= 0:
        key = block_key(uid, index, group)
        if find_block(pool, key) == 0:
            event = eviction_of(ledger, key)
            return event if event > 0 else _UNKNOWN
        group = groups[group].mate
    return _PRESENT


@njit_apart
def _event_up_to(
    pool: Pool,
    ledger: Ledger,
    groups: Rows,
    group: int,
    uids: Ints,
    ends: Ints,
    low: int,
    high: int,
    unit: int,
    number_unit: int,
) -> int:
    """The last of the boundaries above ``low`` at which a spec has lost something to an eviction.

    Args:
        pool: the pool.
        ledger: its ledger.
        groups: the groups.
        group: the first of its spec.
        uids: of the spans.
        ends: their ends.
        low: tokens.
        high: tokens; not beyond what somebody has computed.
        unit: between boundaries, in tokens.
        number_unit: what the numbers in keys count, in tokens.

    Returns:
        Its event; `_UNKNOWN` where there is none.
    """
    ahead = groups[group].key_lookahead
    position = high // unit * unit
    while position > low:
        if position + ahead <= ends[-1]:
            span = span_at(ends, len(ends), position + ahead)
            number = position // number_unit
            found = _event_of_missing(pool, ledger, groups, group, uids[span], number)
            if found >= 0:
                return found
        position -= unit
    return _UNKNOWN


@njit_apart
def _charge(ledger: Ledger, reasons: Ints, group: int, event: int, num: int) -> None:
    """So many tokens are lost to an eviction."""
    if num == 0:
        return
    reason = EARLIER
    if is_remembered(ledger, event):
        row = ledger.events[event & (len(ledger.events) - 1)]
        reason = EVICTED + cause_of(row.taker)
        if row.user & 1:
            reason = LOST_WITH_HOLDER
        reasons[LIFE_MS] += num * (row.evicted_ms - row.used_ms)
        reasons[LIFE_TOKENS] += num
    reasons[reason] += num
    if reason != LOST_WITH_HOLDER:
        reasons[LOST_BY_GROUP + NUM_GROUPS_MAX + group] += num


@njit_apart
def _tell(pool: Pool, ledger: Ledger, reasons: Ints, group: int, event: int) -> None:
    """The block next to the hit is the one to tell of."""
    reasons[EVICTED_GROUP] = group
    reasons[TAKER] = NOBODY
    if is_remembered(ledger, event):
        row = ledger.events[event & (len(ledger.events) - 1)]
        reasons[EVICTED_MS] = row.evicted_ms
        reasons[USED_MS] = row.used_ms
        reasons[TAKER] = row.taker
        reasons[SINCE] = pool.totals[NUM_EVICTED] - row.number


@njit_apart
def _charge_full(
    pool: Pool,
    ledger: Ledger,
    groups: Rows,
    group: int,
    uids: Ints,
    ends: Ints,
    low: int,
    high: int,
    num_computed: int,
    number_unit: int,
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
        end = (position // size + 1) * size
        if end + ahead > num_computed:
            if number_unit < size and place == _PRESENT:  # a part of the block was known
                most = min(high, num_computed - ahead)
                place = _event_up_to(
                    pool,
                    ledger,
                    groups,
                    group,
                    uids,
                    ends,
                    position,
                    most,
                    number_unit,
                    number_unit,
                )
                first = place
                _tell(pool, ledger, reasons, group, place)
            break
        while span < num_spans - 1 and ends[span] < end + ahead:
            span += 1
        number = end // number_unit
        found = _event_of_missing(pool, ledger, groups, group, uids[span], number)
        tokens = max(0, min(end, high) - position)
        if found != _PRESENT:
            if place == _PRESENT:
                first = found
                _tell(pool, ledger, reasons, group, found)
                _charge(ledger, reasons, group, found, pending)
                pending = 0
            place = found
        if place == _PRESENT:
            pending += tokens
        else:
            _charge(ledger, reasons, group, place, tokens)
        position = end
    if place == _PRESENT:
        place = _UNKNOWN
        _tell(pool, ledger, reasons, group, place)
    _charge(ledger, reasons, group, place, pending + max(0, high - position))
    return first


@njit_apart
def _charge_window(
    pool: Pool,
    ledger: Ledger,
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
            found = _event_of_missing(pool, ledger, groups, group, uids[span], number)
            if found >= 0:
                place = found
                break
        boundary -= alignment
    if place != _UNKNOWN:
        _tell(pool, ledger, reasons, group, place)
        _charge(ledger, reasons, group, place, high - low)
    return place


# --- the reasons ---


@njit
def _hit_kept(
    arrays: Arrays, answer: Ints, uids: Ints, ends: Ints, level: int, num_computed: int
) -> int:
    if len(arrays) > NUM_ARRAYS:
        hybrid_hit_kept(arrays, answer, uids, ends, level, num_computed)
    else:
        longest_hit_kept(arrays, answer, uids, ends, level, num_computed)
    hit: int = answer[HIT]
    return hit


@njit
def _charge_not_kept(
    groups: Rows, ledger: Ledger, reasons: Ints, kept: int, best: int, has_states: bool
) -> None:
    """Tokens from ``kept`` to ``best`` are lost to what was not kept; the cuts say in which group.

    In caches with groups of states what those lacked, and parts of blocks of attention that were
    not entered because nobody could have resumed there, count as no state.
    """
    reasons[NOT_RETAINED] = best - kept
    cuts = ledger.cuts[CUTS_SIZE:]
    for i in range(cuts[0]):
        group = cuts[1 + 3 * i]
        lost = min(best, cuts[3 + 3 * i]) - max(kept, cuts[2 + 3 * i])
        if lost <= 0:
            continue
        reasons[NOT_RETAINED_GROUP] = group
        reasons[LOST_BY_GROUP + group] += lost
        if has_states and groups[group].sliding_window == 0:
            reasons[NOT_RETAINED] -= lost
            reasons[NO_STATE] += lost


@njit_apart
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
        answer: int64, as long as the cache's, scratch.
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
    ledger = ledger_at(pool.totals[NOTED])
    known = ledger.known
    know_spans(ledger, uids, output_uid)
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
    unit = rules.alignment if rules.hit_unit == 0 else rules.hit_unit
    whole = max(found, top // unit * unit)
    reasons[BELOW_UNIT] = top - whole
    reasons[BEST] = whole
    reasons[KEPT] = whole
    if whole == found:
        return
    best = max(found, min(whole, _hit_kept(arrays, answer, uids, ends, COMPUTED, computed)))
    reasons[LOOK_AHEAD] = whole - best
    reasons[BEST] = best
    reasons[KEPT] = best
    if best == found:
        return
    kept = best
    has_states, has_window = False, False
    is_sparse = rules.retention_interval != DENSE or pool.totals[RETAINED] != 0
    for group in groups:
        has_states |= group.states != 0
        has_window |= group.sliding_window != 0
        is_sparse |= group.chunked != 0  # what lies before a chunk nobody needs to hold
    if has_states or has_window and is_sparse:
        hit = _hit_kept(arrays, answer, uids, ends, ENTERED, computed)
        kept = max(found, min(best, hit))
        reasons[KEPT] = kept
        _charge_not_kept(groups, ledger, reasons, kept, best, has_states)
    number_unit = rules.hash_block_size
    last_group, last_event = 0, _UNKNOWN
    for i in range(ledger.cuts[0]):
        group = ledger.cuts[1 + 3 * i]
        row = groups[group]
        low = max(found, ledger.cuts[2 + 3 * i])
        high = min(kept, ledger.cuts[3 + 3 * i])
        if low >= high:
            continue
        if row.states != 0:
            event = _event_up_to(
                pool,
                ledger,
                groups,
                group,
                uids,
                ends,
                low,
                high,
                min(unit, row.block_size),
                number_unit,
            )
            if event != _UNKNOWN:
                _tell(pool, ledger, reasons, group, event)
                _charge(ledger, reasons, group, event, high - low)
        elif row.sliding_window == 0 or row.chunked != 0:
            event = _charge_full(
                pool,
                ledger,
                groups,
                group,
                uids,
                ends,
                low,
                high,
                computed,
                number_unit if has_states else row.block_size,
                reasons,
            )
        else:
            event = _charge_window(
                pool, ledger, groups, group, uids, ends, low, high, computed, unit, reasons
            )
        if event == _UNKNOWN and row.is_full == 0 and row.chunked == 0:
            _charge(ledger, reasons, last_group, last_event, high - low)
            continue
        last_group, last_event = group, event
