"""Files appear whole or not at all."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from kvsim.scenario.writing import replacing, write_text


def test_a_file_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    file = tmp_path / "plot.svg"
    file.write_text("old")
    write_text(file, "new")
    assert file.read_text() == "new"
    assert list(tmp_path.iterdir()) == [file]


def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text("old and whole")
    with pytest.raises(OSError, match="No space"), replacing(file) as new:
        new.write_text("cut")
        raise OSError(errno.ENOSPC, "No space left on device")
    assert file.read_text() == "old and whole"
    assert list(tmp_path.iterdir()) == [file]


def test_the_ending_stays_as_it_decides_the_format(tmp_path: Path) -> None:
    with replacing(tmp_path / "a.png") as new:
        assert new.suffix == ".png"
        assert new.parent == tmp_path
        new.write_text("x")


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to("real.txt")
    write_text(tmp_path / "link.txt", "new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"


def test_a_device_is_written_to() -> None:
    write_text(Path("/dev/null"), "gone")
    assert not Path("/dev/null").is_file()
