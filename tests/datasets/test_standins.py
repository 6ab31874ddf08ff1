"""A stand-in is whole or unfinished, is gone on with, and overwrites nothing of the user's."""

from __future__ import annotations

import functools
import json

import pytest

from iobench.datasets import standins
from iobench.datasets.locate import FileLocator
from iobench.datasets.standins import (
    ensure_stand_in,
    locate_files,
)
from iobench.errors import MissingFileError, OptionError, StorageError

URL = "https://example.eu/B/"


def write_text(text, path):
    path.write_text(text)


def refuse(path):
    path.write_text("half")
    raise OSError(28, "No space left on device")


class Letters:
    """A dataset of two small files."""

    name = "letters"
    synthesis_version = 1

    def __init__(self, writes=None):
        self.writes = writes or [functools.partial(write_text, text) for text in ("aa", "bbb")]
        self.runs = 0

    def files(self, locator):
        found = locator.find([URL + "0", URL + "1"])
        if None in found:
            raise MissingFileError(f"not in {locator.searched()}")
        return found

    def stand_in_files(self, *, scale, tiny, seed):
        self.runs += 1
        return {f"url/https/example.eu/B/{n}": write for n, write in enumerate(self.writes)}


@pytest.fixture
def root(tmp_path):
    return tmp_path / "root"


def texts(root):
    return [(root / f"url/https/example.eu/B/{number}").read_text() for number in (0, 1)]


def test_finished_stand_in_has_a_manifest(root):
    assert ensure_stand_in(Letters(), root, seed=3, tiny=True) == root
    manifest = json.loads((root / "stand-in.json").read_text())
    assert (manifest["seed"], manifest["tiny"], manifest["scale"]) == (3, True, None)
    assert manifest["files"][1] == {"name": "url/https/example.eu/B/1", "nbytes": 3}
    assert texts(root) == ["aa", "bbb"]


def test_finished_stand_in_is_reused(root):
    letters = Letters()
    ensure_stand_in(letters, root)
    ensure_stand_in(letters, root)
    assert letters.runs == 1


def test_interrupted_stand_in_is_gone_on_with(root):
    first = Letters()
    with pytest.raises(KeyboardInterrupt):
        ensure_stand_in(first, root, tiny=True, progress=interrupt_at(1))
    assert json.loads((root / "stand-in.json").read_text())["files"] == []
    kept = root / "url/https/example.eu/B/0"
    written = kept.stat().st_mtime_ns
    ensure_stand_in(Letters(), root, tiny=True)
    assert texts(root) == ["aa", "bbb"]
    assert kept.stat().st_mtime_ns == written


def interrupt_at(n_files):
    def progress(done, total):
        if done == n_files:
            raise KeyboardInterrupt

    return progress


def test_file_that_vanished_is_written_again(root):
    ensure_stand_in(Letters(), root)
    (root / "url/https/example.eu/B/1").unlink()
    ensure_stand_in(Letters(), root)
    assert texts(root) == ["aa", "bbb"]
    assert (root / "stand-in.json").exists()


def test_file_of_the_users_own_in_the_way_is_left_alone(root):
    ensure_stand_in(Letters(), root)
    own = root / "url/https/example.eu/B/1"
    own.write_text("my real data")
    with pytest.raises(StorageError, match="is not what iobench wrote"):
        ensure_stand_in(Letters(), root)
    assert own.read_text() == "my real data"


def test_folder_iobench_did_not_make_is_left_alone(root):
    root.mkdir()
    (root / "0").write_text("mine")
    with pytest.raises(StorageError, match="did not make"):
        ensure_stand_in(Letters(), root)
    assert [path.name for path in root.iterdir()] == ["0"]


def test_another_stand_in_in_the_folder_is_refused(root):
    ensure_stand_in(Letters(), root, seed=0)
    with pytest.raises(StorageError, match="another stand-in"):
        ensure_stand_in(Letters(), root, seed=1)


def test_damaged_manifest_is_said(root):
    ensure_stand_in(Letters(), root)
    (root / "stand-in.json").write_text("{}")
    with pytest.raises(StorageError, match="not iobench's list"):
        ensure_stand_in(Letters(), root)


def test_a_disk_that_is_nearly_full_is_not_filled(root, monkeypatch):
    monkeypatch.setattr(standins, "SPARE_NBYTES", 1 << 60)
    with pytest.raises(StorageError, match=r"MB are free; .*the same command continues"):
        ensure_stand_in(Letters(), root, tiny=True)
    monkeypatch.undo()
    ensure_stand_in(Letters(), root, tiny=True)
    assert texts(root) == ["aa", "bbb"]


def test_full_disk_leaves_it_resumable(root):
    letters = Letters([functools.partial(write_text, "aa"), refuse])
    with pytest.raises(StorageError, match=r"full.*same command continues"):
        ensure_stand_in(letters, root, tiny=True)
    assert [path.name for path in root.rglob("*.partial")] == []
    ensure_stand_in(Letters(), root, tiny=True)
    assert texts(root) == ["aa", "bbb"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": 0}, "up to 1"),
        ({"scale": 1.5}, "up to 1"),
        ({"scale": 0.5, "tiny": True}, "give one of them"),
        ({"seed": -1}, "--seed -1"),
    ],
)
def test_sizes_and_seeds_that_cannot_be(root, options, message):
    with pytest.raises(OptionError, match=message):
        ensure_stand_in(Letters(), root, **options)
    assert not root.exists()


def test_stand_in_in_the_users_folder_is_known_as_one(root, tmp_path):
    ensure_stand_in(Letters(), root, tiny=True)
    locator = FileLocator(data_dir=root, cache_dir=tmp_path)
    assert not locator.stand_in
    Letters().files(locator)
    assert locator.stand_in
    assert locator.tiny


def test_unfinished_stand_in_in_the_users_folder_is_refused(root, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        ensure_stand_in(Letters(), root, tiny=True, progress=interrupt_at(1))
    with pytest.raises(StorageError, match="unfinished stand-in"):
        Letters().files(FileLocator(data_dir=root, cache_dir=tmp_path))


@pytest.fixture
def nothing_real(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.delenv("CLIMETLAB_MIRROR", raising=False)


def located(tmp_path, dataset=None, **options):
    dataset = dataset or Letters()
    return locate_files(dataset, store_root=tmp_path, cache_dir=tmp_path / "cache", **options)


def test_without_real_files_a_stand_in_is_made(tmp_path, nothing_real):
    files, locator = located(tmp_path)
    assert locator.stand_in
    assert [file.read_text() for file in files] == ["aa", "bbb"]


def test_real_files_come_first(tmp_path, nothing_real, monkeypatch):
    bucket = tmp_path / "mirror/url/https/example.eu/B"
    bucket.mkdir(parents=True)
    for number in (0, 1):
        (bucket / str(number)).write_text("real")
    monkeypatch.setenv("CLIMETLAB_MIRROR", str(tmp_path / "mirror"))
    files, locator = located(tmp_path)
    assert not locator.stand_in
    assert files == [bucket / "0", bucket / "1"]
    assert located(tmp_path, tiny=True)[1].stand_in


def test_some_real_files_are_never_replaced_by_a_stand_in(tmp_path, nothing_real, monkeypatch):
    bucket = tmp_path / "mirror/url/https/example.eu/B"
    bucket.mkdir(parents=True)
    (bucket / "0").write_text("real")
    monkeypatch.setenv("CLIMETLAB_MIRROR", str(tmp_path / "mirror"))
    with pytest.raises(MissingFileError):
        located(tmp_path)
    assert not (tmp_path / "stand-ins").exists()


def test_empty_data_dir_is_never_replaced_by_a_stand_in(tmp_path, nothing_real):
    with pytest.raises(MissingFileError, match="--data-dir"):
        located(tmp_path, data_dir=tmp_path)


def test_data_dir_beside_tiny_is_a_contradiction(tmp_path):
    with pytest.raises(OptionError, match="give one of them"):
        located(tmp_path, data_dir=tmp_path, tiny=True)


def test_dataset_without_a_stand_in(tmp_path, nothing_real):
    class Plain:
        name = "plain"
        files = Letters.files

    with pytest.raises(MissingFileError):
        located(tmp_path, Plain())
    with pytest.raises(OptionError, match="no stand-in"):
        located(tmp_path, Plain(), tiny=True)
