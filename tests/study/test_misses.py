"""What was missed and why, in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.errors import KvsimError
from kvsim.plots import frame, missed_tokens
from kvsim.results.store import RunResult, load_result
from kvsim.results.variants import run_variant, write_variant
from kvsim.scenario.reading import load_scenario
from kvsim.study.misses import explain, miss_findings, miss_rows

SCENARIO = """\
name: misses
model: {groups: [{kind: full, block_size: 16}, {kind: sliding_window, block_size: 16,
                 sliding_window: 17}]}
node: {num_blocks: 110}
cache: {retention_interval: 0}
engine: {max_model_len: 4096, max_num_batched_tokens: 1024}
step_time: {kind: constant, step_s: 0.01}
output: {reasons: true}
workload:
  kind: script
  concurrency: 1
  requests:
    - {prompt: [[A, 320], [x, 50]], output: 1}
    - {prompt: [[A, 320], [y, 50]], output: 1}
    - {prompt: [[B, 700]], output: 20}
    - {prompt: [[A, 320], [x, 50]], output: 1}
    - {prompt: [[A, 320], [x, 50]], output: 1}
"""


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    folder = tmp_path_factory.mktemp("misses")
    path = folder / "misses.yaml"
    path.write_text(SCENARIO)
    write_variant(folder, run_variant(load_scenario(path)))
    return load_result(folder / "default")


def test_the_summary_adds_up(result: RunResult) -> None:
    summary = result.summary
    missed = summary["missed_tokens"]
    assert sum(missed.values()) == summary["queried_tokens"] - summary["hit_tokens"]
    assert summary["missed_by_group"]["not_retained"] == [0, missed["not_retained"]]
    assert missed["not_retained"] == 320
    assert missed["evicted_by_prompt"] + missed["evicted_by_window"] > 0


def test_the_story_names_what_was_shared_and_what_would_have_kept_it(result: RunResult) -> None:
    text = "\n".join(explain(result, "2").lines)
    assert "Its first 320 tokens it shared with request 0000001" in text
    assert "320 not_retained" in text and "(group 1 (sliding window))" in text
    assert "group 0 (full) up to 320" in text
    assert "cache.retention_interval: null would have kept it up to 320 tokens, 256" in text


def test_the_story_names_who_pushed_what_out(result: RunResult) -> None:
    story = explain(result, "0000004")
    text = "\n".join(story.lines)
    assert "request 0000003" in text and "later," in text
    assert "A larger pool (about " in text
    assert story.figures["evicted_for"] == "0000003"
    assert story.figures["hit_tokens"] + sum(
        value or 0 for name, value in story.figures.items() if name.startswith("missed_")
    ) == (370)


def test_a_resend_has_nothing_to_gain(result: RunResult) -> None:
    lines = explain(result, "5").lines
    assert lines[-1] == "No setting of the cache would have found more."


def test_unknown_requests_and_runs_without_reasons_are_refused(
    result: RunResult, tmp_path: Path
) -> None:
    for name in ("6", "nobody"):
        with pytest.raises(KvsimError, match="REQUEST: the run has no request .*from 1 to 5"):
            explain(result, name)
    path = tmp_path / "plain.yaml"
    path.write_text(SCENARIO.replace("reasons: true", "reasons: false"))
    plain = run_variant(load_scenario(path))
    assert plain.summary["missed_tokens"] is plain.summary["missed_by_group"] is None
    assert plain.summary["hit_tokens"] == result.summary["hit_tokens"]
    with pytest.raises(KvsimError, match="output.reasons: true"):
        explain(plain, "1")
    with pytest.raises(KvsimError, match="no run has reasons"):
        missed_tokens(frame({"plain": plain}))


def test_rows_and_findings_leave_out_what_never_was(result: RunResult) -> None:
    rows = miss_rows({"a": result.summary, "b": {**result.summary, "missed_tokens": None}})
    assert "never\nseen" in rows and "look-\nahead" not in rows
    assert rows["never\nseen"][1] == "-"
    (said,) = miss_findings(frame({"a": result}))
    assert said.startswith("a: ") and "had been seen before and were missed" in said


def test_bars_are_as_long_as_what_was_seen_before(result: RunResult) -> None:
    summary = result.summary
    ax = missed_tokens(frame({"a": result}))
    ends = max(bar.get_x() + bar.get_width() for bar in ax.patches)
    seen = summary["prompt_tokens"] - summary["missed_tokens"]["never_seen"]
    assert ends == pytest.approx(seen / summary["prompt_tokens"])
