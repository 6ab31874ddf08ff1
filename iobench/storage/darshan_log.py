"""Reads Darshan logs by PyDarshan, in a process of its own: ``python -m`` this module.

Its C library prints what is wrong to standard error and, where a log is damaged, may end the
process. Files of Python itself are left out, for `import torch` opens more than a thousand.
"""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.errors import FileFormatError, MissingExtraError
from iobench.recording.clocks import is_clock_marker
from iobench.storage.darshan_setup import pid_of_log
from iobench.storage.storage_trace import (
    COUNTER_DTYPE,
    COUNTERS,
    INTERPRETER,
    NO_SEGMENTS,
    SEGMENT_DTYPE,
    ModuleState,
    ProcessTrace,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

LEFT_OUT: Final = (INTERPRETER.pattern, r"^<STD(?:IN|OUT|ERR)>$")


def read_log(path: Path, complaints: Callable[[], str]) -> ProcessTrace:
    """Return what one log holds, of a job of MPI of all ranks together.

    ``complaints`` returns what the library printed to standard error since it was last called.
    """
    try:
        import darshan
    except ImportError as error:
        raise MissingExtraError(
            f"Darshan logs are read by PyDarshan ({error})", extra="darshan"
        ) from None
    try:
        with darshan.DarshanReport(str(path), read_all=False) as report:
            report.read_name_records(filter_patterns=LEFT_OUT, filter_mode="exclude")
            return _traced(report, path, darshan.__version__, complaints)
    except (ValueError, RuntimeError, OverflowError, OSError) as error:
        raise FileFormatError(f"cannot be read by PyDarshan: {error}") from None


def _traced(
    report: Any, path: Path, reader_version: str, complaints: Callable[[], str]
) -> ProcessTrace:
    """Return the trace of an open ``darshan.DarshanReport`` of which no records are read yet."""
    job = report.metadata["job"]
    zero_ns = int(job["start_time_sec"]) * 10**9 + int(job["start_time_nsec"])
    complaints()
    problems, host = {}, ""
    files: dict[str, int] = {}
    rows: dict[int, dict[str, int]] = {}
    segments, marks = [NO_SEGMENTS], [NO_SEGMENTS]
    for module in ("POSIX", "STDIO", "DXT_POSIX"):
        if module not in report.modules:
            continue
        if module in COUNTERS:
            report.mod_read_all_records(module, dtype="numpy")
        else:
            report.mod_read_all_dxt_records(module, dtype="numpy", writes=False)
        for each in report.records[module]:
            name = report.name_records[each["id"]]
            if module in COUNTERS and not is_clock_marker(name):
                row = rows.setdefault(files.setdefault(name, len(files)), {})
                _add_counters(row, each, report.counters[module], COUNTERS[module], zero_ns)
            if module in COUNTERS:
                continue
            host = host or each["hostname"]
            if each["read_segments"]:
                is_mark = is_clock_marker(name)
                number = -1 if is_mark else files.setdefault(name, len(files))
                calls = _calls(each["read_segments"], number, zero_ns)
                (marks if is_mark else segments).append(calls)
        # PyDarshan ends where its library fails; only the library says so.
        if said := complaints():
            version = report.modules[module]["ver"]
            problems[module] = (
                f"{module} version {version} cannot be read by PyDarshan {reader_version} "
                f"({said}): install the same or a newer PyDarshan than the Darshan that wrote the "
                "log (pip install -U darshan)"
            )
    counters = np.zeros(len(rows), COUNTER_DTYPE)
    for place, (number, row) in zip(counters, sorted(rows.items()), strict=True):
        place["file"] = number
        for column in ("stdio_first_read_ns", "stdio_last_read_ns"):
            place[column] = -1
        for column, value in row.items():
            place[column] = value
    return ProcessTrace(
        path=path,
        pid=pid_of_log(path.name),
        job_id=int(job["jobid"]),
        host=host if job["nprocs"] == 1 else "",
        start_ns=zero_ns,
        modules=tuple(
            ModuleState(name, state["ver"], bool(state["partial_flag"]), problems.get(name, ""))
            for name, state in report.modules.items()
        ),
        files=tuple(files),
        counters=counters,
        segments=_by_start(segments),
        marks=_by_start(marks),
    )


def _add_counters(
    row: dict[str, int], counted: Any, names: Any, columns: dict[str, str], zero_ns: int
) -> None:
    """Add the counters of a record to those of its file; a job of MPI has one for each rank."""
    values = dict(zip(names["counters"], counted["counters"].tolist(), strict=True))
    values |= zip(names["fcounters"], counted["fcounters"].tolist(), strict=True)
    for ours, theirs in columns.items():
        value = values[theirs]
        if not theirs.endswith("_TIMESTAMP"):
            in_ns = int(nanoseconds(np.array([value]), 0)[0]) if "_F_" in theirs else int(value)
            # -1 is what Darshan writes where it does not follow these calls.
            row[ours] = row.get(ours, 0) + in_ns if row.get(ours, 0) >= 0 <= in_ns else -1
        elif value > 0:
            at = int(nanoseconds(np.array([value]), zero_ns)[0])
            row[ours] = (min if "first" in ours else max)(row.get(ours, at), at)


def _calls(segments: Any, file: int, zero_ns: int) -> NDArray[Any]:
    rows = np.zeros(len(segments), SEGMENT_DTYPE)
    for ours, theirs in (("start_ns", "start_time"), ("end_ns", "end_time")):
        rows[ours] = nanoseconds(np.array([call[theirs] for call in segments]), zero_ns)
    for ours, theirs in (("offset", "offset"), ("nbytes", "length")):
        rows[ours] = [call[theirs] for call in segments]
    rows["file"] = file
    return rows


def _by_start(parts: Iterable[NDArray[Any]]) -> NDArray[Any]:
    rows = np.concatenate([*parts])
    return rows[np.argsort(rows["start_ns"], kind="stable")]


def nanoseconds(seconds: NDArray[Any], zero_ns: int) -> NDArray[np.int64]:
    """Return times of a log on the wall clock; what is no finite number becomes -1."""
    known = np.isfinite(seconds) & (seconds >= 0) & (seconds < 1e9)
    since = np.rint(np.where(known, seconds, 0) * 1e9).astype(np.int64)
    return np.where(known, since + zero_ns, -1)  # summed as integers: as floats, 256 ns are lost


class _Complaints:
    """What was written to standard error, a file here, since this was last called."""

    def __init__(self) -> None:
        self._end = os.fstat(2).st_size

    def __call__(self) -> str:
        start, self._end = self._end, os.fstat(2).st_size
        lines = os.pread(2, self._end - start, start).decode(errors="replace").split("\n")
        return "; ".join(dict.fromkeys(line.strip() for line in lines if line.strip()))


def main() -> None:
    """Read the logs whose paths are on standard input; write what each holds, or the error."""
    answers, complaints = os.fdopen(os.dup(1), "wb"), _Complaints()
    os.dup2(2, 1)  # whatever else is printed must not get between the answers
    for path in map(os.fsdecode, sys.stdin.buffer.read().split(b"\0")):
        try:
            answer: Any = read_log(Path(path), complaints)
        except (FileFormatError, MissingExtraError) as error:
            answer = error
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    main()
