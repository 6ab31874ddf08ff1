"""Batches that go from thread to thread: who waited for them, and since when."""

import multiprocessing
import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from iobench import record
from iobench.adapters.installed import install, uninstall
from iobench.analysis.run import Run
from iobench.recording.delivery_log import DeliveryLog
from iobench.recording.kinds import Kind

N_BATCHES = 3


@pytest.fixture
def recording(tmp_path):
    with record(tmp_path / "run") as result:
        install(where="everywhere")
        yield result
        uninstall()


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

        def fill():
            for value in drawn(recording):
                batches.put((value,))
            batches.put(None)

        thread = threading.Thread(target=fill, name="producer")
        thread.start()
        if isinstance(batches, queue.LifoQueue):
            thread.join(60)
        result = []
        for _ in range(N_BATCHES + 1):
            item = batches.get(timeout=60)
            if item is not None:
                trained(recording)
                result.append(item[0])
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


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "take",
    [through(queue.Queue), through(lambda: queue.Queue(1)), through(queue.LifoQueue), by_futures],
    ids=["queue", "full queue", "last first", "futures"],
)
def test_the_thread_that_trains_waits_for_what_another_one_draws(recording, take):
    assert take(recording) == [0, 1, 2]
    path = recording.run.path
    recording.close()
    run = Run(path).of_rank()
    assert run.exposure.whole.n_batches == N_BATCHES
    assert sorted(run.deliveries.batch[run.deliveries.batch >= 0].tolist()) == [0, 1, 2]
    assert run.processes[run.loop.process].threads[run.loop.thread] == "MainThread"
    assert {*run.deliveries.maker} <= {"threads", ""}
    assert run.exposure.loaders[0].role == "training"
    assert sum(run.exposure.whole.exposed_ns.values()) == run.exposure.whole.wait_ns


@pytest.mark.timeout(120)
def test_a_thread_that_takes_figures_of_the_one_that_trains_waits_for_no_batch(recording):
    figures = queue.Queue()
    thread = threading.Thread(target=lambda: [*iter(figures.get, None)], name="logger")
    thread.start()
    for value in drawn(recording):
        trained(recording)
        figures.put(value)
    figures.put(None)
    thread.join(60)
    path = recording.run.path
    recording.close()
    run = Run(path).of_rank()
    assert {*run.deliveries.maker} == {"consumer", ""}
    assert run.exposure.whole.n_batches == N_BATCHES


@pytest.mark.timeout(120)
@pytest.mark.parametrize("make_queue", [queue.SimpleQueue, multiprocessing.SimpleQueue])
def test_waits_of_a_thread_that_trains_are_not_known_where_nobody_follows_its_batches(
    recording, make_queue
):
    batches = make_queue()

    def fill():
        for value in (*drawn(recording), None):
            batches.put(value)

    thread = threading.Thread(target=fill, name="producer")
    thread.start()
    while batches.get() is not None:
        trained(recording)
    thread.join(60)
    path = recording.run.path
    recording.close()
    exposure = Run(path).of_rank().exposure
    assert (exposure.is_handed, exposure.has_consumer, exposure.whole.n_batches) == (True, False, 0)


@pytest.mark.timeout(120)
def test_what_else_is_waited_for_between_steps_is_recorded(recording):
    done = threading.Event()
    for _ in drawn(recording):
        trained(recording)
        recording.optimizer_stepped()
        done.wait(0.001)
    path = recording.run.path
    recording.close()
    (stage,) = (
        row
        for row in Run(path).of_rank().exposure.whole.compute_stages
        if row.stage == Kind.BLOCKED.spelled
    )
    assert (stage.n_spans, stage.busy_ns >= N_BATCHES * 1_000_000) == (N_BATCHES, True)
