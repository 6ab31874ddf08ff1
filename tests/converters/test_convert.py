from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import signal
import socket
import threading
from importlib.metadata import version

import pytest
from converting import content, convert
from msgspec.structs import replace

from iobench.errors import OptionError, SampleError, StoreClaimedError, StoreError
from iobench.files.locks import LOCK_NAME, locked
from iobench.samples import SampleSpec, Variable
from iobench.stores.encoding import Encoding
from iobench.stores.finished_store import open_store
from iobench.stores.plan import StoreRequest
from iobench.stores.verification import verify_store
from iobench.testing import MadeUpDataset, flip_bit, random_sample
from iobench_converters import numpy_records, tfrecord

SPEC = SampleSpec(
    (Variable("x", (3, 5), "f4", ("y", "x"), "K"), Variable("t", (), "i4", (), role="target"))
)
DATASET = MadeUpDataset(SPEC)
FACTS = {"dates": ["1998-01-01"], "normalisation": {"epsilon": 0.1}}
INDEX = DATASET.index(10, **FACTS)
TWO_A_SHARD = 2 * SPEC.nbytes

pytestmark = [
    pytest.mark.timeout(90),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]


@pytest.fixture(params=[tfrecord.FORMAT, numpy_records.FORMAT], ids=["tfrecord", "numpy"])
def fmt(request):
    return request.param


def run(path, *, dataset=DATASET, fmt=tfrecord.FORMAT, index=INDEX, **more):
    return convert(dataset, index, fmt, path, **{"shard_nbytes": TWO_A_SHARD, "workers": 2} | more)


class Counting(MadeUpDataset):
    """Fails, or does something else, before the sample of one number is read."""

    def __init__(self, number=-1, action=None):
        super().__init__(SPEC)
        self.number, self.action, self.reads = number, action, []

    def read(self, where):
        self.reads.append(where)
        if where == self.number:
            self.action()
        return super().read(where)


def fail(error):
    def action():
        raise error

    return action


def test_store_holds_the_dataset(tmp_path, fmt):
    store = run(tmp_path / "store", fmt=fmt, samples=[7, 0, 3])
    for position, number in enumerate([7, 0, 3]):
        expected = random_sample(SPEC, number)
        assert {k: v.tobytes() for k, v in store[position].items()} == {
            k: v.tobytes() for k, v in expected.items()
        }
    manifest = store.manifest
    assert manifest.samples.tolist() == [7, 0, 3]
    assert (manifest.dataset, len(manifest.shards)) == ("made-up", 2)
    assert manifest.normalisation == {"epsilon": 0.1}
    versions = {"iobench": version("iobench")}
    assert manifest.provenance == {"dates": ["1998-01-01"], "versions": versions}
    assert verify_store(store) > 0


def test_manifest_knows_no_time_host_or_process(tmp_path, fmt):
    text = (run(tmp_path / "store", fmt=fmt).path / "iobench.json").read_text()
    assert socket.gethostname() not in text
    assert str(tmp_path) not in text
    assert not [key for key in json.loads(text) if "time" in key or "pid" in key]


def test_finished_store_is_opened_and_not_read_again(tmp_path, fmt):
    run(tmp_path / "store", fmt=fmt)
    again = Counting()
    assert len(run(tmp_path / "store", fmt=fmt, dataset=again)) == 10
    assert again.reads == []


@pytest.mark.parametrize(
    "change",
    [
        {"samples": [1]},
        {"options": {"encoding": "bytes"}},
        {"index": DATASET.index(10, dates=["1999-01-01"])},
        {"shard_nbytes": 1 << 20},
        {"limit_s": 60.0},
        {"encoding": Encoding.parse(dtype="float16")},
        {"fmt": numpy_records.FORMAT},
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_plan_is_refused_and_has_another_name(tmp_path, change):
    run(tmp_path / "store")
    with pytest.raises(StoreError, match="made from something else"):
        run(tmp_path / "store", **change)
    other = {"fmt": tfrecord.FORMAT, "index": INDEX, "shard_nbytes": TWO_A_SHARD} | change
    here = StoreRequest(DATASET, INDEX, tfrecord.FORMAT, tmp_path, shard_nbytes=TWO_A_SHARD)
    assert replace(here, **other).plan().name != here.plan().name


def test_unfinished_store_of_another_plan_is_refused(tmp_path):
    with pytest.raises(RuntimeError):
        run(tmp_path / "store", dataset=Counting(5, fail(RuntimeError())))
    with pytest.raises(StoreError, match="unfinished store of something else"):
        run(tmp_path / "store", samples=[1])


def test_limit_of_bytes_ends_at_a_sample(tmp_path):
    store = run(tmp_path / "store", limit_nbytes=3 * SPEC.nbytes + 1)
    assert store.manifest.samples == range(3)


@pytest.mark.parametrize("limits", [{"limit_s": 0.0}, {"limit_nbytes": 1}])
def test_one_sample_is_always_taken(tmp_path, limits):
    store = run(tmp_path / "store", **limits)
    assert store.manifest.samples == range(1)
    assert len(store) == 1


def test_progress_counts_to_the_end(tmp_path):
    seen = []
    run(tmp_path / "store", progress=lambda *now: seen.append(now))
    assert seen == sorted(set(seen))
    assert seen[-1] == (10, 10)
    assert len(seen) >= 5  # once a shard at least


@pytest.mark.parametrize("samples", [[], [10], [-1]])
def test_sample_that_is_not_there_is_refused(tmp_path, samples):
    with pytest.raises(OptionError, match="samples from 0 to 9"):
        run(tmp_path / "store", samples=samples)


def test_sample_of_another_shape_is_named(tmp_path):
    class Wrong(MadeUpDataset):
        def preprocess(self, arrays, where):
            return {**arrays, "x": arrays["x"][:2]}

    with pytest.raises(SampleError, match="made-up sample 0: array 'x'"):
        run(tmp_path / "store", dataset=Wrong(SPEC))


@pytest.mark.parametrize("error", [RuntimeError("bad"), KeyboardInterrupt()])
def test_interrupted_store_is_never_opened_and_resumes(tmp_path, fmt, error):
    with pytest.raises(type(error)):
        run(tmp_path / "store", fmt=fmt, dataset=Counting(5, fail(error)))
    with pytest.raises(StoreError, match="not a finished store"):
        open_store(tmp_path / "store")
    assert not list((tmp_path / "store").glob(".*.iobench-tmp"))
    again, lines = Counting(), []
    run(tmp_path / "store", fmt=fmt, dataset=again, notice=lines.append)
    assert sorted(again.reads) == [4, 5, 6, 7, 8, 9]
    assert "2 of 5 shards done" in lines[0]
    run(tmp_path / "whole", fmt=fmt)
    assert content(tmp_path / "store") == content(tmp_path / "whole")


def test_finished_shard_that_changed_is_written_again(tmp_path, fmt):
    with pytest.raises(RuntimeError):
        run(tmp_path / "store", fmt=fmt, dataset=Counting(5, fail(RuntimeError())))
    flip_bit(sorted((tmp_path / "store").glob("shard-00001*"))[-1], 20)
    assert verify_store(run(tmp_path / "store", fmt=fmt)) > 0


def run_until_sync(path, fmt, moment):
    """Convert, and be killed at the given fsync."""
    sync, count = os.fsync, 0

    def killed(descriptor):
        nonlocal count
        count += 1
        if count == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        sync(descriptor)

    os.fsync = killed
    run(path, fmt=fmt)


def start(target, *args):
    process = multiprocessing.get_context("fork").Process(target=target, args=args)
    process.start()
    return process


class Logging(MadeUpDataset):
    """Notes each read in a file shared by processes."""

    def __init__(self, log):
        super().__init__(SPEC)
        self.log = log

    def read(self, where):
        with self.log.open("a") as stream:
            stream.write(f"{where}\n")
        return super().read(where)


def run_logged(path, log, barrier):
    barrier.wait()
    run(path, dataset=Logging(log))


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("stale", [False, True])
def test_of_processes_at_once_exactly_one_writes_and_all_succeed(tmp_path, stale):
    path = tmp_path / "store"
    if stale:
        run_dead = start(run_until_sync, path, tfrecord.FORMAT, 4)
        run_dead.join()
        assert (path / LOCK_NAME).exists()
    barrier = multiprocessing.get_context("fork").Barrier(3)
    processes = [start(run_logged, path, tmp_path / "log", barrier) for _ in range(3)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    reads = (tmp_path / "log").read_text().split()
    assert len(reads) == len(set(reads))
    assert verify_store(open_store(path)) > 0


def test_store_that_is_being_written_names_who_writes_it(tmp_path):
    path = tmp_path / "store"
    with pytest.raises(RuntimeError):
        run(path, dataset=Counting(5, fail(RuntimeError())))
    with locked(path), pytest.raises(StoreClaimedError, match=f"written by process {os.getpid()} "):
        run(path, wait_s=0)
    assert len(run(path, wait_s=0)) == 10


def test_dataset_that_does_not_say_it_may_is_not_used_by_two_threads(tmp_path):
    class Alone(MadeUpDataset):
        thread_safe = False

        def read(self, where):
            self.threads.add(threading.get_ident())
            return super().read(where)

    dataset = Alone(SPEC)
    dataset.threads = set()
    run(tmp_path / "store", dataset=dataset, workers=4)
    assert len(dataset.threads) == 1


def test_probe_is_marked_as_one(tmp_path):
    run(tmp_path / "whole")
    run(tmp_path / "probe", samples=[0, 5])
    kinds = [
        json.loads((tmp_path / name / ".iobench-item.json").read_text())["kind"]
        for name in ("whole", "probe")
    ]
    assert kinds == ["store", "probe"]


def test_store_of_a_later_version_is_refused(tmp_path):
    run(tmp_path / "store")
    later = dataclasses.replace(tfrecord.FORMAT, version=2)
    run(tmp_path / "later", fmt=later)
    with pytest.raises(StoreError, match="layout version 2 of tfrecord"):
        open_store(tmp_path / "later")
