"""``iobench profile --framework dali`` on stores of every format."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip(
    "nvidia.dali", reason="needs pip install 'iobench[dali]' (1 GB, not in the test extra)"
)
from own_zarr import SIZE, profile_own_zarr

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(120)


def test_records_and_arrays_are_profiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = profile_own_zarr(capsys, "tfrecord,numpy", "dali")
    assert [run["format"] for run in runs] == ["tfrecord", "numpy"]
    for run in runs:
        assert (run["framework"], run["threads"], run["workers"]) == ("dali", 1, 0)
        assert (run["batches"], run["samples"]) == (12, 24)
        assert run["nbytes"] == 24 * 4 * SIZE
        assert sum(run["exposed_ns"].values()) == run["wait_ns"]
        assert {"opaque:dali", "collate"} <= {row["stage"] for row in run["stages"]}


@pytest.mark.parametrize(("stored", "size"), [("zarr", SIZE), ("numpy", 4)])
def test_chunks_and_arrays_of_records_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    stored: str,
    size: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    told = profile_own_zarr(capsys, stored, "dali", code=1, size=size)
    assert "choose --format tfrecord" in told.splitlines()[-1]
