"""Policies at work: the arrays behind an order and a retention, and what went wrong there."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsim.cache.block_pool import ORDERED, RETAINED, WATCHED, Ids, Pool
from kvsim.cache.ordered_rows import (
    CALLS,
    GHOST_ROW,
    GHOST_WAYS,
    HEAP_ROW,
    IN_USE,
    KNOWN_ROW,
    NO_BLOCK,
    NOT_A_NUMBER,
    NUM_TAGS,
    ORDER_ROW,
)
from kvsim.cache.retained import HIT_ROW, HIT_WAYS, RETAIN_ROW
from kvsim.policies.calling import EVENT, KEEPS, PICK, Callback, callback
from kvsim.policies.contract import PolicyError
from kvsim.policies.facts import BLOCK_ROW_FACTS, RUN_ROW_FACTS
from kvsim.policies.finding import Chosen
from kvsim.policies.lists import NUM_LISTS

_heard: list[BaseException] = []


class FreeOrder:
    """A free-queue policy at work in a pool.

    Attributes:
        chosen: the policy and its parameters.
        callbacks: its functions by name.
        facts: one row with the fields of `BLOCK_FACTS`: of the block in hand.
        rows: a row a block, with the fields of a full form.
    """

    def __init__(self, chosen: Chosen, pool: Pool, unit_tokens: int) -> None:
        """Take over the queue of a pool that is all free.

        Args:
            chosen: the policy.
            pool: the pool.
            unit_tokens: unit of hits.
        """
        self.chosen = chosen
        self._pool = pool
        num = len(pool.blocks)
        policy = chosen.policy
        fields = [(name, np.int64) for name in ("tag", *policy.rows)]
        self.facts = np.zeros(1, dtype=BLOCK_ROW_FACTS)
        self.rows = np.zeros(num + NUM_LISTS if policy.is_full else 1, dtype=np.dtype(fields))
        self._saved = np.zeros(num if policy.ask_again else 0, dtype=BLOCK_ROW_FACTS)
        self._blocks = np.zeros(num, dtype=KNOWN_ROW)
        self._heap = np.zeros(0 if policy.is_full else 2 * num, dtype=HEAP_ROW)
        num_sets = 1 << max(1, (num - 1).bit_length())
        num_ghosts = num_sets * GHOST_WAYS + NUM_TAGS if policy.remembers else 0
        self._ghosts = np.zeros(num_ghosts, dtype=GHOST_ROW)
        self.callbacks = self._compiled()
        self._order = np.zeros(1, dtype=ORDER_ROW)
        order = self._order[0]
        order["num_blocks"] = num
        order["is_full"] = policy.is_full
        order["asks_uncached"] = policy.asks_uncached and not policy.is_full
        for name, made in self.callbacks.items():
            order[name] = made.address
        for name, array in self._arrays().items():
            order[name] = array.ctypes.data if len(array) else 0
        order["num_rows"] = len(self.rows)
        order["row_bytes"] = self.rows.dtype.itemsize
        order["ghosts_mask"] = num_sets - 1
        order["unit_tokens"] = unit_tokens
        order["linear_s"] = 1.0
        pool.totals[ORDERED] = self._order.ctypes.data
        pool.totals[WATCHED] = 1
        _listen()
        self.reset()

    def _compiled(self) -> dict[str, Callback]:
        policy, parameters = self.chosen.policy, self.chosen.parameters
        if not policy.is_full:
            functions: dict[str, Any] = {"given_back": policy.function}
            if policy.ask_again is not None:
                functions["ask_again"] = policy.ask_again
            return {
                name: callback(function, parameters, BLOCK_ROW_FACTS, None)
                for name, function in functions.items()
            }
        missing = [
            name
            for name in ("given_back", "found_again", "next_out")
            if not callable(getattr(policy.function, name, None))
        ]
        if missing:
            raise PolicyError(
                f"free-queue order '{self.chosen.name}' has no function {', '.join(missing)}. "
                "The full form needs given_back, found_again and next_out."
            )
        return {
            name: callback(
                getattr(policy.function, name),
                parameters,
                BLOCK_ROW_FACTS,
                self.rows.dtype,
                PICK if name == "next_out" else EVENT,
            )
            for name in ("given_back", "found_again", "next_out")
        }

    def _arrays(self) -> dict[str, npt.NDArray[np.void]]:
        return {
            "facts": self.facts,
            "rows": self.rows,
            "saved": self._saved,
            "blocks": self._blocks,
            "heap": self._heap,
            "ghosts": self._ghosts,
        }

    def reset(self) -> None:
        """Nothing is known of any block, all of which are free."""
        order, blocks = self._order[0], self._pool.blocks
        for array in self._arrays().values():
            array[:] = np.zeros((), dtype=array.dtype)
        num = len(blocks)
        self._heap["place"] = -1
        self._heap["first"] = np.arange(1, len(self._heap) + 1)
        self._heap["first"][num - 1 : num] = -1
        self._blocks["chain"] = -1
        order["newest"], order["unused"] = -1, 0
        self.facts["pool_blocks"] = num - 1
        order["num_waiting"] = order["num_to_ask"] = 0
        order["floor"] = 0.0
        ids = np.arange(num, dtype=np.int32)
        blocks["before"] = np.roll(ids, 1)
        blocks["after"] = np.roll(ids, -1)

    def at(self, now_s: float) -> None:
        """It is ``now_s`` on the clock of the run."""
        self._order[0]["now_s"] = now_s

    def computes_in(self, linear_s: float, square_s: float) -> None:
        """A prefix of p tokens is computed in ``p * (linear_s + square_s * p)`` seconds."""
        self._order[0]["linear_s"] = linear_s
        self._order[0]["square_s"] = square_s

    def queue(self, most: int) -> Ids:
        """Free blocks, the first ``most``: in the order they leave, in the full form as given."""
        after = self._pool.blocks["after"]
        ids: list[int] = []
        block = int(after[0])
        while block and len(ids) < most:
            ids.append(block)
            block = int(after[block])
        waiting = self._heap[: int(self._order[0]["num_waiting"])]
        for place in np.lexsort((waiting["number"], waiting["score"])):
            block = int(self._heap["first"][waiting["item"][place]])
            while block and len(ids) < most:
                ids.append(block)
                block = int(after[block])
        return np.array(ids, dtype=np.int32)

    @property
    def notes(self) -> list[str]:
        """What people should know of it."""
        return _slow_notes("Free-queue order", self.chosen, self.callbacks.values())

    def check(self) -> None:
        """Stop a policy that did what none may do.

        Raises:
            PolicyError: with its name, the call and the block.
        """
        order = self._order[0]
        if not order["wrong"]:
            return
        wrong, block = int(order["wrong"]), int(order["wrong_block"])
        call = CALLS[int(order["wrong_call"])]
        about = "" if call == "next_out" else f" of block {block}"
        order["wrong"] = 0
        if wrong == NOT_A_NUMBER:
            what = "returned NaN. Return a number, FRONT or BACK"
        elif wrong == IN_USE:
            what = f"gave out block {block}, which is in use. Forget blocks that are found again"
        elif wrong == NO_BLOCK:
            last = len(self._blocks) - 1
            what = f"returned {block}, which is no block of 1 .. {last}, though blocks are free"
        else:
            what = f"raised {_cause(self.callbacks[call])}"
        raise PolicyError(f"free-queue order '{self.chosen.name}': {call}{about} {what}.")


class Retainer:
    """A retention policy at work in a pool.

    Attributes:
        chosen: the policy and its parameters.
        callback: its function.
    """

    def __init__(self, chosen: Chosen, pool: Pool, unit_tokens: int) -> None:
        """Be asked from now on what is worth keeping.

        Args:
            chosen: the policy.
            pool: the pool.
            unit_tokens: unit of hits.
        """
        self.chosen = chosen
        num = len(pool.blocks)
        self.callback = callback(
            chosen.policy.function, chosen.parameters, RUN_ROW_FACTS, None, KEEPS
        )
        num_sets = 1 << max(4, (num // HIT_WAYS).bit_length())
        self._facts = np.zeros(1, dtype=RUN_ROW_FACTS)
        self._facts["pool_blocks"] = num - 1
        self._hits = np.zeros(num_sets * HIT_WAYS, dtype=HIT_ROW)
        self._retain = np.zeros(1, dtype=RETAIN_ROW)
        retain = self._retain[0]
        retain["keeps"] = self.callback.address
        retain["facts"] = self._facts.ctypes.data
        retain["hits"] = self._hits.ctypes.data
        retain["hits_mask"] = num_sets - 1
        retain["unit_tokens"] = unit_tokens
        pool.totals[RETAINED] = self._retain.ctypes.data
        _listen()

    def reset(self) -> None:
        """No hit has landed anywhere."""
        self._hits[:] = np.zeros((), dtype=HIT_ROW)

    def at(self, now_s: float) -> None:
        """It is ``now_s`` on the clock of the run."""
        self._retain[0]["now_s"] = now_s

    @property
    def notes(self) -> list[str]:
        """What people should know of it."""
        return _slow_notes("Retention", self.chosen, [self.callback])

    def check(self) -> None:
        """Stop a policy that gave no answer.

        Raises:
            PolicyError: with its name and the boundary.
        """
        retain = self._retain[0]
        if not retain["wrong"]:
            return
        what = "returned NaN. Return whether the run is kept"
        if retain["wrong"] == 1:
            what = f"raised {_cause(self.callback)}"
        retain["wrong"] = 0
        raise PolicyError(
            f"retention '{self.chosen.name}': asked about the boundary at "
            f"{retain['wrong_boundary']} tokens it {what}."
        )


def _slow_notes(what: str, chosen: Chosen, callbacks: Iterable[Callback]) -> list[str]:
    slow = sorted({made.why_not for made in callbacks if not made.is_compiled})
    return [
        f"{what} '{chosen.name}' runs as plain Python, many times slower: {why_not.rstrip('.')}."
        for why_not in slow
    ]


def _cause(made: Callback) -> str:
    """What a function raised, in words."""
    cause = made.first_error or (_heard[-1] if _heard else None)
    _heard.clear()
    return "an error" if cause is None else f"{type(cause).__name__}: {cause}"


def _listen() -> None:
    """Hear what compiled policies raise, which cannot pass through compiled code."""
    if getattr(sys.unraisablehook, "hears_policies", False):
        return
    others = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if "numba.core.cpu" in repr(unraisable.object) and unraisable.exc_value is not None:
            if not _heard:
                _heard.append(unraisable.exc_value)
        else:
            others(unraisable)

    hook.hears_policies = True  # type: ignore[attr-defined]
    sys.unraisablehook = hook
