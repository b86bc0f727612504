"""Jobs of a connector that are not done."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvsim.cache.block_pool import Ids
from kvsim.offload.request_chunks import RequestChunks
from kvsim.offload.transfers import TransferJob


@dataclass(slots=True, eq=False)
class PendingJob:
    """A job that is not done.

    Attributes:
        job: as it was handed out.
        request: whose it is.
        fenced: blocks of window groups, states and ends of prompts it copies from: they may be
            handed out at any time.
        fenced_later: other blocks it copies from: they may be once the request is finished.
    """

    job: TransferJob
    request: RequestChunks
    fenced: Ids
    fenced_later: Ids


NO_BLOCKS: Ids = np.zeros(0, dtype=np.int32)
