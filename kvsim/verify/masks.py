"""`kvsim-masks/1`: which blocks are worth keeping. Store masks wait for the offload tier."""

from __future__ import annotations

from typing import Any

from kvsim.policies.retention import reachable_block_mask, replay_boundaries
from kvsim.verify.fields import OPS, num_answers
from kvsim.verify.reading import Line, Transcript
from kvsim.verify.report import Answer, Following, Skipped

_SKIPPED = "store_mask"
_MOST_BLOCKS = 2**24


def follow(transcript: Transcript) -> Following:
    """Ask for every mask, and yield the answers beside the transcript's.

    Raises:
        TranscriptError: a mask that cannot be asked for.
    """
    for line in transcript.lines:
        _check(transcript, line)
    for line in transcript.lines:
        if line.op == _SKIPPED:
            yield Skipped(num_answers(OPS[transcript.format][line.op]))
            continue
        asked = {
            name: value
            for name, value in line.fields.items()
            if not OPS[transcript.format][line.op][name].answers
        }
        if line.op == "mask":
            yield Answer(line.number, line.op, "kept", line.fields["kept"], _kept(**asked))
        else:
            got = list(replay_boundaries(**asked))
            yield Answer(line.number, line.op, "boundaries", line.fields["boundaries"], got)


def _kept(**asked: Any) -> list[int] | None:
    mask = reachable_block_mask(**asked)
    return None if mask is None else [int(index) for index in mask.nonzero()[0]]


def _check(transcript: Transcript, line: Line) -> None:
    """Refuse what the fields alone do not show to be wrong."""
    if line.op != "mask":
        return
    fields = line.fields
    if fields["end_block"] < fields["start_block"]:
        transcript.refuse(
            line.number,
            f"mask end_block: {fields['end_block']} is below start_block, {fields['start_block']}",
        )
    if ("sliding_window" in fields) != (fields["kind"] == "sliding_window"):
        transcript.refuse(
            line.number, "mask sliding_window belongs to sliding_window groups, and only there"
        )
    interval = fields["retention_interval"]
    unit = fields["block_size"] if fields["kind"] == "mamba" else fields["alignment_tokens"]
    if interval is not None and (
        interval < 0 or (fields["kind"] != "full" and unit and interval % unit)
    ):
        transcript.refuse(
            line.number,
            f"mask retention_interval: {interval} is not a multiple of {unit}. "
            "Use null, 0, or a multiple.",
        )
