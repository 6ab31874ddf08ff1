from __future__ import annotations

import pytest

from iobench.errors import StoreError
from iobench.files.crc32c import PIECE_NBYTES, crc32c, crc32c_of_file
from iobench.stores.finished_store import CHECKSUMS_NAME, read_checksums


def test_it_is_castagnoli_and_goes_on():
    assert crc32c(b"123456789") == 0xE3069283  # RFC 3720, and every catalogue of CRCs
    assert crc32c(b"6789", crc32c(b"12345")) == crc32c(b"123456789")


def test_of_a_file_longer_than_a_piece(tmp_path):
    data = bytes(range(256)) * (PIECE_NBYTES // 256) + b"more"
    (tmp_path / "a").write_bytes(data)
    assert crc32c_of_file(tmp_path / "a") == crc32c(data)


@pytest.mark.parametrize("nbytes", [0, 7, 12])
def test_another_number_of_checksums_is_refused(tmp_path, nbytes):
    (tmp_path / CHECKSUMS_NAME).write_bytes(bytes(nbytes))
    with pytest.raises(StoreError, match=f"{nbytes} bytes, expected 8"):
        read_checksums(tmp_path, 2)


def test_missing_checksums_are_named(tmp_path):
    with pytest.raises(StoreError, match=r"iobench\.crc32c is missing"):
        read_checksums(tmp_path, 2)
