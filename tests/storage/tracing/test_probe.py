"""Runtimes that do not work are found out in a process of their own, and said with the cure."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from runtimes_in_c import (
    LEAVES_LOGS,
    LEAVES_NOTHING,
    NEVER_STARTS,
    OPENS_WITH_IT,
    WITH_HDF5,
    made_runtime,
)

from iobench.storage.darshan_runtime import DarshanRuntime, ProbedRuntime, probe, ready_runtime


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """One in which a small program has no libraries but those made here: quick to start."""
    folder = tmp_path / "modules"
    folder.mkdir()
    for name in ("numpy", "h5py", "netCDF4"):
        (folder / f"{name}.py").write_text("raise ImportError")
    kept = {name: text for name, text in os.environ.items() if name not in ("LD_PRELOAD",)}
    return kept | {"PYTHONPATH": str(folder)}


def _probed(library: Path, environment: dict[str, str], **more: float) -> ProbedRuntime:
    return probe(DarshanRuntime(library, "$DARSHAN_LIB"), sys.executable, environment, **more)


def test_one_that_works(tmp_path: Path, environment) -> None:
    (tmp_path / "modules" / "sitecustomize.py").write_text(
        "import atexit\natexit.register(print, 'a site may have every Python say something')\n"
    )
    probed = _probed(made_runtime(tmp_path, LEAVES_LOGS), environment)
    assert probed.problem == ""
    assert sys.prefix in probed.prefixes


def test_one_that_ends_python_where_a_library_opens_a_file_is_refused(
    tmp_path: Path, environment
) -> None:
    (tmp_path / "modules" / "h5py.py").write_text(OPENS_WITH_IT)
    probed = _probed(made_runtime(tmp_path, WITH_HDF5), environment)
    assert "ended opening a file with h5py (exit 127)" in probed.problem
    assert "H5get_libversion" in probed.problem


def test_one_that_leaves_no_log_and_one_that_hangs_are_refused(tmp_path: Path, environment) -> None:
    silent = _probed(made_runtime(tmp_path / "silent", LEAVES_NOTHING), environment)
    hanging = _probed(made_runtime(tmp_path / "hanging", NEVER_STARTS), environment, timeout_s=0.3)
    assert "left no log" in silent.problem
    assert "did not end within 0.3 s" in hanging.problem


def test_a_path_that_cannot_be_preloaded_is_refused(tmp_path: Path, environment) -> None:
    assert "a space" in _probed(tmp_path / "a b" / "libdarshan.so", environment).problem


def test_a_user_who_turned_darshan_off_is_obeyed(tmp_path: Path) -> None:
    assert ready_runtime({"DARSHAN_DISABLE": "1"}, sys.executable) == "$DARSHAN_DISABLE is set"


def test_no_runtime_is_one_line_that_says_where_it_was_looked_for(tmp_path: Path) -> None:
    told = ready_runtime({"PATH": f"{tmp_path}:/bin"}, sys.executable)
    assert isinstance(told, str)
    assert "DARSHAN_LIB" in told
    assert "\n" not in told
