from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from kvsim.cli import main


class Answer(NamedTuple):
    """What a command answered."""

    code: int
    out: str
    err: str


Kvsim = Callable[..., Answer]


@pytest.fixture
def kvsim(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Kvsim:
    """The command line, in this process."""

    def call(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["kvsim", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0
        seen = capsys.readouterr()
        return Answer(code, seen.out, seen.err)

    return call
