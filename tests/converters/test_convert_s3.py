"""Stores on S3: the bytes of a store on disk, whoever writes it and wherever that one ends."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from converting import convert

import iobench
from iobench.errors import StorageError, StoreError
from iobench.files import objects
from iobench.files.objects import Upload
from iobench.files.urls import as_path
from iobench.samples import SampleSpec, Variable
from iobench.stores.verification import verify_store
from iobench.testing import MadeUpDataset
from iobench_converters import numpy_records, tfrecord

pytest.importorskip("obstore", reason="speaks S3")

LARGE = SampleSpec((Variable("x", (700, 1024), "f4", ("y", "x"), "K"),))
SMALL = SampleSpec((Variable("x", (3, 5), "f4", ("y", "x"), "K"), Variable("t", (), "i4", ())))
FORK = multiprocessing.get_context("fork")

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]


@pytest.fixture(params=["tfrecord", "numpy", "zarr"])
def fmt(request):
    if request.param == "zarr":
        pytest.importorskip("numcodecs", reason="Zarr stores need it")
        from iobench_converters import zarr_groups

        return zarr_groups.FORMAT
    return {"tfrecord": tfrecord.FORMAT, "numpy": numpy_records.FORMAT}[request.param]


@pytest.fixture
def place(bucket, monkeypatch):
    monkeypatch.setattr(objects, "UPLOAD_NBYTES", 5 << 20)  # the least there may be
    return as_path(f"s3://{bucket}/data/store")


class Acting(MadeUpDataset):
    """Does something before the sample of one number is read."""

    def __init__(self, spec, number=-1, action=None):
        super().__init__(spec)
        self.number, self.action = number, action

    def read(self, where):
        if where == self.number:
            self.action()
        return super().read(where)


def run(path, fmt, *, dataset=None, spec=LARGE, n_samples=5, **more):
    """Convert samples of 2.7 MiB to shards of three and two, so that each goes in parts."""
    dataset = dataset or MadeUpDataset(spec)
    arguments = {"shard_nbytes": 3 * spec.nbytes, "workers": 2} | more
    return convert(dataset, dataset.index(n_samples), fmt, path, **arguments)


def content(path):
    if isinstance(path, Path):
        files = [file for file in path.rglob("*") if file.is_file()]
        return {file.relative_to(path).as_posix(): file.read_bytes() for file in files}
    return {name: (path / name).read_bytes() for name in objects.find_below(path)}


def in_a_child(function, *args):
    process = FORK.Process(target=function, args=args)
    process.start()
    process.join()
    return process.exitcode


@pytest.mark.quick_cases(1)
def test_a_store_has_the_bytes_it_has_on_disk(place, fmt, tmp_path, begun_uploads):
    with pytest.raises(StoreError, match="not a finished store"):
        iobench.open_store(str(place))
    store = run(place, fmt)
    here = run(tmp_path / "store", fmt)
    assert content(place) == content(tmp_path / "store")
    assert begun_uploads() == []
    opened = iobench.open_store(str(place))
    assert len(opened) == len(store) == 5
    for mine, theirs in zip(
        opened.__getitems__([0, 4, 3]), map(here.__getitem__, [0, 4, 3]), strict=True
    ):
        np.testing.assert_array_equal(mine["x"], theirs["x"])
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
    whole = content(tmp_path / "whole")
    chance = random.Random(fmt.name)
    n_killed = 0
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


def test_an_error_leaves_whole_shards_and_nothing_else(place, tmp_path, begun_uploads):
    class InterruptedRun(BaseException):
        pass

    def interrupt():
        raise InterruptedRun

    with pytest.raises(InterruptedRun):
        run(place, tfrecord.FORMAT, dataset=Acting(LARGE, 3, interrupt))
    assert begun_uploads() == []
    names = objects.find_below(place)
    assert "iobench.journal/shard-00000.json" in names
    assert not [name for name in names if "lock" in name or name.count("/") > 1]
    run(place, tfrecord.FORMAT)
    run(tmp_path / "whole", tfrecord.FORMAT)
    assert content(place) == content(tmp_path / "whole")


def test_a_store_that_refuses_leaves_a_resumable_state(place, begun_uploads, monkeypatch):
    from moto.s3.responses import S3Response

    answer = S3Response.upload_part

    def refuse(self):
        if "00001" in self.path:
            return 403, {}, "<Error><Code>Refused</Code><Message>no more room</Message></Error>"
        return answer(self)

    with monkeypatch.context() as patch:
        patch.setattr(S3Response, "upload_part", refuse)
        with pytest.raises(StorageError, match="no more room") as caught:
            run(place, tfrecord.FORMAT)
    assert caught.value.exit_code == 75
    assert begun_uploads() == []


@pytest.fixture
def source(tmp_path):
    xarray = pytest.importorskip("xarray", reason="writes the source")
    values = np.random.default_rng(0).random((40, 512, 512), dtype="f4")
    path = tmp_path / "t2m.nc"
    xarray.Dataset({"t2m": (("time", "y", "x"), values)}).to_netcdf(path, engine="h5netcdf")
    return path


COMMON = ("--to", "numpy", "--sample-dim", "time", "--shard-size", "16MiB")


@pytest.mark.long
def test_no_secret_is_written_or_said(place, source, iobench, monkeypatch, s3_server):
    secrets = ["very-secret-word", "very-secret-token", "user-of-endpoint"]
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secrets[0])
    monkeypatch.setenv("AWS_SESSION_TOKEN", secrets[1])
    done = iobench("convert", source, str(place), *COMMON, "--json")
    assert done.returncode == 0, done.stderr
    told = [data.decode("latin-1") for name, data in content(place).items() if "shard" not in name]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://user-of-endpoint:very-secret-word@127.0.0.1:9")
    refused = iobench("verify", str(place))
    assert refused.returncode != 0
    assert "Traceback" not in refused.stderr
    told += [done.stdout, done.stderr, refused.stdout, refused.stderr]
    for secret in secrets:
        assert not [text for text in told if secret in text]
