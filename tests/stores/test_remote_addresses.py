"""Places that are addresses: what they answer, on fsspec's file system in memory."""

from __future__ import annotations

import json
import os
import pickle
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from iobench.errors import MissingExtraError, OptionError, StorageError, StoreClaimedError
from iobench.files import claims as claims_module
from iobench.files.atomic import is_local, new_file
from iobench.files.claims import CLAIM_NAME, claim, find_holder, try_claim
from iobench.files.filesystems import open_filesystem, remote_errors, without_secrets
from iobench.files.objects import Objects
from iobench.files.scratch import clear_scratch, open_scratch
from iobench.files.urls import URL, as_path, is_url
from iobench.samples import SampleSpec, Variable
from iobench.stores.finished_store import open_store
from iobench.stores.places import make_item
from iobench.stores.plan import StoreRequest
from iobench.testing import MadeUpDataset
from iobench_converters import numpy_records, tfrecord
from iobench_converters.convert import convert

pytest.importorskip("fsspec", reason="fsspec opens addresses")

SPEC = SampleSpec((Variable("x", (300, 50), "f4", ("y", "x"), "K"), Variable("t", (), "i4", ())))


@pytest.fixture
def place():
    filesystem, _ = open_filesystem(URL("memory://bucket"))
    filesystem.store.clear()
    filesystem.pseudo_dirs[:] = [""]
    return as_path("memory://bucket/store")


def test_addresses_are_told_from_paths():
    assert [is_url(text) for text in ("s3://b/k", "gs://b", "simplecache::s3://b/k")] == [True] * 3
    assert not any(is_url(text) for text in ("/a/b", "a:b", "C:/x", "s3:/b", "", Path("s3://b")))
    assert as_path("data/out") == Path("data/out")
    assert as_path("file:///data/out") == Path("/data/out")
    assert not is_local(as_path("s3://bucket/out/"))
    assert str(as_path("s3://bucket/out/")) == "s3://bucket/out"


def test_an_address_is_no_path_to_the_system(place):
    with pytest.raises(TypeError):
        os.fspath(place)
    with pytest.raises(TypeError):
        os.listdir(place)  # noqa: PTH208


def test_an_address_has_the_face_of_a_path(place):
    below = place / "t2m" / "c.0.0"
    assert (below.name, below.parent.name, str(below.parent.parent)) == (
        "c.0.0",
        "t2m",
        str(place),
    )
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
    assert place.below() == ["t2m/c.0.0"]
    below.unlink()
    below.unlink(missing_ok=True)
    assert not place.exists()


def test_what_was_listed_is_not_asked_for_again(place, monkeypatch):
    (place / "a").write_bytes(b"abc")
    listed = place.with_listing()
    monkeypatch.setattr(Objects, "stat", None)
    assert (listed / "a").stat().st_size == 3
    assert not (listed / "b").exists()


@given(st.integers(1, 100), st.lists(st.tuples(st.integers(0, 200_000), st.integers(1, 5000))))
@example(86, [(0, 1), (60537, 5000)])
def test_a_reader_reads_as_a_file_does(seed, reads):
    data = bytes(range(256)) * (3 * seed)
    place = as_path("memory://bucket/reader")
    place.write_bytes(data)
    with place.open("rb") as stream:
        for offset, count in reads:
            stream.seek(offset)
            assert stream.read(count) == data[offset : offset + count]
        stream.seek(0)
        assert stream.read() == data


def test_a_reader_asks_for_a_header_only(place, monkeypatch):
    place.write_bytes(bytes(1 << 22))
    asked = []
    ranges = Objects.ranges

    def seen(self, paths, starts, ends, **more):
        asked.append((starts[0], ends[0]))
        return ranges(self, paths, starts, ends, **more)

    monkeypatch.setattr(Objects, "ranges", seen)
    with place.open("rb") as stream:
        stream.read(10)
        stream.read(100)
        assert asked == [(0, 1 << 16)]
        while stream.read(1 << 20):
            pass
    assert len(asked) < 8


@pytest.mark.parametrize("n_bytes", [0, 100, 9 << 20])
def test_a_file_appears_with_its_completion(place, n_bytes):
    room, target = place / "iobench.journal/shard-0/token", place / "x" / "data"
    open_scratch(room, place)
    file = new_file(room / "x" / "data")
    file.write(bytes(n_bytes))
    file.commit()
    assert not target.exists()
    (room / "x" / "data").replace(target)
    assert target.stat().st_size == n_bytes
    clear_scratch(room, place)
    assert place.below() == ["x/data"]


def test_a_room_that_is_cleared_leaves_nothing(place):
    room = place / "iobench.journal/shard-0/token"
    open_scratch(room, place)
    for name, n_bytes in (("a", 10), ("b", 9 << 20)):
        file = new_file(room / name)
        file.write(bytes(n_bytes))
        file.commit()
    clear_scratch(room, place)
    assert place.below() == []
    with pytest.raises(FileNotFoundError):
        (room / "a").replace(place / "a")


def test_what_was_sent_cannot_be_rewritten_where_there_are_no_parts(place):
    file = new_file(place / "a")
    file.write(bytes(9 << 20))
    with pytest.raises(StorageError, match="cannot be rewritten there"):
        file.rewind()
    file.abort()
    assert place.below() == []


def test_a_claim_is_held_renewed_and_taken_over(place, monkeypatch):
    lines = []
    with claim(place, notice=lines.append) as held:
        assert find_holder(place) == held.holder
        assert try_claim(place) is None
        written = held.file.read_bytes()
        monkeypatch.setattr(claims_module, "STALE_S", -1.0)
        other = try_claim(place)
        assert other is not None
        assert other.file.name == f"{CLAIM_NAME}.1"
        other.check()
        with pytest.raises(StoreClaimedError, match="took over"):
            held.check()
        # A heartbeat that brings the old one back does not bring the claim back.
        held.file.write_bytes(written)
        with pytest.raises(StoreClaimedError):
            held.check()
        other.release()
    assert any("no conditional writes" in line for line in lines)


def test_a_claim_of_a_process_that_ended_is_free(place):
    held = try_claim(place)
    gone = replace(held.holder, process_started="long ago", token="gone")
    held.release()
    (place / CLAIM_NAME).write_bytes(json.dumps(msgspec.structs.asdict(gone)).encode())
    with claim(place, wait_s=0) as again:
        again.check()


def test_a_folder_of_others_is_refused(place):
    (place / "precious.nc").write_bytes(b"x")
    with pytest.raises(StorageError, match=r"precious\.nc, which iobench did not make"):
        make_item(place, kind="store", title="x")


@pytest.mark.parametrize("fmt", [tfrecord.FORMAT, numpy_records.FORMAT], ids=["tfrecord", "numpy"])
def test_any_file_system_of_fsspec_takes_a_store(place, fmt, tmp_path):
    dataset = MadeUpDataset(SPEC)
    for path in (place, tmp_path / "store"):
        more = {"shard_nbytes": 3 * SPEC.nbytes, "together": True}
        store = convert(StoreRequest(dataset, dataset.index(7), fmt, path, **more))
    assert isinstance(open_store("memory://bucket/store").path, URL)
    names = [file.relative_to(store.path).as_posix() for file in store.path.rglob("*")]
    assert sorted(names) == place.below()
    assert all((place / name).read_bytes() == (store.path / name).read_bytes() for name in names)


def test_what_cannot_be_opened_is_one_line():
    with pytest.raises(OptionError, match="Protocol not known: nowhere"):
        open_filesystem(URL("nowhere://bucket/x"))
    with pytest.raises(MissingExtraError, match=r"gcsfs|not installed"):
        open_filesystem(URL("oci://bucket/x"))


def test_fsspec_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(MissingExtraError, match=r"s3://b/x needs .*pip install 'iobench\[cloud\]'"):
        open_filesystem(URL("s3://b/x"))


def test_errors_hold_no_secrets(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret-key")
    monkeypatch.setenv("FSSPEC_S3_KEY", "also-a-secret")
    text = "http://me:word@host/b?X-Amz-Signature=abc very-secret-key also-a-secret"
    assert without_secrets(text) == "http://host/b $AWS_SECRET_ACCESS_KEY $FSSPEC_S3_KEY"
    with pytest.raises(StorageError) as caught, remote_errors(URL("https://me:word@host/x?sig=1")):
        raise OSError(5, "no answer from http://me:word@host with very-secret-key")
    assert "word" not in str(caught.value)
    assert "very-secret-key" not in str(caught.value)
