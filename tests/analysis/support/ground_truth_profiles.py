"""Profiles of the runs beside the Darshan logs: what the job itself timed, as span files.

Times are monotonic. The anchor of a process is where it read both clocks one after the other, so
its wall clock is good to about a microsecond.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from iobench.recording.span_reader import Anchor
from iobench.storage.darshan_reader import read_traces
from iobench.storage.storage_trace import SEGMENT_DTYPE, StorageTrace
from iobench.testing import CONSUMER, SketchedRun

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from iobench.runs.contents import Process, RunData
    from iobench.storage.storage_trace import ProcessTrace

STAGES: dict[str, tuple[Kind, str]] = {
    "open": (Kind.OPEN, ""),
    "read": (Kind.READ, ""),
    "close": (Kind.OPAQUE, "close"),
    "decode": (Kind.DECODE, ""),
    "read+decode": (Kind.FUSED, "read+decode"),
    "preprocess": (Kind.PREPROCESS, ""),
}
HOST = "vm"  # as the logs call it


def profile_of_ground_truth(path: Path) -> RunData:
    """Return the profile that iobench would have made of the run of a ``ground_truth.json``.

    ``detail`` is the file, ``sample`` the index, ``nbytes`` what the stage handed back (decoded
    bytes for a stage that decodes), the batch that of the index. Counters of ``/proc/self/io``
    have `Flag.IO`, one for each sample.
    """
    told = json.loads(path.read_text())
    batch_size = told["args"]["batch"]
    workers = told["worker_pids"]
    events: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for each in told["events"]:
        events[each["pid"]].append(each)
    main = told["main_pid"]
    run = SketchedRun(
        workers=len(workers),
        prefetch=2,
        batch_size=batch_size,
        expected_workers=[f"worker-{number}" for number in range(len(workers))],
    )
    run.process = {"host": HOST}
    begin = told["process_start"]
    lanes = [(CONSUMER, main), *((("worker", number), pid) for number, pid in enumerate(workers))]
    for lane, pid in lanes:
        anchors = _sync_anchors(events[pid])
        if pid == main:
            anchors.insert(0, Anchor(begin["perf_counter_ns"], begin["time_ns"]))
        run.processes[lane] = {"pid": pid, "anchors": tuple(anchors or [Anchor(0, 0)])}
        run.spans += [{"lane": lane, **each} for each in _stage_rows(events[pid], batch_size)]
    loop = _loop_rows(told["main_events"], told["loop_seconds"], len(workers))
    run.spans += [{"lane": CONSUMER, **each} for each in loop]
    return run.data()


def _sync_anchors(events: Iterable[Mapping[str, Any]]) -> list[Anchor]:
    return [
        Anchor(each["p0_ns"], each["t0_ns"]) for each in events if each["stage"] == "clock_sync"
    ]


def _stage_rows(events: Iterable[Mapping[str, Any]], batch_size: int) -> Iterable[dict[str, Any]]:
    for each in events:
        if each["stage"] not in STAGES:
            continue
        kind, label = STAGES[each["stage"]]
        place = {
            "sample": each["idx"],
            "batch": each["idx"] // batch_size,
            "epoch": each["epoch"],
        }
        yield {
            "kind": kind,
            "label": label,
            "start_ns": each["p0_ns"],
            "end_ns": each["p1_ns"],
            "detail": each.get("file", ""),
            "nbytes": each.get("bytes", each.get("bytes_decoded", -1)),
            **place,
        }
        if "procio_delta" in each:
            delta = each["procio_delta"]
            yield {
                "kind": Kind.READ,
                "start_ns": each["p1_ns"],
                "end_ns": each["p1_ns"],
                "nbytes": delta["rchar"],
                "cpu_ns": delta["read_bytes"],
                "flags": Flag.IO,
                **place,
            }


def _loop_rows(
    events: list[Mapping[str, Any]], loop_seconds: float, n_workers: int
) -> Iterable[dict[str, Any]]:
    for each in events:
        batch = each["batch"]
        yield {
            "kind": Kind.WAIT,
            "start_ns": each["p0_ns"],
            "end_ns": each["p1_ns"],
            "batch": batch,
            "epoch": each["epoch"],
            "sample": 0,
            "detail": f"worker-{batch % n_workers}" if n_workers else "consumer",
        }
    first, last = events[0]["p0_ns"], events[-1]["p1_ns"]
    end = max(last, first + round(loop_seconds * 1e9))
    yield {
        "kind": Kind.WAIT, "start_ns": last, "end_ns": end, "label": "shutdown", "sample": 0,
    }  # fmt: skip
    yield {
        "kind": Kind.OTHER, "start_ns": first, "end_ns": end, "label": "round", "sample": 0,
    }  # fmt: skip


MARK_NS = 10_000_000
UNTOLD_US = -1_500
"""By how much the log of a process is late that reads nothing."""


def marked_logs(folder: Path, profile: RunData) -> StorageTrace:
    """Return the logs of a run with the markers that iobench would have made.

    Each tells the middle of the offsets that ``expected.json`` says are possible, to 1 us.
    """
    told = json.loads((folder / "expected.json").read_text())["clock_offset_dxt_to_time_ns"]
    offsets = {each["pid"]: sum(each["add_us_window"]) // 2 for each in told}
    trace, by_pid = read_traces([folder]), {each.pid: each for each in profile.processes}
    logs = tuple(
        marked(log, by_pid[log.pid], offsets.get(log.pid, UNTOLD_US)) if log.pid in by_pid else log
        for log in trace.processes
    )
    return replace(trace, processes=logs)


def marked(log: ProcessTrace, who: Process, offset_us: int) -> ProcessTrace:
    """Return a log with the marker of its process."""
    first = who.anchors[0]
    marks = np.zeros(4, SEGMENT_DTYPE)
    marks["offset"] = first.monotonic_ns + np.arange(4) * MARK_NS
    wall = marks["offset"] + first.wall_ns - first.monotonic_ns
    marks["start_ns"] = wall - (offset_us - 1) * 1000
    marks["end_ns"] = wall + MARK_NS - (offset_us + 1) * 1000
    return replace(log, marks=marks)
