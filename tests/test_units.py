from __future__ import annotations

import math

import pytest

from kvsim.units import parse_bytes, parse_bytes_per_s, parse_seconds


@pytest.mark.parametrize(
    ("written", "num_bytes"),
    [
        ("80 GiB", 80 * 2**30),
        ("80GiB", 80 * 2**30),
        ("  1 TiB ", 2**40),
        ("3.4 GiB", 3_650_722_202),
        ("288 GB", 288 * 10**9),
        ("1e3 kB", 10**6),
        ("1 KB", 1000),
        ("512", 512),
        ("7 B", 7),
        (0, 0),
        (4096.0, 4096),
        (2**62 + 1, 2**62 + 1),
    ],
)
def test_sizes(written: object, num_bytes: int) -> None:
    parsed = parse_bytes(written)
    assert parsed == num_bytes
    assert isinstance(parsed, int)


@pytest.mark.parametrize(
    ("written", "bytes_per_s"),
    [("25 GB/s", 25e9), ("400 Gb/s", 50e9), ("1 GiB/s", 2.0**30), (5, 5.0), ("8 TB/s", 8e12)],
)
def test_bandwidths(written: object, bytes_per_s: float) -> None:
    assert parse_bytes_per_s(written) == bytes_per_s


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("15 ms", 0.015), ("2 min", 120.0), ("3us", 3e-6), ("3 µs", 3e-6), ("1.5", 1.5), (2, 2.0)]
    + [("1 h", 3600.0), (".5 s", 0.5), ("5. s", 5.0), ("-1 s", -1.0), ("2 d", 172800.0)],
)
def test_times(written: object, seconds: float) -> None:
    assert math.isclose(parse_seconds(written), seconds, rel_tol=1e-12)


@pytest.mark.parametrize(
    ("parse", "written", "text"),
    [
        (parse_bytes, "80 gib", "'80 gib' has an unknown unit. Did you mean 'GiB'?"),
        (parse_bytes, "80 GiBs", "'80 GiBs' has an unknown unit. Did you mean 'GiB'?"),
        (parse_bytes, "3 s", "'3 s' has an unknown unit. Use one of B, KB, kB, MB, GB, TB, PB, "),
        (parse_bytes, 3.4, "3.4 is not a whole number of bytes. Write a unit, as in '3.4 GiB'."),
        (parse_bytes, "lots", "'lots' is not a size. Write a finite one, as in '80 GiB'."),
        (parse_bytes, "", "'' is not a size. Write a finite one, as in '80 GiB'."),
        (parse_bytes, True, "true is not a size. Write a finite one, as in '80 GiB'."),
        (parse_bytes, None, "null is not a size. Write a finite one, as in '80 GiB'."),
        (parse_bytes, [1], "a list is not a size. Write a finite one, as in '80 GiB'."),
        (parse_bytes, math.nan, "nan is not a size. Write a finite one, as in '80 GiB'."),
        (parse_bytes, "٣ B", "'٣ B' is not a size. Write a finite one, as in '80 GiB'."),
        (parse_seconds, math.inf, "inf is not a time. Write a finite one, as in '15 ms'."),
        (parse_seconds, "inf", "'inf' is not a time. Write a finite one, as in '15 ms'."),
        (parse_seconds, "1e999 s", "'1e999 s' is too large for a time. Write one as in '15 ms'."),
        (parse_seconds, "5 m", "'5 m' has an unknown unit. Did you mean "),
        (parse_bytes_per_s, "25 GB", "'25 GB' has an unknown unit. Did you mean 'GB/s'?"),
    ],
)
def test_errors(parse: object, written: object, text: str) -> None:
    assert callable(parse)
    with pytest.raises(ValueError) as caught:
        parse(written)
    assert str(caught.value).startswith(text)
