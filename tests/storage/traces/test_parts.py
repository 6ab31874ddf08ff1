"""Logs that several runs share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from iobench.storage.run_traces import part_of_run
from iobench.storage.storage_trace import (
    COUNTER_DTYPE,
    SEGMENT_DTYPE,
    ProcessTrace,
    StorageTrace,
)

START_NS = 1_795_000_000_000_000_000
FILES = ("/data/a.grib", "/data/store/x.npy", "/tmp/index", "/data/b.grib")


def _trace(**more: Any) -> StorageTrace:
    segments = np.zeros(4, SEGMENT_DTYPE)
    segments["file"] = range(4)
    segments["start_ns"] = START_NS + np.arange(4) * 100
    segments["end_ns"] = segments["start_ns"] + 10
    counters = np.full(4, -1, COUNTER_DTYPE)
    counters["file"] = range(4)
    counters["posix_reads"] = [10, 11, 12, 13]
    one = ProcessTrace(
        Path("x.darshan"), pid=7, start_ns=START_NS,
        files=FILES, segments=segments, counters=counters, **more,
    )  # fmt: skip
    return StorageTrace((one,), refused=("y",), notes=("n",))


def test_of_a_shared_log_files_of_other_runs_are_left_out() -> None:
    folders = {"own": ["/data/store"], "others": ["/data"]}
    whole = _trace()
    part = part_of_run(whole, {"folders": folders})
    (process,) = part.processes
    assert process.files == ("/data/store/x.npy", "/tmp/index")
    assert process.segments["file"].tolist() == process.counters["file"].tolist() == [0, 1]
    assert process.counters["posix_reads"].tolist() == [11, 12]
    assert (part.refused, part.notes) == (whole.refused, whole.notes)
    other = part_of_run(whole, {"folders": {"own": ["/data"], "others": ["/data/store"]}})
    assert other.processes[0].files == ("/data/a.grib", "/tmp/index", "/data/b.grib")
    assert whole.processes[0].segments["file"].tolist() == [0, 1, 2, 3]


def test_what_run_json_tells_of_others_or_wrongly_changes_nothing() -> None:
    whole = _trace()
    for told in (
        {},
        {"folders": []},
        {"folders": {"own": ["/data"], "others": []}},
    ):
        (process,) = part_of_run(whole, told).processes
        assert process.start_ns == START_NS
        assert process.files == FILES
