import logging
import threading

import numpy as np
import pytest

from iobench.recording import span_file as layout
from iobench.recording.clock_marker import MARKER_NAME
from iobench.recording.kinds import Kind
from iobench.recording.outside import outside_span
from iobench.recording.recorder import Recorder
from iobench.recording.span_file import SPAN_DTYPE, Flag
from iobench.recording.span_reader import read_span_file
from iobench.testing import FakeClock


@pytest.fixture
def clock():
    return FakeClock(start_ns=1000, wall_offset_ns=1_000_000)


@pytest.fixture
def recorder(tmp_path, clock):
    with Recorder(tmp_path, role="worker", worker=3, rank=2, clock=clock) as recorder:
        yield recorder


def test_a_span_is_64_bytes_in_the_order_documented():
    assert SPAN_DTYPE.itemsize == layout.SPAN.size == layout.PREPARED_SPAN.size == 64
    assert layout.POSITION.size == 16
    assert layout.DESCRIPTION.size == 12
    assert SPAN_DTYPE.names is not None
    assert SPAN_DTYPE.names[-1] == "sequence"


def test_the_header_leaves_room_for_what_follows():
    assert layout.IDENTITY.size <= layout.IDENTITY_CRC_OFFSET
    assert layout.END_OFFSET + layout.END.size <= layout.HEADER_NBYTES
    assert layout.CHUNK_HEAD.size + layout.CHUNK_CRC.size == layout.RECORD_NBYTES


def test_emit_writes_exactly_what_it_is_given(recorder):
    label, detail = recorder.string("augment"), recorder.string("t2m")
    recorder.emit(
        Kind.PREPROCESS, 5, 9, nbytes=1 << 40, cpu_ns=3, batch=7, epoch=1, sample=99,
        label=label, detail=detail, flags=Flag.SUMMED, pieces=4,
    )  # fmt: skip
    (span,) = read_span_file(recorder.path).spans
    assert span.tolist() == (5, 9, 1 << 40, 3, 99, 7, 1, detail, label, 5, 1, 4, 1)


def test_what_is_not_given_is_unknown(recorder):
    recorder.emit(Kind.READ, 5, 9)
    (span,) = read_span_file(recorder.path).spans
    assert span.tolist() == (5, 9, -1, -1, -1, -1, -1, 0, 0, 2, 0, 1, 1)


def test_pieces_saturate(recorder):
    recorder.emit(Kind.READ, 5, 9, pieces=70_000)
    assert read_span_file(recorder.path).spans["pieces"] == [65535]


def test_a_light_span_has_exact_times_and_the_position(recorder, clock):
    recorder.position(4, 1, 12)
    with recorder.span(Kind.READ, "header", detail="a.grib") as span:
        clock.advance(250)
        span.nbytes = 77
    file = read_span_file(recorder.path)
    (written,) = file.spans
    assert (written["start_ns"], written["end_ns"], written["nbytes"]) == (1000, 1250, 77)
    assert (written["batch"], written["epoch"], written["sample"]) == (4, 1, 12)
    assert written["cpu_ns"] == -1
    assert file.strings[written["label"]] == "header"
    assert file.strings[written["detail"]] == "a.grib"


def test_a_full_span_has_its_cpu_time(recorder, clock):
    with recorder.full_span(Kind.DECODE, nbytes=5):
        clock.advance(100, cpu_ns=40)
    (written,) = read_span_file(recorder.path).spans
    assert (written["start_ns"], written["end_ns"], written["cpu_ns"]) == (1000, 1100, 40)


def test_the_header_says_who_and_when(recorder, clock):
    clock.advance(500)
    recorder.close()
    file = read_span_file(recorder.path)
    assert (file.role, file.worker, file.rank) == ("worker", 3, 2)
    assert (file.start.monotonic_ns, file.start.wall_ns) == (1000, 1_001_000)
    assert file.end is not None
    assert (file.end.monotonic_ns, file.end.wall_ns) == (1500, 1_001_500)


def test_more_spans_than_a_step_holds_keep_their_order(recorder):
    n = 20 * layout.SPANS_PER_CHUNK + 5
    for index in range(n):
        recorder.emit(Kind.READ, index, index + 1)
    file = read_span_file(recorder.path)
    assert np.array_equal(file.spans["start_ns"], np.arange(n))
    assert np.array_equal(file.spans["sequence"], np.arange(1, n + 1))
    assert (file.damaged, file.missing_nbytes, file.lost) == (0, 0, 0)


def test_closing_cuts_the_file_to_its_chunks(recorder):
    recorder.emit(Kind.READ, 1, 2)
    recorder.close()
    recorder.close()
    assert recorder.directory.joinpath(recorder.path).stat().st_size == 4096 + 65536


def test_spans_after_closing_are_lost_and_harm_nothing(recorder):
    recorder.emit(Kind.READ, 1, 2)
    with recorder.span(Kind.READ):
        recorder.close()
    recorder.emit(Kind.READ, 3, 4)
    assert recorder.lost == 2
    assert len(read_span_file(recorder.path).spans) == 1


def test_a_value_that_does_not_fit_loses_its_span_only(recorder, caplog):
    recorder.emit(Kind.READ, 1, 2)
    recorder.emit(Kind.READ, 3, 4, batch=1 << 40)
    recorder.emit(Kind.READ, 5, 6)
    file = read_span_file(recorder.path)
    assert file.spans["start_ns"].tolist() == [1, 5]
    assert (file.lost, file.damaged) == (1, 0)
    assert "does not fit" in caplog.text


def test_a_position_that_does_not_fit_is_unknown(recorder):
    recorder.position(1 << 40)
    with recorder.span(Kind.READ):
        pass
    assert read_span_file(recorder.path).spans["batch"] == [-1]


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


def test_strings_go_over_more_than_one_chunk(recorder):
    texts = [f"variable-{index}-" + "ü" * 100 for index in range(2000)]
    numbers = [recorder.string(text) for text in texts]
    assert [recorder.string(text) for text in texts] == numbers
    strings = read_span_file(recorder.path).strings
    assert [strings[number] for number in numbers] == texts


def test_no_text_is_number_0(recorder):
    assert recorder.string("") == 0
    assert read_span_file(recorder.path).strings == {0: ""}


def test_a_text_too_long_is_cut_between_characters(recorder):
    number = recorder.string("ä" * 5000 + "x")
    assert read_span_file(recorder.path).strings[number] == "ä" * 2048


def test_undecodable_file_names_are_kept_readable(recorder):
    number = recorder.string("bad\udcff")
    assert read_span_file(recorder.path).strings[number] == "bad\\udcff"


def test_recorders_of_one_process_have_files_of_their_own(recorder, tmp_path):
    with Recorder(tmp_path, role="consumer") as other:
        assert other.path != recorder.path


def test_a_file_that_cannot_be_made_only_loses_spans(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    recorder = Recorder(tmp_path / "file", role="consumer")
    with recorder.span(Kind.READ, "label"):
        pass
    recorder.emit(Kind.READ, 1, 2)
    recorder.close()
    assert recorder.lost == 2
    assert recorder.path is None
    assert "file" in recorder.failure
    assert [entry.levelno for entry in caplog.records] == [logging.WARNING]


def test_a_foreign_lane_is_a_thread_of_its_own(recorder):
    recorder.emit(Kind.WAIT, 1, 9)
    lanes = [recorder.foreign_lane(name) for name in ("reader", "reader", "")]
    for number, lane in enumerate(lanes):
        recorder.emit_on(lane, Kind.READ, 10 + number, 20, batch=number, nbytes=5)
    recorder.emit(Kind.WAIT, 30, 31)
    found = read_span_file(recorder.path)
    assert found.thread_names[1:] == ("reader", "reader", "foreign")
    spans = found.spans[np.argsort(found.spans["start_ns"], kind="stable")]
    assert spans["start_ns"].tolist() == [1, 10, 11, 12, 30]
    assert found.threads[np.argsort(found.spans["start_ns"])].tolist() == [0, 1, 2, 3, 0]
    assert spans["batch"].tolist() == [-1, 0, 1, 2, -1]


def test_a_foreign_lane_before_any_span_leaves_the_threads_own_one_alone(recorder):
    recorder.emit_on(recorder.foreign_lane("reader"), Kind.READ, 1, 2)
    recorder.emit(Kind.WAIT, 3, 4)
    found = read_span_file(recorder.path)
    assert len(found.thread_names) == 2
    assert found.thread_names[0] == "reader"


@pytest.mark.parametrize("preloaded", ["/soft/lib/libdarshan.so:/a/liba.so", "/a/liba.so"])
def test_a_marker_is_read_where_darshans_runtime_is_loaded(tmp_path, clock, monkeypatch, preloaded):
    monkeypatch.setenv("LD_PRELOAD", preloaded)
    folder = tmp_path / "spans"
    with Recorder(folder, role="worker", clock=clock) as recorder:
        recorder.emit(Kind.READ, 1, 2)
    with Recorder(folder, role="worker", clock=clock):
        assert (folder / MARKER_NAME).exists() == ("darshan" in preloaded)
    assert recorder.failure is None
    assert len(list(folder.glob("*.spans"))) == 2


def test_recording_goes_on_where_no_marker_can_be_made(tmp_path, clock, monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "libdarshan.so")
    (tmp_path / MARKER_NAME).mkdir()
    with Recorder(tmp_path, role="worker", clock=clock) as recorder:
        recorder.emit(Kind.READ, 1, 2)
    assert recorder.failure is None
    assert recorder.lost == 0


@pytest.mark.parametrize("before", [0, 5, layout.SPANS_PER_CHUNK - 1, layout.SPANS_PER_CHUNK])
@pytest.mark.parametrize("others", [0, 3, layout.SPANS_PER_CHUNK, 3 * layout.SPANS_PER_CHUNK])
@pytest.mark.parametrize("nbytes", [None, -1, 7])
def test_a_span_knows_what_was_read_inside_it_across_chunks(tmp_path, before, others, nbytes):
    recorder = Recorder(tmp_path / "a.spans", role="worker", clock=FakeClock())
    for _ in range(before):
        recorder.emit(Kind.READ, 0, 1, nbytes=9)
    with outside_span(recorder, Kind.DECODE, hiding=False) as span:
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
