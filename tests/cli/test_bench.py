from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Kvsim

TRACE = Path(__file__).parents[2] / "scenarios" / "traces" / "mooncake_conversation.jsonl.gz"


def test_the_core_is_timed_on_a_trace(kvsim: Kvsim) -> None:
    answer = kvsim("bench", "core", TRACE, "--limit", "50", "--json")
    assert answer.code == 0, answer.err
    figures = json.loads(answer.out)
    assert list(figures) == [
        "requests",
        "seconds",
        "ms_per_request",
        "hit_tokens",
        "tokens",
        "loop_seconds",
    ]
    assert figures["requests"] == 50
    assert figures["ms_per_request"] == pytest.approx(1000 * figures["seconds"] / 50)
    assert figures["loop_seconds"] > 0


@pytest.mark.parametrize(
    ("options", "hit_tokens"),
    [
        (["--groups", "dsv4", "--retention", "0"], 9_325_056),
        (["--groups", "dsv4", "--retention", "null"], 2_092_544),
        (["--groups", "full", "--retention", "null"], 5_953_520),
    ],
)
def test_hits_of_the_first_3000_requests_are_the_engines(
    kvsim: Kvsim, options: list[str], hit_tokens: int
) -> None:
    figures = json.loads(kvsim("bench", "core", TRACE, "--limit", 3000, "--json", *options).out)
    assert (figures["hit_tokens"], figures["tokens"]) == (hit_tokens, 40_550_180)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--groups", "dsv"], "--groups: unknown groups 'dsv'. Did you mean 'dsv4'?"),
        (["--retention", "none"], "--retention: 'none' is no interval. Use null, 0 or a number"),
        (["--retention", "100"], "bench core: retention_interval: 100 is not a multiple of the"),
        (["--num-blocks", "100"], "does not fit in 99 blocks. Give a larger --num-blocks."),
    ],
)
def test_what_cannot_be_timed(kvsim: Kvsim, options: list[str], message: str) -> None:
    answer = kvsim("bench", "core", TRACE, "--limit", "20", *options)
    assert answer.code == 2
    assert message in answer.err


MEASURED = """\
id,model,gpu,precision,engine,tp,isl,osl,concurrency,num_prompts,len_low_ratio,ttft_mean_s,\
tpot_mean_s,disagg
a,llama-3.3-70b,h200,fp8,vllm,4,1024,128,4,12,0.8,0.1,0.01,False
b,llama-3.3-70b,h200,fp8,vllm,4,1024,128,4,12,0.8,0.1,0.01,True
"""


def test_step_times_are_held_against_measurements(kvsim: Kvsim, tmp_path: Path) -> None:
    measured = tmp_path / "m.csv"
    measured.write_text(MEASURED)
    answer = kvsim("bench", "times", measured, "--jobs", 1, "--out", tmp_path / "o")
    assert answer.code == 0, answer.err
    assert "llama-3.3-70b" in answer.out and "Left out (1): prefill and decode" in answer.out
    assert (tmp_path / "o" / "times.png").stat().st_size > 10_000
    found = json.loads(kvsim("bench", "times", measured, "--jobs", 1, "--json").out)
    assert found == json.loads((tmp_path / "o" / "times.json").read_text())
    assert [point["left_out"] is None for point in found["points"]] == [True, False]
    assert found["tpot"]["n"] == 1 and found["points"][0]["tpot_s"] > 0


def test_measurements_that_cannot_be_read(kvsim: Kvsim, tmp_path: Path) -> None:
    answer = kvsim("bench", "times", tmp_path / "none.csv")
    assert answer.code == 2 and "cannot be read" in answer.err and "Traceback" not in answer.err
