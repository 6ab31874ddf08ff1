"""``iobench profile --framework tensorflow`` on stores of every format."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
pytest.importorskip("tensorflow", reason="its loaders are what is measured")
from own_zarr import SIZE, profile_own_zarr

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(180)


def test_every_store_is_profiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = profile_own_zarr(capsys, "tfrecord,zarr,numpy", "tensorflow")
    assert [run["format"] for run in runs] == ["tfrecord", "zarr", "numpy"]
    for run in runs:
        assert (run["framework"], run["threads"], run["workers"]) == ("tensorflow", 1, 0)
        assert (run["batches"], run["samples"]) == (12, 24)
        assert sum(run["exposed_ns"].values()) == run["wait_ns"]
    # The ring reads what tf.data has no reader for, and sees every read.
    for run in runs[1:]:
        (read,) = [row for row in run["stages"] if row["stage"] == "read"]
        assert read["nbytes"] == 24 * 4 * SIZE
