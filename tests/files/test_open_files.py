"""Files that one table keeps open: as many as there is room for, none that is not what it was."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from iobench.errors import FileFormatError, MissingFileError, StoreError
from iobench.files import open_files as module
from iobench.files.open_files import SOURCE_FILE, FileKind, FileSet, OpenFile, OpenFiles
from iobench.files.ranges import FileRange

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LIMIT = 8


def n_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.setattr(module, "descriptor_limit", lambda: LIMIT)
    found = [tmp_path / str(number) for number in range(30)]
    for number, path in enumerate(found):
        path.write_bytes(bytes([number]) * 10)
    return found


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that are opened, in order."""
    found: list[str] = []

    class Noted(OpenFile):
        def __init__(self, path: str, kind: FileKind) -> None:
            found.append(path)
            super().__init__(path, kind)

    monkeypatch.setattr(module, "OpenFile", Noted)
    return found


def read(table: OpenFiles, path: Path) -> bytes:
    return table.opened((str(path), SOURCE_FILE, 0)).read_at(0, 100)


def test_as_many_files_stay_open_as_there_is_room_for(paths: list[Path], opened: list[str]) -> None:
    table, before = OpenFiles(), n_descriptors()
    for _ in range(2):
        assert [read(table, path)[0] for path in paths] == list(range(30))
    assert n_descriptors() - before == LIMIT
    assert len(opened) == 60
    table.forget()
    assert n_descriptors() == before


@pytest.mark.timeout(60)
def test_nothing_is_closed_under_who_reads_it(paths: list[Path]) -> None:
    table = OpenFiles()

    def work(seed: int) -> None:
        for turn in range(300):
            number = (turn * seed) % 30
            key = (str(paths[number]), SOURCE_FILE, 0)
            if turn % 3:
                buffer = memoryview(bytearray(10))
                table.opened(key).fill(buffer, 0)
                assert bytes(buffer) == bytes([number]) * 10
            else:
                assert table.mapped(key)[:] == bytes([number]) * 10

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, (1, 7, 11, 13)))


def grow(path: Path) -> None:
    with path.open("ab") as stream:
        stream.write(b"x")


def shrink(path: Path) -> None:
    os.truncate(path, 5)


def rewrite(path: Path) -> None:
    path.write_bytes(b"y" * 10)
    os.utime(path, ns=(1, 1))


def replace(path: Path) -> None:
    new = path.with_name("new")
    new.write_bytes(b"y" * 10)
    os.utime(new, ns=(1, 1))
    new.replace(path)


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("change", [grow, shrink, rewrite, replace])
def test_a_file_that_is_another_one_now_is_named(
    paths: list[Path], change: Callable[[Path], None], is_closed: bool
) -> None:
    table = OpenFiles()
    read(table, paths[0])
    if is_closed:  # for want of room
        for path in paths[1:]:
            read(table, path)
    change(paths[0])
    for _ in range(2):
        with pytest.raises(FileFormatError, match=rf"^{paths[0]}:? .* again$"):
            read(table, paths[0])
    status = paths[0].stat()
    table.expect({str(paths[0]): (status.st_size, status.st_mtime_ns)})  # it was looked into again
    assert read(table, paths[0]) == paths[0].read_bytes()


def test_what_was_learnt_before_the_first_read_holds(paths: list[Path]) -> None:
    status = paths[0].stat()
    told = OpenFiles()
    told.expect({str(paths[0]): (status.st_size, status.st_mtime_ns)})
    rewrite(paths[0])
    other = OpenFiles()  # as in a worker process
    other.expect(told.expected())
    for table in (told, other):
        with pytest.raises(FileFormatError, match="was modified after its dataset was opened"):
            read(table, paths[0])
    with pytest.raises(MissingFileError, match="none: no such file"):
        read(other, paths[0].with_name("none"))


@pytest.mark.timeout(30)
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_reads_on(paths: list[Path]) -> None:
    files = FileSet(paths, {})
    wanted = [FileRange(path, 1, 2) for path in paths]
    files.read(wanted)
    held = threading.Event()
    done = threading.Event()

    def hold() -> None:
        with module.open_files._lock:
            held.set()
            done.wait(0.2)

    holder = threading.Thread(target=hold)  # as one that opens a file while another thread forks
    holder.start()
    held.wait()
    child = os.fork()
    if child == 0:
        found = files.read(wanted)
        is_right = [bytes(each)[0] for each in found] == list(range(30))
        os._exit(0 if is_right else 1)
    done.set()
    holder.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_store_made_anew_at_the_same_place_is_another_one(paths: list[Path]) -> None:
    old = FileSet(paths, {paths[0]: 10})
    assert old.opened(0).read_at(0, 1) == b"\0"
    replace(paths[0])
    new = FileSet(paths, {paths[0]: 10})
    assert new.opened(0).read_at(0, 1) == b"y"
    with pytest.raises(StoreError, match="was replaced after its store was opened; open it again"):
        old.opened(0)
    old.close()
    assert old.opened(0).read_at(0, 1) == b"y"


def test_a_short_file_says_where_it_ends(paths: list[Path]) -> None:
    files = FileSet(paths, {})
    with pytest.raises(StoreError, match=r"0: the file ends at byte 10, 3 bytes more"):
        files.read([FileRange(paths[0], 5, 8)])
