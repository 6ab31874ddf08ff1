import zlib

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from iobench.errors import ProfileError
from iobench.recording import span_file as layout
from iobench.recording.kinds import Kind
from iobench.recording.recorder import Recorder
from iobench.recording.span_reader import read_span_file
from iobench.testing import FakeClock

N_SPANS = 1500


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bytes of a sound file: a chunk of spans, one of strings, one more of spans."""
    with Recorder(tmp_path_factory.mktemp("whole"), role="worker", clock=FakeClock()) as recorder:
        for index in range(N_SPANS):
            label = recorder.string(f"label {index % 7}")
            recorder.emit(Kind.READ, index + 1, index + 2, label=label)
    return recorder.path.read_bytes()


@pytest.fixture
def read(tmp_path):
    def read(data):
        path = tmp_path / "a.spans"
        path.write_bytes(data)
        return read_span_file(path)

    return read


def changed(data, offset, new):
    return data[:offset] + new + data[offset + len(new) :]


def span_chunk(data, index):
    """Return where the chunk of spans number ``index`` starts."""
    starts = range(layout.HEADER_NBYTES, len(data), layout.CHUNK_NBYTES)
    heads = {start: layout.CHUNK_HEAD.unpack_from(data, start) for start in starts}
    return [start for start, head in heads.items() if head[1] == layout.SPANS][index]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: b"", "is no span file"),
        (lambda data: b"GRIB" + data[4:], "is no span file"),
        (lambda data: data[:100], "or cut short"),
        (lambda data: changed(data, 8, b"\x09"), "version 9"),
        (lambda data: changed(data, 16, b"\xff\xff"), "header is damaged"),
    ],
)
def test_what_is_no_span_file_is_named(whole, read, damage, said):
    with pytest.raises(ProfileError, match=rf"a\.spans: .*{said}"):
        read(damage(whole))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ProfileError, match=r"b\.spans: cannot be read"):
        read_span_file(tmp_path / "b.spans")


LAST = N_SPANS - layout.SPANS_PER_CHUNK
"""Spans of the last chunk."""


@pytest.mark.parametrize(
    ("chunk", "offset", "new", "n_lost"),
    [
        (1, 64 * LAST + 60, bytes(4), 1),  # torn
        (0, 640, bytes(64), 1),  # zeroed between others
        (0, 640 + 56, b"\xfe", 1),  # of no kind
        (0, 640 + 8, bytes(8), 1),  # it ends before it starts
        (0, 640 + 60, b"\x07\0\0\1", 1),  # of another sequence
        (0, 8, b"\x63", layout.SPANS_PER_CHUNK),  # of a lane that is not its own
        (0, 0, bytes(layout.CHUNK_NBYTES), layout.SPANS_PER_CHUNK),
    ],
)
def test_what_is_damaged_is_counted_and_the_rest_read(whole, read, chunk, offset, new, n_lost):
    file = read(changed(whole, span_chunk(whole, chunk) + offset, new))
    assert len(file.spans) == N_SPANS - n_lost
    assert n_lost <= file.damaged <= 2 * n_lost


def test_a_file_cut_short_says_by_how_much(whole, read):
    file = read(whole[:-1000])
    assert (file.missing_nbytes, len(file.spans)) == (1000, N_SPANS)


def test_a_damaged_text_is_unknown_and_counted(whole, read):
    file = read(changed(whole, whole.index(b"label 3"), b"l4bel"))
    assert "unknown" in file.strings.values()
    assert file.damaged >= 1


def accounted(file):
    """Spans read, counted as damaged, or whose space is gone."""
    return len(file.spans) + file.damaged + -(-file.missing_nbytes // layout.RECORD_NBYTES)


@settings(max_examples=5 * settings().max_examples, deadline=None)
@given(data=st.data())
def test_damage_never_crashes_and_is_never_silent(whole, tmp_path_factory, data):
    raw = bytearray(whole)
    for _ in range(data.draw(st.integers(0, 3))):
        offset = data.draw(st.integers(0, len(raw) - 1))
        new = data.draw(st.one_of(st.binary(min_size=1, max_size=200), st.just(bytes(70_000))))
        raw[offset : offset + len(new)] = new[: len(raw) - offset]
    del raw[data.draw(st.integers(0, len(raw))) :]
    path = tmp_path_factory.mktemp("fuzz") / "a.spans"
    path.write_bytes(raw)
    header_intact = raw[:536] == whole[:536] and not any(raw[layout.UNUSED])
    try:
        file = read_span_file(path)
    except ProfileError as error:
        refused = str(error)
    else:
        refused = ""
    if refused:
        assert refused.startswith(f"{path}: ")
        assert not header_intact or len(raw) < layout.HEADER_NBYTES
        return
    assert len(file.threads) == len(file.spans)
    assert np.all(file.spans["end_ns"] >= file.spans["start_ns"])
    assert set(np.unique(file.spans["label"]).tolist()) <= set(file.strings)
    if bytes(raw) == whole:
        assert (len(file.spans), file.damaged, file.missing_nbytes) == (N_SPANS, 0, 0)


@given(offset=st.integers(0, N_SPANS - 2), n=st.integers(1, 40), fill=st.sampled_from([0, 7, 255]))
@example(offset=layout.SPANS_PER_CHUNK - 40, n=40, fill=0)
def test_every_span_overwritten_before_the_last_is_counted(
    whole, tmp_path_factory, offset, n, fill
):
    """Whole records replaced anywhere but at the very end add up with what was read."""
    raw = bytearray(whole)
    for index in range(offset, min(offset + n, N_SPANS - 1)):
        chunk, place = divmod(index, layout.SPANS_PER_CHUNK)
        start = span_chunk(whole, chunk) + layout.RECORD_NBYTES * (1 + place)
        raw[start : start + layout.RECORD_NBYTES] = bytes([fill]) * layout.RECORD_NBYTES
    path = tmp_path_factory.mktemp("overwritten") / "a.spans"
    path.write_bytes(raw)
    assert accounted(read_span_file(path)) == N_SPANS


@pytest.mark.parametrize(
    "values",
    [
        {"start_ns": -(2**62), "end_ns": 0},
        {"start_ns": 0, "end_ns": 2**62},
        {"start_ns": 0, "end_ns": 1, "nbytes": 2**60},
        {"start_ns": 0, "end_ns": 1, "cpu_ns": -7},
    ],
    ids=str,
)
def test_what_no_process_can_have_done_is_damaged(tmp_path, values):
    with Recorder(tmp_path, role="worker", clock=FakeClock()) as recorder:
        recorder.emit(Kind.READ, **values)
        recorder.emit(Kind.READ, 0, 1)
    file = read_span_file(recorder.path)
    assert (len(file.spans), file.damaged) == (1, 1)


def test_a_header_of_a_time_that_cannot_be_is_damaged(whole, read):
    raw = bytearray(whole)
    raw[48:56] = (2**62).to_bytes(8, "little")
    crc = zlib.crc32(raw[: layout.IDENTITY.size])
    layout.IDENTITY_CRC.pack_into(raw, layout.IDENTITY_CRC_OFFSET, crc)
    with pytest.raises(ProfileError, match="header is damaged"):
        read(bytes(raw))
