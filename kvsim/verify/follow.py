"""Following transcripts of all formats."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from kvsim.errors import KvsimError
from kvsim.verify import cache_ops, groups, masks, mooncake, offload, overlapping, routing, steps
from kvsim.verify.reading import read_transcript
from kvsim.verify.report import Answer, Difference, FileReport, Skipped


def verify_file(path: str | Path) -> FileReport:
    """Follow one transcript up to its end or its first difference.

    An answer is one value that the engine gave: of a lookup the hit, the junction and the blocks
    are three, of a step its number, what was scheduled, admitted, preempted and finished, and the
    free blocks are six. `checked` and `skipped` count these.

    Args:
        path: a gzipped transcript of one of `FORMATS`.

    Raises:
        TranscriptError: the file is broken, with the line where.
    """
    transcript = read_transcript(path)
    checked = skipped = 0
    first: Difference | None = None
    for answer in _FOLLOWERS[transcript.format](transcript):
        if isinstance(answer, Skipped):
            skipped += answer.num_answers
            continue
        checked += 1
        if not answer.same:
            first = _difference(answer)
            break
    identical = first is None if checked else None
    return FileReport(transcript.file, identical, checked, skipped, first)


def verify_files(paths: Iterable[str | Path]) -> tuple[list[FileReport], list[KvsimError]]:
    """Follow transcripts one after another; a broken one does not keep the others from it.

    Returns:
        The reports of those that could be followed, and the errors of those that could not, each
        in the order given.
    """
    reports: list[FileReport] = []
    errors: list[KvsimError] = []
    for path in paths:
        try:
            reports.append(verify_file(path))
        except KvsimError as error:
            errors.append(error)
    return reports, errors


def _difference(answer: Answer) -> Difference:
    return Difference(answer.line, answer.op, answer.what, answer.expected, answer.got)


_FOLLOWERS = {
    "kvsim-transcript/1": cache_ops.follow,
    "kvsim-steps/1": steps.follow,
    "kvsim-masks/1": masks.follow,
    "kvsim-offload/1": offload.follow,
    "kvsim-groups/1": groups.follow,
    "kvsim-async/1": overlapping.follow,
    "kvsim-mooncake/1": mooncake.follow,
    "kvsim-routing/1": routing.follow,
}
