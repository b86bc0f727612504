"""The lines of a trace file, plain or gzip, with every failure named by file and line."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from kvsim.errors import Problems

_GZIP_MAGIC = b"\x1f\x8b"


class TraceLines:
    """Iterates over `(line number, line)` of a file.

    Blank lines are passed over, and white space at the end of a line is cut.

    A file that begins as gzip is read as gzip, whatever its name; one whose name ends in `.gz` has
    to be gzip.
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
        # A device or a pipe could be read for ever.
        if not path.is_file():
            what = "it is not a file" if path.exists() else "there is no such file"
            raise Problems(self.shown, [f"path: {what}. Give the path of a trace file."])
        try:
            self._size_bytes = path.stat().st_size
            self._raw: IO[bytes] = path.open("rb")
            magic = self._raw.read(2)
            self._raw.seek(0)
        except OSError as error:
            raise Problems(self.shown, [f"path: cannot be read: {error.strerror}."]) from None
        if magic == _GZIP_MAGIC:
            self._lines: IO[bytes] = cast("IO[bytes]", gzip.GzipFile(fileobj=self._raw))
        elif path.suffix == ".gz" and magic:
            self._raw.close()
            raise Problems(
                self.shown,
                ["line 1: not a gzip file. Compress it, or name it without .gz."],
            )
        else:
            self._lines = self._raw

    def share_read(self) -> float:
        """Share of the file's bytes read so far, 0 to 1."""
        if self._raw.closed:
            return 1.0
        return min(1.0, self._raw.tell() / max(1, self._size_bytes))

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
            raise self._damaged(number + 1, f"cannot be read: {error.strerror}.") from None

    def _damaged(self, number: int, problem: str) -> Problems:
        return Problems(self.shown, [f"line {number}: {problem}"])
