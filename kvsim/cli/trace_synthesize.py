"""`kvsim trace synthesize`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvsim.cli.terminal import ScenarioFile, Settings
from kvsim.errors import Problems

if TYPE_CHECKING:
    from kvsim.workload.request import Request


def synthesize(
    scenario: ScenarioFile,
    out: Annotated[
        Path,
        typer.Argument(
            metavar="OUT", help="Trace to write: .jsonl, .jsonl.gz, .jsonl.zst or .parquet."
        ),
    ],
    settings: Settings = [],  # noqa: B006 - typer copies it
    block_tokens: Annotated[
        int, typer.Option(min=1, max=2**20, metavar="N", help="Tokens that one id stands for.")
    ] = 16,
    limit: Annotated[int | None, typer.Option(min=1, help="First requests alone.")] = None,
) -> None:
    """Write what a scenario's synthetic workload asks for as a trace in Mooncake's format.

    Nothing is simulated, so answers take no time: the turns of a session follow at think and tool
    time alone. Replay the scenario itself for a closed loop.
    """
    from kvsim.scenario import SyntheticWorkload
    from kvsim.scenario.reading import load_scenario
    from kvsim.workload.sessions import in_open_loop
    from kvsim.workload.synthetic import synthetic_sessions
    from kvsim.workload.traces.writing import write_mooncake

    loaded = load_scenario(scenario, settings)
    workload = loaded.workload
    if not isinstance(workload, SyntheticWorkload):
        text = f"workload.kind: is {workload.kind}. Give a scenario whose workload is synthetic."
        raise Problems(str(scenario), [text])
    if workload.sessions.concurrency is not None:
        text = "workload.sessions.concurrency: with it, sessions start when answers end, and there "
        text += "are none here. Give workload.sessions.starts."
        raise Problems(str(scenario), [text])
    num_sessions, last_s = 0, 0.0

    def counted() -> Iterator[Request]:
        nonlocal num_sessions, last_s
        requests = in_open_loop(synthetic_sessions(workload, loaded.seed))
        for request in islice(requests, limit):
            num_sessions += request.request_id.endswith(".0000")
            last_s = request.arrival_s
            yield request

    num_requests = write_mooncake(out, counted(), block_tokens)
    sys.stdout.write(
        f"{out}: {num_requests:,} requests of {num_sessions:,} sessions over {last_s:,.1f} s, "
        f"ids of {block_tokens} tokens\n"
    )
