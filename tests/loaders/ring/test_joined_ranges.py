"""Views that one read fills."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from iobench.errors import StoreError
from iobench.files.open_files import FileSet

if TYPE_CHECKING:
    from pathlib import Path


def test_thousands_of_views_are_filled_though_a_call_takes_fewer(tmp_path: Path) -> None:
    path = tmp_path / "file"
    data = np.random.default_rng(0).bytes(5000)
    path.write_bytes(data)
    files = FileSet([path], {})
    memory = bytearray(4990)
    views = [memoryview(memory)[at : at + 2] for at in range(0, 4990, 2)]
    files.opened(0).fill_views(views, 7, 4997)
    assert bytes(memory) == data[7:4997]
    with pytest.raises(StoreError, match="the file ends at byte 5000, 3 bytes more"):
        files.opened(0).fill(memoryview(bytearray(10)), 4993)
    files.close()
