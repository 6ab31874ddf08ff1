"""Objects of S3, against a server on loopback: conditions, uploads in parts, ranges."""

from __future__ import annotations

from functools import partial

import pytest

from iobench.errors import StorageError, StoreClaimedError, StoreError
from iobench.files import claims as claims_module
from iobench.files.atomic import new_file
from iobench.files.claims import claim, find_claim_files, renew_claim_file, time_ns_at, try_claim
from iobench.files.crc32c import crc32c
from iobench.files.objects import objects_at
from iobench.files.ranges import FileRange
from iobench.files.scratch import clear_scratch, open_scratch
from iobench.files.urls import as_path
from iobench.stores.extents import read_ranges
from iobench.stores.shard_writer import ShardFileWriter

MANY = 20 << 20


@pytest.fixture
def place(bucket):
    return as_path(f"s3://{bucket}/some folder/store")


@pytest.fixture
def uploads(place):
    """What was begun to be uploaded and neither completed nor dropped."""
    objects, path = objects_at(place)

    def list_them():
        answer = objects.fs.call_s3("list_multipart_uploads", Bucket=path.partition("/")[0])
        return [one["Key"] for one in answer.get("Uploads", ())]

    return list_them


def test_an_object_is_created_by_one_only(place):
    objects, path = objects_at(place)
    assert objects.is_exclusive(path)
    assert objects.create(path, b"mine")
    assert not objects.create(path, b"theirs")
    assert objects.create(path, b"mine")  # the answer to the first try was lost
    assert objects.read(path) == b"mine"
    assert place.below() == []  # the trial has gone


def test_a_store_without_conditions_is_told_from_one_with(place, monkeypatch):
    objects, path = objects_at(place)
    kept = type(objects)._put_new
    monkeypatch.setattr(objects, "_keeps_conditions", None)
    monkeypatch.setattr(
        type(objects), "_put_new", lambda self, path, data: self.put(path, data) or True
    )
    lines = []
    with claim(place, notice=lines.append):
        assert try_claim(place) is None
    assert any("let one process alone write it" in line for line in lines)
    monkeypatch.setattr(type(objects), "_put_new", kept)
    monkeypatch.setattr(objects, "_keeps_conditions", None)
    assert objects.is_exclusive(path)


def test_a_claim_that_was_taken_over_is_not_renewed(place, monkeypatch):
    with claim(place) as held:
        (found,) = find_claim_files(place)
        assert abs(time_ns_at(place) - found.beat_ns) < 30e9  # both are times of the server
        renew_claim_file(held.file)
        held.check()
        with monkeypatch.context() as patch:
            patch.setattr(claims_module, "STALE_S", -1.0)
            other = try_claim(place)
        with pytest.raises(FileNotFoundError):
            renew_claim_file(held.file)
        with pytest.raises(StoreClaimedError, match="took over"):
            held.check()
        other.check()
        other.release()


@pytest.mark.parametrize("nbytes", [0, 1000, 8 << 20, (8 << 20) + 1, MANY])
def test_an_upload_appears_with_its_completion(place, uploads, nbytes):
    data = (bytes(range(256)) * (nbytes // 256 + 1))[:nbytes]
    room, target = place / "iobench.journal/shard-0/token", place / "a b" / "data"
    open_scratch(room, place)
    file = new_file(room / "a b" / "data")
    for start in range(0, nbytes, 3_000_000):
        file.write(memoryview(data)[start : start + 3_000_000])
    file.commit()
    assert not target.exists()
    assert len(uploads()) == (nbytes > 8 << 20)
    (room / "a b" / "data").replace(target)
    assert target.read_bytes() == data
    clear_scratch(room, place)
    assert place.below() == ["a b/data"]
    assert uploads() == []


def test_the_first_bytes_are_rewritten_before_they_are_sent(place, uploads):
    file = ShardFileWriter(place / "data")
    file.write(b"old header", bytes(1000))
    file.rewrite_start(b"new HEADER")
    written = file.commit()
    data = (place / "data").read_bytes()
    assert data == b"new HEADER" + bytes(1000)
    assert (written.nbytes, written.crc32c) == (len(data), crc32c(data))
    large = ShardFileWriter(place / "large")
    large.write(bytes(MANY))
    with pytest.raises(StorageError, match="cannot be rewritten there"):
        large.rewrite_start(b"new HEADER")
    large.abort()
    assert uploads() == []


def test_what_is_dropped_leaves_no_upload(place, uploads):
    for is_committed in (False, True):
        room = place / "iobench.journal/shard-0/token"
        open_scratch(room, place)
        file = new_file(room / "data")
        file.write(bytes(MANY))
        if is_committed:
            file.commit()
        else:
            file.abort()
        clear_scratch(room, place)
        assert uploads() == []
        assert place.below() == []
    with pytest.raises(FileNotFoundError):
        (room / "data").replace(place / "data")


def test_uploads_of_a_killed_process_are_found_by_its_notes(place, uploads):
    room = place / "iobench.journal/shard-0/token"
    open_scratch(room, place)
    left = new_file(room / "t2m" / "c.0.0")
    left.write(bytes(MANY))  # and then its process is killed
    other = place / "t2m" / "c.1.0"
    theirs = new_file(other)
    theirs.write(bytes(MANY))
    assert len(uploads()) == 2
    clear_scratch(room, place)
    assert uploads() == ["some folder/store/t2m/c.1.0"]
    theirs.abort()
    left.abort()


def test_extents_are_read_at_once_and_in_order(place):
    (place / "a").write_bytes(bytes(range(200)))
    (place / "b").write_bytes(b"b" * 100)
    extents = [
        FileRange(place / "a", 10, 5),
        FileRange(place / "b", 0, 3),
        FileRange(place / "a", 0, 0),
        FileRange(place / "a", 199, 1),
    ]
    assert list(map(bytes, read_ranges(extents))) == [bytes(range(10, 15)), b"bbb", b"", b"\xc7"]
    with pytest.raises(StoreError, match=r"/a: the object ends at byte 200"):
        read_ranges([FileRange(place / "a", 190, 20)])
    with pytest.raises(StoreError, match=r"/c is missing"):
        read_ranges([FileRange(place / "c", 0, 1)])
    with pytest.raises((StoreError, StorageError), match=r"store/a: "):
        read_ranges([FileRange(place / "a", 300, 20)])


def test_a_bucket_that_is_not_there_is_one_line(bucket):
    place = as_path(f"s3://{bucket}-not/x")
    put = partial(place.write_bytes, b"x")
    for act in (place.with_listing, partial(time_ns_at, place), put, partial(try_claim, place)):
        with pytest.raises(StorageError, match="there is no such bucket; make it"):
            act()


def test_many_objects_are_listed_and_removed(place):
    objects, path = objects_at(place)
    for number in range(5):
        objects.put(f"{path}/{number}", bytes(number))
    pages = objects.fs.call_s3

    def small_pages(name, **values):
        more = {"MaxKeys": 2} if name == "list_objects_v2" else {}
        return pages(name, **values, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objects.fs, "call_s3", small_pages)
        found = objects.find(f"{path}/")
    assert [one.st_size for one in found.values()] == [0, 1, 2, 3, 4]
    objects.remove(list(found))
    assert not place.exists()
