"""The offline optimum: the furthest needed leaves first, and no block without its prefix.

Of a tree of prefixes the leaf whose next use is latest leaves, and what would be used later than
every leaf is not taken in at all. A prefix is needed no later than what continues it, so the
latest of all is always to be found among the leaves: no order of eviction hits more tokens while
requests come one after another. With figures P8 and P9 of the notes: `kvcache-simulator` 0.1.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from kvsim.jit import njit

Ints = npt.NDArray[np.int64]

_NODE_BITS = 32
_NODE_MASK = (1 << _NODE_BITS) - 1


class Tree:
    """Prefixes and the requests that walk down them.

    Attributes:
        num_nodes: prefixes, the empty one (0) included.
        num_requests: walks.
    """

    def __init__(self) -> None:
        """Without requests."""
        self._children: dict[tuple[int, int], int] = {}
        self._parents = [0]
        self._nodes: list[int] = []
        self._tokens: list[int] = []
        self._ends: list[int] = []

    @property
    def num_nodes(self) -> int:
        """Prefixes, the empty one included."""
        return len(self._parents)

    @property
    def num_requests(self) -> int:
        """Walks."""
        return len(self._ends)

    def walk(self, ids: Iterable[int], tokens: Iterable[int]) -> None:
        """A request comes.

        Args:
            ids: of its blocks, from the first; one id after the same ids is the same content.
            tokens: of each that count where it is found; 0 for blocks of the answer.
        """
        parent = 0
        for number in ids:
            node = self._children.get((parent, number))
            if node is None:
                node = self._children[parent, number] = len(self._parents)
                self._parents.append(parent)
            self._nodes.append(node)
            parent = node
        self._tokens.extend(tokens)
        self._ends.append(len(self._nodes))

    def hit_tokens(self, capacities: Sequence[int], first_counted: int = 0) -> list[int]:
        """Tokens found by the optimum in caches of so many blocks.

        Args:
            capacities: blocks each; more than there are prefixes finds all there is to find.
            first_counted: the first request whose hits count.
        """
        nodes = np.array(self._nodes, dtype=np.int64)
        ends = np.array(self._ends, dtype=np.int64)
        parents = np.array(self._parents, dtype=np.int64)
        tokens = np.array(self._tokens, dtype=np.int64)
        next_uses = np.zeros(len(nodes), dtype=np.int64)
        _note_next_uses(nodes, ends, np.zeros(len(parents), dtype=np.int64), next_uses)
        found = []
        for capacity in capacities:
            scratch = np.zeros((4, len(parents)), dtype=np.int64)
            heap = np.zeros(2 * len(nodes) + 2, dtype=np.int64)
            put_aside = np.zeros(len(parents), dtype=np.int64)
            found.append(
                int(
                    _replay(
                        nodes,
                        ends,
                        parents,
                        tokens,
                        next_uses,
                        scratch,
                        heap,
                        put_aside,
                        capacity,
                        first_counted,
                    )
                )
            )
        return found


@njit
def _note_next_uses(nodes: Ints, ends: Ints, latest: Ints, next_uses: Ints) -> None:
    """For each step of a walk the number of the next request that takes it."""
    never = len(ends) + 1
    latest[:] = never
    for request in range(len(ends) - 1, -1, -1):
        start = ends[request - 1] if request > 0 else 0
        for step in range(start, ends[request]):
            next_uses[step] = latest[nodes[step]]
            latest[nodes[step]] = request


@njit
def _push(heap: Ints, size: int, entry: int) -> None:
    """Enter a number in a heap whose largest is first."""
    place = size
    while place > 0:
        above = (place - 1) >> 1
        if heap[above] >= entry:
            break
        heap[place] = heap[above]
        place = above
    heap[place] = entry


@njit
def _pop(heap: Ints, size: int) -> int:
    """Take the largest out of a heap of so many."""
    first: int = heap[0]
    entry = heap[size - 1]
    size -= 1
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1] > heap[child]:
            child += 1
        if heap[child] <= entry:
            break
        heap[place] = heap[child]
        place = child
    heap[place] = entry
    return first


@njit
def _replay(
    nodes: Ints,
    ends: Ints,
    parents: Ints,
    tokens: Ints,
    next_uses: Ints,
    scratch: Ints,
    heap: Ints,
    put_aside: Ints,
    capacity: int,
    first_counted: int,
) -> int:
    """Tokens found. A leaf is entered in the heap whenever its next use changes.

    At most once for each step of a walk, and once for each prefix that becomes a leaf, which needs
    a leaf that leaves and so was entered: the heap holds two entries a step at most.
    """
    present, num_children, next_use, on_path = scratch[0], scratch[1], scratch[2], scratch[3]
    size = num_present = hit = 0
    for request in range(len(ends)):
        start = ends[request - 1] if request > 0 else 0
        end = ends[request]
        step = start
        while step < end and present[nodes[step]] != 0:
            node = nodes[step]
            if request >= first_counted:
                hit += tokens[step]
            next_use[node] = next_uses[step]
            on_path[node] = request + 1
            if num_children[node] == 0:
                _push(heap, size, next_uses[step] << _NODE_BITS | node)
                size += 1
            step += 1
        while step < end:
            node = nodes[step]
            if num_present >= capacity:
                num_aside = 0
                victim = 0
                while size > 0 and victim == 0:
                    entry = _pop(heap, size)
                    size -= 1
                    other = entry & _NODE_MASK
                    stale = present[other] == 0 or num_children[other] != 0
                    if stale or next_use[other] != entry >> _NODE_BITS:
                        continue
                    if on_path[other] == request + 1:
                        if num_aside < len(put_aside):
                            put_aside[num_aside] = entry
                            num_aside += 1
                        continue
                    if entry >> _NODE_BITS <= next_uses[step]:
                        _push(heap, size, entry)
                        size += 1
                        break
                    victim = other
                for number in range(num_aside):
                    _push(heap, size, put_aside[number])
                    size += 1
                if victim == 0:
                    break
                present[victim] = 0
                num_present -= 1
                parent = parents[victim]
                num_children[parent] -= 1
                if parent > 0 and num_children[parent] == 0:
                    _push(heap, size, next_use[parent] << _NODE_BITS | parent)
                    size += 1
            present[node] = 1
            on_path[node] = request + 1
            num_present += 1
            num_children[parents[node]] += 1
            next_use[node] = next_uses[step]
            _push(heap, size, next_uses[step] << _NODE_BITS | node)
            size += 1
            step += 1
    return hit
