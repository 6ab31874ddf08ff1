"""Files are found by their URL in the user's folder, CliMetLab's mirror and cache, a stand-in."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path

import pytest

from iobench.datasets.climetlab_files import cache_folder, cached_files
from iobench.datasets.locate import FileLocator
from iobench.errors import StorageError

URL = "https://storage.example.eu/BUCKET/sub/output.sfc.20180101"


def put(path, text="x"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def cache_of(home, entries):
    """Make a CliMetLab cache in ``home`` as CliMetLab lays it out; entries are (path, args)."""
    folder = home / "cache"
    folder.mkdir(parents=True)
    put(home / ".climetlab" / "settings.yaml", f"styles: []\ncache-directory: {folder}\n")
    connection = sqlite3.connect(folder / "cache-2.db")
    connection.execute("CREATE TABLE cache (path TEXT, owner TEXT, args TEXT, size INT)")
    rows = [(str(path), "url", json.dumps(args), 1) for path, args in entries]
    connection.executemany("INSERT INTO cache VALUES (?, ?, ?, ?)", rows)
    connection.commit()
    connection.close()
    return folder


@pytest.fixture
def locator(tmp_path, monkeypatch):
    """Return a locator that sees nothing of the machine the tests run on."""

    def make(*, mirror=None, home=None, **places):
        if mirror:
            monkeypatch.setenv("CLIMETLAB_MIRROR", str(mirror))
        monkeypatch.setenv("HOME", str(home or tmp_path / "home"))
        return FileLocator(cache_dir=tmp_path, **places)

    return make


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))


@pytest.mark.parametrize(
    "inside",
    [
        "url/https/storage.example.eu/BUCKET/sub/output.sfc.20180101",
        "BUCKET/sub/output.sfc.20180101",
        "sub/output.sfc.20180101",
        "output.sfc.20180101",
    ],
)
def test_data_dir_in_any_layout(locator, tmp_path, inside):
    path = put(tmp_path / "data" / inside)
    assert locator(data_dir=tmp_path / "data").find([URL]) == [path]


def test_with_a_data_dir_nothing_else_is_searched(locator, tmp_path):
    put(tmp_path / "mirror" / "url/https/storage.example.eu/BUCKET/sub/output.sfc.20180101")
    (tmp_path / "data").mkdir()
    found = locator(data_dir=tmp_path / "data", mirror=tmp_path / "mirror")
    assert found.find([URL]) == [None]
    assert "--data-dir" in found.searched()
    assert "CLIMETLAB" not in found.searched()


def test_mirror_comes_before_the_cache(locator, tmp_path):
    home = tmp_path / "user"
    cached = put(home / "url-1234")
    cache_of(home, [(cached, {"url": URL, "parts": None})])
    assert locator(home=home).find([URL]) == [cached]
    mirrored = put(tmp_path / "mirror/url/https/storage.example.eu/BUCKET/sub/output.sfc.20180101")
    assert locator(home=home, mirror=tmp_path / "mirror").find([URL]) == [mirrored]


def test_cache_finds_by_url_alone(locator, tmp_path):
    home = tmp_path / "user"
    whole, part = put(home / "url-1"), put(home / "url-2")
    folder = cache_of(
        home,
        [
            (whole, {"url": URL, "parts": None}),
            (part, {"url": URL + "2", "parts": [[0, 10]]}),
            (home / "gone", {"url": URL + "3", "parts": None}),
            (part, {"query": 1}),
        ][:3],
    )
    assert cached_files(folder) == {URL: whole, URL + "3": home / "gone"}
    found = locator(home=home)
    assert found.find([URL, URL + "2", URL + "3"]) == [whole, None, None]
    assert found.n_found == 1


def test_cache_is_opened_read_only(locator, tmp_path):
    home = tmp_path / "user"
    folder = cache_of(home, [])
    before = (folder / "cache-2.db").stat().st_mtime_ns
    assert locator(home=home).find([URL]) == [None]
    assert [path.name for path in folder.iterdir()] == ["cache-2.db"]
    assert (folder / "cache-2.db").stat().st_mtime_ns == before


def test_damaged_cache_is_said(locator, tmp_path):
    home = tmp_path / "user"
    folder = cache_of(home, [])
    (folder / "cache-2.db").write_bytes(b"SQLite format 3\0" + bytes(100))
    with pytest.raises(StorageError, match=r"cache-2.db: cannot be read .* --data-dir"):
        locator(home=home).find([URL])


@pytest.mark.parametrize("quote", ["", "'", '"'])
def test_cache_folder_from_the_settings(tmp_path, monkeypatch, quote):
    monkeypatch.setenv("HOME", str(tmp_path))
    put(tmp_path / ".climetlab/settings.yaml", f"a: 1\ncache-directory: {quote}/x/y{quote}\nb: 2\n")
    assert str(cache_folder()) == "/x/y"


def test_default_cache_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("getpass.getuser", lambda: "jo")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "temporary" / "climetlab-jo"


def test_stand_in_only_when_asked_for(locator, tmp_path):
    path = put(tmp_path / "root/url/https/storage.example.eu/BUCKET/sub/output.sfc.20180101")
    found = locator(stand_in=tmp_path / "root")
    assert found.stand_in
    assert found.find([URL]) == [path]
    assert not locator().stand_in
    assert locator().find([URL]) == [None]
    assert str(tmp_path / "root") in found.searched()


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("gone"), put])
def test_what_is_no_readable_file_is_said(locator, tmp_path, monkeypatch, make):
    (tmp_path / "data").mkdir()
    make(tmp_path / "data" / "output.sfc.20180101")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may read everything
    with pytest.raises(StorageError, match="20180101: expected a file that may be read"):
        locator(data_dir=tmp_path / "data").find([URL])


@pytest.mark.parametrize(
    "inside",
    ["url/https/storage.example.eu/BUCKET/sub", "BUCKET/sub", "sub"],
)
def test_files_of_a_published_folder_are_those_at_hand_by_name(locator, tmp_path, inside):
    data = tmp_path / "data"
    for name in ("b.h5", "a.h5", ".c.h5", "notes.txt"):
        put(data / inside / name)
    found = locator(data_dir=data).list_folder("https://storage.example.eu/BUCKET/sub", ".h5")
    assert found == [data / inside / "a.h5", data / inside / "b.h5"]
    assert locator().list_folder("https://storage.example.eu/BUCKET/sub", ".h5") == []
