"""The spans of a run as an Arrow table, and as a Parquet file."""

from __future__ import annotations

import json
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.analysis.run import Run
from iobench.errors import MissingExtraError, ProfileError
from iobench.recording.kinds import stage_name
from iobench.recording.span_file import Flag, io_looks
from iobench.recording.span_keys import stages_of
from iobench.report.timeline.model import lanes_of_spans, machine_of, wall_offsets
from iobench.report.written import whole_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa
    from numpy.typing import NDArray

    from iobench.analysis.run import RankRun
    from iobench.runs.contents import RunData

Column = tuple[str, str, str, "NDArray[Any]", "NDArray[np.bool_] | list[str] | None"]
"""Name, type as pyarrow spells it, description, values, and where these are known (None: all).

Of texts (``"text"``), values are places in the last.
"""
SCHEMA_VERSION: Final = 1
ROWS_IN_GROUP: Final = 131_072
CONFIGURATION: Final = (
    "batch_size", "dataset", "format", "framework", "iobench_version", "kind", "n_samples",
    "prefetch", "sample_nbytes", "stand_in", "threads", "tiny", "workers", "world_size",
)  # fmt: skip
"""What of ``run.json`` goes into the table: no commands, paths, machines or environments."""


def to_arrow(profile: RunData) -> pa.Table:
    """Return the spans of a profile as an Arrow table, one row each.

    Each field's metadata holds its description and unit. What is unknown is null. Of one rank,
    ``busy_ns`` and ``exposed_ns`` summed over a stage of work are exactly those of
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
    return _table(Run(profile), wall_offsets(profile.processes))


def write_parquet(path: Path | str, runs: Sequence[Run]) -> None:
    """Write the spans of runs, read one after the other, as one Parquet file."""
    parquet = _pyarrow("pyarrow.parquet")
    if not runs:
        raise ProfileError(f"{path}: there is no run to write; expected one at least")
    offsets = wall_offsets(each for run in runs for part in run.parts for each in part.processes)
    several = len({run.path for run in runs}) > 1
    with whole_file(path) as file:
        writer: Any = None
        try:
            for part in (part for run in runs for part in run.parts):
                table = _table(part, offsets, part.path.name if several else None)
                if writer is None:
                    texts = [each.name for each in table.schema if hasattr(each.type, "ordered")]
                    writer = parquet.ParquetWriter(
                        file, table.schema, compression="zstd", use_dictionary=texts
                    )
                # What differs is said in the schema's metadata, which a file has but once.
                table = table.replace_schema_metadata(writer.schema.metadata)
                writer.write_table(table, row_group_size=ROWS_IN_GROUP)
        finally:
            if writer is not None:
                _close(writer)


def check_parquet() -> None:
    """Refuse tables, by a `MissingExtraError`, where pyarrow is not installed."""
    _pyarrow("pyarrow.parquet")


def _close(writer: Any) -> None:
    """Close a writer; on a full disk it would try again when it is forgotten, and complain."""
    try:
        writer.close()
    finally:
        writer.is_open = False


def _pyarrow(name: str = "pyarrow") -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtraError(
            "a table of spans needs pyarrow, which is not installed; pip install 'iobench[parquet]'"
        ) from error


def _table(
    part: Run | RankRun, offsets: Mapping[tuple[str, str], int], run: str | None = None
) -> pa.Table:
    pa = _pyarrow()
    arrays, fields = [], []
    for name, kind, description, values, known in _columns(part, offsets, run):
        if isinstance(known, list):
            array = _texts(values, known)
        else:
            sort = pa.timestamp("ns", tz="UTC") if kind == "timestamp" else getattr(pa, kind)()
            array = _array(sort, values, known)
        unit = (
            {"unit": "ns" if name.endswith("_ns") else "B"}
            if name.endswith(("_ns", "nbytes"))
            else {}
        )
        arrays.append(array)
        fields.append(pa.field(name, array.type, metadata={"description": description, **unit}))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields, _metadata(part.data)))


def _array(kind: Any, values: NDArray[Any], known: NDArray[np.bool_] | None = None) -> Any:
    """Return a column; from its buffers, as `pyarrow.array` would import pandas (0.3 s)."""
    pa = _pyarrow()
    mask = None if known is None else pa.py_buffer(np.packbits(known, bitorder="little"))
    if values.dtype == bool:
        data = np.packbits(values, bitorder="little")
    else:
        data = values.astype("f8" if values.dtype.kind == "f" else f"i{kind.bit_width // 8}")
    return pa.Array.from_buffers(kind, len(values), [mask, pa.py_buffer(data)])


def _texts(index: NDArray[Any], texts: Sequence[str]) -> Any:
    """Return a column of texts, each once and only those that are there; null for what is empty."""
    pa = _pyarrow()
    known = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    number = np.array([known[text] for text in texts], dtype=np.int32)[index]
    is_used = np.bincount(number, minlength=len(known)) > 0
    place = (np.cumsum(is_used) - 1)[number]
    # Names of files may be no UTF-8.
    spelled = [
        text.encode("utf-8", "backslashreplace")
        for text, used in zip(known, is_used.tolist(), strict=True)
        if used
    ]
    ends = np.cumsum([0, *map(len, spelled)]).astype(np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(spelled))]
    is_text = np.array([*map(bool, spelled)], dtype=bool)[place]
    return pa.DictionaryArray.from_arrays(
        _array(pa.int32(), place, None if is_text.all() else is_text),
        pa.Array.from_buffers(pa.string(), len(spelled), buffers),
    )


def _columns(
    part: Run | RankRun, offsets: Mapping[tuple[str, str], int], run: str | None
) -> tuple[Column, ...]:
    data = part.data
    spans = data.spans
    order = np.lexsort((-spans["end_ns"], spans["start_ns"], spans["thread"], spans["process"]))
    sums, spans = part.sums, spans[order]
    process, flags, nbytes = spans["process"], spans["flags"], spans["nbytes"]
    start, end, cpu = spans["start_ns"], spans["end_ns"], spans["cpu_ns"]
    own, busy, exposed = sums.self_ns[order], sums.busy_ns[order], sums.exposed_ns[order]
    share = sums.share[order]
    counter, reads = (flags & Flag.IO) != 0, io_looks(spans)
    stages, stage = stages_of(spans, data.strings)
    lanes, lane = lanes_of_spans(data, spans)
    owners, strings = data.processes, [*data.strings]
    moved = np.array([offsets[machine_of(owner)] for owner in owners], dtype=np.int64)[process]
    rank, pid, worker = (
        np.array([getattr(owner, name) for owner in owners], dtype=np.int64)[process]
        for name in ("rank", "pid", "worker")
    )

    def some(values: NDArray[Any], known: NDArray[np.bool_] | None = None) -> Any:
        return values, values >= 0 if known is None else known

    def has(flag: Flag) -> tuple[NDArray[np.bool_], None]:
        return (flags & flag) != 0, None

    # fmt: off
    rows: tuple[Column, ...] = (
        ("run", "text", "name of the run directory; only where several are in a file",
         np.zeros(len(order), dtype=np.int32), [run or ""]),
        ("rank", "int32", "training process that the process is or works for", rank, None),
        ("host", "text", "machine", process, [owner.host for owner in owners]),
        ("role", "text", "consumer (a training process), worker, or child",
         process, [owner.role for owner in owners]),
        ("worker", "int32", "number of the loading process; null for others", *some(worker)),
        ("process", "text", "name, such as worker-0", process, [owner.name for owner in owners]),
        ("pid", "int64", "of the process, on its machine", pid, None),
        ("thread", "int32", "number in its process; 0 recorded first", spans["thread"], None),
        ("lane", "text", "row of a timeline: process, and thread or device",
         lane, [each.name for each in lanes]),
        ("stage", "text", "kind, or kind:label, as in reports",
         stage, [stage_name(*each) for each in stages]),
        ("kind", "text", "sort of work", stage, [kind.spelled for kind, _ in stages]),
        ("label", "text", "what kind leaves open; null where nothing", spans["label"], strings),
        ("start_ns", "int64", "beginning, on the machine's monotonic clock", start, None),
        ("end_ns", "int64", "end, on the same clock", end, None),
        ("start", "timestamp", "beginning, wall clock", start + moved, None),
        ("duration_ns", "int64", "end less beginning", end - start, None),
        ("self_ns", "int64", "time of loading in no span inside; null for others", *some(own)),
        ("busy_ns", "int64", "of self_ns, what was of delivered batches", *some(busy)),
        ("exposed_ns", "int64", "of busy_ns, waited for; of a wait, all of it", *some(exposed)),
        ("hidden_ns", "int64", "busy_ns less exposed_ns; null for waits",
         *some(busy - exposed, busy >= 0)),
        ("exposed_share", "float64", "exposed part of self_ns; of single samples too",
         *some(share)),
        ("nbytes", "int64", "read, made or handed on; of a counter, read by any means",
         *some(nbytes, (nbytes >= 0) & (~counter | reads))),
        ("device_nbytes", "int64", "of a counter: what the storage device delivered",
         *some(cpu, reads & (cpu >= 0))),
        ("cpu_ns", "int64", "CPU time of the thread", *some(cpu, ~counter & (cpu >= 0))),
        ("epoch", "int32", "null where unknown", *some(spans["epoch"])),
        ("batch", "int32", "number in its training process; null where none",
         *some(spans["batch"])),
        ("sample", "int64", "index; of waits and rounds, number of the round",
         *some(spans["sample"])),
        ("detail", "text", "file of loading spans; of a wait, who made the batch",
         spans["detail"], strings),
        ("pieces", "int32", "samples that a summed span stands for, else 1", spans["pieces"], None),
        ("summed", "bool_", "a sum over samples; its place in time is not exact",
         *has(Flag.SUMMED)),
        ("sample_detail", "bool_", "one sample's part of a summed span: leave out of sums",
         *has(Flag.DETAIL)),
        ("counter", "bool_", "no stretch of time but bytes counted by the kernel", counter, None),
        ("device", "bool_", "time of an accelerator, not of a thread", *has(Flag.DEVICE)),
        ("estimated", "bool_", "summed and not timed: the batch's time, shared out",
         *has(Flag.ESTIMATED)),
    )
    # fmt: on
    return rows if run is not None else rows[1:]


def _metadata(data: RunData) -> dict[str, str]:
    """Return what the schema says of the table and its run, nothing that could be a secret."""
    config = {
        name: data.config[name]
        for name in CONFIGURATION
        if isinstance(data.config.get(name), str | int | float | bool)
    }
    about = {
        "schema_version": SCHEMA_VERSION,
        "iobench_version": version("iobench"),
        "run": data.path.name,
        "ranks": list(data.ranks),
        "config": config,
    }
    return {"iobench": json.dumps(about)}
