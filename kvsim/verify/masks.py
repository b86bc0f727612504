"""`kvsim-masks/1`: which blocks are worth keeping, and which the Mooncake store saves."""

from __future__ import annotations

import math
from typing import Any

from kvsim.cache.spec import GroupSpec
from kvsim.offload.store_masks import Mask, store_masks
from kvsim.policies.retention import reachable_block_mask, replay_boundaries
from kvsim.verify.fields import GROUP, OPS, field_problem
from kvsim.verify.reading import Line, Transcript
from kvsim.verify.report import Answer, Following

_ANSWER = {"mask": "kept", "store_mask": "kept", "replay_boundaries": "boundaries"}


def follow(transcript: Transcript) -> Following:
    """Ask for every mask, and yield the answers beside the transcript's.

    Raises:
        TranscriptError: a mask that cannot be asked for.
    """
    for line in transcript.lines:
        _CHECKS[line.op](transcript, line)
    for line in transcript.lines:
        fields = OPS[transcript.format][line.op]
        asked = {name: value for name, value in line.fields.items() if not fields[name].answers}
        what = _ANSWER[line.op]
        yield Answer(line.number, line.op, what, line.fields[what], _GOT[line.op](**asked))


def _kept(**asked: Any) -> list[int] | None:
    return _indices(reachable_block_mask(**asked))


def _saved(**asked: Any) -> list[list[int] | None]:
    masks = store_masks(
        _groups(asked["groups"], asked["eagle_group"]),
        asked["scheduler_block_size"],
        asked["aligned_token_len"],
        start_token=asked["start_token"],
        num_prompt_tokens=asked["num_prompt_tokens"],
        retention_interval=asked["retention_interval"],
        use_eagle=asked["use_eagle"],
    )
    return [_indices(mask) for mask in masks]


def _boundaries(**asked: Any) -> list[int]:
    return list(replay_boundaries(**asked))


_GOT = {"mask": _kept, "store_mask": _saved, "replay_boundaries": _boundaries}


def _indices(mask: Mask) -> list[int] | None:
    return None if mask is None else [int(index) for index in mask.nonzero()[0]]


def _groups(groups: list[dict[str, Any]], eagle_group: int | None) -> tuple[GroupSpec, ...]:
    return tuple(
        GroupSpec(
            group["kind"], group["block_size"], group.get("sliding_window"), number == eagle_group
        )
        for number, group in enumerate(groups)
    )


def _check_mask(transcript: Transcript, line: Line) -> None:
    """Refuse what the fields alone do not show to be wrong."""
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


def _check_store_mask(transcript: Transcript, line: Line) -> None:
    """The same for the store's masks."""
    fields = line.fields
    unit = fields["scheduler_block_size"]
    eagle_group = fields["eagle_group"]
    for group in fields["groups"]:
        if problem := field_problem(group, GROUP):
            transcript.refuse(line.number, f"store_mask groups: {problem}")
    try:
        groups = _groups(fields["groups"], eagle_group)
    except ValueError as error:
        transcript.refuse(line.number, f"store_mask groups: {error}")
    if not groups:
        transcript.refuse(line.number, "store_mask groups: none are given")
    if eagle_group is not None and eagle_group >= len(groups):
        transcript.refuse(
            line.number, f"store_mask eagle_group: {eagle_group} is none of {len(groups)} groups"
        )
    if unit % math.lcm(*(group.block_size for group in groups)):
        transcript.refuse(
            line.number,
            f"store_mask scheduler_block_size: {unit} is not a multiple of every block size",
        )
    for name in ("aligned_token_len", "retention_interval"):
        value = fields[name]
        if value is not None and (value < 0 or value % unit):
            transcript.refuse(
                line.number, f"store_mask {name}: {value} is not a multiple of {unit}"
            )


def _check_nothing(transcript: Transcript, line: Line) -> None:
    """What its fields say is enough."""


_CHECKS = {
    "mask": _check_mask,
    "store_mask": _check_store_mask,
    "replay_boundaries": _check_nothing,
}
