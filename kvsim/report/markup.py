"""Pieces of HTML: sections, lists, text made safe."""

from __future__ import annotations

import html
from collections.abc import Iterable


def section(title: str, body: str) -> str:
    """A section with its heading; nothing where its body is empty."""
    return f"<section><h2>{safe(title)}</h2>{body}</section>" if body else ""


def bullets(sentences: Iterable[str]) -> str:
    """Sentences as a list."""
    return f"<ul>{''.join(f'<li>{safe(sentence)}</li>' for sentence in sentences)}</ul>"


def key_heading(key: str) -> str:
    """A dotted key that may be broken where its parts end."""
    return safe(key).replace(".", ".<wbr>").replace("_", "_<wbr>")


def safe(value: str) -> str:
    """Text as it stands in HTML."""
    return html.escape(value)
