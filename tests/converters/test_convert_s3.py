"""Stores on S3: the bytes of a store on disk, whoever writes it and wherever that one ends."""

from __future__ import annotations

import os
import random
import signal
import socket
from contextlib import suppress

import numpy as np
import pytest
from converting import FORMATS, content, convert, fail, in_a_child

import iobench
from iobench.errors import StorageError, StoreClaimedError, StoreError
from iobench.files import locks, objects
from iobench.files.locks import LOCK_NAME, find_writer, lock_holder, locked
from iobench.files.objects import Upload
from iobench.files.urls import as_path
from iobench.samples import SampleSpec, Variable
from iobench.stores.places import make_item
from iobench.stores.verification import verify_store
from tests.support.made_up_dataset import MadeUpDataset

pytest.importorskip("obstore", reason="speaks S3")

LARGE = SampleSpec((Variable("x", (700, 1024), "f4", ("y", "x"), "K"),))
pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]


@pytest.fixture(params=FORMATS)
def fmt(request):
    return FORMATS[request.param]


@pytest.fixture
def place(bucket, monkeypatch):
    monkeypatch.setattr(objects, "UPLOAD_NBYTES", 5 << 20)  # the least there may be
    return as_path(f"s3://{bucket}/some folder/store")


class Failing(MadeUpDataset):
    """Fails before the fourth sample is read."""

    def read(self, where):
        if where == 3:
            raise RuntimeError
        return super().read(where)


def run(path, fmt, dataset=None):
    """Convert samples of 2.7 MiB to shards of three and two, so that each goes in parts."""
    dataset = dataset or MadeUpDataset(LARGE)
    return convert(dataset, dataset.index(5), fmt, path, shard_nbytes=3 * LARGE.nbytes, workers=2)


@pytest.mark.quick_cases(1)
def test_a_store_has_the_bytes_it_has_on_disk(place, fmt, tmp_path, begun_uploads):
    with pytest.raises(StoreError, match="not a finished store"):
        iobench.open_store(str(place))
    with pytest.raises(RuntimeError):  # leaves whole shards and nothing else
        run(place, fmt, Failing(LARGE))
    assert begun_uploads() == []
    names = content(place)
    assert "iobench.journal/shard-00000.json" in names
    assert not [name for name in names if "lock" in name or "part-" in name]
    store, here = run(place, fmt), run(tmp_path / "store", fmt)
    assert content(place) == content(tmp_path / "store")
    assert begun_uploads() == []
    opened = iobench.open_store(str(place))
    assert len(opened) == len(store) == 5
    for mine, number in zip(opened.__getitems__([0, 4, 3]), [0, 4, 3], strict=True):
        np.testing.assert_array_equal(mine["x"], here[number]["x"])
    assert verify_store(opened, workers=2) == verify_store(here)


def killed_at(path, fmt, owner, name, count, is_after):
    """Convert, and be killed before or after the count-th request of that name."""
    call, calls = getattr(owner, name), []

    async def counted(*arguments):
        calls.append(name)
        is_it = len(calls) == count
        if is_it and not is_after:
            os.kill(os.getpid(), signal.SIGKILL)
        answer = await call(*arguments)
        if is_it:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    setattr(owner, name, counted)
    run(path, fmt)


REQUESTS = [(objects, "_put"), (Upload, "_send"), (Upload, "_end")]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_killed_at_any_request_it_ends_the_same(bucket, fmt, tmp_path, monkeypatch):
    monkeypatch.setattr(objects, "UPLOAD_NBYTES", 5 << 20)
    run(tmp_path / "whole", fmt)
    whole, chance, n_killed = content(tmp_path / "whole"), random.Random(fmt.name), 0
    for number in range(20):
        place = as_path(f"s3://{bucket}/data/store-{number}")
        for _ in range(2):
            moment = *chance.choice(REQUESTS), chance.randrange(1, 4), chance.random() < 0.5
            n_killed += in_a_child(killed_at, place, fmt, *moment) == -signal.SIGKILL
        with suppress(StoreError):
            assert len(iobench.open_store(str(place))) == 5
        run(place, fmt)
        assert content(place) == whole, f"kill number {number}"
    assert n_killed >= 10


def test_a_store_that_refuses_leaves_a_resumable_state(place, begun_uploads, monkeypatch):
    from moto.s3.responses import S3Response

    answer = S3Response.upload_part

    def refuse(self):
        if "00001" in self.path:
            return 403, {}, "<Error><Code>Refused</Code><Message>no more room</Message></Error>"
        return answer(self)

    monkeypatch.setattr(S3Response, "upload_part", refuse)
    with pytest.raises(StorageError, match="no more room") as caught:
        run(place, FORMATS["tfrecord"])
    assert caught.value.exit_code == 75
    assert begun_uploads() == []


@pytest.mark.long
def test_no_secret_is_written_or_said(place, tmp_path, iobench, monkeypatch, s3_server):
    xarray = pytest.importorskip("xarray", reason="writes the source")
    source = tmp_path / "t2m.nc"
    values = np.random.default_rng(0).random((40, 64, 64), dtype="f4")
    xarray.Dataset({"t2m": (("time", "y", "x"), values)}).to_netcdf(source, engine="h5netcdf")
    secrets = ["very-secret-word", "very-secret-token", "user-of-endpoint"]
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secrets[0])
    monkeypatch.setenv("AWS_SESSION_TOKEN", secrets[1])
    words = ("--to", "numpy", "--sample-dim", "time", "--shard-size", "256KiB", "--json")
    done = iobench("convert", source, str(place), *words)
    assert done.returncode == 0, done.stderr
    told = [data.decode("latin-1") for name, data in content(place).items() if "shard" not in name]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://user-of-endpoint:very-secret-word@127.0.0.1:9")
    refused = iobench("verify", str(place))
    assert refused.returncode != 0
    assert "Traceback" not in refused.stderr
    told += [done.stdout, done.stderr, refused.stdout, refused.stderr]
    for secret in secrets:
        assert not [text for text in told if secret in text]


# ---- locks: objects that one process puts, renews and loses


@pytest.mark.timeout(60)
def test_a_lock_is_held_renewed_and_released(place, monkeypatch):
    monkeypatch.setattr(locks, "BEAT_S", 0.05)
    with locked(place, notice=lambda note: fail()()) as lock:
        first = (place / LOCK_NAME).looked_up().etag
        who = f"process {os.getpid()} on "
        with pytest.raises(StoreClaimedError, match=f"written by {who}"), locked(place, wait_s=0):
            pass
        assert find_writer(place).startswith(who)
        while (place / LOCK_NAME).looked_up().etag == first:
            lock.check()  # until the next heartbeat
    assert find_writer(place) == ""
    assert content(place) == {}
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
