"""What `open`, `os.read` and their like do while they are timed, and where adapters are silent."""

# ruff: noqa: PTH123, SIM115, UP015, UP020 - the builtin itself is what is tested

from __future__ import annotations

import io
import mmap
import os
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import iobench
from iobench.adapters.installed import install, uninstall
from iobench.adapters.scope import loading
from iobench.recording.activation import activate
from iobench.recording.outside import DETAIL_LIMIT
from iobench.recording.recorder import Recorder

pytestmark = pytest.mark.usefixtures("installed")
TEXT = "".join(f"line {number}\n" for number in range(5000)) + "é"


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "some.txt"
    file.write_text(TEXT, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    "work",
    [
        lambda path: open(path, encoding="utf-8").read(),
        lambda path: "".join(open(path, encoding="utf-8")),
        lambda path: path.read_bytes(),
        lambda path: path.read_text("utf-8"),
        lambda path: io.open(path, "rb").readlines(),
        lambda path: open(str(path), mode="br", buffering=77).read(),
        lambda path: open(path, "rb", 0).read(),
    ],
)
def test_every_way_to_read_a_file_counts_its_bytes(watch, path, work):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        plain, watched = work(path), watch(lambda: work(path))
    assert watched == plain
    assert watch.stages[0] == "open"
    assert set(watch.stages[1:]) == {"read"}
    assert sum(span.nbytes for span in watch.spans[1:]) == path.stat().st_size
    assert {span.detail for span in watch.spans} == {str(path)}


def test_os_functions_are_timed(watch, path):
    def work():
        descriptor = os.open(path, os.O_RDONLY)
        buffer = bytearray(8)
        assert os.read(descriptor, 7) == b"line 0\n"
        assert os.pread(descriptor, 4, 0) == b"line"
        assert os.preadv(descriptor, [buffer], 0) == 8
        os.close(descriptor)
        os.close(os.open(path, os.O_RDWR))
        os.close(os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY))

    watch(work)
    assert watch.bytes_of == [("open", -1), ("read", 7), ("read", 4), ("read", 8)]
    assert watch.spans[0].detail == str(path)


def step(file, name, *args):
    try:
        return getattr(file, name)(*args)
    except OSError as error:  # telling after iterating
        return str(error)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.integers(-1, 30000)),
        st.tuples(st.just("readline"), st.integers(-1, 40)),
        st.tuples(st.just("seek"), st.integers(0, 60000)),
        st.tuples(st.just("tell")),
        st.tuples(st.just("readlines"), st.integers(0, 500)),
    ),
    max_size=12,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps, buffering=st.sampled_from([-1, 2, 100, 70000]), binary=st.booleans())
def test_a_counted_file_reads_what_a_plain_one_does(tmp_path, steps, buffering, binary):
    path = tmp_path / "some"
    if not path.exists():
        path.write_text(TEXT, encoding="utf-8")
    options = {"mode": "rb"} if binary else {"mode": "r", "encoding": "latin-1"}
    told = []
    for recorder in (None, Recorder(tmp_path / "spans", role="worker")):
        with activate(recorder), open(path, buffering=buffering, **options) as file:
            told.append([step(file, *call) for call in steps])
        if recorder is not None:
            recorder.close()
    assert told[0] == told[1]


def test_a_file_opened_while_recording_is_the_file_it_would_be(path, tmp_path):
    facts = []
    for recorder in (None, Recorder(tmp_path, role="worker")):
        with (
            warnings.catch_warnings(record=True) as caught,
            activate(recorder),
            open(path, "rb") as file,
            open(path, encoding="utf-8") as text,
        ):
            warnings.simplefilter("always")
            open(path, encoding="utf-8")  # and never closed
            facts.append(
                (
                    type(file), type(text), isinstance(file.raw, io.FileIO), repr(file), repr(text),
                    file.name, file.mode, text.mode, file.raw.mode, text.encoding, text.errors,
                    text.newlines, text.line_buffering, file.seekable(), file.writable(),
                    file.peek(1), file.tell(), file.isatty(), file.closed,
                    os.lseek(file.fileno(), 0, os.SEEK_CUR),  # how much was read ahead
                    [(str(warning.message), warning.category) for warning in caught],
                )
            )  # fmt: skip
            assert np.fromfile(file, "u1", 5).tobytes() == TEXT[:5].encode()
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                assert mapped[:6] == b"line 0"
        assert (file.closed, text.closed) == (True, True)
        if recorder is not None:
            recorder.close()
    assert facts[0] == facts[1]
    assert facts[0][-1]


ERRORS = {
    "gone": lambda: open("gone.txt"),
    "folder": lambda: open("."),
    "mode": lambda: open("some.txt", "no mode"),
    "binary text": lambda: open("some.txt", "rb", encoding="utf-8"),
    "encoding": lambda: open("some.txt", encoding="no such encoding"),
    "twice": lambda: open("some.txt", "r", mode="r"),
    "option": lambda: open("some.txt", colour="red"),
    "no buffer": lambda: open("some.txt", "r", 0),
    "zero": lambda: open("zero\0.txt"),
    "nothing": lambda: open(),
    "list": lambda: open(["some.txt"], mode="rb"),
    "descriptor": lambda: os.read(-1, 1),
    "gone, by os": lambda: os.open("gone", os.O_RDONLY),
}


@pytest.mark.parametrize("call", ERRORS.values(), ids=ERRORS)
def test_errors_are_those_of_the_function(path, watch, call, monkeypatch):
    monkeypatch.chdir(path.parent)

    def error():
        with pytest.raises(Exception) as raised:  # noqa: PT011 - compared below
            call()
        assert raised.value.__context__ is None
        return type(raised.value), str(raised.value), vars(raised.value)

    assert watch(error) == error()


def test_what_is_no_plain_reading_of_a_file_stays_untouched(watch, path):
    def work():
        for mode in ("ab", "r+b", "wb", "w+", "xb"):
            with open(path if mode != "xb" else path.with_name("new"), mode) as file:
                raw = getattr(file, "raw", None) or file.buffer.raw
                assert type(raw) is io.FileIO
        Path("/proc/self/stat").read_bytes()
        Path(os.devnull).read_bytes()
        for name in (os.devnull, "/proc/self/stat", path.parent):  # a folder, as rmtree opens it
            os.close(os.open(name, os.O_RDONLY))
        reader, writer = os.pipe()
        os.write(writer, b"sent")
        assert os.read(reader, 10) == b"sent"
        os.close(reader)
        os.close(writer)

    watch(work)
    assert watch.spans == []
    with open(os.open(path, os.O_RDONLY), "rb") as file:
        assert type(file.raw) is io.FileIO
    opener = lambda name, flags: os.open(name, flags)  # noqa: E731
    watch(lambda: open(path, "rb", opener=opener).close())
    assert watch.stages == ["open"]  # os.open


# -- which threads and stretches of code count as loading -----------------------------------


@pytest.fixture
def array(tmp_path):
    path = tmp_path / "array.npy"
    np.save(path, np.arange(100.0))
    return path


def test_a_consumer_is_timed_only_while_it_loads(watch, array):
    def work():
        np.load(array)
        with loading():
            np.load(array)
            with loading():
                pass
            np.load(array)
        np.load(array)

    watch(work, role="consumer")
    assert watch.stages == ["read", "read"]


STAGES = {
    **dict.fromkeys(["open", "read", "decode", "verify", "preprocess", "collate"], False),
    **dict.fromkeys(["fused", "opaque", "load my data", "forward"], True),
}
"""Whether a stage of the script of this name is split by what libraries do in it."""


@pytest.mark.parametrize("role", ["worker", "child"])
def test_what_is_named_exactly_is_not_timed_again(watch, array, role):
    watch(lambda: np.load(array), role=role)  # opens, and reads with fromfile
    (span,) = watch.spans
    assert (span.stage, span.nbytes, span.detail) == ("read", 800, str(array))
    for name, split in STAGES.items():

        def work(name=name):
            with iobench.stage(name):
                np.load(array)

        watch(work, role=role)
        *inner, outer = watch.spans
        assert [span.kind for span in inner] == ["read"] * split, name
        assert all(each.is_inside(outer) for each in inner)


def test_everywhere_is_everywhere_and_wins(watch, array):
    install(where="everywhere")
    install(where="loading")
    watch(lambda: np.load(array), role="consumer")
    assert watch.stages == ["read"]
    uninstall()
    install()
    watch(lambda: np.load(array), role="consumer")
    assert watch.stages == []


def test_an_error_ends_what_it_passes(watch, array):
    def work():
        for scope in (loading(), iobench.stage("read")):
            with pytest.raises(ZeroDivisionError), scope:
                raise ZeroDivisionError
        with pytest.raises(FileNotFoundError):
            np.load(array.parent / "gone.npy")
        np.load(array)

    watch(work)
    assert watch.bytes_of == [("read", -1), ("read", -1), ("read", 800)]


def test_names_of_files_are_kept_up_to_a_limit(watch, tmp_path):
    path = tmp_path / "one"
    path.write_bytes(b"1")
    extra = 40

    def work():
        for number in range(DETAIL_LIMIT + extra):
            with pytest.raises(FileNotFoundError):
                open(f"{path}-{number}", "rb")
        open(path, "rb").close()

    watch(work)
    assert len(watch.spans) == DETAIL_LIMIT + extra + 1
    assert sum(bool(span.detail) for span in watch.spans) == DETAIL_LIMIT
    assert watch.spans[-1].detail == ""


def test_a_recorder_that_fails_disturbs_nothing(array, tmp_path):
    recorder = Recorder(tmp_path / "spans", role="worker")
    recorder.close()
    with activate(recorder):
        assert np.load(array).sum() == 4950
        assert array.read_bytes()[:6] == b"\x93NUMPY"
    assert recorder.lost > 0


FORKED = """
    import os, sys
    from pathlib import Path
    import numpy as np
    from iobench.adapters.installed import install, uninstall, unseen
    from iobench.adapters.scope import loading
    from iobench.recording.activation import activate
    from iobench.recording.recorder import Recorder
    from iobench.recording.span_reader import read_span_file

    folder = Path(sys.argv[1])
    np.save(folder / "a.npy", np.arange(3))
    install()
    recorder = Recorder(folder / "spans", role="consumer")
    with activate(recorder), loading():
        pid = os.fork()
        np.load(folder / "a.npy")  # the child makes its file at this, with timed functions
        if pid == 0:
            recorder.close()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    recorder.close()
    uninstall()
    files = [read_span_file(path) for path in sorted((folder / "spans").glob("*.spans"))]
    print(sorted((file.role, [int(kind) for kind in file.spans["kind"]]) for file in files))
"""


def test_a_forked_child_goes_on_in_a_file_of_its_own(tmp_path):
    answer = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FORKED), str(tmp_path)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (answer.stderr, answer.stdout) == ("", "[('child', [2]), ('consumer', [2])]\n")
