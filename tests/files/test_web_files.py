"""Files of web servers: samples as of the same files here, and what goes wrong in one line."""

import multiprocessing
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import iobench
from iobench.errors import (
    IobenchError,
    MissingExtraError,
    MissingFileError,
    OptionError,
    StorageError,
)
from iobench.files import objects
from tests.support.http_files import serve

pytest.importorskip("obstore", reason="asks web servers")
pytest.importorskip("xarray", reason="finds the samples of GRIB files")

GRIB = Path(__file__).parents[1] / "data/era5/era5-levels-members.grib"
SECRET = "Zq7Wv9hidden"


@pytest.fixture
def start_server():
    with ExitStack() as stack:
        yield lambda manner="", other="": stack.enter_context(
            serve(GRIB.parent, whole=GRIB, manner=manner, other=other)
        )


@pytest.fixture
def open_grib(tmp_path):
    def opened(target):
        return iobench.open_dataset(str(target), sample_dim="time", store_dir=tmp_path)

    return opened


def check_samples(found, expected):
    assert len(found) == len(expected) > 0
    for number in (0, len(expected) - 1):
        for variable, values in expected[number].items():
            np.testing.assert_array_equal(found[number][variable], values, strict=True)


@pytest.mark.parametrize("manner", ["", "no HEAD", "signed for GET"])
@pytest.mark.parametrize(
    "path",
    [
        "x.grib",
        "a//b/x.grib",
        "a%2Fb/x%20y+%23.grib",
        "stra%C3%9Fe/x.grib",
        "stra%DFe/x.grib",
        "api/x/content/",
    ],
)
def test_samples_are_those_of_the_file(start_server, open_grib, manner, path):
    server = start_server(manner)
    check_samples(open_grib(f"http://{server.at}/{path}?token={SECRET}"), open_grib(GRIB))
    assert {asked for asked, _ in server.requests} == {f"/{path}?token={SECRET}"}


def test_a_password_is_not_sent_where_a_redirect_leads(start_server, open_grib):
    other = start_server()
    first = start_server("elsewhere", f"http://{other.at}")
    check_samples(open_grib(f"http://me:{SECRET}%40@{first.at}/x.grib"), open_grib(GRIB))
    assert {words for _, words in first.requests} == {"Basic bWU6WnE3V3Y5aGlkZGVuQA=="}
    assert {words for _, words in other.requests} == {None}


@pytest.mark.parametrize(
    ("manner", "error", "said"),
    [
        ("401", StorageError, "not permitted (401 Unauthorized)"),
        ("403", StorageError, "not permitted (403 Forbidden)"),
        ("404", MissingFileError, "no such file"),
        ("410", StorageError, "410 Gone"),
        ("500", StorageError, "500 Internal Server Error"),
        ("cut short", StorageError, "the answer ends early; try again"),
        ("only whole", StorageError, "hands out files only whole; copy the file here first"),
        ("silence", StorageError, "no answer in time"),
        ("elsewhere", StorageError, "error following redirect"),
    ],
)
def test_what_a_server_refuses_is_said_in_one_line(
    start_server, open_grib, monkeypatch, manner, error, said
):
    monkeypatch.setattr(objects, "READ_TIMEOUT", "200ms")
    server = start_server(manner)
    with pytest.raises(error) as caught:
        open_grib(f"http://me:{SECRET}@{server.at}/dir/x.grib?sig={SECRET}")
    text = str(caught.value)
    assert f"{server.at}/dir/x.grib" in text
    assert said in text
    assert SECRET not in text
    assert "\n" not in text


def test_a_server_that_goes_meanwhile(start_server, open_grib):
    server = start_server()
    opened = open_grib(f"http://{server.at}/x.grib?sig={SECRET}")
    server.manner = "403"
    with pytest.raises(IobenchError, match=r"x\.grib.*: not permitted") as caught:
        opened[0]
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "error", "said"),
    [
        (f"http://127.0.0.1:9/x.grib?sig={SECRET}", StorageError, "Connection refused"),
        (f"http://me:a/{SECRET}@127.0.0.1/x.grib", OptionError, "write / in a user or password"),
        (f"http://127.0.0.1:9/*.grib?sig={SECRET}", OptionError, "a web server lists no files"),
        (f"zip://x::http://h/x.zip?sig={SECRET}", OptionError, "copy the file here first"),
    ],
)
def test_what_cannot_be_asked_is_said_in_one_line(open_grib, url, error, said):
    with pytest.raises(error) as caught:
        open_grib(url)
    assert said in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_children_ask_what_their_parent_asks(start_server, open_grib):
    server = start_server()
    opened = open_grib(f"http://{server.at}/x.grib")
    expected = opened[0]
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()

    def read(generations):
        found = opened[0]
        answers.put(all(np.array_equal(found[name], expected[name]) for name in expected))
        if generations:
            fork(generations - 1)

    def fork(generations):
        child = context.Process(target=read, args=(generations,))
        child.start()
        child.join(20)
        child.kill()

    fork(1)
    assert [answers.get() for _ in range(2)] == [True, True]


def test_what_asks_web_servers_is_named_where_it_is_missing(open_grib, monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(MissingExtraError, match="pip install 'obstore>="):
        open_grib("http://127.0.0.1:9/never-asked-before.grib?once")
