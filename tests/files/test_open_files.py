"""Files that one table keeps open: as many as there is room for, none that is not what it was."""

from __future__ import annotations

import errno
import functools
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from iobench.errors import FileFormatError, MissingFileError, StoreError
from iobench.files import open_files as module
from iobench.files.open_files import (
    FileSet,
    close_files,
    expect_files,
    expected_files,
    forget_files,
    open_file,
)
from iobench.files.ranges import FileRange

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LIMIT = 8


def n_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.setattr(module, "_opened", functools.lru_cache(LIMIT)(module._open))
    found = [tmp_path / str(number) for number in range(30)]
    for number, path in enumerate(found):
        path.write_bytes(bytes([number]) * 10)
    return found


def read(path: Path) -> bytes:
    return open_file(str(path)).read_at(0, 100)


def test_as_many_files_stay_open_as_there_is_room_for(
    paths: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = n_descriptors()
    for _ in range(2):
        assert [read(path)[0] for path in paths] == list(range(30))
    assert n_descriptors() - before == LIMIT
    opened, has_others = module.open_regular, [True]

    def refused(path: str) -> int:
        if has_others.pop():
            has_others.append(False)
            raise OSError(errno.EMFILE, "too many open files")
        return opened(path)

    monkeypatch.setattr(module, "open_regular", refused)
    assert read(paths[0])[0] == 0
    assert n_descriptors() - before == 1
    forget_files()
    assert n_descriptors() == before


@pytest.mark.timeout(60)
def test_nothing_is_closed_under_who_reads_it(paths: list[Path]) -> None:
    files = FileSet(paths, {})

    def work(seed: int) -> None:
        for turn in range(300):
            number = (turn * seed) % 30
            if turn % 3:
                buffer = memoryview(bytearray(10))
                files.opened(number).fill(buffer, 0)
                assert bytes(buffer) == bytes([number]) * 10
            else:
                assert files.mapped(number)[:] == bytes([number]) * 10

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
    read(paths[0])
    if is_closed:  # for want of room
        close_files()
    change(paths[0])
    for _ in range(2):
        with pytest.raises(FileFormatError, match=rf"^{paths[0]}:? .* again$"):
            read(paths[0])
    forget_files([str(paths[0].parent)])
    status = paths[0].stat()
    expect_files({str(paths[0]): (status.st_size, status.st_mtime_ns)})  # it was looked into again
    assert read(paths[0]) == paths[0].read_bytes()


def test_what_was_learnt_before_the_first_read_holds(paths: list[Path]) -> None:
    status = paths[0].stat()
    expect_files({str(paths[0]): (status.st_size, status.st_mtime_ns)})
    identities = expected_files()
    rewrite(paths[0])
    for _ in range(2):
        with pytest.raises(FileFormatError, match="was modified after its dataset was opened"):
            read(paths[0])
        forget_files()
        expect_files(identities)  # as in a worker process
    with pytest.raises(MissingFileError, match="none: no such file"):
        read(paths[0].with_name("none"))


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
