"""The columns of a table of spans: names, types, units and what they mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["COLUMNS", "RUN", "ArrowColumn"]


@dataclass(frozen=True, slots=True)
class ArrowColumn:
    """One column of the table.

    Parameters
    ----------
    name : str
    type : str
        As Arrow spells it; ``"text"`` for strings with a dictionary.
    unit : str
        ``""`` where it has none.
    description : str
    """

    name: str
    type: str
    unit: str
    description: str


RUN: Final = ArrowColumn(
    "run", "text", "", "name of the run directory; only where several are in a file"
)
COLUMNS: Final = (
    ArrowColumn("rank", "int32", "", "training process that the span's process is or works for"),
    ArrowColumn("host", "text", "", "machine"),
    ArrowColumn("role", "text", "", "consumer (a training process), worker, or child"),
    ArrowColumn("worker", "int32", "", "number of the loading process; null for others"),
    ArrowColumn("process", "text", "", "name of the process, such as worker-0"),
    ArrowColumn("pid", "int64", "", "of the process, on its machine"),
    ArrowColumn("thread", "int32", "", "number of the thread in its process; 0 recorded first"),
    ArrowColumn("lane", "text", "", "name of the row of a timeline: process, and thread or device"),
    ArrowColumn("stage", "text", "", "kind, or kind:label, as in reports"),
    ArrowColumn("kind", "text", "", "sort of work"),
    ArrowColumn("label", "text", "", "what kind leaves open; null where nothing"),
    ArrowColumn("start_ns", "int64", "ns", "beginning, on the monotonic clock of the machine"),
    ArrowColumn("end_ns", "int64", "ns", "end, on the same clock"),
    ArrowColumn("start", "timestamp", "", "beginning, wall clock"),
    ArrowColumn("duration_ns", "int64", "ns", "end less beginning"),
    ArrowColumn(
        "self_ns", "int64", "ns", "time of loading that lies in no span inside; null for others"
    ),
    ArrowColumn(
        "busy_ns", "int64", "ns", "self_ns as far as the batch was delivered, or on its path"
    ),
    ArrowColumn(
        "exposed_ns", "int64", "ns", "of busy_ns, what was waited for; of a wait, all of it"
    ),
    ArrowColumn("hidden_ns", "int64", "ns", "busy_ns less exposed_ns; null for waits"),
    ArrowColumn(
        "exposed_share", "double", "", "exposed part of self_ns; known of single samples too"
    ),
    ArrowColumn("nbytes", "int64", "B", "read, made or handed on; of a counter, read by any means"),
    ArrowColumn("device_nbytes", "int64", "B", "of a counter: what the storage device delivered"),
    ArrowColumn("cpu_ns", "int64", "ns", "CPU time of the thread"),
    ArrowColumn("epoch", "int32", "", "null where unknown"),
    ArrowColumn(
        "batch", "int32", "", "number of the batch in its training process; null where none"
    ),
    ArrowColumn(
        "sample", "int64", "", "index of the sample; of waits and rounds, number of the round"
    ),
    ArrowColumn("detail", "text", "", "file of loading spans; of a wait, who made the batch"),
    ArrowColumn("pieces", "int32", "", "samples that a summed span stands for, else 1"),
    ArrowColumn(
        "summed", "bool", "", "duration is a sum over samples; its place in time is not exact"
    ),
    ArrowColumn(
        "sample_detail", "bool", "", "one sample's part of a summed span: leave out of sums"
    ),
    ArrowColumn("counter", "bool", "", "no stretch of time but bytes counted by the kernel"),
    ArrowColumn("device", "bool", "", "time of an accelerator, not of a thread"),
    ArrowColumn("estimated", "bool", "", "summed and not timed: the batch's time, shared out"),
)
