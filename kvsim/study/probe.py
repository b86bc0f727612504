"""What a retention interval keeps, asked with a script: many sessions, then one question each.

Sessions of distinct prompts run one after another until they no longer all fit; then, newest
first, one is branched in the middle, one goes on with its next turn, and all others are sent
again. What each of these finds tells what the policy keeps, free of a workload's own mix.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.errors import KvsimError
from kvsim.study.frames import named_results, scenario_policy

if TYPE_CHECKING:
    import pandas as pd

    from kvsim.results.store import RunResult
    from kvsim.study.frames import Results

QUESTION_TOKENS = 500
"""New tokens of a next turn or of a branch."""
_NUM_ASKED = 2
"""Sessions that are not sent again: the branched one and the one with a next turn."""


def retention_probe(
    num_sessions: int, session_tokens: int, answer_tokens: int = 200
) -> dict[str, Any]:
    """The `workload` of a scenario that asks what a policy keeps.

    Args:
        num_sessions: distinct prompts, 3 or more; more than fit, or all of them are kept.
        session_tokens: tokens of each, 2 or more.
        answer_tokens: tokens of each answer.

    Raises:
        KvsimError: a number is too small.
    """
    problems = [
        f"{name}: {value} is below {least}. Give {least} or more."
        for name, value, least in (
            ("num_sessions", num_sessions, _NUM_ASKED + 1),
            ("session_tokens", session_tokens, 2),
            ("answer_tokens", answer_tokens, 1),
        )
        if value < least
    ]
    if problems:
        raise KvsimError("\n".join(problems))
    sessions = [f"S{number}" for number in range(num_sessions)]
    branched, continued, *others = reversed(sessions)
    requests: list[dict[str, Any]] = [
        {
            "prompt": [[name, session_tokens]],
            "output": answer_tokens,
            "output_name": f"{name} answer",
        }
        for name in sessions
    ]
    requests += [
        {"prompt": [[branched, session_tokens // 2], ["branch", QUESTION_TOKENS]]},
        {
            "prompt": [
                [continued, session_tokens],
                [f"{continued} answer", answer_tokens],
                ["next question", QUESTION_TOKENS],
            ]
        },
        *({"prompt": [[name, session_tokens]]} for name in others),
    ]
    return {"kind": "script", "requests": requests, "concurrency": 1}


def probe_text(num_sessions: int, session_tokens: int) -> str:
    """A scenario file with the script of `retention_probe` under five policies.

    Raises:
        KvsimError: a number is too small.
    """
    import json
    from importlib.resources import files

    workload = retention_probe(num_sessions, session_tokens)
    head = files("kvsim.study").joinpath("retention_probe.yaml").read_text(encoding="utf-8")
    # JSON is YAML too, and a request a line is read more easily than eight lines of it.
    lines = [f"    - {json.dumps(request)}" for request in workload.pop("requests")]
    keys = [f"  {key}: {value}" for key, value in workload.items()]
    return "\n".join([f"{head}workload:", *keys, "  requests:", *lines, ""])


def is_probe(result: RunResult) -> bool:
    """Whether a run is one of `retention_probe`, by its script and the lengths of its prompts."""
    prompts = result.requests["prompt_tokens"].to_numpy()
    num_sessions = len(prompts) // 2
    if result.scenario.workload.kind != "script" or len(prompts) != 2 * num_sessions:
        return False
    if num_sessions <= _NUM_ASKED:
        return False
    tokens = prompts[0]
    return bool(
        (prompts[:num_sessions] == tokens).all()
        and prompts[num_sessions] == tokens // 2 + QUESTION_TOKENS
        and (prompts[num_sessions + _NUM_ASKED :] == tokens).all()
    )


def read_probe(results: Results) -> pd.DataFrame:
    """What runs of `retention_probe` found, a row a run.

    Returns:
        Columns `label`, `policy`, `sessions_kept` (sessions that a resend finds to the end of the
        prompt; the branched and the continued one, which are newer, are counted with them, or
        where they were found if no resend was), `num_sessions`, and as fractions of the tokens in
        common `resend` (of the newest session sent again), `next_turn` and `branch`.

    Raises:
        KvsimError: a run is not one of `retention_probe`, or had a request refused.
    """
    import pandas as pd

    rows = []
    for name, result in named_results(results).items():
        if not is_probe(result):
            raise KvsimError(f"{name}: is no run of a retention probe. Run one of retention_probe.")
        requests = result.requests
        num_sessions = len(requests) // 2
        tokens = int(requests["prompt_tokens"].iloc[0])
        if requests["refused"].notna().any():
            reason = requests["refused"].dropna().iloc[0]
            raise KvsimError(f"{name}: a request was refused ({reason}). Use shorter sessions.")
        asked = requests.iloc[num_sessions:]
        hits = asked["hit_tokens"].to_numpy(dtype=float)
        resent = asked.iloc[_NUM_ASKED:]
        kept = int((resent["hit_ended"] == "end of prompt").sum())
        newest = _NUM_ASKED if kept else int((hits[:_NUM_ASKED] > 0).sum())
        answer_tokens = int(requests["output_tokens"].iloc[0])
        rows.append(
            {
                "label": name,
                "policy": scenario_policy(result.scenario),
                "sessions_kept": kept + newest,
                "num_sessions": num_sessions,
                "resend": hits[_NUM_ASKED] / tokens,
                "next_turn": hits[1] / (tokens + answer_tokens),
                "branch": hits[0] / (tokens // 2),
            }
        )
    return pd.DataFrame(rows)
