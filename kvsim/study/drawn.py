"""Whether a scenario draws anything at random: only then do seeds tell something."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from kvsim.scenario import Scenario, ScriptWorkload
from kvsim.workload import open_workload

if TYPE_CHECKING:
    from kvsim.workload.request import Request


def draws_at_random(scenario: Scenario, seeds: Sequence[int]) -> bool:
    """Whether two seeds give a scenario different requests.

    Only the workload is drawn, so runs of two seeds with the same requests are the same run. Both
    are read side by side up to the first difference.

    Args:
        scenario: one without variants.
        seeds: two of them.

    Raises:
        KvsimError: the workload cannot be read.
    """
    if isinstance(scenario.workload, ScriptWorkload):
        return False
    one, other = (_shapes(scenario, seed) for seed in seeds)
    return any(a != b for a, b in zip_longest(one, other))


def _shapes(scenario: Scenario, seed: int) -> Iterator[tuple[object, ...]]:
    """What tells requests apart; contents go by the order in which they first came."""
    workload = open_workload(scenario.workload, scenario.scheduler_block_tokens, seed)
    names: dict[int, int] = {}

    def shape(request: Request) -> tuple[object, ...]:
        uids = [*request.content.uids.tolist(), request.output_uid]
        return (
            request.arrival_s,
            request.num_prompt_tokens,
            request.num_output_tokens,
            [names.setdefault(uid, len(names)) for uid in uids],
            request.content.ends.tolist(),
        )

    if workload.sessions is None:
        yield from (shape(request) for request in workload.requests)
        return
    for session in workload.sessions:
        turns = [(shape(turn.request), turn.after, turn.not_before_s) for turn in session.turns]
        yield (session.start_s, turns)
