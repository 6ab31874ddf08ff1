"""How much memory a process had at once is told when it ends its recording, by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from iobench.recording import span_file as layout
from iobench.recording import this_process
from iobench.recording.kinds import Kind
from iobench.recording.run_directory import RunDirectory
from iobench.recording.span_reader import read_span_file
from iobench.recording.this_process import cpu_model, peak_memory_nbytes

SLACK = 4 << 20
"""The kernel adds up what each CPU counts, and only now and then."""


def test_the_peak_grows_and_never_shrinks() -> None:
    before = peak_memory_nbytes()
    much = b"\1" * (64 << 20)
    assert len(much) == 64 << 20
    held = peak_memory_nbytes()
    del much
    after = peak_memory_nbytes()
    assert before is not None
    assert held is not None
    assert after is not None
    assert after >= held - SLACK
    assert held >= before - SLACK
    assert held > 64 << 20


def test_a_span_file_tells_it_once_it_is_closed(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", {})
    recorder = run.recorder(role="consumer")
    recorder.emit(Kind.READ, 1, 2)
    (path,) = run.span_files()
    assert read_span_file(path).peak_nbytes is None
    recorder.close()
    told = read_span_file(path).peak_nbytes
    assert told is not None
    assert 1 << 20 < told <= (peak_memory_nbytes() or 0) + SLACK


@pytest.mark.parametrize("value", [0, -1, 1 << 62])
def test_what_cannot_be_is_unknown(tmp_path: Path, value: int) -> None:
    run = RunDirectory.create(tmp_path / "run", {})
    run.recorder(role="consumer").close()
    (path,) = run.span_files()
    data = bytearray(path.read_bytes())
    layout.PEAK.pack_into(data, layout.PEAK_OFFSET, value)
    path.write_bytes(data)
    assert read_span_file(path).peak_nbytes is None


def test_unknown_where_the_system_does_not_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(this_process, "STATUS", tmp_path / "none")
    assert peak_memory_nbytes() is None
    (tmp_path / "odd").write_bytes(b"VmHWM:\n")
    monkeypatch.setattr(this_process, "STATUS", tmp_path / "odd")
    assert peak_memory_nbytes() is None


def test_fields_of_the_header_do_not_overlap() -> None:
    assert layout.END_OFFSET + layout.END.size <= layout.PEAK_OFFSET
    assert layout.PEAK_OFFSET % 8 == 0
    assert layout.PEAK_OFFSET + layout.PEAK.size <= layout.HEADER_NBYTES


def test_the_processor_has_a_name() -> None:
    assert cpu_model().strip()
