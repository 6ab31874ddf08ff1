"""Evicting, warming and asking the page cache."""

from __future__ import annotations

import pytest

from iobench.errors import StorageError
from iobench.storage import page_cache
from iobench.storage.file_systems import Mount, known_by
from iobench.storage.page_cache import Residency, evict, residency, warm_up


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(bytes(1 << 20))
    return path


def test_a_file_just_read_is_resident(file):
    warm_up([file])
    assert residency([file]).fraction == 1.0


def test_eviction_leaves_no_more_than_was_there(file):
    before = residency([file]).fraction
    evict([file])
    after = residency([file]).fraction
    assert 0.0 <= after <= before
    assert file.read_bytes() == bytes(1 << 20)


def test_a_folder_stands_for_the_files_below_it(file, tmp_path):
    below = tmp_path / "store" / "v" / "0"
    below.mkdir(parents=True)
    (below / "0").write_bytes(bytes(3 << 20))
    evict([tmp_path / "store"])
    warm_up([tmp_path / "store", file])
    assert residency([tmp_path / "store", file]).fraction == 1.0
    (tmp_path / "empty").mkdir()
    assert residency([tmp_path / "empty"]).fraction is None


def test_of_nothing_nothing_is_known(tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    assert residency([]).fraction is None
    assert residency([tmp_path / "empty"]).fraction is None


def test_the_share_counts_by_size_and_says_how_it_is_known(file, tmp_path):
    (tmp_path / "small").write_bytes(bytes(1 << 18))
    warm_up([tmp_path / "small", file])
    found = residency([file, tmp_path / "small", tmp_path / "small"])
    assert found.fraction == 1.0
    assert found.method in ("cachestat", "mincore", "preadv2")


@pytest.mark.parametrize("kind", ["zfs", "gpfs", "beegfs"])
def test_a_cache_of_the_file_systems_own_cannot_be_asked(monkeypatch, file, kind):
    own = known_by(-1, Mount(file.parent, kind))
    monkeypatch.setattr(page_cache, "file_system_of", lambda path: own)
    assert residency([file]) == Residency(None, "")


def test_where_nothing_tells_it_is_unknown(monkeypatch, file):
    monkeypatch.setattr(page_cache, "pages_of", lambda fd: None)
    assert residency([file]).fraction is None
    assert residency(["s3://bucket/data"]) == Residency()


@pytest.mark.parametrize("function", [evict, warm_up, residency])
def test_a_missing_file_is_named(tmp_path, function):
    with pytest.raises(StorageError, match="gone"):
        function([tmp_path / "gone"])
