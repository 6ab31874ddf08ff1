"""Files of digests: written as batches come, read back whatever happened to their process."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("xxhash", reason="digests need the extra 'digest'")

from iobench.errors import MissingExtraError, ProfileError
from iobench.recording import canonical, digests
from iobench.recording.canonical import sample_digest
from iobench.recording.digests import DIGEST_DTYPE, DigestLog, read_digests

BATCH = {"x": np.arange(6, dtype="<f4").reshape(3, 2)}


def written(run: Path, *, rank: int = 0) -> Path:
    log = DigestLog(run, rank=rank)
    log.add_batch(7, 2, [5, np.int64(6), "x"], BATCH, 3)
    log.add_samples(8, 2, None, [{"x": BATCH["x"][0]}])
    log.close()
    (path,) = (run / "digests").glob("*.bin")
    return path


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    written(tmp_path, rank=3)
    found = read_digests(tmp_path)
    assert found is not None
    rows = found.rows
    assert rows["batch"].tolist() == [7, 7, 7, 8]
    assert rows["sample"].tolist() == [5, 6, -1, -1]
    assert rows["position"].tolist() == [0, 1, 2, 0]
    assert rows["n_samples"].tolist() == [3, 3, 3, 1]
    assert set(rows["rank"].tolist()) == {3}
    assert set(rows["epoch"].tolist()) == {2}
    first = int.from_bytes(sample_digest({"x": BATCH["x"][0]}))
    assert int(rows["high"][0]) << 64 | int(rows["low"][0]) == first
    assert rows[["high", "low"]][0] == rows[["high", "low"]][3]
    assert found.n_damaged == 0
    assert len(found.of_rank(3).rows) == 4
    assert len(found.of_rank(0).rows) == 0


def test_a_run_without_digests_has_none(tmp_path: Path) -> None:
    assert read_digests(tmp_path) is None


@pytest.mark.parametrize("cut", range(1, DIGEST_DTYPE.itemsize, 7))
def test_a_record_that_was_cut_off_is_counted(tmp_path: Path, cut: int) -> None:
    path = written(tmp_path)
    path.write_bytes(path.read_bytes()[:-cut])
    found = read_digests(tmp_path)
    assert found is not None
    assert (len(found.rows), found.n_damaged) == (3, 1)


def test_a_record_with_any_byte_changed_is_left_out(tmp_path: Path) -> None:
    path = written(tmp_path)
    data = path.read_bytes()
    for place in range(digests.HEADER.size, digests.HEADER.size + DIGEST_DTYPE.itemsize):
        changed = bytearray(data)
        changed[place] ^= 0x80
        path.write_bytes(changed)
        found = read_digests(tmp_path)
        assert found is not None
        assert (len(found.rows), found.n_damaged) == (3, 1), place


def test_what_was_reserved_and_not_written_and_what_is_no_file_of_ours(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_bytes(path.read_bytes() + bytes(DIGEST_DTYPE.itemsize))
    (tmp_path / "digests" / "other.bin").write_bytes(b"x")
    found = read_digests(tmp_path)
    assert found is not None
    assert (len(found.rows), found.n_damaged) == (4, 2)


def test_another_version_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    data = bytearray(path.read_bytes())
    data[8] = 9
    path.write_bytes(data)
    with pytest.raises(ProfileError, match="of version 9, expected 1"):
        read_digests(tmp_path)


def test_a_fork_writes_a_file_of_its_own(tmp_path: Path) -> None:
    log = DigestLog(tmp_path)
    log.add_batch(0, 0, None, BATCH, 3)
    pid = os.fork()
    if not pid:
        log.add_batch(1, 0, None, BATCH, 3)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    log.add_batch(2, 0, None, BATCH, 3)
    log.close()
    assert len(list((tmp_path / "digests").glob("*.bin"))) == 2
    found = read_digests(tmp_path)
    assert found is not None
    assert sorted(set(found.rows["batch"].tolist())) == [0, 1, 2]


def test_a_full_disk_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = DigestLog(tmp_path)
    log.add_batch(0, 0, None, BATCH, 3)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr(digests.os, "write", full)
        log.add_batch(1, 0, None, BATCH, 3)
        log.add_batch(2, 0, None, BATCH, 3)
    log.close()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    found = read_digests(tmp_path)
    assert found is not None
    assert set(found.rows["batch"].tolist()) == {0}


def test_samples_that_cannot_be_told_are_marked_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = DigestLog(tmp_path)
    with caplog.at_level(logging.WARNING):
        log.add_samples(0, 0, [0, 1], [{"x": 1}, {"x": object()}])
        log.add_batch(1, 0, None, {"x": object()}, 2)
    log.close()
    found = read_digests(tmp_path)
    assert found is not None
    assert found.rows["flags"].tolist() == [0, 1, 1, 1]
    assert len(caplog.records) == 1


def test_without_xxhash_the_line_that_installs_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canonical.load_xxhash.cache_clear()

    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(canonical.importlib, "import_module", missing)
    with pytest.raises(MissingExtraError, match=r"pip install 'iobench\[digest\]'"):
        DigestLog(tmp_path)
