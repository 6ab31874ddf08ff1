"""Locks of stores in a bucket: objects that one process puts, renews and loses."""

import os
import socket

import pytest

from iobench.errors import StorageError, StoreClaimedError
from iobench.files import locks, objects
from iobench.files.locks import LOCK_NAME, find_writer, lock_holder, locked
from iobench.files.urls import as_path
from iobench.stores.places import make_item


@pytest.fixture
def place(bucket):
    return as_path(f"s3://{bucket}/some folder/store")


@pytest.mark.timeout(60)
def test_a_lock_is_held_renewed_and_released(place, monkeypatch):
    monkeypatch.setattr(locks, "BEAT_S", 0.05)
    notes = []
    with locked(place, notice=notes.append) as lock:
        first = (place / LOCK_NAME).looked_up().etag
        who = f"process {os.getpid()} on "
        with pytest.raises(StoreClaimedError, match=f"written by {who}"), locked(place, wait_s=0):
            pass
        assert find_writer(place).startswith(who)
        while (place / LOCK_NAME).looked_up().etag == first:
            lock.check()  # until the next heartbeat
    assert find_writer(place) == ""
    assert not objects.find_below(place)
    assert notes == []


def test_a_lock_that_another_host_took_over_is_noticed(place):
    with locked(place) as lock:
        (place / LOCK_NAME).write_bytes(b"host=other\npid=1\n")
        with pytest.raises(StoreClaimedError, match="process 1 on other took over"):
            lock.check()
    assert lock_holder(place / LOCK_NAME) == "process 1 on other"


@pytest.mark.parametrize("host", [socket.gethostname(), "other"])
def test_the_lock_of_a_process_that_ended_is_taken_over(place, monkeypatch, host):
    left = f"host={host}\npid={2**22 + 1}\ntoken=gone\n".encode()
    assert objects.create(place / LOCK_NAME, left) is not None
    monkeypatch.setattr(locks, "STALE_S", -1.0)
    with locked(place, wait_s=20) as lock:
        lock.check()


def test_a_folder_of_others_is_refused(place):
    (place / "precious.nc").write_bytes(b"x")
    with pytest.raises(StorageError, match=r"precious\.nc, which iobench did not make"):
        make_item(place, kind="store", title="x")
