"""SGLang's radix tree over the text of prompts, one for all workers.

A text is a prompt's spans, in characters (or tokens: shares are the same). Different spans differ
from their first character on.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

Text = Sequence[tuple[int, int]]
"""Spans as uid and end, from the start of the prompt."""

_REFRESH_EVERY = 8
"""One match in so many counts as a use."""


class _Node:
    """A stretch of text below a common beginning."""

    __slots__ = ("children", "end", "parent", "pieces", "start", "used")

    def __init__(self, parent: _Node | None, start: int, pieces: list[tuple[int, int]]) -> None:
        self.parent = parent
        self.start = start
        self.pieces = pieces  # uid and end of each span, or part of one
        self.end = pieces[-1][1] if pieces else 0
        self.children: dict[int, _Node] = {}  # by the uid that follows
        self.used: dict[int, int] = {}  # worker, its creator first: when


class TextTree:
    """Remembers for each prefix who was sent it.

    Attributes:
        size: characters remembered for each worker.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._root = _Node(None, 0, [])
        self._clock = 0
        self._matches = 0
        self.size: dict[int, int] = {}

    def match(self, text: Text) -> tuple[int, int | None]:
        """How far a text is known, and the worker of the node where it ends.

        That is the one that created the node, as long as it is remembered there.
        """
        node, matched = self._root, 0
        at = 0
        while True:
            child = node.children.get(text[at][0]) if at < len(text) else None
            if child is None:
                break
            node = child
            at, matched, whole = _along(child, text, at)
            if not whole:
                break
        worker = next(iter(node.used), None)
        self._matches += 1
        if worker is not None and self._matches % _REFRESH_EVERY == 0:
            self._clock += 1
            node.used[worker] = self._clock
        return matched, worker

    def insert(self, text: Text, worker: int) -> None:
        """A worker was sent this text."""
        self._clock += 1
        node, at, matched = self._root, 0, 0
        while at < len(text):
            child = node.children.get(text[at][0])
            if child is None:
                rest = _Node(node, matched, list(text[at:]))
                node.children[text[at][0]] = rest
                self._use(rest, worker)
                return
            at, matched, whole = _along(child, text, at)
            if not whole:
                self._split(child, matched)
            self._use(child, worker)
            node = child

    def remove(self, worker: int) -> None:
        """A worker is gone: nothing is remembered of it."""
        self._trim(worker, 0)
        self.size.pop(worker, None)

    def evict(self, most: int) -> None:
        """Forget each worker's oldest leaves until at most so many characters are left of it."""
        for worker in list(self.size):
            if self.size[worker] > most:
                self._trim(worker, most)

    def _use(self, node: _Node, worker: int) -> None:
        if worker not in node.used:
            self.size[worker] = self.size.get(worker, 0) + node.end - node.start
        node.used[worker] = self._clock

    def _split(self, node: _Node, at: int) -> None:
        """Cut a node in two; both halves keep their workers in order."""
        before = [piece for piece in node.pieces if piece[1] <= at]
        after = [piece for piece in node.pieces if piece[1] > at]
        if not before or before[-1][1] < at:
            before.append((after[0][0], at))
        lower = _Node(node, at, after)
        lower.used = dict(node.used)
        lower.children = node.children
        for child in lower.children.values():
            child.parent = lower
        node.pieces, node.end = before, at
        node.children = {after[0][0]: lower}

    def _trim(self, worker: int, most: int) -> None:
        nodes, stack = [], [self._root]
        while stack:
            node = stack.pop()
            stack += [child for child in node.children.values() if worker in child.used]
            if node is not self._root:
                nodes.append(node)
        below = {id(node): 0 for node in nodes}
        for node in nodes:
            if id(node.parent) in below:
                below[id(node.parent)] += 1
        numbered = {id(node): node for node in nodes}
        leaves = [
            (node.used[worker], node.start, id(node)) for node in nodes if not below[id(node)]
        ]
        heapq.heapify(leaves)
        while leaves and self.size[worker] > most:
            _, _, number = heapq.heappop(leaves)
            node = numbered[number]
            parent = node.parent
            del node.used[worker]
            self.size[worker] -= node.end - node.start
            if parent is None:
                continue
            if not node.used and not node.children:
                del parent.children[node.pieces[0][0]]
            if id(parent) in below:
                below[id(parent)] -= 1
                if not below[id(parent)]:
                    heapq.heappush(leaves, (parent.used[worker], parent.start, id(parent)))


def _along(node: _Node, text: Text, at: int) -> tuple[int, int, bool]:
    """Follow a node whose first span is the text's at index `at`.

    Returns:
        The index of the text's span that comes next, how far the two agree, and whether that is
        the node's end.
    """
    matched = node.start
    for uid, end in node.pieces:
        if at >= len(text) or text[at][0] != uid:
            return at, matched, False
        other = text[at][1]
        if other < end:
            return at + 1, other, False
        matched = end
        if other > end:
            # The text's span goes on; so does the node's only where it was cut, and then it ends.
            return at, matched, end == node.end
        at += 1
    return at, matched, True
