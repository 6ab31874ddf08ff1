"""Span files as plain rows, for comparing."""

from __future__ import annotations

from typing import NamedTuple

from iobench.errors import ProfileError
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from iobench.recording.span_reader import read_span_file


class Row(NamedTuple):
    """One span, with the texts in place of their numbers."""

    role: str
    worker: int
    thread: str
    kind: Kind
    start_ns: int
    end_ns: int
    nbytes: int
    cpu_ns: int
    batch: int
    epoch: int
    sample: int
    label: str
    detail: str
    flags: Flag
    pieces: int


def rows_of(run):
    """Return every span of a run, in order of their starts."""
    rows = []
    for path in run.span_files():
        file = read_span_file(path)
        assert file.lost == file.damaged == file.missing_nbytes == 0
        text = {0: "", **file.strings}
        for span, thread in zip(file.spans, file.threads, strict=True):
            rows.append(
                Row(
                    file.role,
                    file.worker,
                    file.thread_names[thread],
                    Kind(span["kind"]),
                    *(int(span[name]) for name in ("start_ns", "end_ns", "nbytes", "cpu_ns")),
                    *(int(span[name]) for name in ("batch", "epoch", "sample")),
                    text[int(span["label"])],
                    text[int(span["detail"])],
                    Flag(int(span["flags"])),
                    int(span["pieces"]),
                )
            )
    return sorted(rows, key=lambda row: row.start_ns)


def rows_by_kind(run, **wanted):
    """Return the spans that are no counters and have these values, by kind."""
    by_kind: dict[Kind, list[Row]] = {}
    for row in rows_of(run):
        if not row.flags & Flag.IO and all(getattr(row, k) == v for k, v in wanted.items()):
            by_kind.setdefault(row.kind, []).append(row)
    return by_kind


def live_rows(run):
    """Return what can be read of a run that still goes on; files being made are left out."""
    try:
        return [row for row in rows_of(run) if not row.flags & Flag.DETAIL]
    except (AssertionError, ProfileError):
        return []
