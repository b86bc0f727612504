"""`kvsim trace` as it is typed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvsim.cli import main

SHARED = Path(__file__).parents[3] / "shared/traces"
CONVERSATION = Path(__file__).parents[2] / "scenarios/traces/mooncake_conversation.jsonl.gz"


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


Kvsim = Callable[..., Done]


@pytest.fixture
def kvsim(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Kvsim:
    """Runs `kvsim trace` with arguments."""

    def run(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["kvsim", "trace", *map(str, arguments)])
        code: object = 0
        try:
            main()
        except SystemExit as ended:
            code = ended.code
        written = capsys.readouterr()
        return Done(int(str(code or 0)), written.out, written.err)

    return run


def test_inspect_as_json(kvsim: Kvsim) -> None:
    done = kvsim(
        "inspect", CONVERSATION, "--json", "--capacity", "1638,26214", "--window", "last-half"
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert (found["requests"], found["block_tokens"]) == (12_031, 512)
    assert round(found["ideal_token_hit_rate"], 3) == 0.398
    assert [
        (point["blocks"], point["policy"], round(point["token_hit_rate"], 3))
        for point in found["capacities"]
    ] == [(1638, "lru", 0.052), (26214, "lru", 0.33)]


def test_inspect_for_people_and_a_figure(kvsim: Kvsim, tmp_path: Path) -> None:
    figure = tmp_path / "reuse.png"
    done = kvsim("inspect", CONVERSATION, "--limit", 2000, "--plot", figure)
    assert (done.returncode, done.stderr) == (0, "")
    for line in ("requests          2,000", "512 tokens, inferred from lengths", "LRU blocks"):
        assert line in done.stdout
    assert figure.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ("--capacity", "10,x"),
            "--capacity: '10,x' is no list of sizes. Write numbers of blocks, ",
        ),
        (("--policy", "fif"), "--policy: unknown policy 'fif'. Did you mean 'fifo'?"),
        (("--window", "half"), "--window: unknown window 'half'. "),
        (("--format", "csv"), "--format: unknown format 'csv'. Known: auto, mooncake, "),
        (("--starts", "soon"), "--starts: "),
        (("--time-unit", "min"), "--time-unit: unknown time-unit 'min'. "),
        (
            ("--columns", "prompts=a"),
            "--columns: 'prompts=a' is not WHAT=NAME,... with WHAT one of time, prompt, output, ",
        ),
        (
            ("--limit", "9", "--plot", "x.txt"),
            "x.txt: ending '.txt' is none of .png, .svg, .pdf. Use one of them.",
        ),
    ],
)
def test_bad_options(kvsim: Kvsim, arguments: tuple[str, ...], text: str) -> None:
    done = kvsim("inspect", CONVERSATION, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(text)
    assert "Traceback" not in done.stderr


def test_convert_scale_sample_and_merge(kvsim: Kvsim, tmp_path: Path) -> None:
    small, slow, some, both = (tmp_path / f"{n}.jsonl" for n in ("small", "slow", "some", "both"))
    done = kvsim("convert", CONVERSATION, small, "--limit", 300)
    assert done.stdout == f"{small}: 300 requests, an id for every 512 tokens\n"
    assert kvsim("scale", small, slow, "--time", 2).returncode == 0
    assert kvsim("sample", small, some, "--share", 0.5, "--seed", 1).returncode == 0
    assert kvsim("merge", small, some, "--out", both).returncode == 0
    rows = {
        path: [json.loads(line) for line in path.read_text().splitlines()]
        for path in (small, slow, some, both)
    }
    assert [2 * row["timestamp"] for row in rows[small]] == [row["timestamp"] for row in rows[slow]]
    assert 100 < len(rows[some]) < 200
    assert len(rows[both]) == 300 + len(rows[some])
    times = [row["timestamp"] for row in rows[both]]
    assert times == sorted(times)
    again = kvsim("convert", CONVERSATION, small)
    assert (again.returncode, "is there already" in again.stderr) == (2, True)
    bad = kvsim("sample", small, tmp_path / "x.jsonl", "--share", 0)
    assert bad.stderr == "--share: 0 is out of range. Use a share above 0, up to 1.\n"


DATA = Path(__file__).parents[1] / "data/traces"


def test_samples_keep_what_belongs_together(kvsim: Kvsim, tmp_path: Path) -> None:
    """A tenth of the requests by themselves would find 11.2 % where all find 37.4 %."""
    out = tmp_path / "s.jsonl"
    done = kvsim("sample", CONVERSATION, out, "--share", 0.1)
    requests, hits = done.stdout.splitlines()
    assert requests == f"{out}: 1,176 requests, an id for every 512 tokens"
    assert hits == "ideal hits: 34.6% of tokens, 37.4% before"


def test_traces_of_delays_are_inspected_and_converted(kvsim: Kvsim, tmp_path: Path) -> None:
    first = {"session_id": "a", "input_length": 1024, "output_length": 500, "hash_ids": [1, 2]}
    rows = [{**first, "timestamp": 0}, *({**first, "delay": 2000} for _ in range(3))]
    path, out = tmp_path / "d.jsonl", tmp_path / "m.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    found = json.loads(kvsim("inspect", path, "--format", "mooncake-delta", "--json").stdout)
    assert round(found["ideal_token_hit_rate"], 3) == 0.691
    assert (found["times"], found["span_s"]) == ("recorded, answers taking no time", 6.0)
    done = kvsim("convert", path, out, "--format", "mooncake-delta")
    assert done.stderr == (
        "Note: 3 answers come back in later prompts, and Mooncake's rows have no ids for answers: "
        "ideal hits 50.3% of tokens, 69.1% before.\n"
    )
    written = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["timestamp"] for row in written] == [0, 2000, 4000, 6000]
    assert [row["input_length"] for row in written] == [1024, 2548, 4072, 5596]


def test_how_a_file_is_read(kvsim: Kvsim, tmp_path: Path) -> None:
    columns = "time=when,prompt=in,output=out,session=user,ids=blocks"
    done = kvsim("inspect", DATA / "named_columns.csv", "--columns", columns, "--json")
    found = json.loads(done.stdout)
    assert (found["format"], found["requests"], found["sessions"]) == ("table", 3, 2)
    done = kvsim("inspect", DATA / "vidur.csv", "--time-unit", "ms", "--json")
    assert json.loads(done.stdout)["span_s"] == 0.00425
    path = tmp_path / "t.jsonl"
    rows = [
        {"timestamp": 900 * n, "input_length": 9 * (n != 7), "output_length": 1, "hash_ids": [1]}
        for n in range(40)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    done = kvsim("convert", path, tmp_path / "o.jsonl", "--skip-bad")
    assert done.stderr == (
        "Note: t.jsonl: 1 of 40 lines (2.5 %) left out: input_length: ... is out of range (1, "
        "first on line 8).\n"
    )


def test_ids_can_be_made_coarser(kvsim: Kvsim, tmp_path: Path) -> None:
    agents = CONVERSATION.with_name("mini_swe_agent.jsonl.gz")
    out = tmp_path / "coarse.jsonl"
    done = kvsim("convert", agents, out, "--coarsen", 512)
    assert done.stdout == f"{out}: 402 requests, an id for every 512 tokens\n"
    found = json.loads(kvsim("inspect", out, "--json").stdout)
    assert round(found["ideal_token_hit_rate"], 3) == 0.896
    assert round(found["ideal_token_hit_rate_shared_tails"], 3) == 0.936
    bad = kvsim("convert", CONVERSATION, tmp_path / "x.jsonl", "--coarsen", 600)
    assert bad.stderr == (
        "--coarsen: 600 is no multiple of the 512 tokens that an id of "
        f"{CONVERSATION} stands for.\n"
    )


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the shared traces")
def test_any_format_converts(kvsim: Kvsim, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    done = kvsim("convert", SHARED / "formats/weka_trace_0026.json", out)
    assert done.returncode == 0
    assert "an id for every 64 tokens" in done.stdout
    assert done.stderr.startswith("Note: ") and "ids are local to a session" in done.stderr
    found = json.loads(kvsim("inspect", out, "--json").stdout)
    assert (found["format"], found["block_tokens"], found["sessions"]) == ("mooncake", 64, 1)


def test_every_verb_explains_itself(kvsim: Kvsim) -> None:
    for verb in ("inspect", "convert", "sample", "scale", "merge", "synthesize", "fit"):
        done = kvsim(verb, "--help")
        assert done.returncode == 0, verb
        assert "Usage:" in done.stdout
