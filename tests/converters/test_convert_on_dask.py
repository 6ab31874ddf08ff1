"""A conversion on the workers of a dask.distributed cluster."""

from __future__ import annotations

import os
import signal

import pytest
from converting import content, convert

from iobench.errors import OptionError
from iobench.samples import SampleSpec, Variable
from iobench.stores.tally import Tally
from iobench.testing import MadeUpDataset
from iobench_converters import tfrecord

distributed = pytest.importorskip("distributed", reason="needs dask.distributed")

SPEC = SampleSpec((Variable("x", (3, 5), "f4", ("y", "x"), "K"), Variable("t", (), "i4", ())))
DATASET = MadeUpDataset(SPEC)
N_SAMPLES = 100

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore"),  # the library's own, of ports and processes that end
]


@pytest.fixture
def cluster():
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1"
    ) as cluster:
        yield cluster


def run(path, **more):
    index = DATASET.index(N_SAMPLES)
    return convert(DATASET, index, tfrecord.FORMAT, path, shard_nbytes=2 * SPEC.nbytes, **more)


@pytest.mark.long
@pytest.mark.parametrize("dies", [False, True])
def test_workers_of_a_cluster_write_the_same_store(tmp_path, cluster, dies):
    seen, tally, path = [], Tally(), tmp_path / "store"

    def progress(done, total):
        if dies and not seen:
            os.kill(cluster.workers[0].pid, signal.SIGKILL)
        seen.append((done, total))

    run(path, scheduler=cluster.scheduler_address, tally=tally, progress=progress)
    run(tmp_path / "alone")
    assert content(path) == content(tmp_path / "alone")
    assert seen[-1] == (N_SAMPLES, N_SAMPLES)
    assert tally.nbytes["read"] > 0


@pytest.mark.long
def test_what_a_cluster_left_is_finished_without_one(tmp_path, cluster):
    path = tmp_path / "store"

    def fail(done, total):
        raise RuntimeError

    with pytest.raises(RuntimeError):
        run(path, scheduler=cluster.scheduler_address, progress=fail)
    run(path)
    run(tmp_path / "alone")
    assert content(path) == content(tmp_path / "alone")


def test_an_address_where_nothing_answers_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("iobench_converters.on_dask.CONNECT_S", 0.5)
    with pytest.raises(OptionError, match="no dask scheduler answers"):
        run(tmp_path / "store", scheduler="tcp://127.0.0.1:9")
