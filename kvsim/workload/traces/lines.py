"""The lines of a trace file, plain, gzip or zstd, with every failure named by file and line."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from kvsim.errors import Problems

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_STANDARD_INPUT = ("-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")
_ENDINGS = {".gz": ("gzip", _GZIP_MAGIC), ".zst": ("zstd", _ZSTD_MAGIC)}


def check_is_file(path: Path, shown: str) -> None:
    """Refuse what is no file: a device or a pipe could be read for ever.

    Raises:
        KvsimError: there is no such file, or it is a directory, a device or a pipe.
    """
    if str(path) in _STANDARD_INPUT or path.is_fifo():
        what = "standard input and pipes can be read once, and a trace is read several times"
        raise Problems(shown, [f"path: {what}. Write it to a file first, and give that."])
    if not path.is_file():
        what = "it is not a file" if path.exists() else "there is no such file"
        raise Problems(shown, [f"path: {what}. Give the path of a trace file."])


def first_bytes(path: Path, shown: str, num_bytes: int = 4) -> bytes:
    """The first bytes of a file, as they lie on disk.

    Raises:
        KvsimError: it is no file, or cannot be read.
    """
    check_is_file(path, shown)
    try:
        with path.open("rb") as file:
            return file.read(num_bytes)
    except OSError as error:
        raise Problems(shown, [f"path: cannot be read: {error.strerror}."]) from None


class TraceLines:
    """Iterates over `(line number, line)` of a file.

    Blank lines are passed over, and white space at the end of a line is cut.

    A file that begins as gzip or zstd is read as such, whatever its name; one whose name ends in
    `.gz` or `.zst` has to be what it says.
    """

    def __init__(self, path: Path, shown: str | None = None) -> None:
        """Open the file.

        Args:
            path: where it is.
            shown: how messages name it, by default the path.

        Raises:
            KvsimError: there is no such file, or it cannot be read.
        """
        self.shown = str(path) if shown is None else shown
        magic = first_bytes(path, self.shown)
        self._packing = ""
        for ending, (packing, expected) in _ENDINGS.items():
            if magic.startswith(expected):
                self._packing = packing
            elif path.suffix == ending and magic and not magic.startswith(tuple(_magics())):
                problem = f"line 1: not a {packing} file. Compress it, or name it without {ending}."
                raise Problems(self.shown, [problem])
        try:
            self._size_bytes = path.stat().st_size
            self._raw: IO[bytes] = path.open("rb")
        except OSError as error:
            raise Problems(self.shown, [f"path: cannot be read: {error.strerror}."]) from None
        self._lines = self._unpacked()

    def _unpacked(self) -> IO[bytes]:
        if self._packing == "gzip":
            return cast("IO[bytes]", gzip.GzipFile(fileobj=self._raw))
        if self._packing == "zstd":
            import pyarrow as pa

            stream = pa.CompressedInputStream(pa.PythonFile(self._raw, "r"), "zstd")
            return cast("IO[bytes]", io.BufferedReader(stream, 1 << 16))
        return self._raw

    def share_read(self) -> float:
        """Share of the file's bytes read so far, 0 to 1."""
        if self._raw.closed:
            return 1.0
        return min(1.0, self._raw.tell() / max(1, self._size_bytes))

    def close(self) -> None:
        """Read no further."""
        self._lines.close()
        self._raw.close()

    def __iter__(self) -> Iterator[tuple[int, str]]:
        """Yield the lines.

        Raises:
            KvsimError: the file is cut or damaged, or a line is not UTF-8.
        """
        number = 0
        try:
            with self._raw, self._lines:
                for line in self._lines:
                    number += 1
                    text = line.decode("utf-8").rstrip()
                    if text:
                        yield number, text
        except EOFError:
            raise self._damaged(number + 1, "the gzip file is cut here. Fetch it again.") from None
        except (gzip.BadGzipFile, zlib.error) as error:
            problem = f"the gzip file is damaged ({error}). Fetch it again."
            raise self._damaged(number + 1, problem) from None
        except UnicodeDecodeError as error:
            problem = f"byte {error.start + 1} is not UTF-8. Convert the file to UTF-8."
            raise self._damaged(number, problem) from None
        except OSError as error:
            if self._packing == "zstd" and error.errno is None:
                cut = "Truncated" in str(error)
                what = "cut here" if cut else f"damaged ({error})"
                text = f"the zstd file is {what}. Fetch it again."
                raise self._damaged(number + 1, text) from None
            raise self._damaged(number + 1, f"cannot be read: {error.strerror}.") from None

    def _damaged(self, number: int, problem: str) -> Problems:
        return Problems(self.shown, [f"line {number}: {problem}"])


def _magics() -> list[bytes]:
    return [magic for _, magic in _ENDINGS.values()]
