"""Text and token ids as hashes of blocks.

Text is cut into tokens and then into blocks of 16; a block's id is a hash of it and of all before
it, and only hashes leave this module. Every message is cut by itself, behind a line that names its
role, so a prompt with its answer is the beginning of the next prompt where the log has the answer.
What a model's own chat template adds is not known here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kvsim.errors import KvsimError
from kvsim.workload.traces.record import shown

BLOCK_TOKENS = 16
CHARACTERS = "characters"
CHARACTERS_PER_TOKEN = 4
"""Characters taken for a token where no tokenizer is chosen: a usual mean for English text."""
_HASHED = 2**63
"""Set in every id, so that hashes never meet small ids."""

Message = tuple[str, str]
"""A role and a text."""


class Tokens:
    """Cuts messages into tokens, each token as 8 bytes or a piece of text as its characters."""

    def __init__(self, tokenizer: str = CHARACTERS) -> None:
        """Choose how text is cut.

        Args:
            tokenizer: "characters", or the path of a `tokenizer.json`.

        Raises:
            KvsimError: the package `tokenizers` is missing, or the file is no tokenizer.
        """
        self._encode: Any = None
        if tokenizer == CHARACTERS:
            return
        try:
            from tokenizers import Tokenizer
        except ImportError:
            text = "needs the package tokenizers. Install it with: pip install 'kvsim[text]'."
            raise KvsimError(f"tokenizer: {shown(tokenizer)} {text}") from None
        if not Path(tokenizer).is_file():
            text = "is no file. Give 'characters' or the path of a tokenizer.json."
            raise KvsimError(f"tokenizer: {shown(tokenizer)} {text}")
        try:
            self._encode = Tokenizer.from_file(tokenizer).encode
        except Exception as error:  # the package raises nothing more special
            text = f"is not a tokenizer.json ({str(error).splitlines()[0]})."
            raise KvsimError(f"tokenizer: {shown(tokenizer)} {text}") from None

    def cut(self, text: str) -> bytes:
        """The tokens of a text, a fixed number of bytes each."""
        if self._encode is None:
            whole = -(-len(text) // CHARACTERS_PER_TOKEN) * CHARACTERS_PER_TOKEN
            return text.ljust(whole, "\0").encode("utf-32-le")
        ids = self._encode(text, add_special_tokens=False).ids
        return b"".join(token.to_bytes(self.token_bytes, "little") for token in ids)

    @property
    def token_bytes(self) -> int:
        """Bytes of a token in what `cut` returns."""
        return 4 * CHARACTERS_PER_TOKEN if self._encode is None else 8


class TokenIds:
    """Tokens of a log that has their ids, 8 bytes each."""

    token_bytes = 8

    def cut(self, text: str) -> bytes:
        """No text: the log has none."""
        return b""


class Transcript:
    """Hashes of a conversation as it grows."""

    def __init__(self, tokens: Tokens | TokenIds) -> None:
        """Start empty."""
        self._tokens = tokens
        self._digest = hashlib.blake2b(digest_size=8)
        self._open = b""
        self.num_tokens = 0
        self.ids: list[int] = []

    def say(self, role: str, text: str) -> None:
        """Add a whole message."""
        self.begin(role)
        self.add(text)

    def begin(self, role: str) -> None:
        """Add the line that begins a message."""
        self._add(self._tokens.cut(f"<{role}>\n"))

    def add(self, text: str) -> None:
        """Add the text of the message begun."""
        self._add(self._tokens.cut(text))

    def add_ids(self, token_ids: list[int]) -> None:
        """Add tokens by their ids, 0 to 2**63 - 1; only with `TokenIds`."""
        self._add(np.array(token_ids, dtype="<i8").tobytes())

    def _add(self, cut: bytes) -> None:
        self.num_tokens += len(cut) // self._tokens.token_bytes
        self._open += cut
        block_bytes = BLOCK_TOKENS * self._tokens.token_bytes
        for begin in range(0, len(self._open) - block_bytes + 1, block_bytes):
            self._digest.update(self._open[begin : begin + block_bytes])
            self.ids.append(_HASHED | int.from_bytes(self._digest.digest(), "little") >> 1)
        self._open = self._open[len(self._open) // block_bytes * block_bytes :]

    def all_ids(self) -> list[int]:
        """The ids so far, with one for the block that is open."""
        if not self._open:
            return list(self.ids)
        digest = self._digest.copy()
        digest.update(b"open" + self._open)
        return [*self.ids, _HASHED | int.from_bytes(digest.digest(), "little") >> 1]


def message_text(message: dict[str, Any], keys: Sequence[str] = ("content",)) -> str:
    """The text of a message; parts that are no text, and calls of tools, stand as their JSON."""
    content = next((message[key] for key in keys if message.get(key) is not None), None)
    parts: Sequence[Any] = content if isinstance(content, list) else [content]
    texts: Iterable[str] = (
        part
        if isinstance(part, str)
        else part["text"]
        if isinstance(part, dict) and isinstance(part.get("text"), str)
        else as_json(part)
        for part in parts
        if part is not None
    )
    calls = message.get("tool_calls")
    return "".join([*texts, as_json(calls) if calls else ""])


def as_json(value: Any) -> str:
    """A value as text that is the same for equal values."""
    return json.dumps(value, sort_keys=True, default=str)
