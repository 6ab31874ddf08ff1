from __future__ import annotations

import os
import pickle

import pytest

from iobench.errors import StoreError
from iobench.files.ranges import FileRange
from iobench.stores.extents import MAX_OPEN_FILES, ExtentReader


def n_descriptors():
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / str(number) for number in range(MAX_OPEN_FILES + 40)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * 10)
    return paths


def test_reads_the_bytes_asked_for(tmp_path):
    (tmp_path / "a").write_bytes(bytes(range(100)))
    first, second = ExtentReader().read(
        [FileRange(tmp_path / "a", 3, 4), FileRange(tmp_path / "a", 0, 0)]
    )
    assert (bytes(first), bytes(second)) == (b"\3\4\5\6", b"")


def test_many_files_do_not_use_up_descriptors(files):
    reader, before = ExtentReader(), n_descriptors()
    for _ in range(2):
        for number, path in enumerate(files):
            assert bytes(reader.read([FileRange(path, 5, 2)])[0]) == bytes([number]) * 2
    assert n_descriptors() - before == MAX_OPEN_FILES
    reader.close()
    assert n_descriptors() == before


def test_pickled_reader_has_no_files_open(files):
    reader = ExtentReader()
    reader.read([FileRange(files[0], 0, 1)])
    assert bytes(pickle.loads(pickle.dumps(reader)).read([FileRange(files[1], 0, 1)])[0]) == b"\1"


def test_short_read_says_where_the_file_ends(tmp_path):
    (tmp_path / "a").write_bytes(bytes(10))
    with pytest.raises(StoreError, match=r"a: the file ends at byte 10, expected 8 bytes from by"):
        ExtentReader().read([FileRange(tmp_path / "a", 5, 8)])


def test_missing_file_is_a_damaged_store(tmp_path):
    with pytest.raises(StoreError, match="is missing"):
        ExtentReader().read([FileRange(tmp_path / "a", 0, 1)])
