"""What a benchmark does to an engine: so many requests at once, each followed by the next.

A closed loop decides what every step holds without knowing how long steps take: a request arrives
when another one has ended. So the steps are counted once (`run_closed_loop`), and any constants
turn them into seconds afterwards. Engines plan differently (`PLANS`): vLLM mixes decodes and
chunks of prompts in a step; SGLang runs prompts first and alone; TensorRT-LLM takes prompts whole,
and with attention data parallelism holds them back until every rank has one (60 steps at most), as
SGLang does where its prefill delayer is on.

Nothing is cached and windows are not freed early; where memory runs out, the latest request starts
over, as in the engines. Without that the steps are those of the simulator (a test holds them
equal).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.jit import njit
from kvsim.times.step_time import (
    Composition,
    StepTimeParams,
    capped_context_tokens,
    composed_seconds,
)

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MIXED, APART, WHOLE = 0, 1, 2
PLANS = {"vllm": MIXED, "sglang": APART, "tensorrt-llm": WHOLE}
"""How each engine puts prompts and decodes into steps."""
HOLD_STEPS = 60  # timeout_iters of TensorRT-LLM's attention_dp_config in public benchmarks

# Columns of the rows that describe steps: the fields of `Composition`.
TOKENS, ALL_TOKENS, PROMPT_TOKENS, SEQUENCES, KV_BYTES, DECODE_FLOPS, PROMPT_FLOPS = range(7)
DECODE_CONTEXT, PROMPT_CONTEXT, NUM_COLUMNS = 7, 8, 9


class Loop(NamedTuple):
    """What is sent, and how the engine takes it.

    Attributes:
        prompts: int64 [requests], tokens.
        outputs: int64 [requests], tokens, at least 1.
        concurrency: requests at once.
        num_ranks: data-parallel ranks; requests go to them in turn.
        plan: ``MIXED``, ``APART`` or ``WHOLE``.
        hold_steps: that prompts wait at most until every rank has one; 0 not to wait.
        step_tokens: most tokens of a rank's step.
        max_sequences: most requests that run at once on a rank.
        kv_bytes: memory of a rank for KV; 0 for no limit.
        held_bytes: float64 [terms], bytes a request holds per token, up to ``held_cap``.
        held_cap: int64 [terms], tokens.
        tokens_a_step: tokens a decode yields on average, accepted drafts included.
    """

    prompts: Ints
    outputs: Ints
    concurrency: int
    num_ranks: int
    plan: int
    hold_steps: int
    step_tokens: int
    max_sequences: int
    kv_bytes: float
    held_bytes: Floats
    held_cap: Ints
    tokens_a_step: float


class Steps(NamedTuple):
    """What came of it.

    Attributes:
        rows: float64 [steps, NUM_COLUMNS], what each step holds.
        arrival: int64 [requests], the step that begins when it arrives.
        first: int64 [requests], the step that ends with its first token; -1 if none does.
        end: int64 [requests], the step that ends with its last one; -1 if none does.
    """

    rows: Floats
    arrival: Ints
    first: Ints
    end: Ints


@njit
def _held(loop: Loop, tokens: int) -> float:
    total = 0.0
    for term in range(loop.held_cap.size):
        total += loop.held_bytes[term] * min(tokens, loop.held_cap[term])
    return total


@njit
def _reserved(loop: Loop, request: int, made: int) -> int:
    """Tokens that a request is given memory for: all it may need where prompts go whole."""
    if loop.plan == WHOLE:
        return int(loop.prompts[request] + loop.outputs[request])
    return int(loop.prompts[request] + made + 1)


@njit
def _count(
    params: StepTimeParams, row: Floats, before: int, new: int, decodes: bool, checked: int
) -> None:
    """Add what a request computes to its rank's row."""
    for term in range(params.cap.size):
        cap = params.cap[term]
        row[KV_BYTES] += params.kv_bytes[term] * min(before + new, cap)
        if decodes:
            row[DECODE_FLOPS] += params.decode_flops[term] * checked * min(before + new, cap)
        else:
            seen = capped_context_tokens(before, new, cap)
            row[PROMPT_FLOPS] += params.prompt_flops[term] * seen
    row[SEQUENCES] += 1
    if decodes:
        row[TOKENS] += checked
        row[DECODE_CONTEXT] += before + new
    else:
        row[TOKENS] += new
        row[PROMPT_TOKENS] += new
        row[PROMPT_CONTEXT] += before


class _State(NamedTuple):
    """Where a loop stands; arrays alone.

    Attributes:
        arrival: int64 [requests], see ``Steps``, likewise the next two.
        first: see there.
        end: see there.
        done: int64 [requests], tokens computed.
        made: int64 [requests], output tokens.
        scheduled: int64 [requests], tokens of the step.
        credit: float64 [requests], accepted drafts not yet whole.
        running: int64 [ranks, requests], in the order of admission.
        num_running: int64 [ranks].
        waiting: int64 [ranks, 2 x requests], with room in front for requests that lost their
            memory, once each at a time.
        head: int64 [ranks], the next one of those, and the end of the queue.
        tail: int64 [ranks].
        own: float64 [NUM_COLUMNS], a rank's row, scratch.
        counts: int64 [4]: requests sent and ended, steps, steps that prompts were held back.
    """

    arrival: Ints
    first: Ints
    end: Ints
    done: Ints
    made: Ints
    scheduled: Ints
    credit: Floats
    running: Ints
    num_running: Ints
    waiting: Ints
    head: Ints
    tail: Ints
    own: Floats
    counts: Ints


_SENT, _ENDED, _STEP, _HELD_BACK = range(4)
_ROWS_AT_ONCE = 4096


def run_closed_loop(params: StepTimeParams, loop: Loop) -> Steps:
    """Plan steps until every request has ended.

    Args:
        params: only what attention reads and computes is looked at, and the tokens of a decode.
        loop: what is sent. A request that would not fit alone runs alone all the same.
    """
    num, ranks = loop.prompts.size, loop.num_ranks
    none = np.full(num, -1, np.int64)
    zero = np.zeros(num, np.int64)
    state = _State(
        arrival=zero,
        first=none,
        end=none.copy(),
        done=zero.copy(),
        made=zero.copy(),
        scheduled=zero.copy(),
        credit=np.zeros(num),
        running=np.zeros((ranks, num), np.int64),
        num_running=np.zeros(ranks, np.int64),
        waiting=np.zeros((ranks, 2 * num), np.int64),
        head=np.full(ranks, num, np.int64),
        tail=np.full(ranks, num, np.int64),
        own=np.zeros(NUM_COLUMNS),
        counts=np.zeros(4, np.int64),
    )
    sent = min(loop.concurrency, num)
    for request in range(sent):
        rank = request % ranks
        state.waiting[rank, state.tail[rank]] = request
        state.tail[rank] += 1
    state.counts[_SENT] = sent
    parts = []
    while state.counts[_ENDED] < num:
        rows = np.zeros((_ROWS_AT_ONCE, NUM_COLUMNS))
        parts.append(rows[: _advance(params, loop, state, rows)])
    return Steps(np.concatenate(parts), state.arrival, state.first, state.end)


@njit
def _alike(params: StepTimeParams, loop: Loop, state: _State, most: int) -> int:
    """How many steps from here on decode the same requests, none of which ends; 0 where unsure."""
    if loop.tokens_a_step != 1.0:
        return 0
    for rank in range(loop.num_ranks):
        # With every place taken nobody who waits comes in before someone ends.
        full = state.num_running[rank] >= loop.max_sequences
        if state.head[rank] < state.tail[rank] and not full:
            return 0
        count, held, grows = state.num_running[rank], 0.0, 0.0
        if count > loop.step_tokens:
            return 0
        for i in range(count):
            request = state.running[rank, i]
            made = state.made[request]
            if made == 0 or state.done[request] + 1 != loop.prompts[request] + made:
                return 0
            most = min(most, loop.outputs[request] - made - 1)
            context = state.done[request] + 1
            for term in range(params.cap.size):
                # The last step in which the term still grows is taken alone.
                if context <= params.cap[term]:
                    most = min(most, params.cap[term] - context)
        if most < 2:
            return 0
        if loop.kv_bytes > 0:
            for i in range(count):
                request = state.running[rank, i]
                held += _held(loop, _reserved(loop, request, state.made[request]))
            for term in range(loop.held_cap.size):
                grows += loop.held_bytes[term] * count
            if grows > 0:
                most = min(most, int((loop.kv_bytes - held) / grows))
    return most if most >= 2 else 0


@njit
def _decode(
    params: StepTimeParams, loop: Loop, state: _State, rows: Floats, at: int, num: int
) -> None:
    """Take ``num`` decode steps that are alike; ``rows[at:at + num]`` are written."""
    own = state.own
    for rank in range(loop.num_ranks):
        count = state.num_running[rank]
        own[:] = 0.0
        more_bytes, more_flops = 0.0, 0.0  # that a step has above the one before
        for i in range(count):
            request = state.running[rank, i]
            _count(params, own, state.done[request], 1, True, 1)
            for term in range(params.cap.size):
                if state.done[request] + 1 <= params.cap[term]:
                    more_bytes += params.kv_bytes[term]
                    more_flops += params.decode_flops[term]
            state.done[request] += num
            state.made[request] += num
        for step in range(num):
            row = rows[at + step]
            row[ALL_TOKENS] += own[TOKENS]
            row[TOKENS] = max(row[TOKENS], own[TOKENS])
            row[SEQUENCES] = max(row[SEQUENCES], own[SEQUENCES])
            row[KV_BYTES] = max(row[KV_BYTES], own[KV_BYTES] + more_bytes * step)
            row[DECODE_FLOPS] = max(row[DECODE_FLOPS], own[DECODE_FLOPS] + more_flops * step)
            row[DECODE_CONTEXT] = max(row[DECODE_CONTEXT], own[DECODE_CONTEXT] + count * step)


@njit
def _advance(params: StepTimeParams, loop: Loop, state: _State, rows: Floats) -> int:
    """Plan steps until the rows are full or every request has ended; returns how many."""
    num, ranks, checked = loop.prompts.size, loop.num_ranks, params.decode_tokens
    arrival, first, end = state.arrival, state.first, state.end
    done, made, scheduled, credit = state.done, state.made, state.scheduled, state.credit
    running, num_running, waiting = state.running, state.num_running, state.waiting
    head, tail, own, counts = state.head, state.tail, state.own, state.counts
    sent, ended = counts[_SENT], counts[_ENDED]
    step, held_back = counts[_STEP], counts[_HELD_BACK]
    filled = 0
    while ended < num and filled < rows.shape[0]:
        alike = _alike(params, loop, state, rows.shape[0] - filled)
        if alike > 0:
            _decode(params, loop, state, rows, filled, alike)
            step += alike
            filled += alike
            continue
        hold = False
        if loop.hold_steps > 0 and ranks > 1:
            some, every, busy = False, True, False
            for rank in range(ranks):
                can = head[rank] < tail[rank] and num_running[rank] < loop.max_sequences
                some = some or can
                every = every and can
                busy = busy or num_running[rank] > 0
            hold = some and not every and busy and held_back < loop.hold_steps
            held_back = held_back + 1 if hold else 0
        for rank in range(ranks):
            own[:] = 0.0
            count, budget, held = num_running[rank], loop.step_tokens, 0.0
            mine = running[rank]
            if loop.kv_bytes > 0:
                for i in range(count):
                    held += _held(loop, _reserved(loop, mine[i], made[mine[i]]))
                while held > loop.kv_bytes and count > 1:
                    count -= 1
                    request = mine[count]
                    held -= _held(loop, _reserved(loop, request, made[request]))
                    done[request] = 0
                    head[rank] -= 1
                    waiting[rank, head[rank]] = request
            prompts_alone = False
            if loop.plan == APART:
                for i in range(count):
                    request = mine[i]
                    if loop.prompts[request] + made[request] - done[request] > 1:
                        prompts_alone = True
                if not hold and head[rank] < tail[rank] and count < loop.max_sequences:
                    request = waiting[rank, head[rank]]
                    need = _held(loop, _reserved(loop, request, made[request]))
                    if loop.kv_bytes <= 0 or held + need <= loop.kv_bytes or count == 0:
                        prompts_alone = True
            for i in range(count):
                request = mine[i]
                scheduled[request] = 0
                lacks = loop.prompts[request] + made[request] - done[request]
                decodes = made[request] > 0 and lacks == 1
                if decodes and prompts_alone:
                    continue
                new = min(lacks, budget)
                if new <= 0:
                    continue
                scheduled[request] = new
                budget -= checked if decodes else new
                _count(params, own, done[request], new, decodes, checked)
            while not hold and head[rank] < tail[rank] and count < loop.max_sequences:
                request = waiting[rank, head[rank]]
                lacks = loop.prompts[request] + made[request]
                need = _held(loop, _reserved(loop, request, made[request]))
                if budget <= 0 or (loop.kv_bytes > 0 and held + need > loop.kv_bytes and count > 0):
                    break
                if loop.plan == WHOLE and lacks > budget and lacks <= loop.step_tokens:
                    break
                held += need
                head[rank] += 1
                mine[count] = request
                count += 1
                new = min(lacks, budget)
                scheduled[request] = new
                budget -= new
                _count(params, own, 0, new, False, checked)
            num_running[rank] = count
            row = rows[filled]
            row[ALL_TOKENS] += own[TOKENS]
            for column in range(NUM_COLUMNS):
                if column != ALL_TOKENS:
                    row[column] = max(row[column], own[column])
        for rank in range(ranks):
            kept = 0
            for i in range(num_running[rank]):
                request = running[rank, i]
                if scheduled[request] > 0:
                    lacks = loop.prompts[request] + made[request] - done[request]
                    if made[request] > 0 and lacks == 1:
                        credit[request] += loop.tokens_a_step
                        new = min(int(credit[request]), loop.outputs[request] - made[request])
                        credit[request] -= new
                        done[request] += new
                        made[request] += new
                    else:
                        done[request] += scheduled[request]
                        if done[request] == loop.prompts[request] + made[request]:
                            made[request] += 1
                            if first[request] < 0:
                                first[request] = step
                    if made[request] >= loop.outputs[request]:
                        end[request] = step
                        ended += 1
                        if sent < num:
                            arrival[sent] = step + 1
                            waiting[rank, tail[rank]] = sent
                            tail[rank] += 1
                            sent += 1
                        continue
                running[rank, kept] = request
                kept += 1
            num_running[rank] = kept
        step += 1
        filled += 1
    counts[_SENT], counts[_ENDED] = sent, ended
    counts[_STEP], counts[_HELD_BACK] = step, held_back
    return filled


@njit
def row_seconds(params: StepTimeParams, row: Floats) -> float:
    """Seconds of a step that a row describes."""
    held = Composition(
        row[TOKENS],
        row[ALL_TOKENS],
        row[PROMPT_TOKENS],
        row[SEQUENCES],
        row[KV_BYTES],
        row[DECODE_FLOPS],
        row[PROMPT_FLOPS],
        row[DECODE_CONTEXT],
        row[PROMPT_CONTEXT],
    )
    return composed_seconds(params, held)


@njit
def _end_times(params: StepTimeParams, rows: Floats, at: Floats) -> None:
    """``at[n]``: when step n begins, the first one at 0."""
    for step in range(rows.shape[0]):
        at[step + 1] = at[step] + row_seconds(params, rows[step])


def loop_seconds(params: StepTimeParams, steps: Steps, outputs: Ints) -> tuple[Floats, Floats]:
    """Seconds to the first token, and for each one after it, of every request.

    Args:
        params: constants and all.
        steps: from ``run_closed_loop`` with the same model and layout.
        outputs: int64 [requests], tokens; with one token alone there is no time after it (NaN).
    """
    at = np.zeros(len(steps.rows) + 1)
    _end_times(params, steps.rows, at)
    begun = at[steps.first + 1]
    after = np.where(outputs > 1, outputs - 1, np.nan)
    return begun - at[steps.arrival], (at[steps.end + 1] - begun) / after
