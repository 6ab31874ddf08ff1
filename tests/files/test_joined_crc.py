"""The checksum of rows one after another, from those of each."""

from __future__ import annotations

import numpy as np
import pytest

from iobench.files.crc32c import JoinedChecksum, crc32c


@pytest.mark.parametrize("nbytes", [1, 2, 7, 68, 552, 4096])
def test_it_is_that_of_all_bytes(nbytes: int) -> None:
    random = np.random.default_rng(nbytes)
    joined = JoinedChecksum(nbytes)
    for count in (1, 2, 3, 64, 5, 129):
        rows = random.integers(0, 256, (count, nbytes), dtype=np.uint8)
        each = np.array([crc32c(row) for row in rows], dtype=np.uint32)
        assert joined.of(each) == crc32c(rows.reshape(-1))
        each[count // 2] ^= np.uint32(1 << 5)
        assert joined.of(each) != crc32c(rows.reshape(-1))
