"""The rows of a trace file as mappings: JSON lines, CSV, or Parquet."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from kvsim.errors import Problems
from kvsim.workload.traces.lines import TraceLines, check_is_file
from kvsim.workload.traces.record import shown as shown_value

Fields = dict[str, Any]


class Rows(Protocol):
    """Iterates over `(number, fields)`, or `(number, problem)` for a row that cannot be read.

    Attributes:
        shown: how messages name the file.
        word: what the number counts, "line" or "row".
    """

    shown: str
    word: str

    def share_read(self) -> float:
        """Share of the file read so far, 0 to 1."""

    def times(self, names: tuple[str, ...]) -> Iterator[tuple[int, Any]]:
        """`(number, time)` of the rows as the file has it, found without reading all of a row."""

    def __iter__(self) -> Iterator[tuple[int, Fields | str]]:
        """Yield the rows; raises a KvsimError where the file cannot be read on."""


class JsonRows:
    """One JSON object a line."""

    word = "line"

    def __init__(self, path: Path, shown: str) -> None:
        """Open the file; raises a KvsimError as `TraceLines` does."""
        self._lines = TraceLines(path, shown)
        self.shown = shown

    def share_read(self) -> float:
        """Share of the file read so far, 0 to 1."""
        return self._lines.share_read()

    def times(self, names: tuple[str, ...]) -> Iterator[tuple[int, Any]]:
        """`(number, time)` where a line has one, a number or a text in quotes."""
        search = re.compile(rf'"(?:{"|".join(names)})"\s*:\s*(?:"([^"]*)"|([-+.\deE]+))').search
        for number, line in self._lines:
            found = search(line)
            if found is not None:
                yield number, found[1] or found[2]

    def __iter__(self) -> Iterator[tuple[int, Fields | str]]:
        """Yield the objects."""
        for number, line in self._lines:
            yield number, json_object(line)


def json_object(line: str) -> Fields | str:
    """The object on a line, or what is wrong with it."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        return f"not JSON: {error.msg} at column {error.colno}. Write one object a line."
    except (ValueError, RecursionError):
        return "not JSON: a number too long or lists too deep. Write one object a line."
    if not isinstance(row, dict):
        return f"{shown_value(row)} is not a JSON object. Write one object a line."
    return row


class JsonDocument:
    """The objects of one JSON document: an array of them, or a single one; read as a whole."""

    word = "line"

    def __init__(self, path: Path, shown: str) -> None:
        """Open the file; raises a KvsimError as `TraceLines` does."""
        self._lines = TraceLines(path, shown)
        self.shown = shown

    def share_read(self) -> float:
        """Share of the file read so far, 0 to 1."""
        return self._lines.share_read()

    def times(self, names: tuple[str, ...]) -> Iterator[tuple[int, Any]]:
        """Nothing: documents hold sessions, whose order is the file's."""
        return iter(())

    def __iter__(self) -> Iterator[tuple[int, Fields | str]]:
        """Yield the objects with the line on which each begins."""
        numbers: list[int] = []
        texts: list[str] = []
        for number, text_line in self._lines:
            numbers.append(number)
            texts.append(text_line)
        text = "\n".join(texts)
        decode, space = json.JSONDecoder().raw_decode, re.compile(r"\s*").match
        place = 0
        # Where an array is open, a comma or its end follows each object.
        is_array = text.lstrip().startswith("[")
        if is_array:
            place = text.index("[") + 1
        while True:
            place = space(text, place).end()  # type: ignore[union-attr]
            if place == len(text) or text[place] == "]":
                return
            line = numbers[text.count("\n", 0, place)]
            try:
                value, place = decode(text, place)
            except json.JSONDecodeError as error:
                number = numbers[min(error.lineno, len(numbers)) - 1]
                yield number, f"not JSON: {error.msg} at column {error.colno}. Fetch it again."
                return
            except (ValueError, RecursionError):
                yield line, "not JSON: a number too long or lists too deep."
                return
            if isinstance(value, dict):
                yield line, value
            else:
                yield line, f"{shown_value(value)} is not a JSON object. Write a list of objects."
            place = space(text, place).end()  # type: ignore[union-attr]
            if place < len(text) and text[place] == ",":
                place += 1


class CsvRows:
    """Comma-separated values below a header, each value as text."""

    word = "line"

    def __init__(self, path: Path, shown: str, columns: tuple[str, ...]) -> None:
        """Open the file, which has to begin with these columns' names among its own.

        Raises:
            KvsimError: it cannot be read.
        """
        self._lines = TraceLines(path, shown)
        self._columns = columns
        self.shown = shown

    def share_read(self) -> float:
        """Share of the file read so far, 0 to 1."""
        return self._lines.share_read()

    def times(self, names: tuple[str, ...]) -> Iterator[tuple[int, Any]]:
        """`(number, time)` of the rows."""
        for number, row in self:
            if not isinstance(row, str):
                yield from ((number, row[name]) for name in names if name in row)

    def __iter__(self) -> Iterator[tuple[int, Fields | str]]:
        """Yield the rows.

        Raises:
            KvsimError: the header is missing, or the file cannot be read on.
        """
        header: list[str] | None = None
        for number, line in self._lines:
            values = next(csv.reader([line.lstrip("\ufeff")]))
            if header is None:
                header = [value.strip() for value in values]
                missing = [name for name in self._columns if name not in header]
                if missing:
                    problem = (
                        f"line {number}: {shown_value(line)} is not the header. The first line has "
                        f"to name the columns {','.join(self._columns)}."
                    )
                    raise Problems(self.shown, [problem])
            elif len(values) != len(header):
                yield number, f"{len(values)} values, where the header names {len(header)}."
            else:
                yield number, dict(zip(header, values, strict=True))


class ParquetRows:
    """The rows of a Parquet file, numbered from 1."""

    word = "row"

    def __init__(self, path: Path, shown: str) -> None:
        """Open the file.

        Raises:
            KvsimError: it is no Parquet file, or cannot be read.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        check_is_file(path, shown)
        self.shown = shown
        self._num_read = 0
        try:
            self._file = pq.ParquetFile(path)
        except (pa.ArrowInvalid, OSError) as error:
            reason = str(error).splitlines()[0]
            problem = f"row 1: not a whole Parquet file ({reason}). Fetch it again."
            raise Problems(shown, [problem]) from None

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self._file.schema_arrow.names)

    def share_read(self) -> float:
        """Share of the rows read so far, 0 to 1."""
        return self._num_read / max(1, int(self._file.metadata.num_rows))

    def times(self, names: tuple[str, ...]) -> Iterator[tuple[int, Any]]:
        """`(number, time)` of the rows, from that column alone."""
        columns = [name for name in names if name in self.columns]
        for number, row in self._read(columns[:1]) if columns else ():
            yield from ((number, value) for value in row.values())

    def __iter__(self) -> Iterator[tuple[int, Fields | str]]:
        """Yield the rows; keys without a value are left out."""
        return self._read(None)

    def _read(self, columns: list[str] | None) -> Iterator[tuple[int, Fields]]:
        import pyarrow as pa

        try:
            for batch in self._file.iter_batches(batch_size=2048, columns=columns):
                for row in batch.to_pylist():
                    self._num_read += 1
                    yield (
                        self._num_read,
                        {key: value for key, value in row.items() if value is not None},
                    )
        except (pa.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0]
            problem = f"row {self._num_read + 1}: the file is damaged ({reason}). Fetch it again."
            raise Problems(self.shown, [problem]) from None
