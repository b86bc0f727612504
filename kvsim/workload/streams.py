"""Random streams by name: what draws from one never moves another."""

from __future__ import annotations

import hashlib
import struct

import numpy as np

_WORDS = struct.Struct("<4I").unpack_from


def stream(seed: int, *names: str | int) -> np.random.Generator:
    """The stream of random numbers that belongs to a seed and a path of names.

    Args:
        seed: the scenario's, 0 or more.
        names: as in ``("session", 7)``; the same path gives the same numbers, whatever else is
            drawn before, between or after.
    """
    words = _WORDS(hashlib.sha256(repr(names).encode()).digest())
    sequence = np.random.SeedSequence(seed, spawn_key=words)
    return np.random.Generator(np.random.PCG64(sequence))
