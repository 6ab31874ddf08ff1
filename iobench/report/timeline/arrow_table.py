"""The spans of a run as an Arrow table."""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.analysis.run import Run
from iobench.errors import import_extra
from iobench.recording.kinds import stage_name, stages_of
from iobench.recording.span_file import Flag, io_looks
from iobench.report.timeline.model import lanes_of, machine_of, wall_offsets

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from iobench.runs.contents import RunData

Texts = tuple["NDArray[Any]", "Sequence[str]"]
"""Places in a sequence of texts, and these."""
Column = tuple[str, str, "NDArray[Any] | Texts"]
"""Name, description and values; integers below 0 are unknown, and so are empty texts."""
SCHEMA_VERSION: Final = 3


def to_arrow(profile: RunData) -> pa.Table:
    """Return the spans of a profile as an Arrow table, one row each.

    Each field's metadata holds its description. What is unknown is null. Of one rank, ``busy_ns``
    and ``exposed_ns`` summed over a stage of work are exactly those of
    ``exposure(profile).whole``, and ``exposed_ns`` of its waits adds up to ``wait_ns``.

    Returns
    -------
    pyarrow.Table
        By process, thread and start.

    Raises
    ------
    MissingExtraError
        If pyarrow is not installed.
    """
    pa, run = _pyarrow(), Run(profile)
    arrays, fields = [], []
    for name, description, values in _columns(run):
        array = _texts(*values) if isinstance(values, tuple) else _array(values)
        if name == "start":
            array = array.cast(pa.timestamp("ns", tz="UTC"))
        arrays.append(array)
        fields.append(pa.field(name, array.type, metadata={"description": description}))
    about = {"schema_version": SCHEMA_VERSION, "iobench_version": version("iobench")}
    about |= {"run": run.path.name, "ranks": [*run.ranks]}
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields, {"iobench": json.dumps(about)}))


def _pyarrow() -> Any:
    return import_extra("pyarrow", "a table of spans needs pyarrow", extra="parquet")


def _array(values: NDArray[Any], is_known: NDArray[np.bool_] | None = None) -> Any:
    """Return a column; integers below 0 are unknown, if nothing else is said."""
    if values.dtype != bool and is_known is None:
        is_known = values >= 0
    return _pyarrow().array(values, mask=None if is_known is None else ~is_known)


def _texts(index: NDArray[Any], texts: Sequence[str]) -> Any:
    """Return a column of texts; null for what is empty."""
    # Names of files may be no UTF-8.
    spelled = [text.encode("utf-8", "backslashreplace").decode() for text in texts]
    number = {text: place for place, text in enumerate(dict.fromkeys(spelled))}
    place = np.array([number[text] for text in spelled], dtype=np.int32)
    is_text = np.array([*map(bool, texts)], dtype=bool)
    return _pyarrow().DictionaryArray.from_arrays(_array(place[index], is_text[index]), [*number])


def _columns(run: Run) -> tuple[Column, ...]:
    data, sums = run.data, run.sums
    spans = data.spans
    order = np.lexsort((-spans["end_ns"], spans["start_ns"], spans["thread"], spans["process"]))
    spans = spans[order]
    process, flags, start = spans["process"], spans["flags"], spans["start_ns"]
    counter, reads = (flags & Flag.IO) != 0, io_looks(spans)
    stages, stage = stages_of(spans, data.strings)
    lanes, lane = lanes_of(data, spans)
    owners = data.processes
    offsets = wall_offsets(owners)
    moved = np.array([offsets[machine_of(owner)] for owner in owners], dtype=np.int64)[process]
    rank, pid = (
        np.array([getattr(owner, name) for owner in owners], dtype=np.int64)[process]
        for name in ("rank", "pid")
    )
    busy, exposed, nbytes, cpu = sums.busy_ns, sums.exposed_ns, spans["nbytes"], spans["cpu_ns"]
    # fmt: off
    return (
        ("run", "its directory", (np.zeros(len(spans), dtype=np.int64), [run.path.name])),
        ("rank", "training process that the process is or works for", rank),
        ("role", "consumer (trains), worker or child", (process, [each.role for each in owners])),
        ("pid", "of the process, on its machine", pid),
        ("lane", "of a timeline: process, thread or device", (lane, [each.name for each in lanes])),
        ("stage", "kind, or kind:label", (stage, [stage_name(*each) for each in stages])),
        ("kind", "sort of work", (stage, [kind.spelled for kind, _ in stages])),
        ("start_ns", "beginning, on the machine's monotonic clock", start),
        ("start", "beginning, wall clock", start + moved),
        ("duration_ns", "end less beginning", spans["end_ns"] - start),
        ("self_ns", "time of loading in no span inside; null for others", sums.self_ns[order]),
        ("busy_ns", "of self_ns, what was of delivered batches", busy[order]),
        ("exposed_ns", "of busy_ns, waited for; of a wait, all of it", exposed[order]),
        ("nbytes", "handed on; of a counter, read", np.where(~counter | reads, nbytes, -1)),
        ("cpu_ns", "CPU time of the thread", np.where(counter, -1, cpu)),
        ("epoch", "null where unknown", spans["epoch"]),
        ("batch", "number in its training process; null where none", spans["batch"]),
        ("sample", "index; of waits and rounds, number of the round", spans["sample"]),
        ("detail", "file; of a wait, who made the batch", (spans["detail"], data.strings)),
        ("summed", "over samples; its place in time is not exact", (flags & Flag.SUMMED) != 0),
        ("sample_detail", "a part of a summed span: not for sums", (flags & Flag.DETAIL) != 0),
        ("counter", "no stretch of time but bytes counted by the kernel", counter),
        ("device", "time of an accelerator, not of a thread", (flags & Flag.DEVICE) != 0),
    )
