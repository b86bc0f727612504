"""Advice on disk: a directory that appears whole or not at all, and runs that outlive a stop."""

from __future__ import annotations

import json
import secrets
import shutil
from pathlib import Path
from typing import Any

from kvsim.errors import Problems
from kvsim.scenario.validation import lay_over
from kvsim.scenario.writing import write_text
from kvsim.study.advice import Advice

ADVICE_FILE = "advice.json"
SETTING_FILE = "setting.yaml"
"""What is advised, in the form that a scenario has it in."""


def advice_json(advice: Advice) -> dict[str, Any]:
    """All that came out, in plain values."""
    return {
        "scenario": advice.scenario.name,
        "set_to": advice.set_to,
        "set": lay_over({}, advice.keys)[0],
        "judged_on": advice.judged_on,
        "gains": [one.as_json() for one in advice.gains],
        "ties": list(advice.ties),
        "engine_best": advice.engine_best,
        "ceiling": dict(advice.ceiling),
        "sizes": dict(advice.sizes),
        "tried": [
            {
                "round": one.round,
                "setting": one.label,
                "found_rate": one.found_rate,
                "gain": one.gain,
                "message": one.message or None,
            }
            for one in advice.tried
        ],
        "notes": list(advice.notes),
    }


def working_directory(out_dir: Path) -> Path:
    """Where the runs of an advice are until it is done; what an earlier one left is taken over.

    Raises:
        Problems: `out_dir` holds something else than an advice.
    """
    work = out_dir.parent / f".{out_dir.name}.unfinished"
    if out_dir.exists() and not (out_dir / ADVICE_FILE).is_file():
        problem = "out: is there, and is no advice. Give another --out."
        raise Problems(str(out_dir), [problem])
    try:
        if out_dir.exists() and not work.exists():
            new = work.with_name(f"{work.name}-{secrets.token_hex(4)}")
            shutil.copytree(out_dir, new)
            new.rename(work)
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"out: cannot be written to: {error.strerror}. Give another --out."
        raise Problems(str(out_dir), [problem]) from None
    return work


def publish(advice: Advice, work: Path, out_dir: Path) -> None:
    """Write what came out beside its runs, and put the directory in its place.

    Raises:
        Problems: it cannot be put there; the runs are kept.
    """
    from kvsim.scenario.reading import as_yaml

    try:
        text = json.dumps(advice_json(advice), indent=2, allow_nan=False)
        write_text(work / SETTING_FILE, as_yaml(lay_over({}, advice.keys)[0]))
        write_text(work / ADVICE_FILE, text + "\n")
        old = out_dir.with_name(f".{out_dir.name}.old-{secrets.token_hex(4)}")
        if out_dir.exists():
            out_dir.rename(old)
        try:
            work.rename(out_dir)
        except OSError:
            if old.exists():
                old.rename(out_dir)
            raise
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        problem = f"out: cannot be written: {error.strerror}. Give another --out."
        raise Problems(str(out_dir), [problem]) from None
