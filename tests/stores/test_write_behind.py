"""Long files are written to disk as they grow; what the kernel is told changes no byte."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from iobench.files import atomic
from iobench.files.atomic import BEHIND_NBYTES, STEP_NBYTES, AtomicFile

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("takes_advice", [True, False])
def test_a_long_file_has_all_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes_advice: bool
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(22, "Invalid argument")

    if not takes_advice:
        monkeypatch.setattr(atomic.os, "posix_fadvise", refuse)
    piece, n = os.urandom(STEP_NBYTES + 1), BEHIND_NBYTES // STEP_NBYTES + 4
    file = AtomicFile(tmp_path / "f")
    for _ in range(n):
        file.write(piece)
    file.rewind()
    file.write(b"new")
    file.commit()
    assert (tmp_path / "f").read_bytes() == b"new" + (piece * n)[3:]


@pytest.mark.parametrize("name", ["file", "group/file"])
def test_a_folder_that_was_removed_is_not_brought_back(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "scratch"
    folder.mkdir()
    file = AtomicFile(folder / name, folder=folder)
    shutil.rmtree(folder)
    with pytest.raises(FileNotFoundError):
        file.commit()
    assert list(tmp_path.iterdir()) == []
