"""Writes requests as a Mooncake trace: JSON lines, gzip or zstd by the file's name, or Parquet."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, cast

from kvsim.errors import Problems
from kvsim.scenario.writing import replacing
from kvsim.workload.request import Request
from kvsim.workload.traces.clock import recognised

ENDINGS = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")
"""How names of written traces may end."""
_ROWS_AT_ONCE = 2048


class BlockIds:
    """Numbers blocks from 0 in the order in which they come."""

    def __init__(self) -> None:
        """Start without blocks."""
        self._next = 0
        self._extents: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        self._tails: dict[tuple[int, int, int], int] = {}

    def of_prompt(self, request: Request, block_tokens: int) -> list[int]:
        """An id for each block of a prompt, the last one also where it is not whole.

        A block belongs to the span that holds its last token. A last one that is not whole has the
        id of those with the same span and the same length.
        """
        num_whole, tail = divmod(request.num_prompt_tokens, block_tokens)
        ids: list[int] = []
        for uid, end in zip(
            request.content.uids.tolist(), request.content.ends.tolist(), strict=True
        ):
            ids += self._of_run(uid, len(ids), min(end // block_tokens, num_whole))
        if tail:
            key = (int(request.content.uids[-1]), num_whole, tail)
            ids.append(self._tails.setdefault(key, self._next))
            self._next += ids[-1] == self._next
        return ids

    def _of_run(self, uid: int, begin: int, end: int) -> Iterator[int]:
        """Ids of consecutive blocks of one span."""
        if begin >= end:
            return
        extents = self._extents.setdefault((uid, begin), [])
        known_end = extents[-1][1] if extents else begin
        if end > known_end:
            extents.append((known_end, end, self._next))
            self._next += end - known_end
        for first, stop, first_id in extents:
            if first < end and stop > begin:
                low, high = max(first, begin), min(stop, end)
                yield from range(first_id + low - first, first_id + high - first)


def write_mooncake(path: Path, requests: Iterable[Request], block_tokens: int) -> int:
    """Write a trace, whole or not at all.

    Args:
        path: where to; its ending is one of `ENDINGS`, and nothing lies there yet.
        requests: by arrival.
        block_tokens: tokens an id stands for.

    Returns:
        How many requests were written.

    Raises:
        KvsimError: the name ends otherwise, something lies there, or it cannot be written.
    """
    check_writable(path)
    try:
        with replacing(path) as new:
            rows = _rows(requests, block_tokens)
            if path.suffix == ".parquet":
                num_rows = _write_parquet(new, rows)
            else:
                num_rows = _write_lines(new, path.suffix, rows)
    except OSError as error:
        text = f"cannot be written: {error.strerror or error}. Choose another place."
        raise Problems(str(path), [text]) from None
    return num_rows


def check_writable(path: Path) -> None:
    """Refuse a place that a trace cannot be written to.

    Raises:
        KvsimError: as `write_mooncake`.
    """
    if not path.name.endswith(ENDINGS):
        text = f"is no name for a trace. Let it end in one of {', '.join(ENDINGS)}."
        raise Problems(str(path), [text])
    if path.exists():
        raise Problems(str(path), ["is there already. Remove it, or choose another name."])


def _rows(requests: Iterable[Request], block_tokens: int) -> Iterator[dict[str, Any]]:
    ids = BlockIds()
    remaining = iter(requests)
    first = list(islice(remaining, _ROWS_AT_ONCE))
    # Fractions of a millisecond at a high rate would be taken for seconds.
    is_plain = recognised([_time_ms(request) for request in first], "ms").unit == "ms"
    for number, request in enumerate(chain(first, remaining)):
        row: dict[str, Any] = {
            "timestamp": _time_ms(request),
            "input_length": request.num_prompt_tokens,
            "output_length": request.num_output_tokens,
            "hash_ids": ids.of_prompt(request, block_tokens),
        }
        if request.session_id is not None:
            row["session_id"] = request.session_id
        if number == 0 and not is_plain:
            row["time_unit"] = "ms"
        yield row


def _time_ms(request: Request) -> float:
    time_ms = round(request.arrival_s * 1000, 3)
    return int(time_ms) if time_ms.is_integer() else time_ms


def _write_lines(path: Path, ending: str, rows: Iterable[dict[str, Any]]) -> int:
    num_rows = 0
    with _opened(path, ending) as file:
        for row in rows:
            file.write((json.dumps(row, separators=(",", ":")) + "\n").encode())
            num_rows += 1
    return num_rows


@contextmanager
def _opened(path: Path, ending: str) -> Iterator[IO[bytes]]:
    if ending == ".zst":
        import pyarrow as pa

        with pa.CompressedOutputStream(str(path), "zstd") as packed:
            yield cast("IO[bytes]", packed)
        return
    with path.open("wb") as file:
        if ending == ".gz":
            # Without name and time of writing, so that the same trace is the same file.
            with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
                yield cast("IO[bytes]", packed)
        else:
            yield file


def _write_parquet(path: Path, rows: Iterator[dict[str, Any]]) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema(
        [
            ("timestamp", pa.float64()),
            ("input_length", pa.int64()),
            ("output_length", pa.int64()),
            ("hash_ids", pa.list_(pa.int64())),
            ("session_id", pa.string()),
            ("time_unit", pa.string()),
        ]
    )
    num_rows = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        while chunk := list(islice(rows, _ROWS_AT_ONCE)):
            writer.write_table(pa.Table.from_pylist(chunk, schema=schema))
            num_rows += len(chunk)
    return num_rows
