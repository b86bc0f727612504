"""Where the recorded transcripts lie."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

OWN = Path(__file__).parents[1] / "data" / "transcripts"
SHARED = Path(__file__).parents[3] / "shared" / "oracle" / "transcripts"


def transcripts(prefix: str = "") -> list[Path]:
    """The project's own transcripts, then those of a shared folder where there is one."""
    folders = ("", "odd/", "chunked/", "state-tiers/")
    own = [path for folder in folders for path in sorted(OWN.glob(f"{folder}{prefix}*.jsonl.gz"))]
    names = {path.name for path in own}
    found = sorted(SHARED.glob(f"{prefix}*.jsonl.gz"))
    found += sorted(SHARED.glob(f"mooncake/{prefix}*.jsonl.gz"))
    return own + [path for path in found if path.name not in names]


def recorded_faults() -> list[Path]:
    """The smallest recordings of what earlier versions got wrong, then those of a shared folder."""
    own = sorted((OWN / "faults").glob("*.jsonl.gz"))
    names = {path.name for path in own}
    return own + [p for p in sorted((SHARED / "faults").glob("*.gz")) if p.name not in names]


def with_states() -> list[Path]:
    """Recordings of models with groups of states."""
    own = sorted((OWN / "mamba").glob("*.jsonl.gz"))
    names = {path.name for path in own}
    return own + [p for p in sorted((SHARED / "mamba").glob("*.gz")) if p.name not in names]


def overlapping() -> list[Path]:
    """Recordings of asynchronous scheduling, drafts, priorities, and what each is compared with."""
    own = sorted((OWN / "async").glob("*.jsonl.gz")) + sorted(OWN.glob("state-tiers/async-*"))
    names = {path.name for path in own}
    return own + [p for p in sorted((SHARED / "async").glob("*.gz")) if p.name not in names]


def label(path: Path) -> str:
    """A short name for a test."""
    return path.name.removesuffix(".jsonl.gz")


def lines(path: Path) -> list[dict[str, Any]]:
    """A transcript, read without the code under test."""
    with gzip.open(path, "rt") as stream:
        return [json.loads(line) for line in stream]
