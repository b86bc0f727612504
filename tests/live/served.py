"""What a real server answered, as a scenario: cached tokens of every request.

A file holds `groups` in the engine's order, `num_blocks` and the engine's limits, and `requests`
with their prompt as spans, `output`, `cached` and, where clients overlapped, `sent_s` and `done_s`.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from kvsim.engine.simulation import simulate
from kvsim.scenario import Scenario

OWN = Path(__file__).parents[1] / "data" / "live"
SHARED = Path(__file__).parents[3] / "shared" / "live"


def recording(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(gzip.decompress((OWN / name).read_bytes()))
    return content


def names(pattern: str) -> list[str]:
    """Recordings in the project, and others where they are."""
    found = {path.name: path for folder in (SHARED, OWN) for path in folder.glob(pattern)}
    return sorted(found)


def scenario(recorded: dict[str, Any], step_s: float, token_s: float, **engine: Any) -> Scenario:
    """The recorded set-up; requests at their times, or one after another where they have none."""
    requests = [
        {
            key: request[old]
            for key, old in (
                ("prompt", "prompt"),
                ("output", "output"),
                ("output_name", "output_name"),
                ("at_s", "sent_s"),
            )
            if old in request
        }
        for request in recorded["requests"]
    ]
    serial = "clients" not in recorded
    limits = ("max_num_batched_tokens", "max_model_len", "max_num_seqs")
    return Scenario.from_data(
        {
            "name": "served",
            "model": {"groups": recorded["groups"]},
            "node": {"num_blocks": recorded["num_blocks"]},
            "engine": {key: recorded[key] for key in limits if key in recorded} | engine,
            "step_time": {"kind": "constant", "step_s": step_s, "token_s": token_s},
            "workload": {
                "kind": "script",
                **({"concurrency": 1} if serial else {}),
                "requests": requests,
            },
        }
    )


def hit_tokens(played: Scenario) -> list[int]:
    """Prefix hits of the requests, in the order in which they were written."""
    frame = simulate(played).requests.frame()
    return [int(hit) for hit in frame.sort_values("request_id", key=_number)["hit_tokens"]]


def _number(ids: Any) -> Any:
    return ids.str.extract(r"(\d+)", expand=False).astype(int)
