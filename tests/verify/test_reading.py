from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path

import pytest

from kvsim.errors import KvsimError
from kvsim.verify.reading import FORMATS, TranscriptError, read_transcript
from tests.verify.writing import CACHE_CONFIG, HISTORY, MASKS, STEPS, Record, changed, write


def problem(path: Path) -> tuple[int | None, str]:
    with pytest.raises(TranscriptError) as caught:
        read_transcript(path)
    assert caught.value.file == str(path)
    place = "" if caught.value.line is None else f"line {caught.value.line}: "
    assert str(caught.value) == f"{path}: {place}{caught.value.problem}"
    return caught.value.line, caught.value.problem


def packed(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content))
    return path


def as_lines(records: list[Record]) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def test_a_transcript_is_read(tmp_path: Path) -> None:
    transcript = read_transcript(write(tmp_path / "a.gz", HISTORY))
    assert transcript.format == "kvsim-transcript/1"
    assert transcript.profile == "vllm-0.33"
    assert transcript.config == CACHE_CONFIG
    assert [line.op for line in transcript.lines] == [
        "lookup", "allocate", "append", "allocate", "free", "reset",
    ]  # fmt: skip
    assert [line.number for line in transcript.lines] == [2, 3, 4, 5, 6, 7]
    assert transcript.lines[2].fields == {"req": "a", "span": [2, 1]}


@pytest.mark.parametrize(
    ("engine", "profile"),
    [
        ("vllm 0.22.1", "vllm-0.22"),
        ("vllm 0.23.0", "vllm-0.23"),
        ("vllm 0.32.0", "vllm-0.32"),
        ("vllm 0.33.0+cpu", "vllm-0.33"),
    ],
)
def test_the_release_names_the_profile(tmp_path: Path, engine: str, profile: str) -> None:
    path = write(tmp_path / "a.gz", changed(HISTORY, 1, engine=engine))
    assert read_transcript(path).profile == profile


@pytest.mark.parametrize("engine", ["vllm 0.24.0", "vllm", "other 0.33.0", "vllm 0.3", 33])
def test_an_unknown_release(tmp_path: Path, engine: object) -> None:
    line, text = problem(write(tmp_path / "a.gz", changed(HISTORY, 1, engine=engine)))
    assert line == 1
    assert text.startswith("engine: ")
    assert text.endswith("is not known. Known: vllm 0.22.x, vllm 0.23.x, vllm 0.32.x, vllm 0.33.x.")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert problem(tmp_path / "none.gz") == (None, "there is no such file")
    assert problem(tmp_path) == (None, "is a folder. Name the transcripts in it.")
    plain = tmp_path / "plain.jsonl"
    plain.write_bytes(as_lines(HISTORY))
    assert problem(plain) == (1, "is not gzipped. Transcripts are gzipped JSON lines.")
    assert problem(packed(tmp_path / "latin.gz", as_lines(HISTORY)[:-1] + b"\xe9\n")) == (
        7,
        "is not UTF-8 text",
    )


def test_empty_files(tmp_path: Path) -> None:
    nothing = tmp_path / "nothing.gz"
    nothing.write_bytes(b"")
    expected = (None, "is empty. A transcript starts with its format.")
    assert problem(nothing) == expected
    assert problem(packed(tmp_path / "empty.gz", b"")) == expected
    assert problem(write(tmp_path / "head.gz", HISTORY[:1])) == (
        1,
        "nothing follows the first line: the file is cut",
    )


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.999])
def test_a_cut_file_names_the_line_where_it_is_cut(tmp_path: Path, share: float) -> None:
    history = HISTORY[:1] + [
        {**record, "req": f"{number}"} for number, record in enumerate(HISTORY[1:2] * 5000)
    ]
    whole = gzip.compress(as_lines(history))
    path = tmp_path / "cut.gz"
    path.write_bytes(whole[: int(len(whole) * share)])
    line, text = problem(path)
    assert text == "the gzip data ends here: the file is cut"
    assert line is not None
    assert 5001 * share - 600 < line <= 5002


def test_a_damaged_file(tmp_path: Path) -> None:
    whole = bytearray(gzip.compress(as_lines(HISTORY * 200)))
    whole[len(whole) // 2] ^= 0xFF
    path = tmp_path / "damaged.gz"
    path.write_bytes(bytes(whole))
    line, _ = problem(path)
    assert line is not None
    path.write_bytes(gzip.compress(as_lines(HISTORY)) + b"and more")
    line, text = problem(path)
    assert line == 8
    assert text.startswith("the gzip data breaks here")


def test_a_file_of_several_gzip_members(tmp_path: Path) -> None:
    path = tmp_path / "two.gz"
    path.write_bytes(gzip.compress(as_lines(HISTORY[:3])) + gzip.compress(as_lines(HISTORY[3:])))
    assert len(read_transcript(path).lines) == 6


@pytest.mark.parametrize(
    ("last_line", "text"),
    [
        ('{"op":"reset","ok":tr', "is not JSON: Expecting value at character 20"),
        ("", "is not JSON: Expecting value at character 1"),
        ("[1]", "a list is not a JSON object"),
        ('{"op":"reset","ok":true,"ok":true}', "a key stands in it twice"),
        ('{"op":"reset","ok":NaN}', "NaN is no number in JSON"),
        ("[" * 100_000, "is not JSON that can be read"),
        ('{"op":"state","free":' + "1" * 5000 + "}", "is not JSON that can be read"),
    ],
)
def test_a_line_that_is_no_json_object(tmp_path: Path, last_line: str, text: str) -> None:
    path = packed(tmp_path / "a.gz", as_lines(HISTORY) + last_line.encode() + b"\n")
    line, found = problem(path)
    assert line == 8
    assert text in found


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"format": "kvsim-transcript/2"}, "unknown format 'kvsim-transcript/2'. Did you mean "),
        ({"format": None}, f"format is missing. Known: {', '.join(FORMATS)}."),
        ({"format": 1}, "format is missing."),
        ({"config": None}, "config: null is not a mapping"),
        ({"seed": 1}, "unknown field 'seed'"),
        ({"config": {**CACHE_CONFIG, "num_blocks": 1}}, "config.num_blocks: 1 is not a whole"),
        ({"config": {**CACHE_CONFIG, "num_blocks": 10**12}}, "config.num_blocks: 1000000000000"),
        ({"config": {**CACHE_CONFIG, "chunks": 5}}, "config.unknown field 'chunks'"),
        (
            {"config": {**CACHE_CONFIG, "groups": [{"kind": "half", "block_size": 4}]}},
            "config.groups.0.kind: 'half' is not one of full, sliding_window",
        ),
        (
            {"config": {**CACHE_CONFIG, "enable_caching": 1}},
            "config.enable_caching: 1 is not true or false",
        ),
    ],
)
def test_a_first_line_that_makes_no_sense(tmp_path: Path, fields: Record, text: str) -> None:
    line, found = problem(write(tmp_path / "a.gz", changed(HISTORY, 1, **fields)))
    assert line == 1
    assert found.startswith(text)


def test_a_transcript_without_its_first_line(tmp_path: Path) -> None:
    assert problem(write(tmp_path / "a.gz", HISTORY[1:]))[0] == 1


@pytest.mark.parametrize(
    ("line", "fields", "text"),
    [
        (2, {"op": None}, "op is missing"),
        (2, {"op": "look"}, "unknown op 'look'. Did you mean 'lookup'?"),
        (2, {"op": 5}, "unknown op "),
        (2, {"hit": None}, "lookup hit is missing"),
        (2, {"spans": None}, "lookup spans is missing"),
        (2, {"hit": "8"}, "lookup hit: '8' is not a whole number"),
        (2, {"hit": 8.0}, "lookup hit: 8.0 is not a whole number"),
        (2, {"hit": True}, "lookup hit: true is not a whole number"),
        (2, {"spans": [[1, 0]]}, "lookup spans: a list is not a list of [uid"),
        (2, {"spans": []}, "lookup spans: an empty list is not"),
        (2, {"spans": [[2**35, 1]]}, "lookup spans: a list is not"),
        (2, {"hits": 8}, "lookup unknown field 'hits'. Known: req, spans,"),
        (3, {"new": 0}, "allocate new: 0 is not a whole number, at least 1"),
        (3, {"blocks": [[[1]]]}, "allocate blocks: a list is not"),
        (4, {"span": [1]}, "append span: a list is not [uid"),
        (7, {"ok": 1}, "reset ok: 1 is not true or false"),
    ],
)
def test_a_line_that_lacks_or_misuses_a_field(
    tmp_path: Path, line: int, fields: Record, text: str
) -> None:
    found = problem(write(tmp_path / "a.gz", changed(HISTORY, line, **fields)))
    assert found[0] == line
    assert found[1].startswith(text)


def test_steps_end_with_totals(tmp_path: Path) -> None:
    assert problem(write(tmp_path / "a.gz", STEPS[:-1])) == (
        5,
        "the last line holds no totals: the file is cut",
    )
    early = [*STEPS[:3], STEPS[-1], *STEPS[3:]]
    assert problem(write(tmp_path / "b.gz", early)) == (
        5,
        "step after totals. Requests come first, totals last and once.",
    )
    late = [*STEPS[:2], STEPS[3], STEPS[2], *STEPS[4:]]
    assert problem(write(tmp_path / "c.gz", late))[0] == 4


def test_ops_belong_to_their_format(tmp_path: Path) -> None:
    line, text = problem(write(tmp_path / "a.gz", MASKS + HISTORY[2:3]))
    assert line == 5
    assert text.startswith("unknown op 'allocate'. Known: mask, store_mask, replay_boundaries")


def test_the_error_is_one_for_users_and_can_be_pickled() -> None:
    error = TranscriptError("a.gz", 3, "op is missing")
    assert isinstance(error, KvsimError)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.line) == ("a.gz: line 3: op is missing", 3)
