"""Files behind URLs, of servers on loopback: states, ranges, uploads, samples, errors."""

import multiprocessing
import os
import pickle
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import iobench
from iobench.errors import (
    FileFormatError,
    IobenchError,
    MissingExtraError,
    MissingFileError,
    OptionError,
    StorageError,
)
from iobench.files import objects
from iobench.files.atomic import is_local
from iobench.files.objects import create, fill_remote, find_below, forget_stores, update
from iobench.files.ranges import FileRange, read_extents
from iobench.files.urls import URL, as_path, is_url, new_file
from iobench.stores.shard_writer import ShardFileWriter
from tests.conftest import s3_client
from tests.support.asked_objects import counted_requests
from tests.support.http_files import serve

pytest.importorskip("obstore", reason="asks web servers")
pytest.importorskip("xarray", reason="finds the samples of GRIB files")

PART = 5 << 20
"""The least that S3 takes."""
MANY = 12 << 20


@pytest.fixture
def place(bucket, monkeypatch):
    monkeypatch.setattr(objects, "UPLOAD_NBYTES", PART)
    return as_path(f"s3://{bucket}/some folder/store")


def test_urls_are_told_from_paths():
    assert [is_url(text) for text in ("s3://b/k", "gs://b", "simplecache::s3://b/k")] == [True] * 3
    assert not any(is_url(text) for text in ("/a/b", "a:b", "C:/x", "s3:/b", "", Path("s3://b")))
    assert as_path("data/out") == Path("data/out")
    assert as_path("file:///data/out") == Path("/data/out")
    assert not is_local(as_path("s3://bucket/out/"))
    assert str(as_path("s3://bucket/out/")) == "s3://bucket/out"
    with pytest.raises(TypeError):
        os.fspath(as_path("s3://bucket/out"))


def test_a_url_has_the_face_of_a_path(place):
    below = place / "t2m" / "c.0.0"
    assert (below.name, below.parent.name, str(below.parent.parent)) == ("c.0.0", "t2m", str(place))
    assert below.relative_to(place).as_posix() == "t2m/c.0.0"
    assert below.is_relative_to(place)
    assert not place.is_relative_to(below)
    with pytest.raises(ValueError, match="is not below"):
        place.relative_to(below)
    assert pickle.loads(pickle.dumps(below)) == below
    assert len({below, place / "t2m/c.0.0"}) == 1
    assert not below.exists()
    with pytest.raises(FileNotFoundError):
        below.stat()
    below.write_bytes(b"0123456789")
    assert (below.is_file(), below.is_dir(), below.parent.is_dir()) == (True, False, True)
    assert below.stat().st_size == 10
    assert list(place.iterdir()) == [place / "t2m"]
    assert [*find_below(place)] == ["t2m/c.0.0"]
    listed = place.with_listing()
    with counted_requests() as asked:
        assert (listed / "t2m/c.0.0").stat().st_size == 10
        assert (listed / "t2m").is_dir()
        assert not (listed / "b").exists()
    assert not asked
    below.unlink()
    below.unlink(missing_ok=True)
    assert not place.exists()


def test_names_of_all_kinds(bucket):
    place = URL(f"s3://{bucket}")
    names = ["a b%20+#?.nc", "ü é/[x]*{a}", "sub/y", "sub-x", "d/e/f/g"]
    for name in names:
        (place / "dir" / name).write_bytes(name.encode())
    for marker in ("dir/", "dir/sub/"):  # as consoles make folders
        s3_client().put_object(Bucket=bucket, Key=marker, Body=b"")
    below = place / "dir"
    assert [*find_below(below)] == sorted(names)
    assert {each.name for each in below.iterdir()} == {name.partition("/")[0] for name in names}
    assert [(below / name).read_bytes().decode() for name in names] == names
    assert [each.name for each in below.glob("*-[xy]")] == ["sub-x"]
    assert [each.path for each in below.glob("sub*/*")] == [f"{bucket}/dir/sub/y"]
    assert {each.name for each in place.glob("dir/**/[fg]")} == {"g"}
    assert [each.name for each in place.glob("dir/d/e")] == ["e"]
    with pytest.raises(StorageError, match="empty path segment"):
        (place / "a//b").read_bytes()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 100), st.lists(st.tuples(st.integers(0, 200_000), st.integers(1, 5000))))
@example(86, [(0, 1), (60537, 5000)])
def test_a_reader_reads_as_a_file_does(place, seed, reads):
    data = bytes(range(256)) * (3 * seed)
    place.write_bytes(data)
    with place.open("rb") as stream:
        for offset, count in reads:
            stream.seek(offset)
            assert stream.read(count) == data[offset : offset + count]
        stream.seek(0)
        assert stream.read() == data


@pytest.mark.parametrize("nbytes", [0, 1000, PART, PART + 1, MANY])
@pytest.mark.parametrize("is_dropped", [False, True])
def test_a_file_appears_with_its_completion(place, begun_uploads, nbytes, is_dropped):
    data = (bytes(range(256)) * (nbytes // 256 + 1))[:nbytes]
    target = place / "a b" / "data"
    file = new_file(target)
    for start in range(0, nbytes, 3_000_000):
        file.write(memoryview(data)[start : start + 3_000_000])
    assert len(begun_uploads()) == (nbytes >= PART)
    assert not target.exists()
    if not is_dropped:
        file.commit()
        assert target.read_bytes() == data
    file.abort()
    assert target.exists() != is_dropped
    assert begun_uploads() == []


def test_the_first_bytes_of_an_object_are_not_rewritten(place):
    file = ShardFileWriter(place / "data")
    file.write(b"old header", bytes(1000))
    with pytest.raises(StorageError, match="cannot be rewritten"):
        file.rewrite_start(b"new HEADER")
    file.abort()
    assert not find_below(place)


def test_one_creates_an_object_and_who_knows_its_version_updates_it(place):
    first = create(place, b"mine")
    assert create(place, b"theirs") is None
    assert create(place, b"mine").etag == first.etag  # the answer to the first try was lost
    newer = update(place, b"more", first)
    assert update(place, b"late", first) is None
    assert place.read_bytes() == b"more"
    place.unlink()
    assert update(place, b"gone", newer) is None
    assert not find_below(place.parent)


def test_extents_are_read_at_once_and_in_order(place):
    (place / "a").write_bytes(bytes(range(200)))
    (place / "b").write_bytes(b"b" * 100)
    extents = [
        FileRange(place / "a", 10, 5),
        FileRange(place / "b", 0, 3),
        FileRange(place / "a", 0, 0),
        FileRange(place / "a", 199, 1),
    ]
    assert list(map(bytes, read_extents(extents))) == [bytes(range(10, 15)), b"bbb", b"", b"\xc7"]
    for extent, said in (
        (FileRange(place / "a", 190, 20), "/a: ends before offset 210"),
        (FileRange(place / "c", 0, 1), "/c: no such file any more"),
        (FileRange(place / "a", 300, 20), "/a: ends before offset 320"),
    ):
        with pytest.raises((FileFormatError, MissingFileError), match=said):
            read_extents([extent])


def test_long_ranges_are_divided_to_go_side_by_side(place):
    data = os.urandom((5 << 20) + 11)
    place.write_bytes(data)
    memory = bytearray(len(data))
    with counted_requests() as asked:
        fill_remote([(place, 3, memoryview(memory)[:-3])])
    assert bytes(memory[:-3]) == data[3:]
    assert asked["ranges"] == 6  # of no less than a MiB


def test_a_bucket_that_is_not_there_is_one_line(bucket):
    place = as_path(f"s3://{bucket}-not/x")
    large = new_file(place)
    for act in (
        place.with_listing,
        partial(place.write_bytes, b"x"),
        partial(create, place, b""),
        partial(large.write, bytes(40 << 20)),
    ):
        with pytest.raises(StorageError, match="there is no such bucket; make it"):
            act()


@pytest.mark.parametrize(
    ("url", "environment", "kind"),
    [
        ("gs://box/a/x.bin", {"GOOGLE_BEARER_TOKEN": "word"}, "GCSStore"),
        ("az://box/a/x.bin", {"AZURE_STORAGE_ACCOUNT_NAME": "me"}, "AzureStore"),
        ("abfss://box@me.dfs.core.windows.net/a/x.bin", {}, "AzureStore"),
        ("s3a://box/a/x.bin", {"AWS_SKIP_SIGNATURE": "true"}, "S3Store"),
    ],
)
def test_other_stores_are_asked_as_the_environment_says(monkeypatch, url, environment, kind):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    forget_stores()
    store, key = objects.store_of(URL(url))
    assert (type(store).__name__, key) == (kind, "a/x.bin")
    assert str(URL(url)) == url
    forget_stores()


# -- who asks, and what is said ----------------------------------------------------------------

PROFILE = "[lab]\naws_access_key_id = from-the-profile\naws_secret_access_key = secret-of-profile\n"


@pytest.mark.parametrize(
    ("environment", "asks"),
    [
        ({"AWS_ACCESS_KEY_ID": "variable", "AWS_SECRET_ACCESS_KEY": "s"}, "variable"),
        ({"AWS_PROFILE": "lab"}, "from-the-profile"),
        ({"AWS_SKIP_SIGNATURE": "true"}, ""),
    ],
)
def test_who_asks_is_found_in_the_environment(place, tmp_path, monkeypatch, environment, asks):
    place.write_bytes(b"x")
    bucket, _, key = place.path.partition("/")
    s3_client().put_object_acl(Bucket=bucket, Key=key, ACL="public-read")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    (tmp_path / "credentials").write_text(PROFILE)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    forget_stores()
    from moto.s3.responses import S3Response

    headers = []
    answer = S3Response.get_object

    def heard(self, *arguments):
        headers.append(self.headers.get("Authorization") or "")
        return answer(self, *arguments)

    monkeypatch.setattr(S3Response, "get_object", heard)
    assert place.read_bytes() == b"x"
    assert asks in headers[-1]
    assert bool(asks) == bool(headers[-1])


@pytest.mark.parametrize(
    ("environment", "missing", "said"),
    [
        ({}, "", r"no credentials found \(AWS_ACCESS_KEY_ID, AWS_PROFILE; AWS_SKIP_SIGNATURE=true"),
        ({"AWS_PROFILE": "none"}, "", "none"),
        ({"AWS_PROFILE": "lab"}, "obstore.auth.boto3", "need boto3: pip install boto3"),
    ],
)
def test_who_asks_without_credentials_is_told(place, monkeypatch, environment, missing, said):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name, value in {"AWS_EC2_METADATA_DISABLED": "true", **environment}.items():
        monkeypatch.setenv(name, value)
    if missing:
        monkeypatch.setitem(sys.modules, missing, None)
    forget_stores()
    with pytest.raises(StorageError, match=said) as caught:
        place.read_bytes()
    assert str(caught.value).startswith(str(place))


def test_errors_and_texts_hold_no_secrets(place, monkeypatch):
    secret = "very-secret-key"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    forget_stores()

    async def refused(*_, **__):
        raise OSError(5, f"no answer from http://me:word@host with {secret}")

    monkeypatch.setattr(objects, "_get", refused)
    with pytest.raises(StorageError) as caught:
        place.read_bytes()
    store, _ = objects.store_of(place)
    for text in (str(caught.value), repr(caught.value), repr(store), repr(store.config)):
        assert secret not in text
        assert "word@" not in text
    assert caught.value.__cause__ is None


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


@pytest.fixture(scope="module")
def check_samples(tmp_path_factory):
    """Hold samples against those of the file here."""
    place = tmp_path_factory.mktemp("here")
    here = iobench.open_dataset(str(GRIB), sample_dim="time", store_dir=place)
    expected = {number: here[number] for number in (0, len(here) - 1)}

    def check(found):
        assert len(found) == len(here) > 0
        for number, sample in expected.items():
            for variable, values in sample.items():
                np.testing.assert_array_equal(found[number][variable], values, strict=True)

    return check


@pytest.mark.quick_cases(4)
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
def test_samples_are_those_of_the_file(start_server, open_grib, check_samples, manner, path):
    server = start_server(manner)
    check_samples(open_grib(f"http://{server.at}/{path}?token={SECRET}"))
    assert {asked for asked, _ in server.requests} == {f"/{path}?token={SECRET}"}


def test_a_password_is_not_sent_where_a_redirect_leads(start_server, open_grib, check_samples):
    other = start_server()
    first = start_server("elsewhere", f"http://{other.at}")
    check_samples(open_grib(f"http://me:{SECRET}%40@{first.at}/x.grib"))
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
        ("hdfs://host/x.nc", OptionError, "mount its file system"),
        ("simplecache::s3://bucket/x.nc", OptionError, "simplecache::s3:// is not read"),
        (f"s3://key:{SECRET}@bucket/x", StorageError, "are read from the environment"),
        ("az://box/x", StorageError, "no account; name it as AZURE_STORAGE_ACCOUNT_NAME"),
    ],
)
def test_what_cannot_be_asked_is_said_in_one_line(open_grib, monkeypatch, url, error, said):
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
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
