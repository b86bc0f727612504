"""Searches: what they find, how they say what they do not know, and what they refuse."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import kvsim
from kvsim.errors import KvsimError, Problems
from kvsim.scenario import Scenario
from kvsim.study import search, trials
from kvsim.study.objective import Clause, parse_number, parse_objective


def made(**changes: Any) -> Scenario:
    """A prompt that comes twice with another between: it needs room for both to be hit."""
    data = {
        "name": "small",
        "model": {"groups": [{"kind": "full", "block_size": 16}]},
        "node": {"num_blocks": 50},
        "step_time": {"kind": "constant", "step_s": 0.01},
        "workload": {
            "kind": "script",
            "requests": [
                {"prompt": [["A", 640]]},
                {"prompt": [["B", 640]], "at_s": 1},
                {"prompt": [["A", 640], ["C", 16]], "at_s": 2},
            ],
        },
    }
    return Scenario.from_data({**data, **changes})


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    """300 prompts of 512 tokens, one a second, each computed alone in 0.512 s."""
    path = tmp_path_factory.mktemp("trace") / "t.jsonl"
    lines = [
        {"timestamp": 1000 * n, "input_length": 512, "output_length": 1, "hash_ids": [n]}
        for n in range(300)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return made(
        node={"num_blocks": 1000},
        step_time={"kind": "constant", "step_s": 0.0, "token_s": 0.001},
        engine={"max_num_batched_tokens": 512},
        workload={"kind": "trace", "path": str(path)},
    )


def test_objectives_are_read() -> None:
    assert parse_objective("ttft_s.p99 < 200 ms and token_hit_rate>=0.5") == (
        Clause("ttft_s.p99", True, True, 0.2),
        Clause("token_hit_rate", False, False, 0.5),
    )
    assert [str(clause) for clause in parse_objective("bytes_stored <= 2 GB")] == [
        "bytes_stored <= 2e+09"
    ]
    below = Clause("x", True, True, 2.0)
    assert (below.meets(1.9), below.meets(2.0), below.meets(None)) == (True, False, False)
    at_least = Clause("x", False, False, 2.0)
    assert (at_least.meets(2.0), at_least.meets(1.9), at_least.meets(float("nan"))) == (
        True,
        False,
        False,
    )


def test_objectives_that_are_none() -> None:
    with pytest.raises(Problems) as caught:
        parse_objective("ttft_s.p99 and tokn_hit_rate > 0.5 and queue_s.p50 < soon")
    assert caught.value.problems == [
        "'ttft_s.p99' is no comparison. Write it as in 'ttft_s.p99 < 2 and token_hit_rate >= 0.5'.",
        "unknown figure 'tokn_hit_rate'. Did you mean 'token_hit_rate'?",
        "queue_s.p50: 'soon' is no number. Write one, as in 2, '15 ms' or '80 GiB'.",
    ]


def test_numbers_may_have_units() -> None:
    assert [parse_number(v) for v in ("2", 3, "1 KiB", "1 Gb/s", "2 min")] == [
        2.0,
        3.0,
        1024.0,
        1.25e8,
        120.0,
    ]


def test_the_smallest_pool_is_found_to_the_block() -> None:
    found = kvsim.find(made(), smallest="node.num_blocks", objective="token_hit_rate >= 0.3")
    # 40 blocks of A stay while 40 of B come, beside block 0 and the one the sliding end needs.
    missed, met = int(found.bracket[1] or 0), int(found.value or 0)
    assert met - missed == 1
    for num_blocks, hit in ((missed, False), (met, True)):
        result = kvsim.run(made(node={"num_blocks": num_blocks}))
        assert (result.summary["token_hit_rate"] >= 0.3) is hit
    assert found.monotone
    assert list(found.trials["value"]) == sorted(found.trials["value"])
    assert set(found.trials.columns) >= {"value", "met", "token_hit_rate", "num_seeds_met"}


def test_the_largest_rate_is_that_of_the_queue(trace: Scenario) -> None:
    found = kvsim.find(trace, largest="request_rate", objective="ttft_s.p99 < 1")
    # Beyond 1 / 0.512 s the queue grows over the whole trace; at it nobody waits.
    assert found.value == pytest.approx(1 / 0.512, rel=0.03)
    assert found.monotone
    met, missed = found.bracket
    assert met is not None
    assert missed is not None
    assert met < missed <= met * 1.02
    assert any(note.startswith("One seed: intervals are over stretches") for note in found.notes)
    assert found.trials["ttft_s.p99.half_width"].notna().all()


def test_a_number_within_a_text_is_found() -> None:
    found = kvsim.find(
        made(), largest="step_time.step_s={} ms", objective="ttft_s.p50 <= 0.5", low=1
    )
    assert found.value == pytest.approx(500, rel=0.03)  # a prompt is one step


def test_what_cannot_be_met_is_said() -> None:
    found = kvsim.find(made(), smallest="node.num_blocks", objective="token_hit_rate >= 0.9")
    assert found.value is None
    assert "No value that was tried meets the objective." in found.notes
    assert any("going further would change nothing" in note for note in found.notes)
    assert len(found.tried) < 10


def test_a_pool_that_is_large_enough_is_halved_until_it_is_not() -> None:
    found = kvsim.find(
        made(node={"num_blocks": 2000}),
        smallest="node.num_blocks",
        objective="token_hit_rate >= 0.3",
    )
    # 2,000 and 1,000 blocks give the same; that tells nothing about 100.
    assert found.value is not None
    assert found.value < 100
    assert found.bracket[1] is not None


def test_what_is_always_met_is_said() -> None:
    found = kvsim.find(
        made(), smallest="node.num_blocks", objective="token_hit_rate >= 0", low=60, high=200
    )
    assert found.value == 60
    assert found.bracket == (60.0, None)
    assert found.notes[0] == "Every value tried meets it: 60 is only the smallest one tried."


def test_refused_requests_do_not_count_as_met() -> None:
    workload = {
        "kind": "script",
        "requests": [{"prompt": [["A", 640]]}, {"prompt": [["long", 3200]], "at_s": 1}],
    }
    scenario = made(node={"num_blocks": 300}, workload=workload)
    options = {"smallest": "node.num_blocks", "low": 100, "high": 300}
    found = kvsim.find(scenario, objective="ttft_s.p99 < 1", **options)  # type: ignore[arg-type]
    assert found.value is not None
    assert found.value > 200
    assert found.tried[0].message == (
        "1 request is refused, so it does not count as met. Add 'and num_refused <= 1' to the "
        "objective to allow that."
    )
    allowed = kvsim.find(
        scenario,
        objective="ttft_s.p99 < 1 and num_refused <= 1",
        **options,  # type: ignore[arg-type]
    )
    assert allowed.value == 100


def fake(monkeypatch: Any, met: Any, *, drawn: float = 0.5) -> None:
    """Runs replaced by a figure that is 0 where a value is met and 1 where it is missed."""

    def measure(task: tuple[Scenario, tuple[str, ...], bool]) -> trials._Measured:
        scenario, names, _ = task
        value = scenario.engine.max_num_seqs
        figure = 0.0 if met(value, scenario.seed) else 1.0
        everything = {names[0]: figure, "of_its_own": value + scenario.seed * drawn}
        return trials._Measured({names[0]: figure}, {names[0]: 0.0}, 0, everything, names)

    monkeypatch.setattr(trials, "_measure", measure)


def largest(**options: Any) -> search.FindResult:
    return kvsim.find(
        made(engine={"max_num_seqs": 256}),
        largest="engine.max_num_seqs",
        objective="goodput < 0.5",
        jobs=1,
        **options,
    )


def test_bisection_finds_the_crossing(monkeypatch: Any) -> None:
    fake(monkeypatch, lambda value, seed: value <= 77)
    found = largest(tolerance=0.001)
    assert (found.value, found.bracket, found.noise) == (77, (77, 78), None)
    assert len(found.tried) < 20


def test_a_bracket_that_is_not_monotone_is_said(monkeypatch: Any) -> None:
    fake(monkeypatch, lambda value, seed: value in {100, 200, 400} or value > 300)
    found = largest(low=100, high=500)
    assert found.value == 500  # both ends are met: nothing to bisect
    fake(monkeypatch, lambda value, seed: value > 300)
    found = largest(low=100, high=500)
    assert found.value is None
    assert not found.monotone
    assert found.notes[0] == (
        "Not monotone: 100 misses the objective, and 500 beyond it meets it. The answer is the "
        "last value before the first that missed; a search assumes that there is one crossing, "
        "and here there are several."
    )


def test_noise_between_seeds_is_shown(monkeypatch: Any) -> None:
    fake(monkeypatch, lambda value, seed: value <= 100 + 10 * seed)
    found = largest(seeds=5, tolerance=0.001, low=50, high=200)
    # The mean of the seeds' figures crosses one half where three of five have crossed.
    assert found.value == 120
    at = {trial.value: trial for trial in found.tried}
    assert (at[120.0].num_seeds_met, at[121.0].num_seeds_met, at[50.0].num_seeds_met) == (3, 2, 5)
    assert found.noise is not None
    assert 100 < found.noise[0] <= 120
    assert 121 <= found.noise[1] <= 140
    assert at[50.0].clear is True


def test_seeds_that_change_nothing_are_left_out(monkeypatch: Any) -> None:
    fake(monkeypatch, lambda value, seed: value <= 77, drawn=0.0)
    found = largest(seeds=3)
    assert found.notes[0].startswith("Nothing is drawn at random in this scenario: all seeds")
    assert all(trial.num_seeds == 1 for trial in found.tried)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "find: give either largest or smallest, and what it is of."),
        (
            {"largest": "request_rate"},
            "quantity: request_rate needs a workload of kind trace or synthetic, whose times can "
            "be scaled. Vary a key of the workload instead.",
        ),
        (
            {"smallest": "node.num_block"},
            "quantity: unknown key 'node.num_block'. Did you mean 'node.num_blocks'?",
        ),
        (
            {"smallest": "nodes.num_blocks"},
            "quantity: unknown key 'nodes.num_blocks'. Did you mean 'node.num_blocks'?",
        ),
        (
            {"smallest": "node.gpu"},
            "quantity: node.gpu is no number. Vary one that is, as node.num_blocks.",
        ),
        (
            {"smallest": "node.num_blocks", "low": "a", "high": "5 parsecs"},
            "find: 2 problems\n"
            "  low: 'a' is no number. Write one, as in 2, '15 ms' or '80 GiB'.\n"
            "  high: '5 parsecs' is no number. Write one, as in 2, '15 ms' or '80 GiB'.",
        ),
        (
            {"smallest": "node.num_blocks", "low": 5, "high": 4, "tolerance": 2, "seeds": 0},
            "find: 3 problems\n"
            "  tolerance: 2 is not between 0 and 1. Use 0.02, say.\n"
            "  seeds: 0 is below 1. Use 1 or more.\n"
            "  low: 5 is not below high (4). Swap them.",
        ),
        (
            {"smallest": "step_time.step_s=5 ms"},
            "quantity: '5 ms' has no place for the number. Write {} where it goes, as in "
            "'step_time.step_s={} ms'.",
        ),
        (
            {"smallest": "engine.max_model_len", "low": -1},
            "find: 1 problem\n  low: -1 is not above 0. Use a finite value above 0.",
        ),
        (
            {"smallest": "engine.max_model_len"},
            "quantity: engine.max_model_len has no number in this scenario to start from. Give low "
            "or high.",
        ),
        (
            {"smallest": "node.num_blocks", "objective": "ttft_s.p98 < 1"},
            "objective: 1 problem\n  unknown figure 'ttft_s.p98'. Did you mean 'ttft_s.p99'?",
        ),
    ],
)
def test_questions_that_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(KvsimError) as caught:
        kvsim.find(made(), **{"objective": "token_hit_rate > 0.1", **options})
    assert str(caught.value) == message


def test_the_command_shows_each_variant(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from kvsim.cli import app

    data = made().written()
    data["variants"] = {
        "append": {"cache.free_queue": "append"},
        "none": {"cache.enable_prefix_caching": False},
    }
    path = tmp_path / "s.yaml"
    path.write_text(json.dumps(data))
    command = ["find", str(path), "--smallest", "node.num_blocks"]
    command += ["--objective", "token_hit_rate >= 0.3", "--low", "60", "--high", "120"]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 1
    assert "append: smallest node.num_blocks that meets token_hit_rate >= 0.3: " in shown.output
    assert "none: no node.num_blocks tried meets token_hit_rate >= 0.3" in shown.output
    printed = CliRunner().invoke(app, [*command, "--json", "--only", "append"])
    assert printed.exit_code == 0
    found = json.loads(printed.stdout)["variants"]["append"]
    assert found["bracket"][0] == found["value"]
    assert found["trials"][0]["figures"].keys() == {"token_hit_rate"}


def burst(num_sessions: int) -> Scenario:
    """Sessions that last about 3 s each, on a node that is never full."""
    return made(
        node={"num_blocks": 40_000},
        step_time={"kind": "constant", "step_s": 0.03},
        workload={
            "kind": "synthetic",
            "num_sessions": num_sessions,
            "sessions": {"starts": "constant(per_s=1)"},
            "content": [
                {"kind": "samples", "prompt_tokens": 100, "num_samples": 1, "output_tokens": 100}
            ],
        },
    )


def test_a_start_up_burst_is_said() -> None:
    found = kvsim.find(
        burst(20),
        largest="request_rate",
        objective="ttft_s.p99 < 10",
        low=2,
        high=20,
        tolerance=0.5,
    )
    assert found.value == 20
    # 20 sessions start within 0.95 s, and each takes 100 steps of 30 ms and waits for one to end.
    assert found.steady_s == 0
    (note,) = [note for note in found.notes if note.startswith("Start-up burst")]
    lasting = re.search(r"a session lasts (3\.0\d s) \(median\)", note)
    assert lasting is not None
    assert note == (
        "Start-up burst: a steady state was seen not at all at request_rate 20: the 20 sessions "
        f"start within 950 ms, and a session lasts {lasting[1]} (median). The answer holds for a "
        "burst of 20 sessions, not for a load that lasts. Use a workload with more sessions."
    )
    assert found.as_json()["steady_s"] == 0


def test_how_long_a_steady_state_was_seen_is_said() -> None:
    found = kvsim.find(
        burst(100),
        largest="request_rate",
        objective="ttft_s.p99 < 10",
        low=1,
        high=2,
        tolerance=0.5,
    )
    assert found.value == 2
    assert found.steady_s == pytest.approx(99 / 2 - 3.0, abs=0.1)
    assert any(note.startswith("A steady state was seen for 46.") for note in found.notes)
    assert not any(note.startswith("Start-up burst") for note in found.notes)


def test_a_pool_is_no_load() -> None:
    found = kvsim.find(
        made(), smallest="node.num_blocks", objective="token_hit_rate >= 0", low=60, high=200
    )
    assert found.steady_s is None
    assert not any("steady state" in note for note in found.notes)


def test_the_table_of_the_command_fits_80_columns(tmp_path: Path, monkeypatch: Any) -> None:
    from rich.console import Console
    from typer.testing import CliRunner

    from kvsim.cli import app
    from kvsim.cli import find as command

    path = tmp_path / "s.yaml"
    path.write_text(json.dumps(made().written()))
    monkeypatch.setattr(command, "make_console", lambda: Console(width=80))
    objective = "token_hit_rate >= 0.3 and ttft_s.p99 < 100 and output_tokens_per_s > 0 and "
    objective += "requests_per_s > 0 and num_refused < 2 and queue_s.p99 < 100 and preemptions < 9"
    arguments = ["find", str(path), "--smallest", "node.num_blocks", "--objective", objective]
    shown = CliRunner().invoke(app, [*arguments, "--low", "60", "--high", "120"])
    assert shown.exit_code == 0, shown.output
    assert max(len(line.rstrip()) for line in shown.output.splitlines()) <= 80
    assert "more columns with --wide" in shown.output
    assert "more columns" not in CliRunner().invoke(app, [*arguments, "--wide"]).output


def test_help_is_whole_at_80_columns(monkeypatch: Any) -> None:
    from typer.testing import CliRunner

    from kvsim.cli import app

    for command in ("find", "sweep", "compare", "report"):
        shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "80"})
        assert "…" not in shown.output
