"""Threads: whose batch tasks of dask are of, and who waited for what another thread drew."""

from __future__ import annotations

import multiprocessing
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import numpy as np
import pytest

from iobench import record
from iobench.adapters import handed_batches
from iobench.adapters.installed import install, uninstall
from iobench.analysis.run import Run
from iobench.recording.activation import active_recorder
from iobench.recording.delivery_log import DeliveryLog
from iobench.recording.kinds import Kind
from iobench.recording.stages import stage

dask = pytest.importorskip("dask", reason="computes the graphs")
da = pytest.importorskip("dask.array", reason="computes the graphs")
h5py = pytest.importorskip("h5py", reason="what tasks read")

pytestmark = [pytest.mark.usefixtures("installed"), pytest.mark.timeout(120)]
VALUES = np.arange(6000.0).reshape(60, 100)


@pytest.fixture
def lazy(tmp_path):
    with h5py.File(tmp_path / "h.h5", "w") as file:
        file["x"] = VALUES
    with h5py.File(tmp_path / "h.h5") as file:
        yield da.from_array(file["x"], chunks=(15, 100))


def at(batch, sample):
    recorder = active_recorder()
    assert recorder is not None
    recorder.position(batch, 1, sample)


def graphs(spans):
    return [span for span in spans if span.stage == "preprocess:dask"]


def tasks(spans):
    return [span for span in spans if span.detail == "dask task"]


def reads(spans):
    return [span for span in spans if span.kind == "read" and ".h5:" in span.detail]


@pytest.mark.parametrize("scheduler", ["threads", "synchronous"])
def test_tasks_are_of_the_batch_that_asks_for_them(watch, lazy, scheduler):
    def work():
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
    inner = [span for span in watch.spans if span.is_inside(graph)]
    assert {*map(id, reads(watch.spans))} < {*map(id, inner)}
    for span in inner:
        assert (span.batch, span.epoch, span.sample) == (7, 1, 3)
        assert (span.thread == "MainThread") == (scheduler == "synchronous" or span is graph)
    for span in reads(watch.spans):
        assert any(
            span.is_inside(task) and task.thread == span.thread for task in tasks(watch.spans)
        )


def test_threads_that_share_a_pool_have_their_own_batches(watch, lazy):
    both = threading.Barrier(2)

    def one(number):
        at(number, number)
        both.wait()
        for _ in range(4):
            (lazy * number).compute()

    def work():
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
            span.is_inside(graph) and graph.batch == span.batch for graph in graphs(watch.spans)
        )


def test_a_graph_inside_of_a_task_is_of_the_same_batch(watch, lazy):
    def inner(block):
        return block + lazy[:1].sum().compute(scheduler="threads", num_workers=2)

    def work():
        at(5, 2)
        outer = da.from_array(np.ones((2, 2)), chunks=1).map_blocks(inner, meta=np.ones((1, 1)))
        return outer.compute(scheduler="threads", num_workers=2)

    found = watch(work)
    np.testing.assert_array_equal(found, 1 + VALUES[:1].sum() * np.ones((2, 2)))
    assert len(graphs(watch.spans)) == 5
    assert {span.batch for span in watch.spans} == {5}
    outermost = max(graphs(watch.spans), key=lambda span: span.end_ns - span.start_ns)
    assert all(span.is_inside(outermost) for span in watch.spans)


def test_an_exception_is_the_scripts_and_the_thread_goes_on_elsewhere(watch, lazy):
    def fail(block):
        raise ZeroDivisionError("of the script")

    def work():
        at(3, 0)
        with pytest.raises(ZeroDivisionError, match="of the script"):
            lazy.map_blocks(fail, dtype="f8", meta=np.ones((1, 1))).compute(num_workers=2)
        at(4, 0)
        lazy.compute(num_workers=2)

    watch(work)
    first, second = graphs(watch.spans)
    assert (first.batch, second.batch) == (3, 4)
    # Tasks of the first may still be at it: they stay what they are.
    assert {span.batch for span in tasks(watch.spans) if span.is_inside(second)} <= {3, 4}
    assert sum(span.batch == 4 for span in reads(watch.spans)) == 4


def test_inside_of_a_named_stage_no_thread_repeats_it(watch, lazy):
    def work():
        at(1, 0)
        with stage("read"):
            lazy.compute(num_workers=2)
        lazy.compute(num_workers=2)

    watch(work)
    whole = watch.spans[0]
    assert (whole.stage, whole.thread) == ("read", "MainThread")
    assert not [span for span in watch.spans[1:] if span.is_inside(whole)]
    assert len(graphs(watch.spans)) == 1


def test_what_other_processes_do_is_opaque(watch):
    blocks = da.ones((2, 2), chunks=1)

    def work():
        at(9, 1)
        with dask.config.set({"multiprocessing.context": "fork"}):
            return blocks.sum().compute(scheduler="processes", num_workers=1)

    assert watch(work) == 4
    (span,) = [span for span in watch.spans if span.kind != "open" and span.kind != "read"]
    assert (span.stage, span.batch) == ("opaque:dask processes", 9)


def test_only_who_has_to_wait_for_a_lock_of_xarrays_is_timed(watch):
    locks = pytest.importorskip("xarray.backends.locks", reason="has the locks")
    inner, held, asked = threading.Lock(), threading.Event(), threading.Event()

    class Asked(locks.SerializableLock):
        def locked(self):
            asked.set()
            return inner.locked()

    lock = Asked()
    lock.lock = inner

    def hold():
        with inner:
            held.set()
            asked.wait(30)
            time.sleep(0.02)

    def work():
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


# -- batches that go from thread to thread ---------------------------------------------------

N_BATCHES = 3


@pytest.fixture
def recording(tmp_path):
    with record(tmp_path / "run") as result:
        install(where="everywhere")
        yield result
        uninstall()


def closed(recording):
    """Return the run of a recording, which ends."""
    recording.close()
    return Run(recording.run.path).of_rank()


def drawing(recording, put):
    """Start a thread that draws all batches and hands each on; None is the end."""

    def fill():
        for value in chain(drawn(recording), [None]):
            put(value)

    thread = threading.Thread(target=fill, name="producer")
    thread.start()
    return thread


def drawn(recording):
    """Draw batches from a loader, one after another, as its iterator records it."""
    facts = recording.add_loader("torch", "", "Samples", batch_size=2)
    log = DeliveryLog(recording, facts)
    log.ask()
    log.started()
    for value in range(N_BATCHES):
        log.ask()
        log.deliver(recording.next_batch(), maker="consumer")
        yield value
    log.ask()
    log.end()


def trained(recording):
    """Note that an optimiser took a step in the calling thread."""
    with recording.recorder.span(Kind.STEP):
        pass


def through(make_queue):
    def taken(recording):
        batches = make_queue()
        thread = drawing(recording, lambda value: batches.put((value,)))
        if isinstance(batches, queue.LifoQueue):
            thread.join(60)
        result = []
        for _ in range(N_BATCHES + 1):
            (value,) = batches.get(timeout=60)
            if value is not None:
                trained(recording)
                result.append(value)
        thread.join(60)
        return sorted(result)

    return taken


def by_futures(recording):
    batches = drawn(recording)
    result = []
    with ThreadPoolExecutor(1) as pool:
        while (value := pool.submit(next, batches, None).result(60)) is not None:
            trained(recording)
            result.append(value)
    return result


@pytest.mark.parametrize(
    "take",
    [through(queue.Queue), through(lambda: queue.Queue(1)), through(queue.LifoQueue), by_futures],
    ids=["queue", "full queue", "last first", "futures"],
)
def test_the_thread_that_trains_waits_for_what_another_one_draws(recording, take):
    assert take(recording) == [0, 1, 2]
    run = closed(recording)
    assert run.exposure.whole.n_batches == N_BATCHES
    assert sorted(run.deliveries.batch[run.deliveries.batch >= 0].tolist()) == [0, 1, 2]
    assert run.processes[run.loop.process].threads[run.loop.thread] == "MainThread"
    assert {*run.deliveries.maker} <= {"threads", ""}
    assert run.exposure.loaders[0].role == "training"
    assert sum(run.exposure.whole.exposed_ns.values()) == run.exposure.whole.wait_ns


@pytest.mark.parametrize("idle_ns", [0, 10**12])
def test_a_thread_that_is_asked_for_a_batch_at_a_time_was_not_held_up_before(
    recording, idle_ns, monkeypatch
):
    monkeypatch.setattr(handed_batches, "POLLED_NS", idle_ns)
    by_futures(recording)
    spans = closed(recording).spans
    assert (spans["kind"] == Kind.SUBMIT_QUEUE).sum() == (N_BATCHES if idle_ns == 0 else 0)


def test_a_thread_that_takes_figures_of_the_one_that_trains_waits_for_no_batch(recording):
    figures = queue.Queue()
    thread = threading.Thread(target=lambda: [*iter(figures.get, None)], name="logger")
    thread.start()
    for value in drawn(recording):
        trained(recording)
        figures.put(value)
    figures.put(None)
    thread.join(60)
    run = closed(recording)
    assert {*run.deliveries.maker} == {"consumer", ""}
    assert run.exposure.whole.n_batches == N_BATCHES


@pytest.mark.parametrize("make_queue", [queue.SimpleQueue, multiprocessing.SimpleQueue])
def test_waits_of_a_thread_that_trains_are_not_known_where_nobody_follows_its_batches(
    recording, make_queue
):
    batches = make_queue()
    thread = drawing(recording, batches.put)
    while batches.get() is not None:
        trained(recording)
    thread.join(60)
    exposure = closed(recording).exposure
    assert (exposure.is_handed, exposure.has_consumer, exposure.whole.n_batches) == (True, False, 0)


def test_what_else_is_waited_for_between_steps_is_recorded(recording):
    done = threading.Event()
    for _ in drawn(recording):
        trained(recording)
        recording.optimizer_stepped()
        done.wait(0.001)
    stages = closed(recording).exposure.whole.compute_stages
    (stage,) = (row for row in stages if row.stage == Kind.BLOCKED.spelled)
    assert (stage.n_spans, stage.busy_ns >= N_BATCHES * 1_000_000) == (N_BATCHES, True)
