"""Layers into groups, in the order of the engine (vLLM 0.33.0, get_kv_cache_groups)."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from kvsim.errors import KvsimError
from kvsim.planning.specs import (
    CHUNKED,
    FULL,
    MLA,
    STATE,
    WINDOW,
    WINDOW_MLA,
    LayerSpec,
)

_BALANCE = 1.5
"""Buckets are padded to the largest where it has less than so many times the smallest's layers."""


@dataclass(frozen=True)
class Group:
    """Layers that share a block table.

    Attributes:
        layers: their numbers in the engine's order of layers.
        specs: of the same, in the same order, with pages as unified.
        mixed: the layers differ, so a page of the group is that of all its layers together.
    """

    layers: tuple[int, ...]
    specs: tuple[LayerSpec, ...]
    mixed: bool = False

    @property
    def kind(self) -> str:
        """Of its first layer."""
        return self.specs[0].kind

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self.specs[0].block_size

    @property
    def window(self) -> int | None:
        """Tokens of a window group."""
        return self.specs[0].window

    @property
    def chunk(self) -> int | None:
        """Tokens of a chunk of chunked local attention."""
        return self.specs[0].chunk

    @property
    def page_bytes(self) -> int:
        """Bytes of a block of one layer; of all of them in a mixed group."""
        return self.num_bytes if self.mixed else self.specs[0].page_bytes

    @property
    def num_bytes(self) -> int:
        """Bytes a block needs of a rank, all layers together."""
        return sum(spec.page_bytes for spec in self.specs)

    @property
    def has_draft(self) -> bool:
        """Whether a layer of the drafter is in it."""
        return any(spec.draft for spec in self.specs)

    def blocks_of_request(self, num_tokens: int, in_flight: int, context_parallel: int = 1) -> int:
        """Blocks a request of so many tokens takes at most."""
        return max(
            spec.blocks_of_request(num_tokens, in_flight, context_parallel)
            for spec in dict.fromkeys(self.specs)
        )

    def part(self, first: int, last: int) -> Group:
        """What of it lies on a stage that holds the layers from ``first`` to ``last`` - 1."""
        held = [i for i, layer in enumerate(self.layers) if first <= layer < last]
        return replace(
            self,
            layers=tuple(self.layers[i] for i in held),
            specs=tuple(self.specs[i] for i in held),
        )


def group_layers(
    specs: Sequence[LayerSpec], *, block_outer: bool, hybrid_manager: bool = True
) -> tuple[Group, ...]:
    """The groups of layers that are given in the engine's order.

    Args:
        specs: a layer each.
        block_outer: all layers of a block lie together in memory.
        hybrid_manager: False treats windows and chunks beside full attention as full attention.

    Raises:
        KvsimError: pages that cannot be made equal.
    """
    if not specs:
        return ()
    if not hybrid_manager:
        specs = _as_full(specs)
    everyone = tuple(range(len(specs)))
    if len({_alike(spec) for spec in specs}) == 1:
        return (Group(everyone, tuple(specs)),)
    if _of_one_type(specs):
        return (Group(everyone, tuple(specs), mixed=True),)
    if block_outer and len({spec.page_bytes for spec in specs}) > 1:
        return _packed(specs)
    try:
        unified = _with_equal_pages(specs)
    except _LatentBesideWindowError:
        return group_layers(_as_full(specs), block_outer=block_outer)
    return _dealt(unified)


def _alike(spec: LayerSpec) -> Hashable:
    """Equal for layers that merge: full attention may differ in a window."""
    same = spec.same_as
    return replace(same, window=None) if spec.kind in (FULL, MLA) else same


def _of_one_type(specs: Sequence[LayerSpec]) -> bool:
    types = {spec.type_of for spec in specs}
    return len(types) == 1 and None not in types


def _as_full(specs: Sequence[LayerSpec]) -> list[LayerSpec]:
    """Windows and chunks allocated as full attention, where full attention is there."""
    if not any(spec.kind in (FULL, MLA) for spec in specs):
        return list(specs)
    kinds = {WINDOW: FULL, CHUNKED: FULL, WINDOW_MLA: MLA}
    return [
        replace(spec, kind=kinds.get(spec.kind, spec.kind), window=None, chunk=None)
        for spec in specs
    ]


class _LatentBesideWindowError(KvsimError):
    """Pages of a latent and a window that do not divide."""


def _with_equal_pages(specs: Sequence[LayerSpec]) -> list[LayerSpec]:
    largest = max(spec.page_bytes for spec in specs)
    windows = any(spec.kind == WINDOW for spec in specs)

    def unified(spec: LayerSpec) -> LayerSpec:
        page = spec.page_bytes
        if page == largest:
            return spec
        if spec.kind == STATE:
            return spec.padded(largest)
        if largest % page == 0:
            times = largest // page
            grown = spec.with_block(spec.block_size * times)
            return grown if grown.page_bytes == largest else grown.padded(largest)
        if spec.kind in (MLA, WINDOW_MLA):
            text = f"layers: a latent's page of {page} bytes does not divide {largest} bytes."
            raise (_LatentBesideWindowError if windows else KvsimError)(text)
        return spec.padded(largest)

    return [unified(spec) for spec in specs]


def _buckets(specs: Sequence[LayerSpec], key: Callable[[LayerSpec], Hashable]) -> list[list[int]]:
    """Numbers of layers by a key, in the order of first appearance."""
    found: dict[Hashable, list[int]] = {}
    for number, spec in enumerate(specs):
        found.setdefault(key(spec), []).append(number)
    return list(found.values())


def _dealt(specs: Sequence[LayerSpec]) -> tuple[Group, ...]:
    """Equal layers into groups of one size."""
    buckets = _buckets(specs, _alike)
    sizes = [len(bucket) for bucket in buckets]
    size = max(sizes) if max(sizes) < _BALANCE * min(sizes) else min(sizes)
    groups = []
    for bucket in buckets:
        num = -(-len(bucket) // size)
        for first in range(num):
            members = bucket[first::num]
            groups.append(Group(tuple(members), tuple(specs[i] for i in members)))
    return tuple(groups)


@dataclass
class _Bucket:
    """Layers of one type, for packing."""

    members: list[int]
    specs: Sequence[LayerSpec]

    @property
    def by_page(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for number in self.members:
            found.setdefault(self.specs[number].page_bytes, []).append(number)
        return found

    @property
    def repeats(self) -> int | None:
        """Layers of each page size, if there are equally many of each."""
        counts = {len(numbers) for numbers in self.by_page.values()}
        return counts.pop() if len(counts) == 1 else None

    @property
    def num_bytes(self) -> int:
        return sum(self.specs[number].page_bytes for number in self.members)

    def deal(self, num: int) -> list[_Bucket]:
        """Into so many, the j-th taking repeats j, j + num, ... of each page size."""
        parts = []
        for first in range(num):
            members = [i for numbers in self.by_page.values() for i in numbers[first::num]]
            parts.append(_Bucket(sorted(members), self.specs))
        return [part for part in parts if part.members]


def _packed(specs: Sequence[LayerSpec]) -> tuple[Group, ...]:
    buckets: list[_Bucket] = []
    for number, spec in enumerate(specs):
        for bucket in buckets:
            if _of_one_type([specs[bucket.members[0]], spec]):
                bucket.members.append(number)
                break
        else:
            buckets.append(_Bucket([number], specs))
    repeats = _repeats(buckets)
    parts: list[list[_Bucket]] = []
    for bucket in buckets:
        if repeats is None or bucket.repeats is None:
            parts.append([bucket])
        else:
            parts.append(bucket.deal(-(-bucket.repeats // repeats)))
    sheds = (STATE,) if repeats is not None else (STATE, WINDOW, WINDOW_MLA)
    others = [
        part.num_bytes for dealt in parts for part in dealt if _kind(part, specs) not in sheds
    ]
    widest = max(others, default=0)
    groups = []
    for dealt in parts:
        for part in dealt:
            num = 1
            if widest and _kind(part, specs) in sheds and part.num_bytes > widest:
                num = next(
                    number
                    for number in range(2, len(part.members) + 1)
                    if max(one.num_bytes for one in part.deal(number)) <= widest
                    or number == len(part.members)
                )
            for one in part.deal(num) if num > 1 else [part]:
                inner = tuple(specs[i] for i in one.members)
                groups.append(Group(tuple(one.members), inner, mixed=len(inner) > 1))
    return tuple(groups)


def _kind(bucket: _Bucket, specs: Sequence[LayerSpec]) -> str:
    return specs[bucket.members[0]].kind


def _repeats(buckets: Sequence[_Bucket]) -> int | None:
    """How many repeats a group holds; None where no balanced bucket has several page sizes."""
    balanced = [
        (bucket.repeats, len(bucket.by_page)) for bucket in buckets if bucket.repeats is not None
    ]
    lows = [repeats for repeats, num_sizes in balanced if num_sizes > 1]
    if not lows:
        return None

    def waste(size: int) -> int:
        return sum(math.ceil(repeats / size) * size - repeats for repeats, _ in balanced)

    candidates = range(max(lows), max(repeats for repeats, _ in balanced) + 1)
    return min(candidates, key=lambda size: (waste(size), -size))
