"""Sessions made at random: a generator for each content, one file a family."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator

import numpy as np

from kvsim.errors import Problems
from kvsim.scenario.draws import parse_starts
from kvsim.scenario.synthetic import SyntheticWorkload
from kvsim.workload.request import Session, Workload
from kvsim.workload.sessions import in_open_loop, start_times_s
from kvsim.workload.streams import stream
from kvsim.workload.synthetic.agentic import AgenticGenerator
from kvsim.workload.synthetic.batches import CycleGenerator, FewShotGenerator, OneOffGenerator
from kvsim.workload.synthetic.building import Generator, SessionBuilder, Uids
from kvsim.workload.synthetic.chat import ChatGenerator
from kvsim.workload.synthetic.documents import DocumentQaGenerator, RagGenerator
from kvsim.workload.synthetic.recorded import read_recorded
from kvsim.workload.synthetic.samples import SamplesGenerator

__all__ = ["GENERATORS", "open_synthetic", "synthetic_sessions"]

GENERATORS: dict[str, Callable[..., Generator]] = {
    "chat": ChatGenerator,
    "agentic": AgenticGenerator,
    "rag": RagGenerator,
    "document-qa": DocumentQaGenerator,
    "few-shot": FewShotGenerator,
    "samples": SamplesGenerator,
    "one-off": OneOffGenerator,
    "cycle": CycleGenerator,
}
"""The generator of each kind of content."""


def open_synthetic(config: SyntheticWorkload, seed: int) -> Workload:
    """Open a synthetic workload; sessions are made when they start.

    Raises:
        KvsimError: its trace cannot be read; a first prompt is too long, while sessions are made.
    """
    num_made = 0

    def counted() -> Iterator[Session]:
        nonlocal num_made
        for session in synthetic_sessions(config, seed):
            num_made += 1
            yield session

    workload = Workload(
        requests=iter(()),
        concurrency=config.sessions.concurrency,
        share_read=lambda: num_made / config.num_sessions,
    )
    if config.sessions.loop == "open":
        workload.requests = in_open_loop(counted())
    else:
        workload.sessions = counted()
    return workload


def synthetic_sessions(config: SyntheticWorkload, seed: int) -> Iterator[Session]:
    """The sessions in order of their start; with a concurrency, all of them start at 0.

    Session k draws from a stream of its own, so its lengths and times are the same whatever the
    others do.

    Raises:
        KvsimError: as `open_synthetic`.
    """
    recorded = None if config.path is None else read_recorded(config.path, config.directory)
    uids = Uids()
    generators: list[Generator] = []
    for number, content in enumerate(config.content):
        rng = stream(seed, "shared", number)
        lengths = None if recorded is None else recorded.lengths
        generators.append(GENERATORS[content.kind](content, uids, rng, lengths))
    shares = np.cumsum([content.weight for content in config.content])
    shares /= shares[-1]
    ends: list[float] = shares[:-1].tolist()
    which = stream(seed, "content")
    starts_s: Iterator[float] = iter(lambda: 0.0, None)
    if config.sessions.starts is not None:
        starts = parse_starts(config.sessions.starts)
        if starts.form == "recorded":
            assert recorded is not None, "checked with the scenario"
            if recorded.times_s is None:
                text = f"sessions.starts: {config.path} has no recorded times. Choose others."
                raise Problems("workload", [text])
            starts_s = iter(recorded.times_s.tolist())
        else:
            starts_s = start_times_s(starts, stream(seed, "starts"), config.num_sessions)
    for number in range(config.num_sessions):
        start_s = next(starts_s, None)
        if start_s is None:
            text = f"num_sessions: {config.num_sessions} are more than the {number} requests of "
            raise Problems("workload", [f"{text}{config.path}. Use {number} or fewer."])
        index = bisect_right(ends, which.random())
        builder = SessionBuilder(
            f"{number + 1:07d}",
            config.max_prompt_tokens,
            f"content.{index} ({config.content[index].kind})",
        )
        generators[index].build(builder, stream(seed, "session", number))
        yield builder.session(start_s)
