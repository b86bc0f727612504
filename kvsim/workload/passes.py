"""Compiled passes over the blocks of prompts: stack distances, first in first out, windows.

Every array belongs to the caller. Runs are those of `TraceBlocks`; uids number them without gaps,
so arrays by identity have as many entries as there are.
"""

from __future__ import annotations

from kvsim.cache.content import Ints
from kvsim.jit import njit


@njit
def find_reuses(
    uids: Ints,
    begins: Ints,
    ends: Ints,
    run_ends: Ints,
    prompt_tokens: Ints,
    sequence_tokens: Ints,
    block_tokens: int,
    top: Ints,
    longest: Ints,
    pieces: Ints,
    tree: Ints,
    held: Ints,
    out_request: Ints,
    out_distance: Ints,
    out_blocks: Ints,
    out_tokens: Ints,
    out_before: Ints,
) -> int:
    """Fills in the reuses and returns how many there are.

    The blocks of an identity are cut into pieces by their last use, later uses nearer to its
    beginning: `top` is the first piece of each, and `pieces` has the end, the request and the next
    piece. `longest` has the last token up to which an identity has been seen, which a block that is
    not whole can be found up to. `held` has the number of blocks of each prompt, and of those that
    no later request has used; `tree` sums the latter over requests (Fenwick, indices from 1).
    """
    num_requests = len(run_ends)
    num_out = 0
    num_held = 0
    begin = 0
    for request in range(num_requests):
        first_out = num_out
        end = run_ends[request]
        for run in range(begin, end):
            place = begins[run]
            piece = top[uids[run]]
            while piece != -1 and place < ends[run]:
                before = pieces[1, piece]
                stop = min(pieces[0, piece], ends[run])
                # Blocks whose last use came later than `before`.
                distance = num_held
                index = before + 1
                while index > 0:
                    distance -= tree[index]
                    index &= index - 1
                # And those of the same request that lie nearer to its beginning.
                distance += place - (held[0, before] - held[1, before]) + 1
                out_request[num_out] = request
                out_distance[num_out] = distance
                out_blocks[num_out] = stop - place
                until = min(stop * block_tokens, prompt_tokens[request], longest[uids[run]])
                out_tokens[num_out] = until - place * block_tokens
                out_before[num_out] = before
                num_out += 1
                place = stop
                if stop == pieces[0, piece]:
                    piece = pieces[2, piece]
            pieces[0, run] = ends[run]
            pieces[1, run] = request
            pieces[2, run] = piece
            top[uids[run]] = run
            until = min(ends[run] * block_tokens, sequence_tokens[request])
            longest[uids[run]] = max(longest[uids[run]], until)
        for out in range(first_out, num_out):
            before = out_before[out]
            held[1, before] -= out_blocks[out]
            num_held -= out_blocks[out]
            index = before + 1
            while index <= num_requests:
                tree[index] -= out_blocks[out]
                index += index & -index
        num_blocks = ends[end - 1] if end > begin else 0
        held[0, request] = num_blocks
        held[1, request] = num_blocks
        num_held += num_blocks
        index = request + 1
        while index <= num_requests:
            tree[index] += num_blocks
            index += index & -index
        begin = end
    return num_out


@njit
def fifo_hit_tokens(
    uids: Ints,
    blocks: Ints,
    num_blocks: Ints,
    run_ends: Ints,
    prompt_tokens: Ints,
    sequence_tokens: Ints,
    first: int,
    block_tokens: int,
    capacity: int,
    entered: Ints,
    longest: Ints,
) -> int:
    """Tokens found; `entered` holds how many had been entered before a block was.

    `longest` is as for `find_reuses`.
    """
    num_entered = 0
    hit_tokens = 0
    begin = 0
    for request in range(len(run_ends)):
        num_hit = 0
        until = 0
        missed = False
        for run in range(begin, run_ends[request]):
            for block in range(blocks[run], blocks[run] + num_blocks[run]):
                missed = missed or num_entered - entered[block] > capacity
                if missed:
                    break
                num_hit += 1
                until = longest[uids[run]]
        if request >= first:
            hit_tokens += min(num_hit * block_tokens, prompt_tokens[request], until)
        place = 0
        for run in range(begin, run_ends[request]):
            for block in range(blocks[run], blocks[run] + num_blocks[run]):
                if num_entered - entered[block] > capacity:
                    entered[block] = num_entered
                    num_entered += 1
            place += num_blocks[run]
            until = min(place * block_tokens, sequence_tokens[request])
            longest[uids[run]] = max(longest[uids[run]], until)
        begin = run_ends[request]
    return hit_tokens


@njit
def count_by_window(
    uids: Ints,
    ends: Ints,
    run_ends: Ints,
    windows: Ints,
    first_blocks: Ints,
    known: Ints,
    counts: Ints,
) -> None:
    """Adds up different blocks; `known` has the window and the end of each identity's last use."""
    begin = 0
    for request in range(len(run_ends)):
        window = windows[request]
        for run in range(begin, run_ends[request]):
            uid = uids[run]
            if known[0, uid] != window:
                known[0, uid] = window
                known[1, uid] = first_blocks[uid]
            counts[window] += max(0, ends[run] - known[1, uid])
            known[1, uid] = max(known[1, uid], ends[run])
        begin = run_ends[request]
