"""Published files: found in a folder, CliMetLab's mirror and cache, else a stand-in is made."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import socket
import sqlite3
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from iobench.datasets import climetlab_files, locate
from iobench.datasets.climetlab_files import (
    PluginCall,
    cache_folder,
    cached_files,
    download_through_plugin,
)
from iobench.datasets.locate import FileLocator, download_missing, ensure_stand_in, locate_files
from iobench.errors import MissingExtraError, MissingFileError, OptionError, StorageError
from iobench_maelstrom.yr.dataset import Yr
from tests.support.http_files import serve

BUCKET = "https://storage.example.eu/BUCKET"
URL = f"{BUCKET}/sub/output.sfc.20180101"
IN_MIRROR = "url/https/storage.example.eu/BUCKET/sub/output.sfc.20180101"


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


@pytest.fixture(autouse=True)
def nothing_of_this_machine(tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def locator(tmp_path, monkeypatch):
    def make(*, mirror=None, home=None, **places):
        if mirror:
            monkeypatch.setenv("CLIMETLAB_MIRROR", str(mirror))
        if home:
            monkeypatch.setenv("HOME", str(home))
        return FileLocator(cache_dir=tmp_path, **places)

    return make


# ---- files at hand


def test_data_dir_in_any_layout_and_nothing_else_is_searched(locator, tmp_path):
    for above in (0, 3, 4, 5):  # what of the mirror's layout is left out
        folder = tmp_path / f"data{above}"
        path = put(folder.joinpath(*Path(IN_MIRROR).parts[above:]))
        assert locator(data_dir=folder).find([URL]) == [path]
    put(tmp_path / "mirror" / IN_MIRROR)
    (tmp_path / "empty").mkdir()
    found = locator(data_dir=tmp_path / "empty", mirror=tmp_path / "mirror")
    assert found.find([URL]) == [None]
    assert "--data-dir" in found.searched()
    assert "CLIMETLAB" not in found.searched()


def test_mirror_comes_before_the_cache_which_finds_by_url_and_is_not_written(locator, tmp_path):
    home = tmp_path / "user"
    whole, part = put(home / "url-1"), put(home / "url-2")
    entries = [
        (whole, {"url": URL, "parts": None}),
        (part, {"url": URL + "2", "parts": [[0, 10]]}),
        (home / "gone", {"url": URL + "3", "parts": None}),
    ]
    folder = cache_of(home, entries)
    before = (folder / "cache-2.db").stat().st_mtime_ns
    assert cached_files(folder) == {URL: whole, URL + "3": home / "gone"}
    found = locator(home=home)
    assert found.find([URL, URL + "2", URL + "3"]) == [whole, None, None]
    assert found.n_found == 1
    assert [path.name for path in folder.iterdir()] == ["cache-2.db"]
    assert (folder / "cache-2.db").stat().st_mtime_ns == before
    mirrored = put(tmp_path / "mirror" / IN_MIRROR)
    assert locator(home=home, mirror=tmp_path / "mirror").find([URL]) == [mirrored]
    (folder / "cache-2.db").write_bytes(b"SQLite format 3\0" + bytes(100))
    with pytest.raises(StorageError, match=r"cache-2.db: cannot be read .* --data-dir"):
        locator(home=home).find([URL + "2"])


def test_cache_folder_from_the_settings(tmp_path, monkeypatch):
    monkeypatch.setattr("getpass.getuser", lambda: "jo")
    assert cache_folder() == tmp_path / "temporary" / "climetlab-jo"
    for quote in ("", "'", '"'):
        text = f"a: 1\ncache-directory: {quote}/x/y{quote}\nb: 2\n"
        put(tmp_path / "home/.climetlab/settings.yaml", text)
        assert str(cache_folder()) == "/x/y"


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("gone"), put])
def test_what_is_no_readable_file_is_said(locator, tmp_path, monkeypatch, make):
    (tmp_path / "data").mkdir()
    make(tmp_path / "data" / "output.sfc.20180101")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may read everything
    with pytest.raises(StorageError, match="20180101: expected a file that may be read"):
        locator(data_dir=tmp_path / "data").find([URL])


@pytest.mark.parametrize("inside", [str(Path(IN_MIRROR).parent), "BUCKET/sub", "sub"])
def test_files_of_a_published_folder_are_those_at_hand_by_name(locator, tmp_path, inside):
    data = tmp_path / "data"
    for name in ("b.h5", "a.h5", ".c.h5", "notes.txt"):
        put(data / inside / name)
    found = locator(data_dir=data).list_folder(f"{BUCKET}/sub", ".h5")
    assert found == [data / inside / "a.h5", data / inside / "b.h5"]
    assert locator().list_folder(f"{BUCKET}/sub", ".h5") == []


# ---- stand-ins


def refuse(path):
    path.write_text("half")
    raise OSError(28, "No space left on device")


def write_text(text, path):
    path.write_text(text)


WHOLE = [functools.partial(write_text, text) for text in ("aa", "bbb")]
BELOW = "url/https/storage.example.eu/BUCKET"


class Letters:
    """A dataset of two small files."""

    name = "letters"
    synthesis_version = 1

    def __init__(self, writes=WHOLE):
        self.writes = writes

    def files(self, locator):
        found = locator.find([f"{BUCKET}/{number}" for number in (0, 1)])
        if None in found:
            raise MissingFileError(f"not in {locator.searched()}")
        return found

    def stand_in_files(self, *, scale, tiny, seed):
        return {f"{BELOW}/{n}": write for n, write in enumerate(self.writes)}


@pytest.fixture
def root(tmp_path):
    return tmp_path / "root"


def texts(root):
    return [(root / BELOW / str(number)).read_text() for number in (0, 1)]


def interrupted(root):
    def progress(done, total):
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_stand_in(Letters(), root, tiny=True, progress=progress)
    assert json.loads((root / "stand-in.json").read_text())["is_whole"] is False


def test_a_finished_stand_in_has_a_manifest_and_is_reused(root):
    letters = Letters()
    assert ensure_stand_in(letters, root, seed=3, tiny=True) == root
    manifest = json.loads((root / "stand-in.json").read_text())
    assert (manifest["seed"], manifest["tiny"], manifest["scale"]) == (3, True, None)
    assert manifest["is_whole"]
    ensure_stand_in(letters, root, seed=3, tiny=True)
    assert texts(root) == ["aa", "bbb"]
    (root / BELOW / "1").unlink()  # what vanished is written again
    ensure_stand_in(letters, root, seed=3, tiny=True)
    assert texts(root) == ["aa", "bbb"]


def test_an_interrupted_stand_in_is_gone_on_with(root, tmp_path):
    interrupted(root)
    with pytest.raises(StorageError, match="unfinished stand-in"):
        Letters().files(FileLocator(data_dir=root, cache_dir=tmp_path))
    kept = root / BELOW / "0"
    written = kept.stat().st_mtime_ns
    ensure_stand_in(Letters(), root, tiny=True)
    assert texts(root) == ["aa", "bbb"]
    assert kept.stat().st_mtime_ns == written
    locator = FileLocator(data_dir=root, cache_dir=tmp_path)
    assert not locator.stand_in
    Letters().files(locator)
    assert (locator.stand_in, locator.tiny) == (True, True)


def test_what_is_not_its_own_is_left_alone(root):
    make = functools.partial(ensure_stand_in, Letters(), root, tiny=True)
    make()
    with pytest.raises(StorageError, match="another stand-in"):
        make(seed=1)
    own = put(root / BELOW / "1", "my real data")
    make()
    assert own.read_text() == "my real data"
    (root / "stand-in.json").write_text("{}")
    with pytest.raises(StorageError, match="not iobench's list"):
        make()
    other = put(root.parent / "other" / "0", "mine").parent
    with pytest.raises(StorageError, match="did not make"):
        ensure_stand_in(Letters(), other)
    assert [path.name for path in other.iterdir()] == ["0"]


def test_a_full_disk_leaves_it_resumable(root):
    with pytest.raises(StorageError, match=r"full.*same command continues"):
        ensure_stand_in(Letters([WHOLE[0], refuse]), root, tiny=True)
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


def located(tmp_path, dataset=None, **options):
    dataset = dataset or Letters()
    return locate_files(dataset, store_root=tmp_path, cache_dir=tmp_path / "cache", **options)


def test_real_files_come_first_and_are_never_mixed_with_a_stand_in(tmp_path, monkeypatch):
    bucket = tmp_path / "mirror" / BELOW
    put(bucket / "0", "real")
    monkeypatch.setenv("CLIMETLAB_MIRROR", str(tmp_path / "mirror"))
    with pytest.raises(MissingFileError):
        located(tmp_path)
    assert not (tmp_path / "stand-ins").exists()
    put(bucket / "1", "real")
    files, locator = located(tmp_path)
    assert (locator.stand_in, files) == (False, [bucket / "0", bucket / "1"])
    assert located(tmp_path, tiny=True)[1].stand_in
    with pytest.raises(MissingFileError, match="--data-dir"):
        located(tmp_path, data_dir=tmp_path / "cache")
    with pytest.raises(OptionError, match="give one of them"):
        located(tmp_path, data_dir=tmp_path, tiny=True)


@pytest.mark.long
def test_without_real_files_a_stand_in_is_made_where_there_is_one(tmp_path):
    files, locator = located(tmp_path)
    assert locator.stand_in
    assert [file.read_text() for file in files] == ["aa", "bbb"]

    class Plain:
        name = "plain"
        files = Letters.files

    with pytest.raises(MissingFileError):
        located(tmp_path, Plain())
    with pytest.raises(OptionError, match="no stand-in"):
        located(tmp_path, Plain(), tiny=True)


# ---- downloads through a real plugin, from a server on this machine

PUBLISHED = "https://object-store.os-api.cci1.ecmwf.int"
ONE_FILE = {"size": "5GB", "dates": ["2020-03-01"]}
REWRITE = """
import requests
ask = requests.sessions.Session.request
def redirected(self, method, url, **more):
    return ask(self, method, url.replace({published!r}, {local!r}), **more)
requests.sessions.Session.request = redirected
"""


@pytest.fixture
def cache(tmp_path):
    """CliMetLab's cache in a folder of the test, by its settings."""
    if importlib.util.find_spec("climetlab_maelstrom_yr") is None:
        pytest.skip("the real plugin climetlab-maelstrom-yr is not installed")
    folder = tmp_path / "climetlab-cache"
    # CliMetLab deletes what it has fetched where the disk is fuller than that.
    settings = f"cache-directory: {folder}\nmaximum-cache-disk-usage: 100\n"
    put(tmp_path / "home" / ".climetlab" / "settings.yaml", settings)
    return folder


@pytest.fixture
def send_requests_to(tmp_path, monkeypatch):
    """Send those of the plugin's process elsewhere: its cache keeps the published URLs."""

    def redirect(local):
        put(tmp_path / "site/sitecustomize.py", REWRITE.format(published=PUBLISHED, local=local))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
        monkeypatch.setenv("NO_PROXY", "*")

    return redirect


@pytest.fixture
def server(send_requests_to, tiny_root):
    """Serve the files of a mirror's object store from this machine."""
    root = tiny_root(Yr(size="5GB"))
    with serve(root / "url" / "https" / urlsplit(PUBLISHED).netloc) as served:
        send_requests_to(f"http://{served.at}")
        yield served


@pytest.mark.long
def test_files_land_in_the_cache_under_their_urls(server, cache, locator, capfd):
    dates = sorted(path.name[:8] for path in server.folder.rglob("*.nc"))
    dataset = Yr(size="5GB", dates=",".join(dates[:2]))
    downloads, told = dataset.downloads(), []

    def note(done, total):
        told.append((done, total))

    assert download_missing(downloads, locator(), progress=note) == 2
    assert {total for _, total in told} == {2}
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    files = dataset.files(locator())
    assert all(file.is_relative_to(cache) for file in files)
    for url, file in zip(downloads[0].urls, files, strict=True):
        published = next(server.folder.rglob(Path(urlsplit(url).path).name))
        assert file.read_bytes() == published.read_bytes()
    assert capfd.readouterr() == ("", "")
    # What is there is not fetched again, nor is the plugin started.
    server.requests.clear()
    assert download_missing(downloads, locator()) == 0
    assert server.requests == []


@pytest.mark.long
def test_a_file_that_is_not_published_is_named(server, cache):
    url = Yr(size="5GB", dates="2022-02-28").downloads()[0].urls[0]
    call = PluginCall("maelstrom-yr", {"size": "5GB", "dates": ["2022-02-28"]})
    with pytest.raises(MissingFileError, match=r"404.*choose files that are published") as caught:
        download_through_plugin(call)
    assert urlsplit(url).path in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.long
def test_a_host_that_cannot_be_reached_is_an_error_at_once(send_requests_to, cache):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and does not listen: connections are refused
        send_requests_to(f"http://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(MissingFileError, match=r"Connection ?Error.*--data-dir"):
            download_through_plugin(PluginCall("maelstrom-yr", ONE_FILE))


@pytest.mark.long
def test_a_plugin_that_is_not_installed_is_named(send_requests_to, cache, monkeypatch):
    send_requests_to("http://127.0.0.1:1")
    call = PluginCall("no-such-dataset", {}, package="that-one")
    with pytest.raises(MissingExtraError, match=r"&& pip install --no-deps that-one \(Cannot find"):
        download_through_plugin(call)
    monkeypatch.setattr(climetlab_files.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="pip install 'climetlab"):
        download_through_plugin(PluginCall("maelstrom-yr", {}))


def test_plugins_are_asked_for_what_is_missing(cache, locator, monkeypatch):
    calls = []
    monkeypatch.setattr(locate, "download_through_plugin", lambda call, **_: calls.append(call))
    needed = PluginCall("some", {}, ("https://example.org/a",))
    with pytest.raises(MissingFileError, match=r"without fetching https://example\.org/a"):
        download_missing([needed], locator())
    assert calls == [needed]
