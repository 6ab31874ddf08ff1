"""The spans of a run as an Arrow table, and as a Parquet file."""

from __future__ import annotations

import json
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
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa
    from numpy.typing import NDArray

    from iobench.analysis.run import RankRun
    from iobench.analysis.span_sums import SpanSums
    from iobench.runs.contents import RunData

SCHEMA_VERSION: Final = 1
ROWS_IN_GROUP: Final = 131_072
CONFIGURATION: Final = (
    "batch_size", "dataset", "format", "framework", "iobench_version", "kind", "n_samples",
    "prefetch", "sample_nbytes", "stand_in", "threads", "tiny", "workers", "world_size",
)  # fmt: skip
"""What of ``run.json`` goes into the table: no commands, paths, machines or environments."""
COLUMNS: Final = (
    ("run", "text", "", "name of the run directory; only where several are in a file"),
    ("rank", "int32", "", "training process that the span's process is or works for"),
    ("host", "text", "", "machine"),
    ("role", "text", "", "consumer (a training process), worker, or child"),
    ("worker", "int32", "", "number of the loading process; null for others"),
    ("process", "text", "", "name of the process, such as worker-0"),
    ("pid", "int64", "", "of the process, on its machine"),
    ("thread", "int32", "", "number of the thread in its process; 0 recorded first"),
    ("lane", "text", "", "name of the row of a timeline: process, and thread or device"),
    ("stage", "text", "", "kind, or kind:label, as in reports"),
    ("kind", "text", "", "sort of work"),
    ("label", "text", "", "what kind leaves open; null where nothing"),
    ("start_ns", "int64", "ns", "beginning, on the monotonic clock of the machine"),
    ("end_ns", "int64", "ns", "end, on the same clock"),
    ("start", "timestamp", "", "beginning, wall clock"),
    ("duration_ns", "int64", "ns", "end less beginning"),
    ("self_ns", "int64", "ns", "time of loading that lies in no span inside; null for others"),
    ("busy_ns", "int64", "ns", "self_ns as far as the batch was delivered, or on its path"),
    ("exposed_ns", "int64", "ns", "of busy_ns, what was waited for; of a wait, all of it"),
    ("hidden_ns", "int64", "ns", "busy_ns less exposed_ns; null for waits"),
    ("exposed_share", "float64", "", "exposed part of self_ns; known of single samples too"),
    ("nbytes", "int64", "B", "read, made or handed on; of a counter, read by any means"),
    ("device_nbytes", "int64", "B", "of a counter: what the storage device delivered"),
    ("cpu_ns", "int64", "ns", "CPU time of the thread"),
    ("epoch", "int32", "", "null where unknown"),
    ("batch", "int32", "", "number of the batch in its training process; null where none"),
    ("sample", "int64", "", "index of the sample; of waits and rounds, number of the round"),
    ("detail", "text", "", "file of loading spans; of a wait, who made the batch"),
    ("pieces", "int32", "", "samples that a summed span stands for, else 1"),
    ("summed", "bool_", "", "duration is a sum over samples; its place in time is not exact"),
    ("sample_detail", "bool_", "", "one sample's part of a summed span: leave out of sums"),
    ("counter", "bool_", "", "no stretch of time but bytes counted by the kernel"),
    ("device", "bool_", "", "time of an accelerator, not of a thread"),
    ("estimated", "bool_", "", "summed and not timed: the batch's time, shared out"),
)
"""Name, type as pyarrow spells it (``"text"`` for strings with a dictionary), unit, description."""


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
    """Write the spans of runs as one Parquet file, compressed with zstd.

    Parameters
    ----------
    runs : sequence of Run
        Looked at one after the other. Those of several runs are separated by a column ``run``.

    Raises
    ------
    MissingExtraError
        If pyarrow is not installed.
    ProfileError
        If there is no run.
    StorageError
        If the file cannot be written.
    """
    parquet = _pyarrow("pyarrow.parquet")
    if not runs:
        raise ProfileError(f"{path}: there is no run to write; expected one at least")
    known = [(part.path, part.processes) for part in _parts(runs)]
    offsets = wall_offsets(process for _, processes in known for process in processes)
    several = len({run for run, _ in known}) > 1
    with whole_file(path) as file:
        writer: Any = None
        try:
            for part in _parts(runs):
                table = _table(part, offsets, part.path.name if several else None)
                if writer is None:
                    writer = parquet.ParquetWriter(file, table.schema, compression="zstd")
                # What differs is said in the schema's metadata, which a file has but once.
                table = table.replace_schema_metadata(writer.schema.metadata)
                writer.write_table(table, row_group_size=ROWS_IN_GROUP)
        finally:
            if writer is not None:
                _close(writer)


def check_parquet() -> None:
    """Refuse tables where nothing can write them.

    Raises
    ------
    MissingExtraError
        If pyarrow is not installed.
    """
    _pyarrow("pyarrow.parquet")


def _close(writer: Any) -> None:
    """Close a writer; on a full disk it would try again when it is forgotten, and complain."""
    try:
        writer.close()
    finally:
        writer.is_open = False


def _pyarrow(name: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtraError(
            "a table of spans needs pyarrow, which is not installed; pip install 'iobench[parquet]'"
        ) from error


def _parts(runs: Sequence[Run]) -> Iterator[RankRun]:
    return (part for run in runs for part in run.parts)


def _table(
    part: Run | RankRun, offsets: Mapping[tuple[str, str], int], run: str | None = None
) -> pa.Table:
    pa = _pyarrow("pyarrow")
    data = part.data
    spans = data.spans
    order = np.lexsort((-spans["end_ns"], spans["start_ns"], spans["thread"], spans["process"]))
    texts = _texts(data, spans[order])
    numbers = _numbers(data, part.sums, order, offsets)
    if run is not None:
        texts["run"] = np.zeros(len(order), dtype=np.int32), [run]
    arrays, fields = [], []
    for name, kind, unit, description in COLUMNS:
        if name == "run" and run is None:
            continue
        if kind == "text":
            array = _dictionary(pa, *texts[name])
        else:
            values, known = numbers[name]
            sort = pa.timestamp("ns", tz="UTC") if kind == "timestamp" else getattr(pa, kind)()
            array = pa.array(values, type=sort, mask=None if known is None else ~known)
        arrays.append(array)
        about = {"description": description, **({"unit": unit} if unit else {})}
        fields.append(pa.field(name, array.type, metadata=about))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields, _metadata(data)))


def _dictionary(pa: Any, index: NDArray[Any], texts: Sequence[str]) -> Any:
    """Return a column of texts, each once and only those that are there; null for what is empty."""
    known = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    number = np.array([known[text] for text in texts], dtype=np.int32)
    used, place = np.unique(number[index], return_inverse=True)
    chosen = np.array([*known], dtype=object)[used].tolist()
    empty = np.array([not text for text in chosen], dtype=bool)
    indices = pa.array(place, type=pa.int32(), mask=empty[place])
    # Names of files may be no UTF-8.
    clean = [(text or "").encode("utf-8", "backslashreplace").decode() for text in chosen]
    return pa.DictionaryArray.from_arrays(indices, pa.array(clean, type=pa.string()))


def _texts(part: RunData, spans: NDArray[Any]) -> dict[str, tuple[NDArray[Any], list[str]]]:
    """Return an index for each row, and the texts, of each column of texts."""
    strings, processes = list(part.strings), part.processes
    stages, stage = stages_of(spans, strings)
    lanes, lane = lanes_of_spans(part, spans)
    return {
        "host": (spans["process"], [each_process.host for each_process in processes]),
        "role": (spans["process"], [owner.role for owner in processes]),
        "process": (spans["process"], [process.name for process in processes]),
        "label": (spans["label"].astype(np.int64), strings),
        "detail": (spans["detail"].astype(np.int64), strings),
        "kind": (stage, [kind.spelled for kind, _ in stages]),
        "stage": (stage, [stage_name(*each) for each in stages]),
        "lane": (lane, [each.name for each in lanes]),
    }


def _numbers(
    part: RunData,
    sums: SpanSums,
    order: NDArray[np.int64],
    offsets: Mapping[tuple[str, str], int],
) -> dict[str, tuple[NDArray[Any], NDArray[np.bool_] | None]]:
    """Return the values of each other column, and where they are known; None for everywhere."""
    processes, spans = part.processes, part.spans[order]
    start, end, flags = spans["start_ns"], spans["end_ns"], spans["flags"]
    moved = np.array([offsets[machine_of(owner)] for owner in processes], dtype=np.int64)
    rank, pid, worker = (
        np.array([getattr(process, name) for process in processes], dtype=np.int64)[
            spans["process"]
        ]
        for name in ("rank", "pid", "worker")
    )
    own, busy, exposed = (
        getattr(sums, name)[order] for name in ("self_ns", "busy_ns", "exposed_ns")
    )
    share = sums.share[order]
    is_counter, is_look = (flags & Flag.IO) != 0, io_looks(spans)
    is_summed, is_detail = (flags & Flag.SUMMED) != 0, (flags & Flag.DETAIL) != 0
    return {
        "rank": (rank, None),
        "pid": (pid, None),
        "worker": (worker, worker >= 0),
        "thread": (spans["thread"], None),
        "start_ns": (start, None),
        "end_ns": (end, None),
        "start": ((start + moved[spans["process"]]).view("datetime64[ns]"), None),
        "duration_ns": (end - start, None),
        "self_ns": (own, own >= 0),
        "busy_ns": (busy, busy >= 0),
        "exposed_ns": (exposed, exposed >= 0),
        "hidden_ns": (busy - exposed, busy >= 0),
        "exposed_share": (share, ~np.isnan(share)),
        "nbytes": (spans["nbytes"], (spans["nbytes"] >= 0) & (~is_counter | is_look)),
        "device_nbytes": (spans["cpu_ns"], is_look & (spans["cpu_ns"] >= 0)),
        "cpu_ns": (spans["cpu_ns"], ~is_counter & (spans["cpu_ns"] >= 0)),
        "epoch": (spans["epoch"], spans["epoch"] >= 0),
        "batch": (spans["batch"], spans["batch"] >= 0),
        "sample": (spans["sample"], spans["sample"] >= 0),
        "pieces": (spans["pieces"].astype(np.int32), None),
        "summed": (is_summed, None),
        "sample_detail": (is_detail, None),
        "counter": (is_counter, None),
        "device": ((flags & Flag.DEVICE) != 0, None),
        "estimated": ((flags & Flag.ESTIMATED) != 0, None),
    }


def _metadata(part: RunData) -> dict[str, str]:
    """Return what the schema says of the table and its run, nothing that could be a secret."""
    config = {
        name: part.config[name]
        for name in CONFIGURATION
        if isinstance(part.config.get(name), str | int | float | bool)
    }
    about = {
        "schema_version": SCHEMA_VERSION,
        "iobench_version": version("iobench"),
        "run": part.path.name,
        "ranks": list(part.ranks),
        "config": config,
    }
    return {"iobench": json.dumps(about)}
