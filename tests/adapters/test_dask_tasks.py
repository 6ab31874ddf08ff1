"""dask's own schedulers: whose batch tasks are of, on whose thread, and what is not seen."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.adapters.installed import install, uninstall
from iobench.recording.activation import active_recorder
from iobench.recording.stages import stage

dask = pytest.importorskip("dask", reason="computes the graphs")
da = pytest.importorskip("dask.array", reason="computes the graphs")
h5py = pytest.importorskip("h5py", reason="what tasks read")

pytestmark = pytest.mark.usefixtures("installed")
VALUES = np.arange(6000.0).reshape(60, 100)


@pytest.fixture
def lazy(tmp_path: Path) -> Any:
    with h5py.File(tmp_path / "h.h5", "w") as file:
        file["x"] = VALUES
    with h5py.File(tmp_path / "h.h5") as file:
        yield da.from_array(file["x"], chunks=(15, 100))


def at(batch: int, sample: int) -> None:
    recorder = active_recorder()
    assert recorder is not None
    recorder.position(batch, 1, sample)


def graphs(spans: list[Any]) -> list[Any]:
    return [span for span in spans if span.stage == "preprocess:dask"]


def tasks(spans: list[Any]) -> list[Any]:
    return [span for span in spans if span.detail == "dask task"]


def reads(spans: list[Any]) -> list[Any]:
    return [span for span in spans if span.kind == "read" and ".h5:" in span.detail]


def inside(inner: Any, outer: Any) -> bool:
    return bool(outer.start_ns <= inner.start_ns <= inner.end_ns <= outer.end_ns)


@pytest.mark.parametrize("scheduler", ["threads", "synchronous"])
def test_tasks_are_of_the_batch_that_asks_for_them(watch: Any, lazy: Any, scheduler: str) -> None:
    def work() -> Any:
        at(7, 3)
        with dask.config.set(scheduler=scheduler, num_workers=2):
            found = (lazy + 1).compute()
        at(8, 4)
        np.testing.assert_array_equal(found, VALUES + 1)

    watch(work)
    (graph,) = graphs(watch.spans)
    assert graph.detail == f"dask {scheduler} {2 if scheduler == 'threads' else 1}"
    assert len(reads(watch.spans)) == 4
    assert sum(span.nbytes for span in reads(watch.spans)) == VALUES.nbytes
    # The first of all graphs imports and reads settings as well.
    inner = [span for span in watch.spans if inside(span, graph)]
    assert {*map(id, reads(watch.spans))} < {*map(id, inner)}
    for span in inner:
        assert (span.batch, span.epoch, span.sample) == (7, 1, 3)
        assert (span.thread == "MainThread") == (scheduler == "synchronous" or span is graph)
    for span in reads(watch.spans):
        assert any(inside(span, task) and task.thread == span.thread for task in tasks(watch.spans))


def test_spans_of_one_thread_never_overlap_but_nest(watch: Any, lazy: Any) -> None:
    def work() -> None:
        at(0, 0)
        for _ in range(5):
            lazy.sum().compute(num_workers=3)

    watch(work)
    for thread in {span.thread for span in watch.spans}:
        own = [span for span in watch.spans if span.thread == thread]
        for one in own:
            for other in own:
                apart = one.end_ns <= other.start_ns or other.end_ns <= one.start_ns
                assert apart or inside(one, other) or inside(other, one)


def test_threads_that_share_a_pool_have_their_own_batches(watch: Any, lazy: Any) -> None:
    both = threading.Barrier(2)

    def one(number: int) -> None:
        at(number, number)
        both.wait()
        for _ in range(4):
            (lazy * number).compute()

    def work() -> None:
        with ThreadPoolExecutor(3) as pool, dask.config.set(pool=pool):
            loaders = [threading.Thread(target=one, args=(number,)) for number in (1, 2)]
            for thread in loaders:
                thread.start()
            for thread in loaders:
                thread.join()

    watch(work)
    assert len(graphs(watch.spans)) == 8
    assert sorted(span.batch for span in reads(watch.spans)) == [1] * 16 + [2] * 16
    for span in tasks(watch.spans):
        assert any(
            inside(span, graph) and graph.batch == span.batch for graph in graphs(watch.spans)
        )


def test_a_graph_inside_of_a_task_is_of_the_same_batch(watch: Any, lazy: Any) -> None:
    def inner(block: Any) -> Any:
        return block + lazy[:1].sum().compute(scheduler="threads", num_workers=2)

    def work() -> Any:
        at(5, 2)
        outer = da.from_array(np.ones((2, 2)), chunks=1).map_blocks(inner, meta=np.ones((1, 1)))
        return outer.compute(scheduler="threads", num_workers=2)

    found = watch(work)
    np.testing.assert_array_equal(found, 1 + VALUES[:1].sum() * np.ones((2, 2)))
    assert len(graphs(watch.spans)) == 5
    assert {span.batch for span in watch.spans} == {5}
    outermost = max(graphs(watch.spans), key=lambda span: span.end_ns - span.start_ns)
    assert all(inside(span, outermost) for span in watch.spans)


def test_an_exception_is_the_scripts_and_the_thread_goes_on_elsewhere(
    watch: Any, lazy: Any
) -> None:
    def fail(block: Any) -> Any:
        raise ZeroDivisionError("of the script")

    def work() -> None:
        at(3, 0)
        with pytest.raises(ZeroDivisionError, match="of the script"):
            lazy.map_blocks(fail, dtype="f8", meta=np.ones((1, 1))).compute(num_workers=2)
        at(4, 0)
        lazy.compute(num_workers=2)

    watch(work)
    first, second = graphs(watch.spans)
    assert (first.batch, second.batch) == (3, 4)
    # Tasks of the first may still be at it: they stay what they are.
    assert {span.batch for span in tasks(watch.spans) if inside(span, second)} <= {3, 4}
    assert sum(span.batch == 4 for span in reads(watch.spans)) == 4


def test_inside_of_a_named_stage_no_thread_repeats_it(watch: Any, lazy: Any) -> None:
    def work() -> None:
        at(1, 0)
        with stage("read"):
            lazy.compute(num_workers=2)
        lazy.compute(num_workers=2)

    watch(work)
    whole = watch.spans[0]
    assert (whole.stage, whole.thread) == ("read", "MainThread")
    assert not [span for span in watch.spans[1:] if inside(span, whole)]
    assert len(graphs(watch.spans)) == 1


def test_what_other_processes_do_is_opaque(watch: Any) -> None:
    blocks = da.ones((2, 2), chunks=1)

    def work() -> Any:
        at(9, 1)
        with dask.config.set({"multiprocessing.context": "fork"}):
            return blocks.sum().compute(scheduler="processes", num_workers=1)

    assert watch(work) == 4
    (span,) = [span for span in watch.spans if span.kind != "open" and span.kind != "read"]
    assert (span.stage, span.batch) == ("opaque:dask processes", 9)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_a_cluster_is_opaque_wherever_its_workers_are(watch: Any) -> None:
    distributed = pytest.importorskip("distributed", reason="is the cluster")
    blocks = da.ones((4, 2), chunks=1)

    def work(client: Any) -> Any:
        at(2, 0)
        return blocks.sum().compute()

    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        assert watch(lambda: work(client)) == 8
    asked = [span for span in watch.spans if span.thread == "MainThread"]
    assert [(span.stage, span.batch) for span in asked] == [("opaque:dask.distributed", 2)]


def test_uninstalled_nothing_is_ours_and_unrecorded_nothing_is_written(
    watch: Any, lazy: Any
) -> None:
    import dask.local
    import dask.threaded

    ours = dask.threaded.get_async
    lazy.compute(num_workers=2)  # nothing records
    uninstall()
    assert dask.threaded.get_async is dask.local.get_async
    assert not hasattr(dask.local.get_async, "__wrapped__")
    watch(lambda: lazy.compute(num_workers=2))
    assert watch.spans == []
    assert hasattr(ours, "__wrapped__")
    install()


def test_tasks_in_parallel_each_have_their_time(watch: Any) -> None:
    def wait(block: Any) -> Any:
        time.sleep(0.02)
        return block

    def work() -> None:
        at(0, 0)
        da.ones((4, 1), chunks=1).map_blocks(wait, dtype="f8").compute(num_workers=4)

    watch(work)
    slept = [span for span in tasks(watch.spans) if span.end_ns - span.start_ns >= 20_000_000]
    assert len(slept) == 4
    assert len({span.thread for span in slept}) > 1
    assert all(span.cpu_ns < span.end_ns - span.start_ns for span in slept)


def test_only_who_has_to_wait_for_a_lock_of_xarrays_is_timed(watch: Any) -> None:
    locks = pytest.importorskip("xarray.backends.locks", reason="has the locks")
    inner, held, asked = threading.Lock(), threading.Event(), threading.Event()

    class Asked(locks.SerializableLock):  # type: ignore[misc, name-defined]
        def locked(self) -> bool:
            asked.set()
            return inner.locked()

    lock = Asked()
    lock.lock = inner

    def hold() -> None:
        with inner:
            held.set()
            asked.wait(30)
            time.sleep(0.02)

    def work() -> None:
        with locks.CombinedLock([lock, locks.SerializableLock()]):
            pass  # nobody holds them
        asked.clear()
        thread = threading.Thread(target=hold)
        thread.start()
        held.wait(30)
        with locks.CombinedLock([lock, locks.SerializableLock()]):
            thread.join()

    watch(work)
    (waited,) = [span for span in watch.spans if span.kind == "lock"]
    assert waited.thread == "MainThread"
    assert waited.end_ns > waited.start_ns


def test_what_an_executor_of_another_name_pickles_is_nothing_of_ours(watch: Any) -> None:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    class Reused(ProcessPoolExecutor):
        pass

    def work() -> Any:
        at(1, 0)
        with Reused(1, mp_context=get_context("fork")) as pool:
            return da.ones((2, 2), chunks=1).sum().compute(scheduler=pool)

    assert watch(work) == 4
