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


def test_records_are_profiled_and_other_stores_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (run,) = profile_own_zarr(capsys, "tfrecord", "dali")
    assert (run["framework"], run["threads"], run["workers"]) == ("dali", 1, 0)
    assert (run["batches"], run["samples"]) == (12, 24)
    assert run["nbytes"] == 24 * 4 * SIZE
    assert sum(run["exposed_ns"].values()) == run["wait_ns"]
    assert {"opaque:dali", "collate"} <= {row["stage"] for row in run["stages"]}
    for stored in ("zarr", "numpy"):
        told = profile_own_zarr(capsys, stored, "dali", code=1)
        assert "choose --format tfrecord" in told.splitlines()[-1]
