"""The columns of a table of spans: names, types, units and what they mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["COLUMNS", "RUN", "Column"]


@dataclass(frozen=True, slots=True)
class Column:
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


RUN: Final = Column(
    "run", "text", "", "name of the run directory; only where several are in a file"
)
COLUMNS: Final = (
    Column("rank", "int32", "", "training process that the span's process is or works for"),
    Column("host", "text", "", "machine"),
    Column("role", "text", "", "consumer (a training process), worker, or child"),
    Column("worker", "int32", "", "number of the loading process; null for others"),
    Column("process", "text", "", "name of the process, such as worker-0"),
    Column("pid", "int64", "", "of the process, on its machine"),
    Column("thread", "int32", "", "number of the thread in its process; 0 recorded first"),
    Column("lane", "text", "", "name of the row of a timeline: process, and thread or device"),
    Column("stage", "text", "", "kind, or kind:label, as in reports"),
    Column("kind", "text", "", "sort of work"),
    Column("label", "text", "", "what kind leaves open; null where nothing"),
    Column("start_ns", "int64", "ns", "beginning, on the monotonic clock of the machine"),
    Column("end_ns", "int64", "ns", "end, on the same clock"),
    Column("start", "timestamp", "", "beginning, wall clock"),
    Column("duration_ns", "int64", "ns", "end less beginning"),
    Column(
        "self_ns", "int64", "ns", "time of loading that lies in no span inside; null for others"
    ),
    Column("busy_ns", "int64", "ns", "self_ns as far as the batch was delivered, or on its path"),
    Column("exposed_ns", "int64", "ns", "of busy_ns, what was waited for; of a wait, all of it"),
    Column("hidden_ns", "int64", "ns", "busy_ns less exposed_ns; null for waits"),
    Column("exposed_share", "double", "", "exposed part of self_ns; known of single samples too"),
    Column("nbytes", "int64", "B", "read, made or handed on; of a counter, read by any means"),
    Column("device_nbytes", "int64", "B", "of a counter: what the storage device delivered"),
    Column("cpu_ns", "int64", "ns", "CPU time of the thread"),
    Column("epoch", "int32", "", "null where unknown"),
    Column("batch", "int32", "", "number of the batch in its training process; null where none"),
    Column("sample", "int64", "", "index of the sample; of waits and rounds, number of the round"),
    Column("detail", "text", "", "file of loading spans; of a wait, who made the batch"),
    Column("pieces", "int32", "", "samples that a summed span stands for, else 1"),
    Column("summed", "bool", "", "duration is a sum over samples; its place in time is not exact"),
    Column("sample_detail", "bool", "", "one sample's part of a summed span: leave out of sums"),
    Column("counter", "bool", "", "no stretch of time but bytes counted by the kernel"),
    Column("device", "bool", "", "time of an accelerator, not of a thread"),
    Column("estimated", "bool", "", "summed and not timed: the batch's time, shared out"),
)
