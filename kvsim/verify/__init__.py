"""Transcripts of the engine's and of routers' own decisions, followed answer by answer.

`verify_file` reads one transcript and holds every answer in it against kvsim's. Nothing here
decides anything.
May come in: the engine's scheduler, offload, routing, the cache and what lies below; no clock.
"""

from __future__ import annotations

from kvsim.verify.follow import verify_file, verify_files
from kvsim.verify.reading import FORMATS, TranscriptError
from kvsim.verify.report import Difference, FileReport

__all__ = [
    "FORMATS",
    "Difference",
    "FileReport",
    "TranscriptError",
    "verify_file",
    "verify_files",
]
