"""What a real server answered, as a scenario: cached tokens of every request.

What a file holds is in README.md beside this file.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from kvsim.engine.simulation import simulate
from kvsim.scenario import Scenario

FOLDER = Path(__file__).parents[1] / "data" / "live"


def recording(name: str) -> dict[str, Any]:
    """The content of a recording."""
    content: dict[str, Any] = json.loads(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes()))
    return content


def scenario(recorded: dict[str, Any], step_s: float, token_s: float, **engine: Any) -> Scenario:
    """The recorded set-up; requests at their times, or one after another where they have none."""
    renamed = {
        "prompt": "prompt",
        "output": "output",
        "output_name": "output_name",
        "sent_s": "at_s",
    }
    requests = [
        {new: request[old] for old, new in renamed.items() if old in request}
        for request in recorded["requests"]
    ]
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
                **({} if "clients" in recorded else {"concurrency": 1}),
                "requests": requests,
            },
        }
    )


def hit_tokens(played: Scenario) -> dict[int, int]:
    """Prefix hits of the requests by their place in the recording."""
    frame = simulate(played).requests.frame()
    numbers = frame["request_id"].str.extract(r"(\d+)", expand=False).astype(int)
    hits = frame["hit_tokens"].groupby(numbers).first().sort_index()
    return dict(enumerate(int(hit) for hit in hits))


def cached_tokens(recorded: dict[str, Any]) -> dict[int, int]:
    """What the server answered, by the requests' place in the recording."""
    return {i: request["cached"] for i, request in enumerate(recorded["requests"])}


def num_prompt_tokens(recorded: dict[str, Any]) -> int:
    """Of all requests together."""
    return sum(num for request in recorded["requests"] for _, num in request["prompt"])
