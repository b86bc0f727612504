"""A workload that a second process reads ahead is the workload."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest

from kvsim.errors import KvsimError, Problems
from kvsim.scenario import Scenario, ScriptWorkload, SyntheticWorkload, TraceWorkload
from kvsim.scenario.reading import load_scenario
from kvsim.study.parallel import each
from kvsim.workload import ahead, open_workload
from kvsim.workload.request import Request, Session, Workload

SCENARIOS = Path(__file__).parents[2] / "scenarios"
FILES = sorted(SCENARIOS.glob("*.yaml"))
CHAT = {"kind": "chat", "system_tokens": 90, "turns": "geometric(mean=3)"}


def plain(value: Any) -> Any:
    """A value with all its types, to compare."""
    if isinstance(value, np.ndarray):
        return value.dtype, value.flags.writeable, value.flags.aligned, value.tolist()
    if is_dataclass(value):
        return type(value), [plain(getattr(value, field.name)) for field in fields(value)]
    if isinstance(value, list | tuple):
        return type(value), [plain(part) for part in value]
    return type(value), value


def items_of(workload: Workload) -> Iterator[Request | Session]:
    return workload.requests if workload.sessions is None else workload.sessions


def drained(workload: Workload) -> tuple[list[Any], list[str], float]:
    items = [plain(item) for item in items_of(workload)]
    return items, workload.warnings, workload.share_read()


def chats(num_sessions: int = 700, **options: Any) -> SyntheticWorkload:
    data = {"num_sessions": num_sessions, "sessions": {"starts": "poisson(per_s=8)"}, **options}
    return SyntheticWorkload.model_validate({"kind": "synthetic", "content": [CHAT], **data})


def trace(directory: Path, num: int, bad: int | None = None, **options: Any) -> TraceWorkload:
    """A trace with a notice about empty answers, and a line that cannot be used."""
    lines = [
        {
            "timestamp": 1000 * i,
            "input_length": 900,
            "output_length": int(i != 50),
            "hash_ids": [i % 7, i],
        }
        for i in range(num)
    ]
    if bad is not None:
        lines[bad]["input_length"] = -3
    path = directory / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    data = {"kind": "trace", "format": "mooncake", "path": path.name, **options}
    return TraceWorkload.model_validate(data, context={"directory": directory})


def sent(config: Any, seed: int = 0) -> bytes:
    out = io.BytesIO()
    ahead.send(open_workload(config, 16, seed), out)
    return out.getvalue()


def received(config: Any, data: bytes, seed: int = 0) -> Workload:
    workload = open_workload(config, 16, seed)
    ahead.let_read(workload, io.BytesIO(data))
    return workload


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Reading ahead always pays; the processes that were started."""
    processes = []
    start = ahead._start

    def start_noted(*asked: Any) -> subprocess.Popen[bytes] | None:
        process = start(*asked)
        if process is not None:
            processes.append(process)
        return process

    monkeypatch.setattr(ahead, "pays", lambda config: True)
    monkeypatch.setattr(ahead, "_start", start_noted)
    return processes


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_is_the_same_for_every_shipped_scenario(path: Path) -> None:
    config = load_scenario(path).workload
    few = []
    if isinstance(config, SyntheticWorkload):
        few = ["workload.num_sessions=12"]
    elif isinstance(config, TraceWorkload):
        few = ["workload.limit=300"]
    config = load_scenario(path, few).workload
    assert drained(received(config, sent(config, 3), 3)) == drained(open_workload(config, 16, 3))


@pytest.mark.parametrize(
    "sessions",
    [
        {"starts": "poisson(per_s=8)"},
        {"starts": "poisson(per_s=8)", "loop": "open"},
        {"concurrency": 5},
    ],
)
def test_it_is_the_same_in_every_loop(sessions: Any) -> None:
    config = chats(sessions=sessions)
    assert drained(received(config, sent(config))) == drained(open_workload(config, 16))


def test_the_share_read_grows_as_items_are_taken() -> None:
    config = chats()
    workload = received(config, sent(config))
    shares = [workload.share_read() for _ in items_of(workload)]
    assert shares == pytest.approx([number / 700 for number in range(1, 701)])


def test_a_second_process_gives_the_same_and_ends(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    config = trace(tmp_path, 2000)
    with ahead.open_ahead(config, 16) as workload:
        found = drained(workload)
    expected = drained(open_workload(config, 16))
    assert found == expected
    assert any("(1 times, first on line 51)" in warning for warning in expected[1])
    assert [process.returncode is not None for process in started] == [True]


def test_an_error_comes_at_its_place_with_its_message(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    config = trace(tmp_path, 1000, bad=700)
    ends = []
    for opened in (ahead.open_ahead(config, 16), None):
        found = []
        with pytest.raises(Problems) as caught:
            if opened is None:
                found += [request.request_id for request in open_workload(config, 16).requests]
            else:
                with opened as workload:
                    for request in workload.requests:
                        found.append(request.request_id)
        ends.append((str(caught.value), caught.value.where, caught.value.problems))
        if opened is not None:
            assert len(found) == 700
    assert ends[0] == ends[1]
    assert "line 701" in ends[0][0]
    assert started[0].returncode is not None


def test_an_error_that_is_none_for_users_says_where_it_was() -> None:
    def fail(error: Exception) -> Exception:
        try:
            raise error
        except Exception as raised:
            return ahead._portable(raised)

    plain_error = fail(ZeroDivisionError("by 0"))
    assert isinstance(plain_error, ZeroDivisionError)
    assert "test_ahead.py" in plain_error.__notes__[0]
    unsendable = fail(ValueError(lambda: 0))
    assert isinstance(unsendable, RuntimeError)
    assert "ValueError" in str(unsendable)
    known = KvsimError("what is wrong")
    assert fail(known) is known
    assert not hasattr(known, "__notes__")


@pytest.mark.parametrize("share", [0.0, 0.00001, 0.3, 0.7, 0.9999])
def test_what_gets_lost_is_read_here(tmp_path: Path, share: float) -> None:
    for config in (trace(tmp_path, 1000), chats()):
        data = sent(config)
        found = drained(received(config, data[: int(share * len(data))]))
        assert found == drained(open_workload(config, 16))


@pytest.mark.parametrize("executable", ["", "/nowhere/python", "false"])
def test_without_a_second_process_it_is_read_here(
    executable: str, started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    with ahead.open_ahead(chats(20), 16) as workload:
        assert drained(workload) == drained(open_workload(chats(20), 16))
    assert len(started) <= 1


def test_an_interrupt_ends_the_second_process(started: list[subprocess.Popen[bytes]]) -> None:
    def interrupted() -> None:
        with ahead.open_ahead(chats(10**6), 16) as workload:
            next(items_of(workload))
            assert started[0].poll() is None
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert started[0].returncode is not None


def test_it_ends_with_the_one_who_reads() -> None:
    process = ahead._start(chats(10**6), 16, 0)
    assert process is not None
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.read(1)  # it waits for a reader from here on
    process.stdin.close()
    assert process.wait(30) == 0
    process.stdout.close()


def test_it_pays_where_much_is_read_and_a_core_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joblib, "cpu_count", lambda: 2)
    many = chats(ahead.LEAST_SESSIONS)
    assert ahead.pays(many)
    assert not ahead.pays(chats(ahead.LEAST_SESSIONS - 1))
    with ahead.cores_taken():
        assert not ahead.pays(many)
    assert ahead.pays(many)
    monkeypatch.setattr(joblib, "cpu_count", lambda: 1)
    assert not ahead.pays(many)
    monkeypatch.setattr(joblib, "cpu_count", lambda: 2)
    script = {"kind": "script", "requests": [{"prompt": [["A", 5]]}]}
    assert not ahead.pays(ScriptWorkload.model_validate(script))
    monkeypatch.setattr(ahead, "LEAST_BYTES", 1000)
    assert ahead.pays(trace(tmp_path, 20))
    assert not ahead.pays(trace(tmp_path, 20, limit=10))
    assert not ahead.pays(trace(tmp_path, 5))


def test_workers_stay_on_their_cores() -> None:
    many = chats(ahead.LEAST_SESSIONS)
    assert sorted(each(ahead.pays, [many, many], jobs=2)) == [(0, False), (1, False)]


def test_fleets_read_ahead(started: list[subprocess.Popen[bytes]]) -> None:
    from kvsim.fleet.simulation import simulate_fleet

    data = {
        "name": "small",
        "model": {"groups": [{"kind": "full", "block_size": 16}]},
        "node": {"num_blocks": 400},
        "step_time": {"kind": "constant", "step_s": 0.01, "token_s": 1e-5},
        "fleet": {"nodes": 2},
        "workload": chats(30).model_dump(),
    }
    made = Scenario.from_data(data)
    shares: list[float] = []
    found = simulate_fleet(made, on_progress=shares.append)
    assert len(started) == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ahead, "pays", lambda config: False)
        expected = simulate_fleet(made)
    assert len(started) == 1
    assert found.requests.frame(fleet=True).equals(expected.requests.frame(fleet=True))
    assert found.counters == expected.counters
    assert shares == sorted(shares)
