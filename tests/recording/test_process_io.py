"""Bytes read by this process."""

from __future__ import annotations

from iobench.recording import process_io
from iobench.recording.kinds import Kind
from iobench.recording.process_io import ProcessIo
from iobench.recording.run_directory import RunDirectory
from iobench.recording.span_file import Flag
from iobench.recording.span_reader import read_span_file


def test_the_difference_is_reported(monkeypatch, tmp_path):
    counts = iter([(100, 10), (350, 10), (360, 70)])
    monkeypatch.setattr(process_io, "ProcessIoReader", lambda: lambda: next(counts))
    run = RunDirectory.create(tmp_path / "run", {})
    counter = ProcessIo()
    with run.recorder(role="worker", worker=0) as recorder:
        counter.emit(recorder, 4, 1)
        counter.emit(recorder, 5, 1)
    spans = read_span_file(run.span_files()[0]).spans
    assert [tuple(span)[2:4] for span in spans] == [(250, 0), (10, 60)]
    assert {int(span["flags"]) for span in spans} == {Flag.IO}
    assert {int(span["kind"]) for span in spans} == {Kind.READ}


def test_where_the_system_does_not_tell_nothing_is_recorded(monkeypatch):
    monkeypatch.setattr(process_io, "ProcessIoReader", lambda: lambda: None)
    assert ProcessIo().delta() is None


def test_reading_a_file_is_counted(tmp_path):
    (tmp_path / "data").write_bytes(bytes(100_000))
    counter = ProcessIo()
    assert counter.delta() is not None
    (tmp_path / "data").read_bytes()
    assert counter.delta()[0] >= 100_000
