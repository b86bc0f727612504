"""The synthetic workload that is most like a trace, and how much alike the two are.

Only moments are matched, never the hit rates that the two are compared by: how often conversations
start and how they go on, what they share and how long everything is.

What a trace does not say is found in its block ids. A request goes on from the latest one before
it whose whole blocks it begins with, or at least `MIN_KEPT` of them, if that is more than a prefix
that many share. A prefix counts as shared, as a system prompt is, where `MIN_BRANCHES` different
blocks or more follow it and its uses lie over `MIN_SPAN` of the trace or more: a document that
somebody asks about ten times and leaves is not. Sessions that go on and single prompts are two
contents, since how long a prompt is often tells whether it comes again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsim.cache.content import Ints
from kvsim.errors import Problems
from kvsim.scenario.synthetic import SyntheticWorkload
from kvsim.workload.analysis import TraceBlocks
from kvsim.workload.request import Request
from kvsim.workload.sessions import in_open_loop
from kvsim.workload.synthetic import synthetic_sessions

MIN_BRANCHES = 8
"""Different blocks behind a prefix from which it counts as shared, not as one conversation's."""
MIN_KEPT = 0.75
"""Share of a prompt's whole blocks that the next turn has to begin with."""
MIN_SPAN = 0.5
"""Share of the trace's time from the first to the last use of a prefix from which it is shared."""
_MIN_SHARE = 0.01
_MAX_SHRUNK = 0.2
_NUM_CAPACITIES = 8

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class CurvePoint:
    """Hit rates by token of an LRU cache of one size, 0 to 1."""

    blocks: int
    recorded: float
    synthetic: float


@dataclass(frozen=True)
class Fit:
    """A synthetic workload fitted to a trace.

    Attributes:
        workload: its keys, for a scenario.
        block_tokens: tokens of the blocks that were compared.
        num_requests: requests of the trace, and of the synthetic one in `num_synthetic`.
        num_sessions: conversations found in the trace.
        curve: hit rates of both by capacity, which was not fitted.
    """

    workload: dict[str, Any]
    block_tokens: int
    num_requests: int
    num_synthetic: int
    num_sessions: int
    curve: tuple[CurvePoint, ...]

    @property
    def largest_difference(self) -> float:
        """Largest difference of the hit rates at any of the capacities, 0 to 1."""
        return max(abs(point.recorded - point.synthetic) for point in self.curve)


@dataclass(frozen=True)
class _Structure:
    """What was found about each request.

    Attributes:
        parents: the one it goes on from, -1 where it begins a session.
        kept_blocks: whole blocks it has in common with that one.
        shared_blocks: whole blocks at its beginning that many share.
        shared_ids: the last of those, -1 where there are none.
    """

    parents: Ints
    kept_blocks: Ints
    shared_blocks: Ints
    shared_ids: Ints


def fit_trace(requests: Iterable[Request], block_tokens: int, trace: str, seed: int = 0) -> Fit:
    """Fit a synthetic workload to the requests of a trace.

    Args:
        requests: by arrival; those of one `session_id` go on from one another.
        block_tokens: tokens of a block.
        trace: how messages name it.
        seed: for the synthetic one it is compared with.

    Raises:
        Problems: fewer than 10 requests, or all at one time.
    """
    session_ids: list[str | None] = []

    def noted() -> Iterator[Request]:
        for request in requests:
            session_ids.append(request.session_id)
            yield request

    blocks = TraceBlocks.from_requests(noted(), block_tokens)
    span_s = float(blocks.times_s[-1] - blocks.times_s[0]) if blocks.num_requests else 0.0
    if blocks.num_requests < 10 or span_s <= 0:
        text = f"{blocks.num_requests} requests over {span_s:g} s"
        raise Problems(trace, [f"{text} are too few to fit. Give 10 or more, at different times."])
    structure = _structure(blocks, session_ids)
    workload = _workload(blocks, structure)
    config = SyntheticWorkload.model_validate(workload)
    # Recorded sessions end with the trace, so the synthetic ones have to.
    made = in_open_loop(synthetic_sessions(config, seed))
    # Alike: where the trace cannot tell that answers come back, nor does what is compared with it.
    synthetic = TraceBlocks.from_requests(
        takewhile(lambda request: request.arrival_s <= span_s, made),
        block_tokens,
        answers=bool(blocks.prompts.returns.any()),
    )
    capacities = [max(1, blocks.num_unique >> power) for power in reversed(range(_NUM_CAPACITIES))]
    recorded_curve, synthetic_curve = blocks.lru_curve(), synthetic.lru_curve()
    return Fit(
        workload=workload,
        block_tokens=block_tokens,
        num_requests=blocks.num_requests,
        num_synthetic=synthetic.num_requests,
        num_sessions=int(workload["num_sessions"]),
        curve=tuple(
            CurvePoint(
                size, recorded_curve.token_hit_rate(size), synthetic_curve.token_hit_rate(size)
            )
            for size in dict.fromkeys(capacities)
        ),
    )


def _structure(blocks: TraceBlocks, session_ids: list[str | None]) -> _Structure:
    num = blocks.num_requests
    first_runs = np.concatenate([[0], blocks.run_ends[:-1]])
    num_whole = blocks.prompt_tokens // blocks.block_tokens
    is_shared = _is_shared(blocks, first_runs)
    ended_by, used_by, used_to = (np.full(len(is_shared), -1, dtype=np.int64) for _ in range(3))
    parents, shared_ids = (np.full(num, -1, dtype=np.int64) for _ in range(2))
    shared_blocks, kept_blocks = (np.zeros(num, dtype=np.int64) for _ in range(2))
    latest: dict[str, int] = {}

    def runs(request: int) -> tuple[Ints, Ints]:
        """The runs with whole blocks of a prompt, and where each ends."""
        of = slice(first_runs[request], blocks.run_ends[request])
        whole = int(num_whole[request])
        uids = blocks.uids[of][blocks.begins[of] < whole]
        return uids, np.minimum(blocks.ends[of][: len(uids)], whole)

    for request in range(num):
        uids, ends = runs(request)
        many = np.flatnonzero(is_shared[uids])
        if len(many):
            shared_blocks[request], shared_ids[request] = ends[many[-1]], uids[many[-1]]
        session_id = session_ids[request]
        if session_id is not None:
            before = latest.get(session_id, -1)
            if before >= 0:
                kept = _num_alike(uids, ends, *runs(before))
                if kept >= MIN_KEPT * num_whole[before]:
                    parents[request], kept_blocks[request] = before, kept
            latest[session_id] = request
        elif len(uids):
            for known_by, share in ((ended_by, 1.0), (used_by, MIN_KEPT)):
                known = np.flatnonzero(known_by[uids] >= 0)
                if not len(known):
                    continue
                last = known[-1]
                before = int(known_by[uids[last]])
                kept = min(int(ends[last]), int(used_to[uids[last]]))
                if kept > shared_blocks[request] and kept >= share * num_whole[before]:
                    parents[request], kept_blocks[request] = before, kept
                    break
            ended_by[uids[-1]] = request
            used_by[uids] = request
            used_to[uids] = ends
    return _Structure(parents, kept_blocks, shared_blocks, shared_ids)


def _num_alike(uids: Ints, ends: Ints, other_uids: Ints, other_ends: Ints) -> int:
    """Blocks at the beginning of two prompts that are the same."""
    length = min(len(uids), len(other_uids))
    differ = np.flatnonzero(uids[:length] != other_uids[:length])
    same = int(differ[0]) if len(differ) else length
    return min(int(ends[same - 1]), int(other_ends[same - 1])) if same else 0


def _is_shared(blocks: TraceBlocks, first_runs: Ints) -> npt.NDArray[np.bool_]:
    """For each identity of runs whether many begin with it, all the time."""
    num_runs = np.diff(blocks.run_ends, prepend=0)
    follows = blocks.begins < np.repeat(blocks.prompt_tokens // blocks.block_tokens, num_runs)
    follows[first_runs[num_runs > 0]] = False
    places = np.flatnonzero(follows)
    num_uids = int(blocks.uids.max(initial=-1)) + 1
    before = np.full(num_uids, -1, dtype=np.int64)
    before[blocks.uids[places]] = blocks.uids[places - 1]
    num_branches = np.bincount(before[before >= 0], minlength=num_uids)
    times_s = np.repeat(blocks.times_s, num_runs)
    first_s, last_s = np.full(num_uids, np.inf), np.full(num_uids, -np.inf)
    np.minimum.at(first_s, blocks.uids, times_s)
    np.maximum.at(last_s, blocks.uids, times_s)
    long = last_s - first_s >= MIN_SPAN * (blocks.times_s[-1] - blocks.times_s[0])
    shared: npt.NDArray[np.bool_] = (num_branches >= MIN_BRANCHES) & long
    return shared


def _workload(blocks: TraceBlocks, structure: _Structure) -> dict[str, Any]:
    sessions = _sessions(blocks, structure)
    roots = sessions.roots
    is_early = sessions.is_early[roots]
    has_system = structure.shared_blocks[roots] > 0
    many_turns = sessions.num_turns[roots] > 1
    contents = []
    for alike in (
        many_turns & has_system,
        many_turns & ~has_system,
        ~many_turns & has_system,
        ~many_turns & ~has_system,
    ):
        # Sessions that begin late are cut short, so they do not tell how many go on.
        share = float((alike & is_early).sum() / is_early.sum())
        if share >= _MIN_SHARE:
            content = _content(blocks, structure, sessions, roots[alike])
            contents.append({**content, "weight": round(share, 4)})
    gaps_s = np.diff(blocks.times_s[roots])
    starts = "together"
    if len(gaps_s) and gaps_s.any():
        mean_s = float(gaps_s.mean())
        cv = min(max(float(gaps_s.std()) / mean_s, 0.01), 100.0)
        starts = f"gamma(per_s={1 / mean_s:.5g}, cv={cv:.3g})"
    return {
        "kind": "synthetic",
        "num_sessions": len(roots),
        "sessions": {"loop": "open", "starts": starts},
        "max_prompt_tokens": int(2 * blocks.prompt_tokens.max()),
        "content": contents,
    }


@dataclass(frozen=True)
class _Sessions:
    """The requests that begin one, and for every request which one it belongs to.

    Attributes:
        roots: requests that begin a session.
        root_of: for each request.
        num_turns: of the session that a root begins.
        goes_on: whether another request goes on from this one.
        is_early: whether most of those that go on would still have come before the trace ends.
    """

    roots: Ints
    root_of: Ints
    num_turns: Ints
    goes_on: npt.NDArray[np.bool_]
    is_early: npt.NDArray[np.bool_]


def _sessions(blocks: TraceBlocks, structure: _Structure) -> _Sessions:
    num, parents, times_s = blocks.num_requests, structure.parents, blocks.times_s
    later = np.flatnonzero(parents >= 0)
    root_of = np.arange(num)
    for request in later.tolist():
        root_of[request] = root_of[parents[request]]
    goes_on = np.zeros(num, dtype=np.bool_)
    goes_on[parents[later]] = True
    waits_s = times_s[later] - times_s[parents[later]]
    most_s = min(
        float(np.quantile(waits_s, 0.9)) if len(later) else 0.0, (times_s[-1] - times_s[0]) / 2
    )
    return _Sessions(
        roots=np.flatnonzero(parents < 0),
        root_of=root_of,
        num_turns=np.bincount(root_of, minlength=num),
        goes_on=goes_on,
        is_early=times_s <= times_s[-1] - most_s,
    )


def _content(
    blocks: TraceBlocks, structure: _Structure, sessions: _Sessions, roots: Ints
) -> dict[str, Any]:
    """The content that is most like the sessions that these requests begin."""
    members = np.isin(sessions.root_of, roots)
    shared_tokens = structure.shared_blocks[roots] * blocks.block_tokens
    uses = np.sort(np.unique(structure.shared_ids[roots], return_counts=True)[1])[::-1]
    common = {
        "weight": 1.0,
        "system_tokens": round(float(shared_tokens.mean())),
        "num_system_prompts": len(uses),
        "system_zipf": _zipf_exponent(uses),
        "output_tokens": _lognormal(np.maximum(blocks.output_tokens[members], 1)),
    }
    first_tokens = np.maximum(blocks.prompt_tokens[roots] - shared_tokens, 1)
    later = np.flatnonzero(members & (structure.parents >= 0))
    if not len(later):
        return {"kind": "chat", **common, "turns": 1, "first_tokens": _lognormal(first_tokens)}
    parents = structure.parents[later]
    # From the second turn on, each is followed by another with the same chance.
    free = later[sessions.is_early[later]]
    chance = min(float(sessions.goes_on[free].mean()), 0.999) if len(free) else 0.0
    turns = f"geometric(mean={2 + chance / (1 - chance):.4g}, least=2)"
    grown = blocks.prompt_tokens[later] - blocks.prompt_tokens[parents]
    answers = blocks.output_tokens[parents]
    waits_s = blocks.times_s[later] - blocks.times_s[parents]
    common["think_s"] = _lognormal(np.maximum(waits_s, 1e-3), "_s")
    if (grown < 0).mean() <= _MAX_SHRUNK:
        returns = bool((grown > answers).mean() >= 0.5)
        added = grown - answers if returns else grown
        return {
            "kind": "chat",
            **common,
            "turns": turns,
            "first_tokens": _lognormal(first_tokens),
            "user_tokens": _lognormal(np.maximum(added, 1)),
            "answers": "return" if returns else "dropped",
        }
    # Prompts that often get shorter ask anew about the same text, which ends somewhere in the block
    # behind the last one that two of them share.
    kept_tokens = (structure.kept_blocks[later] + 0.5) * blocks.block_tokens
    questions = np.maximum(blocks.prompt_tokens[later] - kept_tokens, 1)
    typical = float(np.median(questions))
    return {
        "kind": "document-qa",
        **common,
        "num_documents": None,
        "document_tokens": _lognormal(np.maximum(first_tokens - typical, 1)),
        "questions": turns,
        "question_tokens": _lognormal(questions),
    }


def _lognormal(values: Ints | Floats, unit: str = "") -> str:
    """The draw with the median and the mean of these values, cut where they end.

    The mean of a lognormal is ``median * exp(sigma**2 / 2)``; values whose mean is below their
    median get the deviation of their logarithms.
    """
    median, mean = float(np.median(values)), float(values.mean())
    spread = 2 * math.log(mean / median)
    sigma = math.sqrt(spread) if spread > 0 else float(np.log(values).std())
    most = float(values.max())
    return f"lognormal(median{unit}={median:.6g}, sigma={sigma:.4g}, max{unit}={math.ceil(most)})"


def _zipf_exponent(uses: Ints) -> float:
    """The exponent that makes these numbers of uses, by rank, most likely; 0 to 5."""
    if len(uses) < 2:
        return 0.0
    logs = np.log(np.arange(1, len(uses) + 1))
    exponents = np.linspace(0, 5, 501)
    sums = np.log(np.exp(-np.outer(exponents, logs)).sum(axis=1))
    likelihoods = -exponents * float((uses * logs).sum()) - uses.sum() * sums
    return round(float(exponents[np.argmax(likelihoods)]), 2)
