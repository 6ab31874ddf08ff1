"""Spans as they are written: what a record, a header, threads and texts say when read back."""

import logging
import threading

import numpy as np
import pytest

from iobench.recording import span_file as layout
from iobench.recording.clocks import MARKER_NAME
from iobench.recording.kinds import Kind
from iobench.recording.outside import OutsideSpan
from iobench.recording.recorder import Recorder
from iobench.recording.span_file import Flag
from iobench.recording.span_reader import read_span_file
from iobench.testing import FakeClock


@pytest.fixture
def clock():
    return FakeClock(start_ns=1000, wall_offset_ns=1_000_000)


@pytest.fixture
def recorder(tmp_path, clock):
    with Recorder(tmp_path, role="worker", worker=3, rank=2, clock=clock) as recorder:
        yield recorder


def test_emit_writes_exactly_what_it_is_given(recorder):
    label, detail = recorder.string("augment"), recorder.string("t2m")
    recorder.emit(
        Kind.PREPROCESS, 5, 9, nbytes=1 << 40, cpu_ns=3, batch=7, epoch=1, sample=99,
        label=label, detail=detail, flags=Flag.SUMMED, pieces=70_000,
    )  # fmt: skip
    recorder.emit(Kind.READ, 5, 9)
    assert read_span_file(recorder.path).spans.tolist() == [
        (5, 9, 1 << 40, 3, 99, 7, 1, detail, label, 5, 1, 65535, 1),
        (5, 9, -1, -1, -1, -1, -1, 0, 0, 2, 0, 1, 2),
    ]


def test_spans_have_exact_times_and_the_position_and_full_ones_cpu_time(recorder, clock):
    recorder.position(4, 1, 12)
    with recorder.span(Kind.READ, "header", detail="a.grib") as span:
        clock.advance(250)
        span.nbytes = 77
    recorder.position(1 << 40)  # does not fit, so it is unknown
    with recorder.full_span(Kind.DECODE, nbytes=5):
        clock.advance(100, cpu_ns=40)
    file = read_span_file(recorder.path)
    names = ["start_ns", "end_ns", "nbytes", "cpu_ns", "batch", "epoch", "sample"]
    assert file.spans[names].tolist() == [
        (1000, 1250, 77, -1, 4, 1, 12),
        (1250, 1350, 5, 40, -1, -1, -1),
    ]
    texts = [file.strings[number] for number in file.spans[["label", "detail"]][0]]
    assert texts == ["header", "a.grib"]


def test_the_header_says_who_and_when_and_closing_cuts_the_file(recorder, clock):
    recorder.emit(Kind.READ, 1, 2)
    clock.advance(500)
    with recorder.span(Kind.READ):
        recorder.close()
        recorder.close()
    recorder.emit(Kind.READ, 3, 4)
    assert recorder.lost == 2, "spans after closing harm nothing"
    file = read_span_file(recorder.path)
    assert (file.role, file.worker, file.rank, len(file.spans)) == ("worker", 3, 2, 1)
    anchors = [(each.monotonic_ns, each.wall_ns) for each in (file.start, file.end)]
    assert anchors == [(1000, 1_001_000), (1500, 1_001_500)]
    assert recorder.path.stat().st_size == layout.HEADER_NBYTES + layout.CHUNK_NBYTES


def test_more_spans_than_a_step_holds_keep_their_order(recorder):
    n = 20 * layout.SPANS_PER_CHUNK + 5
    for index in range(n):
        recorder.emit(Kind.READ, index, index + 1)
    file = read_span_file(recorder.path)
    assert np.array_equal(file.spans["start_ns"], np.arange(n))
    assert (file.damaged, file.missing_nbytes, file.lost) == (0, 0, 0)


def test_a_value_that_does_not_fit_loses_its_span_only(recorder, caplog):
    recorder.emit(Kind.READ, 1, 2)
    recorder.emit(Kind.READ, 3, 4, batch=1 << 40)
    recorder.emit(Kind.READ, 5, 6)
    file = read_span_file(recorder.path)
    assert file.spans["start_ns"].tolist() == [1, 5]
    assert (file.lost, file.damaged) == (1, 0)
    assert "does not fit" in caplog.text


def test_threads_write_to_chunks_of_their_own(recorder):
    def work(index):
        recorder.position(index)
        for _ in range(1500):
            with recorder.span(Kind.READ):
                pass

    threads = [threading.Thread(target=work, args=(i,), name=f"reader-{i}") for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    file = read_span_file(recorder.path)
    assert sorted(file.thread_names) == ["reader-0", "reader-1", "reader-2"]
    for index, name in enumerate(file.thread_names):
        assert file.spans["batch"][file.threads == index].tolist() == [int(name[-1])] * 1500


def test_a_foreign_lane_is_a_thread_of_its_own(recorder):
    lanes = [recorder.foreign_lane(name) for name in ("reader", "reader", "")]
    for number, lane in enumerate(lanes):
        recorder.emit_on(lane, Kind.READ, 10 + number, 20, batch=number, nbytes=5)
    recorder.emit(Kind.WAIT, 30, 31)
    file = read_span_file(recorder.path)
    assert file.thread_names[:3] == ("reader", "reader", "foreign")
    assert file.spans["batch"].tolist() == [0, 1, 2, -1]
    assert file.threads.tolist() == [0, 1, 2, 3]


def test_texts_come_back_cut_between_characters_and_readable(recorder):
    texts = [f"variable-{index}-" + "ü" * 100 for index in range(2000)]
    numbers = [recorder.string(text) for text in texts]
    assert [recorder.string(text) for text in texts] == numbers
    long, undecodable = recorder.string("ä" * 5000 + "x"), recorder.string("bad\udcff")
    strings = read_span_file(recorder.path).strings
    assert [strings[number] for number in numbers] == texts
    assert (strings[long], strings[undecodable]) == ("ä" * 2048, "bad\\udcff")
    assert (recorder.string(""), strings[0]) == (0, "")


def test_a_file_that_cannot_be_made_only_loses_spans(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    recorder = Recorder(tmp_path / "file", role="consumer")
    with recorder.span(Kind.READ, "label"):
        pass
    recorder.emit(Kind.READ, 1, 2)
    recorder.close()
    assert (recorder.lost, recorder.path) == (2, None)
    assert "file" in recorder.failure
    assert [entry.levelno for entry in caplog.records] == [logging.WARNING]


@pytest.mark.parametrize("preloaded", ["/soft/lib/libdarshan.so:/a/liba.so", "/a/liba.so"])
@pytest.mark.parametrize("can_be_made", [True, False])
def test_a_marker_is_read_where_darshans_runtime_is_loaded(
    tmp_path, clock, monkeypatch, preloaded, can_be_made
):
    monkeypatch.setenv("LD_PRELOAD", preloaded)
    if not can_be_made:
        (tmp_path / MARKER_NAME).mkdir()
    with Recorder(tmp_path, role="worker", clock=clock) as recorder:
        recorder.emit(Kind.READ, 1, 2)
    assert (tmp_path / MARKER_NAME).is_file() == ("darshan" in preloaded and can_be_made)
    assert (recorder.failure, recorder.lost) == (None, 0)


@pytest.mark.parametrize("before", [0, layout.SPANS_PER_CHUNK - 1, layout.SPANS_PER_CHUNK])
@pytest.mark.parametrize("others", [0, 3, layout.SPANS_PER_CHUNK, 3 * layout.SPANS_PER_CHUNK])
@pytest.mark.parametrize("nbytes", [None, -1, 7])
def test_a_span_knows_what_was_read_inside_it_across_chunks(tmp_path, before, others, nbytes):
    recorder = Recorder(tmp_path / "a.spans", role="worker", clock=FakeClock())
    for _ in range(before):
        recorder.emit(Kind.READ, 0, 1, nbytes=9)
    with OutsideSpan(recorder.lane(), Kind.DECODE, "", False, False) as span:
        assert not span.holds_spans
        assert not span.holds_bytes
        if nbytes is not None:
            recorder.emit(Kind.READ, 0, 1, nbytes=nbytes)
        for _ in range(others if nbytes is not None else 0):
            recorder.emit(Kind.DECODE, 0, 1)
        assert span.holds_spans == (nbytes is not None)
        if nbytes != -1 or others < layout.SPANS_PER_CHUNK:
            assert span.holds_bytes == (nbytes == 7)
    recorder.close()
