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
from tests.support.sketched_runs import CONSUMER, SketchedRun

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from iobench.runs.contents import Process, RunData
    from iobench.storage.storage_trace import ProcessTrace
    from tests.support.sketched_runs import Lane

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
        for each in events[pid]:
            if each["stage"] in STAGES:
                _add_stage(run, lane, each)
    waits = told["main_events"]
    for each in waits:
        batch = each["batch"]
        made_by = f"worker-{batch % len(workers)}" if workers else "consumer"
        run.wait(batch, each["p0_ns"], each["p1_ns"], made_by, epoch=each["epoch"], sample=0)
    first, last = waits[0]["p0_ns"], waits[-1]["p1_ns"]
    end = max(last, first + round(told["loop_seconds"] * 1e9))
    run.add(CONSUMER, Kind.WAIT, last, end, label="shutdown", sample=0)
    run.round(first, end)
    return run.data()


def _sync_anchors(events: Iterable[Mapping[str, Any]]) -> list[Anchor]:
    return [
        Anchor(each["p0_ns"], each["t0_ns"]) for each in events if each["stage"] == "clock_sync"
    ]


def _add_stage(run: SketchedRun, lane: Lane, event: Mapping[str, Any]) -> None:
    kind, label = STAGES[event["stage"]]
    start, end, batch = event["p0_ns"], event["p1_ns"], event["idx"] // run.config["batch_size"]
    of = {"sample": event["idx"], "batch": batch, "epoch": event["epoch"]}
    nbytes = event.get("bytes", event.get("bytes_decoded", -1))
    file = event.get("file", "")
    run.add(lane, kind, start, end, label=label, detail=file, nbytes=nbytes, **of)
    if "procio_delta" in event:
        called, device = (event["procio_delta"][name] for name in ("rchar", "read_bytes"))
        run.add(lane, Kind.READ, end, end, nbytes=called, cpu_ns=device, flags=Flag.IO, **of)


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
