"""Random streams by name: what draws from one never moves another."""

from __future__ import annotations

import hashlib

import numpy as np


def stream(seed: int, *names: str | int) -> np.random.Generator:
    """The stream of random numbers that belongs to a seed and a path of names.

    Args:
        seed: the scenario's, 0 or more.
        names: as in ``("session", 7)``; the same path gives the same numbers, whatever else is
            drawn before, between or after.
    """
    words = np.frombuffer(hashlib.sha256(repr(names).encode()).digest()[:16], dtype="<u4")
    sequence = np.random.SeedSequence(seed, spawn_key=tuple(words.tolist()))
    return np.random.Generator(np.random.PCG64(sequence))
