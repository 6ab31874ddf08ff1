"""Before a conversion begins it is said where there is no room for it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from iobench.cli import main
from tests.support.quota import quota

N, X = 40, 500


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file of 40 samples of 2 kB each."""
    xarray = pytest.importorskip("xarray", reason="makes the file that is converted")
    values = np.random.default_rng(0).random((N, X), dtype=np.float32)
    xarray.Dataset({"t": (("time", "x"), values)}).to_netcdf(tmp_path / "data.nc")
    return tmp_path / "data.nc"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mount file systems in memory, of so many bytes or inodes."""
    made: list[Path] = []

    def mount(options: str) -> Path:
        folder = tmp_path / f"small-{len(made)}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
        if os.geteuid():
            pytest.skip("needs root, to mount a small file system")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
        made.append(folder)
        return folder

    yield mount
    for folder in made:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def _convert(source: Path, out: Path, *more: str) -> list[str]:
    shards = ["--shard-size", "4000"]  # 2 samples each: 20 shards
    return [
        "convert",
        str(source),
        "--sample-dim",
        "time",
        "--to",
        "numpy",
        *shards,
        str(out),
        *more,
    ]


def test_too_little_room_is_told_before_a_sample_is_written(
    small: Callable[[str], Path], source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = small("size=40k")
    assert main(_convert(source, folder / "store")) == 75
    assert "80000 bytes are needed" in capsys.readouterr().err.splitlines()[-1]
    assert not list(folder.rglob("shard-*"))


def test_inodes_that_go_meanwhile_are_told_from_a_full_disk(
    small: Callable[[str], Path], source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is finished is kept."""
    folder = small("size=8m,nr_inodes=30")
    code = main(_convert(source, folder / "store"))
    error = capsys.readouterr().err.splitlines()[-1]
    assert code == 75
    assert "no more files can be made there (inodes)" in error
    assert "disk is full" not in error


def test_a_quota_that_is_used_up_is_one_line_and_goes_on_later(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Known truth: half of what is written is within the quota, which ``statvfs`` tells not of."""
    folder = tmp_path / "limited"
    folder.mkdir()
    with quota(N * X * 4 // 2):
        assert main(_convert(source, folder / "store")) == 75
    error = capsys.readouterr().err.splitlines()[-1]
    assert "your quota there (bytes or files) is used up" in error
    assert "disk is full" not in error
    assert main(_convert(source, folder / "store")) == 0
    assert main(["verify", str(folder / "store")]) == 0
