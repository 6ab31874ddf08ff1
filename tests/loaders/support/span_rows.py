"""Span files as plain rows, for comparing."""

from __future__ import annotations

from types import SimpleNamespace

from iobench.errors import ProfileError
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from iobench.recording.span_reader import read_span_file

NUMBERS = ("start_ns", "end_ns", "nbytes", "cpu_ns", "batch", "epoch", "sample", "pieces")


def rows_of(run):
    """Return every span of a run, with the texts in place of their numbers, by their starts."""
    rows = []
    for path in run.span_files():
        file = read_span_file(path)
        assert file.lost == file.damaged == file.missing_nbytes == 0
        text = {0: "", **file.strings}
        for span, thread in zip(file.spans, file.threads, strict=True):
            row = SimpleNamespace(**{name: int(span[name]) for name in NUMBERS})
            row.role, row.worker, row.thread = file.role, file.worker, file.thread_names[thread]
            row.kind, row.flags = Kind(span["kind"]), Flag(int(span["flags"]))
            row.label, row.detail = text[int(span["label"])], text[int(span["detail"])]
            rows.append(row)
    return sorted(rows, key=lambda row: row.start_ns)


def rows_by_kind(run, **wanted):
    """Return the spans that are no counters and have these values, by kind."""
    by_kind: dict[Kind, list[SimpleNamespace]] = {}
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
