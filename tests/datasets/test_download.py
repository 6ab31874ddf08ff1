"""``--download`` through a real plugin, from a server on this machine; and all that can go wrong.

The plugin's process finds a ``sitecustomize`` that sends requests for the published host to the
server of the test, so that CliMetLab's cache keeps the published URLs.
"""

import contextlib
import http.server
import socket
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from iobench.datasets import climetlab_files
from iobench.datasets.climetlab_files import (
    Downloads,
    PluginCall,
    download_missing,
    download_through_plugin,
)
from iobench.datasets.locate import FileLocator
from iobench.errors import MissingExtraError, MissingFileError, StorageError
from iobench_maelstrom.yr.dataset import Yr

pytest.importorskip(
    "climetlab_maelstrom_yr.yr", reason="the real plugin climetlab-maelstrom-yr is not installed"
)

ONE_FILE = {"size": "5GB", "dates": ["2020-03-01"]}
PUBLISHED = "https://object-store.os-api.cci1.ecmwf.int"
REWRITE = """
import requests
ask = requests.sessions.Session.request
def redirected(self, method, url, **more):
    return ask(self, method, url.replace({published!r}, {local!r}), **more)
requests.sessions.Session.request = redirected
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """CliMetLab's cache in a folder of the test, by its settings."""
    folder = tmp_path / "climetlab-cache"
    settings = tmp_path / "home" / ".climetlab" / "settings.yaml"
    settings.parent.mkdir(parents=True)
    # CliMetLab deletes what it has fetched where the disk is fuller than that.
    settings.write_text(f"cache-directory: {folder}\nmaximum-cache-disk-usage: 100\n")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return folder


@pytest.fixture
def send_requests_to(tmp_path, monkeypatch):
    def redirect(local):
        folder = tmp_path / "site"
        folder.mkdir()
        text = REWRITE.format(published=PUBLISHED, local=local)
        (folder / "sitecustomize.py").write_text(text)
        monkeypatch.setenv("PYTHONPATH", str(folder))
        monkeypatch.setenv("NO_PROXY", "*")

    return redirect


@pytest.fixture
def serve(send_requests_to):
    """Serve the files of a mirror's object store from this machine."""
    with contextlib.ExitStack() as stack:

        def start(root):
            folder = root / "url" / "https" / urlsplit(PUBLISHED).netloc
            asked = []

            class Handler(http.server.SimpleHTTPRequestHandler):
                def __init__(self, *arguments):
                    super().__init__(*arguments, directory=str(folder))

                def log_message(self, *_):
                    asked.append(f"{self.command} {self.path}")

            server = stack.enter_context(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler))
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            send_requests_to(f"http://127.0.0.1:{server.server_port}")
            return asked

        yield start


@pytest.fixture(scope="module")
def yr_root(tiny_root):
    return tiny_root(Yr(size="5GB"))


def dates_of(root):
    return sorted(path.name[:8] for path in root.rglob("*.nc"))


def new_locator(tmp_path):
    return FileLocator(cache_dir=tmp_path / "indexes")


@pytest.mark.long
def test_files_land_in_the_cache_under_their_urls(serve, cache, yr_root, tmp_path, capfd):
    asked = serve(yr_root)
    dataset = Yr(size="5GB", dates=",".join(dates_of(yr_root)[:2]))
    downloads = dataset.downloads()
    told = []
    count = download_missing(
        downloads,
        new_locator(tmp_path),
        timeout_s=100,
        progress=lambda done, total: told.append((done, total)),
    )
    assert count == 2
    assert {total for _, total in told} == {2}
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    files = dataset.files(new_locator(tmp_path))
    assert all(file.is_relative_to(cache) for file in files)
    for url, file in zip(downloads.calls[0].urls, files, strict=True):
        published = next(yr_root.rglob(Path(urlsplit(url).path).name))
        assert file.read_bytes() == published.read_bytes()
    assert capfd.readouterr() == ("", "")
    # What is there is not fetched again, nor is the plugin started.
    del asked[:]
    assert download_missing(downloads, new_locator(tmp_path), timeout_s=100) == 0
    assert asked == []


@pytest.mark.long
def test_a_file_that_is_not_published_is_named(serve, cache, yr_root):
    serve(yr_root)
    url = Yr(size="5GB", dates="2022-02-28").downloads().calls[0].urls[0]
    arguments = {"size": "5GB", "dates": ["2022-02-28"]}
    call = PluginCall("maelstrom-yr", arguments, to_xarray=True)
    with pytest.raises(MissingFileError, match=r"404.*no such file: choose others") as caught:
        download_through_plugin(call, timeout_s=100)
    assert urlsplit(url).path in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.long
def test_a_host_that_cannot_be_reached_is_an_error_at_once(send_requests_to, cache):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and does not listen: connections are refused
        send_requests_to(f"http://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(MissingFileError, match=r"Connection ?Error.*--data-dir"):
            download_through_plugin(PluginCall("maelstrom-yr", ONE_FILE), timeout_s=100)


@pytest.mark.long
def test_a_plugin_that_is_late_or_not_installed_is_named(send_requests_to, cache, monkeypatch):
    with pytest.raises(StorageError, match=r"not finished after 0.1 s.*continues") as late:
        download_through_plugin(PluginCall("maelstrom-yr", ONE_FILE), timeout_s=0.1)
    assert late.value.exit_code == 75  # the same command goes on
    send_requests_to("http://127.0.0.1:1")
    call = PluginCall("no-such-dataset", {}, package="that-one")
    with pytest.raises(MissingExtraError, match=r"&& pip install --no-deps that-one \(NameError"):
        download_through_plugin(call, timeout_s=100)
    monkeypatch.setattr(climetlab_files.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="pip install 'climetlab"):
        download_through_plugin(PluginCall("maelstrom-yr", {}), timeout_s=1)


def test_plugins_are_asked_for_what_is_missing_or_not_known(cache, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(
        climetlab_files, "download_through_plugin", lambda call, **_: calls.append(call)
    )
    needed = PluginCall("some", {}, ("https://example.org/a",))
    for downloads, said in (
        (Downloads((needed,), ("https://example.org/b",)), r"example\.org/b: cannot be downloaded"),
        (Downloads((needed,)), r"without fetching https://example\.org/a"),
    ):
        with pytest.raises(MissingFileError, match=said):
            download_missing(downloads, new_locator(tmp_path), timeout_s=1)
    assert calls == [needed]
    downloads = Downloads((PluginCall("some", {"a": 1}, to_xarray=True),))
    assert download_missing(downloads, new_locator(tmp_path), timeout_s=1) == 0
    assert calls[1:] == list(downloads.calls)
