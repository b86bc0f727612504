"""Files that appear whole or not at all: written beside their place, then moved there."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write to that takes the place of ``path`` when the block ends without an error.

    What was there stays as it was until then, whatever happens: a full disk, an interrupt. A
    device or a pipe is written to directly.

    Raises:
        OSError: it cannot be put there.
    """
    path = path.resolve()
    if path.exists() and not path.is_file() and not path.is_dir():
        yield path
        return
    new = path.with_name(f".{path.stem}.new-{secrets.token_hex(4)}{path.suffix}")
    try:
        yield new
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text as UTF-8, whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    with replacing(path) as new:
        new.write_text(text, encoding="utf-8")
