"""Random streams: a function of seed and name, and of nothing else."""

from __future__ import annotations

import numpy as np

from kvsim.workload.streams import stream


def test_the_same_path_gives_the_same_numbers() -> None:
    first = stream(7, "session", 3).random(5)
    stream(7, "other").random(1000)
    assert (stream(7, "session", 3).random(5) == first).all()


def test_every_part_of_the_path_counts() -> None:
    paths = [(0, "a"), (1, "a"), (0, "b"), (0, "a", 1), (0, "a", "1"), (0, "a", 0), (0, "a', 1")]
    numbers = {float(stream(seed, *names).random()) for seed, *names in paths}
    assert len(numbers) == len(paths)


def test_the_numbers_stay_what_they_are() -> None:
    # A changed derivation would silently change every published result.
    drawn = stream(0, "session", 0).bit_generator.random_raw(2).tolist()
    assert drawn == [17071923071684396285, 17100423468046379780]


def test_streams_are_independent() -> None:
    one, other = stream(0, "session", 1).random(20_000), stream(0, "session", 2).random(20_000)
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.03
