"""Stores and runs of one user that another may read, and not write."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "support"))
from other_user import as_other_user, folder_for_all

from iobench.cli import main

IOBENCH = (sys.executable, "-m", "iobench")
N, X = 24, 50


@pytest.fixture(scope="module")
def shared() -> Iterator[Path]:
    """A folder of ours with a store of each format and a run, which others may read alone."""
    xarray = pytest.importorskip("xarray", reason="makes the file that is converted")
    values = np.arange(N * X, dtype="float32").reshape(N, X)
    with folder_for_all() as folder:
        source = folder / "data.nc"
        xarray.Dataset({"t": (("time", "x"), values)}).to_netcdf(source)
        for fmt in ("zarr", "tfrecord", "numpy"):
            command = ["convert", str(source), "--sample-dim", "time", "--to", fmt]
            assert main([*command, str(folder / fmt)]) == 0
        run = ["profile", str(folder / "numpy"), "--batches", "4", "--compute", "none"]
        assert main([*run, "--out", str(folder / "run")]) == 0
        yield folder


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    """Return what lies in a folder of ours: sizes and times."""
    found = [each for each in folder.rglob("*") if "theirs" not in each.parts]
    return {str(each): (each.stat().st_size, each.stat().st_mtime_ns) for each in found}


@pytest.mark.long
def test_a_store_of_another_is_profiled_verified_and_reported(shared: Path) -> None:
    before = _files(shared)
    quick = ("--batches", "4", "--compute", "none", "--out", "own")
    for command in (
        ("profile", shared / "zarr", *quick),
        ("verify", shared / "zarr"),
        ("info", shared / "zarr"),
        ("report", "own", "--html", "page.html"),
        ("report", shared / "run", "--json"),
    ):
        done = as_other_user(shared, *IOBENCH, *command)
        assert done.returncode == 0, (command, done.stderr)
    assert (shared / "theirs" / "page.html").stat().st_size > 1000
    assert _files(shared) == before


def test_nothing_is_converted_into_a_folder_of_another(shared: Path) -> None:
    """One line says that it cannot be written, and where else it may go."""
    source = shared / "data.nc"
    command = ("convert", source, "--sample-dim", "time", "--to", "zarr", shared / "new")
    done = as_other_user(shared, *IOBENCH, *command)
    assert done.returncode not in (0, 2)
    assert done.stderr.splitlines()[-1].startswith("iobench: ")
    assert "choose another folder" in done.stderr.splitlines()[-1]
    assert not (shared / "new").exists()


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("command", ["profile", "info", "stage", "verify"])
def test_a_folder_that_one_may_not_look_into_is_told_in_a_line(shared: Path, command: str) -> None:
    closed = shared / "closed"
    closed.mkdir(mode=0o700, exist_ok=True)
    more = ("--to", "near") if command == "stage" else ()
    done = as_other_user(shared, *IOBENCH, command, closed, *more)
    [line] = [line for line in done.stderr.splitlines() if line.startswith("iobench: ")]
    assert done.returncode == 1
    assert str(closed) in line
    assert "Traceback" not in done.stderr
