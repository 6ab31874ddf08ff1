"""The spans of a run as an Arrow table, and as a Parquet file."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from iobench.analysis.run import Run
from iobench.errors import MissingExtraError, ProfileError
from iobench.recording.kinds import stage_name
from iobench.recording.span_file import Flag, io_looks
from iobench.recording.span_keys import stages_of
from iobench.report.timeline.model import lanes_of_spans
from iobench.report.timeline.trace_clock import machine_of, wall_offsets
from iobench.report.written import whole_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa
    from numpy.typing import NDArray

    from iobench.analysis.run import RankRun
    from iobench.analysis.span_sums import SpanSums
    from iobench.runs.contents import Process, RunData

SCHEMA_VERSION: Final = 1
ROWS_IN_GROUP: Final = 131_072
CONFIGURATION: Final = (
    "batch_size", "dataset", "format", "framework", "iobench_version", "kind", "n_samples",
    "prefetch", "sample_nbytes", "stand_in", "threads", "tiny", "workers", "world_size",
)  # fmt: skip
"""What of ``run.json`` goes into the table: no commands, paths, machines or environments."""


class ArrowColumn(msgspec.Struct, frozen=True):
    """One column of the table.

    Parameters
    ----------
    type : str
        As pyarrow spells it; ``"text"`` for strings with a dictionary.
    unit : str
        ``""`` where it has none.
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
        "exposed_share", "float64", "", "exposed part of self_ns; known of single samples too"
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
        "summed", "bool_", "", "duration is a sum over samples; its place in time is not exact"
    ),
    ArrowColumn(
        "sample_detail", "bool_", "", "one sample's part of a summed span: leave out of sums"
    ),
    ArrowColumn("counter", "bool_", "", "no stretch of time but bytes counted by the kernel"),
    ArrowColumn("device", "bool_", "", "time of an accelerator, not of a thread"),
    ArrowColumn("estimated", "bool_", "", "summed and not timed: the batch's time, shared out"),
)
FLAGS: Final = {
    "summed": Flag.SUMMED,
    "sample_detail": Flag.DETAIL,
    "counter": Flag.IO,
    "device": Flag.DEVICE,
    "estimated": Flag.ESTIMATED,
}


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
    seen = [(part.path, part.processes) for part in _parts(runs)]
    offsets = wall_offsets(who for _, processes in seen for who in processes)
    several = len({run for run, _ in seen}) > 1
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
    profile = part.data
    spans = profile.spans
    order = np.lexsort((-spans["end_ns"], spans["start_ns"], spans["thread"], spans["process"]))
    values = dict(_columns(profile, part.sums, offsets, order))
    values["run"] = np.zeros(len(order), dtype=np.int32), [run]
    columns, fields = [], []
    for column in COLUMNS if run is None else (RUN, *COLUMNS):
        array = _array(pa, column, values[column.name])
        columns.append(array)
        told = {"description": column.description, "unit": column.unit}
        about = {key: text for key, text in told.items() if text}
        fields.append(pa.field(column.name, array.type, metadata=about))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields, _metadata(profile)))


def _array(pa: Any, column: ArrowColumn, found: Any) -> Any:
    """Return a column; of texts an index for each row and the texts, else values and nulls."""
    if column.type == "text":
        index, texts = found
        # Each text once, and only those that are there; none for what is empty.
        known = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        number = np.array([known[text] for text in texts], dtype=np.int32)
        used, place = np.unique(number[index], return_inverse=True)
        chosen = np.array([*known], dtype=object)[used].tolist()
        empty = np.array([not text for text in chosen], dtype=bool)
        indices = pa.array(place, type=pa.int32(), mask=empty[place])
        dictionary = pa.array([_clean(text or "") for text in chosen], type=pa.string())
        return pa.DictionaryArray.from_arrays(indices, dictionary)
    values, known = found
    is_moment = column.type == "timestamp"
    sort = pa.timestamp("ns", tz="UTC") if is_moment else getattr(pa, column.type)()
    return pa.array(values, type=sort, mask=None if known is None else ~known)


def _clean(text: str) -> str:
    """Return a text as UTF-8 can hold it: names of files may not be any."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _columns(
    profile: RunData,
    sums: SpanSums,
    offsets: Mapping[tuple[str, str], int],
    order: NDArray[np.int64],
) -> Iterator[tuple[str, Any]]:
    """Yield what `_array` makes columns of, by name."""
    spans = profile.spans[order]
    yield from _of_processes(profile.processes, spans["process"])
    yield from _of_names(profile, spans)
    start, end = spans["start_ns"], spans["end_ns"]
    moved = np.array([offsets[machine_of(who)] for who in profile.processes], dtype=np.int64)
    yield "start_ns", (start, None)
    yield "end_ns", (end, None)
    yield "start", ((start + moved[spans["process"]]).view("datetime64[ns]"), None)
    yield "duration_ns", (end - start, None)
    counted = {name: getattr(sums, name)[order] for name in ("self_ns", "busy_ns", "exposed_ns")}
    for name, values in counted.items():
        yield name, (values, values >= 0)
    loading = counted["busy_ns"] >= 0
    yield "hidden_ns", (counted["busy_ns"] - counted["exposed_ns"], loading)
    share = sums.share[order]
    yield "exposed_share", (share, ~np.isnan(share))
    is_counter = (spans["flags"] & Flag.IO) != 0
    yield "device_nbytes", (spans["cpu_ns"], io_looks(spans) & (spans["cpu_ns"] >= 0))
    yield "cpu_ns", (spans["cpu_ns"], ~is_counter & (spans["cpu_ns"] >= 0))
    is_count = is_counter & ~io_looks(spans)
    yield "nbytes", (spans["nbytes"], (spans["nbytes"] >= 0) & ~is_count)
    for name in ("epoch", "batch", "sample"):
        yield name, (spans[name], spans[name] >= 0)
    yield "thread", (spans["thread"], None)
    yield "pieces", (spans["pieces"].astype(np.int32), None)
    for name, flag in FLAGS.items():
        yield name, ((spans["flags"] & flag) != 0, None)


def _of_processes(
    processes: Sequence[Process], process: NDArray[np.int32]
) -> Iterator[tuple[str, Any]]:
    for name in ("host", "role"):
        yield name, (process, [getattr(who, name) for who in processes])
    yield "process", (process, [who.name for who in processes])
    for name, least in (("rank", None), ("pid", None), ("worker", 0)):
        values = np.array([getattr(who, name) for who in processes], dtype=np.int64)[process]
        yield name, (values, None if least is None else values >= least)


def _of_names(profile: RunData, spans: NDArray[Any]) -> Iterator[tuple[str, Any]]:
    texts = profile.strings
    yield "label", (spans["label"].astype(np.int64), texts)
    yield "detail", (spans["detail"].astype(np.int64), texts)
    stages, place = stages_of(spans, texts)
    yield "kind", (place, [kind.spelled for kind, _ in stages])
    yield "stage", (place, [stage_name(*each) for each in stages])
    lanes, lane = lanes_of_spans(profile, spans)
    yield "lane", (lane, [each.name for each in lanes])


def _metadata(profile: RunData) -> dict[str, str]:
    """Return what the schema says of the table and its run, nothing that could be a secret."""
    try:
        own = version("iobench")
    except PackageNotFoundError:
        own = "unknown"
    config = {
        name: profile.config[name]
        for name in CONFIGURATION
        if isinstance(profile.config.get(name), str | int | float | bool)
    }
    about = {
        "schema_version": SCHEMA_VERSION,
        "iobench_version": own,
        "run": profile.path.name,
        "ranks": list(profile.ranks),
        "config": config,
    }
    return {"iobench": json.dumps(about)}
