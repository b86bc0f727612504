"""What searches vary: loads of every workload, tiers and their links, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kvsim
from kvsim.errors import KvsimError
from kvsim.scenario import Scenario
from kvsim.study.quantities import Quantity, quantity

TIER = {"kind": "cpu", "num_chunks": 500, "link": {"bandwidth": "100 GB/s"}}


def made(**changes: Any) -> Scenario:
    """A prompt of 40 blocks comes again after one of 45 has pushed it out of the pool."""
    data = {
        "name": "small",
        "model": {
            "groups": [{"kind": "full", "block_size": 16, "bytes_per_block": 1_000_000}],
        },
        "node": {"num_blocks": 50},
        "step_time": {"kind": "constant", "step_s": 0.01, "token_s": 0.001},
        "workload": {
            "kind": "script",
            "requests": [
                {"prompt": [["A", 640]]},
                {"prompt": [["B", 720]], "at_s": 10},
                {"prompt": [["A", 640], ["C", 16]], "at_s": 20},
            ],
        },
    }
    return Scenario.from_data({**data, **changes})


def synthetic(starts: str | None, **sessions: Any) -> Scenario:
    """60 sessions of two turns, each prompt of 100 tokens more, computed at 1 ms a token."""
    workload = {
        "kind": "synthetic",
        "num_sessions": 60,
        "sessions": {"starts": starts, **sessions},
        "content": [
            {
                "kind": "chat",
                "system_tokens": 0,
                "turns": 2,
                "user_tokens": 100,
                "output_tokens": 1,
                "think_s": 1,
            }
        ],
    }
    return made(workload=workload, node={"num_blocks": 5000})


def overrides(found: Quantity, value: float) -> dict[str, Any]:
    """What a value changes."""
    return found.overrides(value)


@pytest.mark.parametrize(
    ("starts", "rate", "doubled"),
    [
        ("constant(per_s=3)", 6.0, "constant(per_s=6)"),
        ("poisson(per_s=3)", 6.0, "poisson(per_s=6)"),
        ("gamma(per_s=3, cv=2)", 6.0, "gamma(per_s=6, cv=2)"),
        (
            "ramp(from_per_s=1, to_per_s=4, over_s=60)",
            8.0,
            "ramp(from_per_s=2, to_per_s=8, over_s=60)",
        ),
        (
            "diurnal(mean_per_s=2, swing=0.5, period_s=1 h)",
            4.0,
            "diurnal(mean_per_s=4, swing=0.5, period_s=3600)",
        ),
        ("uniform(span_s=2 min)", 1.0, "uniform(span_s=60)"),
    ],
)
def test_rates_of_sessions(starts: str, rate: float, doubled: str) -> None:
    scenario = synthetic(starts)
    found = quantity(scenario, "request_rate")
    assert found.start == pytest.approx(rate)
    changed = overrides(found, 2 * rate)
    assert changed == {"workload.sessions.starts": doubled}
    assert scenario.replace(changed).workload.sessions.starts == doubled  # type: ignore[union-attr]
    assert "times 2, the mean number of requests" in found.notes[0]


@pytest.mark.parametrize("loop", ["open", "closed"])
def test_the_largest_rate_of_synthetic_sessions(loop: str) -> None:
    one_turn = {"workload.content.0.turns": 1, "engine.max_num_seqs": 1}
    scenario = synthetic("constant(per_s=1)", loop=loop).replace(one_turn)
    found = kvsim.find(scenario, largest="request_rate", objective="queue_s.p99 < 0.05")
    # A prompt of 100 tokens is a step of 110 ms: beyond 1 / 0.11 s the queue grows.
    assert found.value == pytest.approx(1 / 0.11, rel=0.03)
    assert found.monotone
    assert found.notes[0] == (
        "request_rate is sessions a second (workload.sessions.starts) times 1, the mean number of "
        "requests of a session."
    )


def session_trace(tmp_path: Path) -> Path:
    lines = [
        {
            "session_id": f"s{n}",
            "input_length": 512,
            "output_length": 1,
            "hash_ids": [n],
            "timestamp": 1000 * n,
        }
        for n in range(20)
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_rates_of_traces_with_sessions(tmp_path: Path) -> None:
    path = str(session_trace(tmp_path))
    recorded = made(workload={"kind": "trace", "path": path, "sessions": {"loop": "closed"}})
    found = quantity(recorded, "request_rate")
    assert found.start == pytest.approx(1.0)
    assert overrides(found, 4.0) == {"workload.time_scale": pytest.approx(0.25)}
    assert "scales think and tool times" in found.notes[0]
    drawn = recorded.replace({"workload.sessions.starts": "uniform(span_s=40)"})
    found = quantity(drawn, "request_rate")
    assert found.start == pytest.approx(0.5)
    assert overrides(found, 1.0) == {"workload.sessions.starts": "uniform(span_s=20)"}


def test_concurrency_takes_the_place_of_starts(tmp_path: Path) -> None:
    scenario = synthetic("poisson(per_s=3)")
    found = quantity(scenario, "concurrency")
    assert overrides(found, 5) == {
        "workload.sessions.starts": None,
        "workload.sessions.concurrency": 5,
    }
    assert (found.start, found.most, found.whole) == (8.0, 60.0, True)
    assert found.notes == (
        "Sessions start as others end, instead of workload.sessions.starts poisson(per_s=3).",
    )
    assert found.rounded(1000) == 60
    of_trace = made(workload={"kind": "trace", "path": str(session_trace(tmp_path))})
    assert overrides(quantity(of_trace, "concurrency"), 2) == {"workload.sessions.concurrency": 2}


def test_the_largest_concurrency_is_found() -> None:
    scenario = synthetic(None, concurrency=4).replace({"engine.max_num_seqs": 3})
    found = kvsim.find(scenario, largest="concurrency", objective="ttft_s.p99 < 0.5")
    met, missed = found.bracket
    assert (met, missed) == (found.value, found.value and found.value + 1)
    for value, fast in ((met, True), (missed, False)):
        at = scenario.replace({"workload.sessions.concurrency": int(value or 0)})
        assert (kvsim.run(at).summary["ttft_s"]["p99"] < 0.5) is fast


def test_the_smallest_tier_is_found_to_the_chunk() -> None:
    scenario = made(offload=TIER)
    found = kvsim.find(scenario, smallest="offload.num_chunks", objective="external_hit_tokens > 0")
    met, missed = found.bracket
    assert met is not None
    assert missed == met - 1
    for value, hit in ((met, True), (missed, False)):
        at = scenario.replace({"offload.num_chunks": int(value)})
        assert (kvsim.run(at).summary["external_hit_tokens"] > 0) is hit


def test_the_smallest_capacity_is_that_of_the_smallest_number_of_chunks() -> None:
    by_chunks = kvsim.find(
        made(offload=TIER), smallest="offload.num_chunks", objective="external_hit_tokens > 0"
    )
    tier = {**TIER, "num_chunks": None, "capacity": "1 GiB"}
    found = kvsim.find(
        made(offload=tier), smallest="offload.capacity", objective="external_hit_tokens > 0"
    )
    chunk = 1_003_520  # a block of 1,000,000 bytes in pages of 4,096
    assert found.value is not None
    assert by_chunks.value is not None
    assert by_chunks.value <= found.value / chunk <= by_chunks.value * 1.03


def test_a_tier_that_is_larger_changes_nothing_and_ends_the_search() -> None:
    found = kvsim.find(
        made(offload=TIER), smallest="offload.num_chunks", objective="token_hit_rate >= 0.9"
    )
    assert found.value is None
    assert len(found.tried) < 10


@pytest.mark.parametrize("link", ["net-400g", {"bandwidth": "50 GB/s"}])
def test_the_smallest_bandwidth_is_found(link: object) -> None:
    scenario = made(offload={**TIER, "link": link})
    found = kvsim.find(
        scenario,
        smallest="offload.link.bandwidth",
        objective="tiers.cpu.load_utilization < 0.02",
    )
    assert found.value is not None
    assert found.value < 50e9
    assert found.bracket[1] is not None


def test_links_of_the_catalog_keep_their_other_figures() -> None:
    found = quantity(made(offload={**TIER, "link": "net-400g"}), "offload.link.bandwidth")
    assert found.start == 50e9
    assert overrides(found, 1e9) == {
        "offload.link": {
            "bandwidth": 1e9,
            "efficiency": 0.9,
            "latency_s": 2e-5,
            "sharing": "fair",
            "span": "rank",
        }
    }


def test_what_follows_from_other_keys_is_where_to_start() -> None:
    tier = {"kind": "cpu", "capacity": "1 GiB", "link": "net-400g", "blocks_per_chunk": 2}
    scenario = made(offload=tier)
    assert quantity(scenario, "offload.num_chunks").start == 2**30 // 2_002_944
    efficiency = quantity(scenario, "offload.link_efficiency")
    assert (efficiency.start, efficiency.most, efficiency.rounded(1.8)) == (0.9, 1.0, 1.0)
    store = made(offload={"kind": "mooncake", "link": "net-200g"})
    assert quantity(store, "offload.capacity").start == 2**40
    assert quantity(store, "offload.link_efficiency").start == 0.9


def test_keys_in_lists_are_numbers_too() -> None:
    found = quantity(synthetic("poisson(per_s=3)"), "workload.content.0.user_tokens")
    assert (found.start, overrides(found, 7.2)) == (
        100.0,
        {"workload.content.0.user_tokens": 7},
    )


@pytest.mark.parametrize(
    ("changes", "name", "message"),
    [
        (
            {},
            "offload.capacity",
            "offload.capacity: offload is null in this scenario. Write it out, or leave out "
            "variants without it (--only).",
        ),
        (
            {"offload": TIER},
            "offload.capacity",
            "offload.capacity: offload.num_chunks is set, so the capacity has no effect. Vary "
            "offload.num_chunks.",
        ),
        (
            {"offload": TIER},
            "offload.below.capacity",
            "offload.below.capacity: offload.below is null in this scenario. Write it out, or "
            "leave out variants without it (--only).",
        ),
        (
            {"offload": TIER},
            "offload.capacty",
            "unknown key 'offload.capacty'. Did you mean 'offload.capacity'?",
        ),
        (
            {"offload": {**TIER, "link": "net-400g"}},
            "offload.link.efficiency",
            "offload.link.efficiency: offload.link is net-400g of the catalog. Vary "
            "offload.link.bandwidth or offload.link_efficiency, or give a link of your own.",
        ),
        (
            {"offload": {"kind": "mooncake", "link": "nvme-gen5-x4"}},
            "offload.link.bandwidth",
            "offload.link.bandwidth: nvme-gen5-x4 has another bandwidth out than in. Vary "
            "offload.link_efficiency, which scales both.",
        ),
        (
            {},
            "concurrency",
            "concurrency needs a workload with sessions, of kind trace or synthetic. A script runs "
            "by arrival or one after another.",
        ),
    ],
)
def test_what_a_scenario_has_not(changes: dict[str, Any], name: str, message: str) -> None:
    with pytest.raises(KvsimError) as caught:
        quantity(made(**changes), name)
    assert str(caught.value) == f"quantity: {message}"


def test_loads_that_a_workload_has_not(tmp_path: Path) -> None:
    def refused(scenario: Scenario, name: str) -> str:
        with pytest.raises(KvsimError) as caught:
            quantity(scenario, name)
        return str(caught.value)

    assert refused(synthetic("together"), "request_rate") == (
        "quantity: request_rate: sessions start together, which has no rate. Set "
        "workload.sessions.starts to one that has, as poisson(per_s=1)."
    )
    assert refused(synthetic(None, concurrency=4), "request_rate") == (
        "quantity: request_rate: 4 sessions are kept alive at once, so there is no rate. Vary "
        "concurrency."
    )
    plain = tmp_path / "plain.csv"
    plain.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00,10,5\n")
    scenario = made(workload={"kind": "trace", "path": str(plain)})
    assert refused(scenario, "concurrency") == (
        f"quantity: concurrency: {plain} (format azure) has no sessions to keep alive. Vary "
        "request_rate."
    )


def test_the_command_names_the_variant_that_lacks_a_tier(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from kvsim.cli import app

    data = made(offload=TIER).written()
    data["variants"] = {"tier": {"seed": 1}, "none": {"offload": None}}
    path = tmp_path / "s.yaml"
    path.write_text(json.dumps(data))
    command = ["find", str(path), "--smallest", "offload.num_chunks"]
    command += ["--objective", "external_hit_tokens > 0"]
    refused = CliRunner().invoke(app, command)
    assert str(refused.exception) == (
        f"{path}: 1 problem\n  none: quantity: offload.num_chunks: offload is null in this "
        "scenario. Write it out, or leave out variants without it (--only)."
    )
    printed = CliRunner().invoke(app, [*command, "--only", "tier", "--json"])
    assert printed.exit_code == 0
    assert json.loads(printed.stdout)["variants"]["tier"]["value"] > 1
