"""What `open` and `os.read` and their like do while they are timed, and what is recorded."""

# ruff: noqa: PTH123, SIM115, UP020 - the builtin itself is what is tested

from __future__ import annotations

import builtins
import io
import mmap
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iobench.recording.activation import activate
from iobench.recording.recorder import Recorder

pytestmark = pytest.mark.usefixtures("installed")
TEXT = "".join(f"line {number}\n" for number in range(5000)) + "é"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "some.txt"
    file.write_text(TEXT, encoding="utf-8")
    return file


def test_opening_and_each_read_of_the_file_are_spans(watch: Any, path: Path) -> None:
    def work() -> bytes:
        with open(path, "rb") as file:
            return file.read()

    assert watch(work) == TEXT.encode()
    assert watch.stages[0] == "open"
    assert set(watch.stages[1:]) == {"read"}
    assert sum(span.nbytes for span in watch.spans[1:]) == len(TEXT.encode())
    assert {span.detail for span in watch.spans} == {str(path)}


@pytest.mark.parametrize(
    "work",
    [
        lambda path: open(path, encoding="utf-8").read(),
        lambda path: "".join(open(path, encoding="utf-8")),
        lambda path: path.read_bytes(),
        lambda path: path.read_text("utf-8"),
        lambda path: io.open(path, "rb").readlines(),
        lambda path: open(str(path), mode="br", buffering=77).read(),
    ],
)
def test_every_way_to_read_a_file_counts_its_bytes(
    watch: Any, path: Path, work: Callable[[Path], Any]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        plain, watched = work(path), watch(lambda: work(path))
    assert watched == plain
    assert watch.stages[0] == "open"
    assert sum(span.nbytes for span in watch.spans[1:]) == path.stat().st_size


def test_a_file_opened_while_recording_is_the_file_it_would_be(path: Path, tmp_path: Path) -> None:
    told = []
    for recorder in (None, Recorder(tmp_path, role="worker")):
        with activate(recorder), open(path, "rb") as file, open(path, encoding="utf-8") as text:
            told.append(
                (
                    type(file), type(text), isinstance(file.raw, io.FileIO), repr(file), repr(text),
                    file.name, file.mode, text.mode, file.raw.mode, text.encoding, text.errors,
                    text.newlines, text.line_buffering, file.seekable(), file.writable(),
                    file.peek(1), file.tell(), file.isatty(), file.closed,
                )
            )  # fmt: skip
            assert np.fromfile(file, "u1", 5).tobytes() == TEXT[:5].encode()
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                assert mapped[:6] == b"line 0"
        assert file.closed
        assert text.closed
        if recorder is not None:
            recorder.close()
    assert told[0] == told[1]


@pytest.mark.parametrize(
    "arguments",
    [
        (("gone.txt",), {}),
        ((".",), {}),
        (("some.txt", "no mode"), {}),
        (("some.txt", "rb"), {"encoding": "utf-8"}),
        (("some.txt",), {"encoding": "no such encoding"}),
        (("some.txt",), {"newline": "x"}),
        (("some.txt", "r"), {"mode": "r"}),
        (("some.txt",), {"colour": "red"}),
        (("some.txt", "r", 0), {}),
        (("zero\0.txt",), {}),
        ((), {}),
        ((None,), {}),
        ((3.5,), {}),
        ((["some.txt"],), {"mode": "rb"}),
    ],
)
def test_errors_of_open_are_those_of_open(
    path: Path, watch: Any, arguments: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    args, kwargs = arguments
    with pytest.raises(Exception) as plain:  # noqa: PT011 - compared below
        open(*args, **kwargs)

    def work() -> None:
        with pytest.raises(type(plain.value)) as watched:
            open(*args, **kwargs)
        assert str(watched.value) == str(plain.value)
        assert type(watched.value) is type(plain.value)
        assert vars(watched.value) == vars(plain.value)
        assert watched.value.__context__ is None

    watch(work)


@pytest.mark.parametrize(
    "arguments",
    [("wb",), ("ab",), ("r+b",), ("w+",), ("xb",)],
    ids=lambda value: str(value),
)
def test_what_is_no_plain_reading_stays_untouched(
    watch: Any, path: Path, arguments: tuple[Any, ...]
) -> None:
    target = path if "x" not in arguments[0] else path.with_name("new")

    def work() -> type:
        with open(target, *arguments) as file:
            return type(getattr(file, "raw", getattr(getattr(file, "buffer", file), "raw", file)))

    assert watch(work) is io.FileIO
    assert watch.spans == []


def test_a_file_without_a_buffer_is_read_at_once(watch: Any, path: Path) -> None:
    def work() -> tuple[Any, ...]:
        with open(path, "rb", 0) as file, open(path, "rb", buffering=0) as other:
            assert isinstance(file, io.FileIO)
            file.seek(5)
            return file.read(8), file.readline(), other.readinto(bytearray(9)), repr(file)

    assert watch(work) == work()
    assert watch.stages[:2] == ["open", "open"]
    assert next(span.nbytes for span in watch.spans if span.kind == "read") == 8
    assert watch.spans[-1].nbytes == 9


def test_descriptors_and_openers_stay_untouched(watch: Any, path: Path) -> None:
    def work() -> None:
        descriptor = os.open(path, os.O_RDONLY)
        with open(descriptor, "rb") as file:
            assert type(file.raw) is io.FileIO
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags)) as file:
            assert type(file.raw) is io.FileIO

    watch(work)
    assert watch.stages == ["open", "open"]  # os.open


def test_nobody_counts_where_no_data_lie(watch: Any, path: Path) -> None:
    def work() -> None:
        Path("/proc/self/stat").read_bytes()
        Path(os.devnull).read_bytes()
        for name in (os.devnull, "/proc/self/stat", path.parent):  # a folder, as rmtree opens it
            os.close(os.open(name, os.O_RDONLY))

    watch(work)
    assert watch.spans == []


def test_os_functions_are_timed(watch: Any, path: Path) -> None:
    def work() -> None:
        descriptor = os.open(path, os.O_RDONLY)
        buffer = bytearray(8)
        assert os.read(descriptor, 7) == b"line 0\n"
        assert os.pread(descriptor, 4, 0) == b"line"
        assert os.preadv(descriptor, [buffer], 0) == 8
        os.close(descriptor)
        os.close(os.open(path, os.O_RDWR))
        os.close(os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY))

    watch(work)
    assert [(span.kind, span.nbytes) for span in watch.spans] == [
        ("open", -1),
        ("read", 7),
        ("read", 4),
        ("read", 8),
    ]
    assert watch.spans[0].detail == str(path)


def test_waiting_for_a_pipe_is_no_reading(watch: Any) -> None:
    def work() -> bytes:
        reader, writer = os.pipe()
        os.write(writer, b"told")
        answer = os.read(reader, 10)
        os.close(reader)
        os.close(writer)
        return answer

    assert watch(work) == b"told"
    assert watch.spans == []


@pytest.mark.parametrize("call", [lambda: os.read(-1, 1), lambda: os.open("gone", os.O_RDONLY)])
def test_errors_of_descriptors_are_theirs(watch: Any, call: Callable[[], Any]) -> None:
    with pytest.raises(OSError, match=r"Bad file|No such file") as plain:
        call()

    def work() -> None:
        with pytest.raises(type(plain.value)) as watched:
            call()
        assert str(watched.value) == str(plain.value)

    watch(work)


def test_what_is_inside_a_whole_read_later_is_timed_then(watch: Any, path: Path) -> None:
    from iobench.adapters.scope import quiet

    def work() -> None:
        with quiet():
            file = open(path, "rb")
            file.read(3)
        file.seek(20000)
        file.read(3)
        file.close()

    watch(work)
    assert watch.stages == ["read"]


def test_an_unclosed_file_is_told_of_as_ever(tmp_path: Path, path: Path) -> None:
    told = []
    for recorder in (None, Recorder(tmp_path, role="worker")):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with activate(recorder):
                open(path, encoding="utf-8")
        told.append([(str(warning.message), warning.category) for warning in caught])
        if recorder is not None:
            recorder.close()
    assert told[0] == told[1] != []


def test_a_traceback_ends_where_it_ended(watch: Any, tmp_path: Path) -> None:
    def work() -> list[str]:
        try:
            open(tmp_path / "gone", "rb")
        except FileNotFoundError as error:
            return traceback.format_exception_only(error)
        return []

    plain = work()
    assert watch(work) == plain


def test_somebodys_own_open_goes_on_being_called(
    watch: Any, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from iobench.adapters.installed import install, uninstall

    uninstall()
    called = []

    def own_open(*args: Any, **kwargs: Any) -> Any:
        called.append(args)
        return io.open(*args, **kwargs)

    monkeypatch.setattr(builtins, "open", own_open)
    install()
    watch(lambda: open(path, "rb").close())
    assert [args for args in called if args[0] == path] == [(path, "rb")]
    assert watch.stages == ["open"]
    uninstall()
    assert builtins.open is own_open


def step(file: Any, name: str, *args: int) -> Any:
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
def test_a_counted_file_reads_what_a_plain_one_does(
    tmp_path: Path, steps: list[Any], buffering: int, binary: bool
) -> None:
    path = tmp_path / "some"
    if not path.exists():
        path.write_text(TEXT, encoding="utf-8")
    options: dict[str, Any] = {"mode": "rb"} if binary else {"mode": "r", "encoding": "latin-1"}
    told = []
    for recorder in (None, Recorder(tmp_path / "spans", role="worker")):
        with activate(recorder), open(path, buffering=buffering, **options) as file:
            told.append([step(file, *call) for call in steps])
        if recorder is not None:
            recorder.close()
    assert told[0] == told[1]


@pytest.mark.skipif(sys.flags.warn_default_encoding, reason="warnings of encodings are asked for")
def test_the_buffer_is_as_large_as_ever(path: Path, tmp_path: Path) -> None:
    """The position of the descriptor, which C code goes by, shows how much was read ahead."""
    told = []
    for recorder in (None, Recorder(tmp_path, role="worker")):
        with activate(recorder), open(path, "rb") as file:
            file.read(1)
            told.append(os.lseek(file.fileno(), 0, os.SEEK_CUR))
        if recorder is not None:
            recorder.close()
    assert told[0] == told[1] > 1
