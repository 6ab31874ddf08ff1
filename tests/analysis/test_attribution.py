"""Single waits, written down by hand: what each is given to."""

import pytest
from schedules import exposed
from scripts import Script

from iobench.analysis.run import exposure
from iobench.recording.kinds import Kind, stage_name
from iobench.recording.span_file import Flag
from tests.support.sketched_runs import CONSUMER, SketchedRun

WORKER = ("worker", 0)


def one_worker(**config):
    return SketchedRun({"workers": 1, "prefetch": 2, **config})


def test_the_pick_up_goes_to_its_own_spans_and_the_rest_to_the_hand_over():
    sketch = one_worker()
    sketch.submit(0, 0, 0, 0)
    sketch.add(WORKER, Kind.READ, 0, 100, batch=0)
    sketch.add(CONSUMER, Kind.UNPICKLE, 90, 130, batch=0)
    sketch.add(CONSUMER, Kind.SAMPLER, 140, 150, batch=0)
    sketch.wait(0, 80, 160, "worker-0")
    assert exposed(sketch.data()) == {"read": 20, "unpickle": 30, "sampler": 10, "handover": 20}


def test_sampled_and_counting_records_take_no_time():
    sketch = one_worker()
    sketch.submit(0, 0, 0, 0)
    sketch.add(WORKER, Kind.READ, 0, 70, batch=0, flags=Flag.SUMMED, pieces=4)
    sketch.add(WORKER, Kind.DECODE, 70, 100, batch=0, flags=Flag.SUMMED, pieces=4)
    sketch.add(WORKER, Kind.DECODE, 10, 20, batch=0, flags=Flag.DETAIL)
    sketch.add(WORKER, Kind.READ, 0, 100, batch=0, flags=Flag.IO)
    sketch.wait(0, 0, 100, "worker-0")
    figures = exposure(sketch.data()).whole
    assert figures.exposed_ns == {"read": 70, "decode": 30}
    assert [row.n_spans for row in figures.stages] == [4, 4]


def test_spans_of_a_user_inside_a_stage_take_their_time_from_it():
    sketch = one_worker()
    sketch.submit(0, 0, 0, 0)
    sketch.add(WORKER, Kind.PREPROCESS, 20, 50, label="augment")
    sketch.add(WORKER, Kind.READ, 0, 100, batch=0)
    sketch.wait(0, 0, 100, "worker-0")
    assert exposed(sketch.data()) == {"read": 70, "preprocess:augment": 30}


def feeding(serialise_ns, make_ns, n_batches=6):
    """A worker of torch: batches made on one thread are serialised on another."""
    sketch = one_worker()
    made = sent = asked = 0
    for batch in range(n_batches):
        sketch.submit(0, batch, 0, made)
        sketch.add(WORKER, Kind.READ, made, made + make_ns, batch=batch)
        made += make_ns
        start = max(made, sent)
        sent = start + serialise_ns
        sketch.add(WORKER, Kind.SERIALISE, start, sent, batch=batch, thread=1)
        sketch.wait(batch, asked, sent, "worker-0")
        asked = sent
    return exposed(sketch.data())


def test_what_a_feeder_thread_does_meanwhile_delays_only_the_first_batch():
    assert feeding(serialise_ns=4, make_ns=10) == {"read": 60, "serialise": 4}


def test_a_feeder_thread_that_is_slower_than_its_worker_is_what_is_waited_for():
    assert feeding(serialise_ns=10, make_ns=4) == {"read": 4, "serialise": 60}


def test_a_batch_is_ready_when_it_is_pinned():
    sketch = one_worker()
    sketch.submit(0, 0, 0, 0)
    sketch.add(WORKER, Kind.READ, 0, 50, batch=0)
    sketch.add(CONSUMER, Kind.PIN, 60, 90, batch=0, thread=1)
    sketch.wait(0, 0, 100, "worker-0")
    assert exposed(sketch.data()) == {"read": 50, "ipc_wait": 10, "pin": 30, "handover": 10}


def test_one_thread_per_stage_blames_the_slowest():
    # 10/4/4 ms a stage, step 5: 5/0/0 a step, though the others work 8 of 18 ms.
    sketch = one_worker()
    free, asked = [0, 0, 0], 0
    for batch in range(50):
        end = 0
        for thread, (kind, duration) in enumerate(
            ((Kind.READ, 10), (Kind.DECODE, 4), (Kind.PREPROCESS, 4))
        ):
            start = max(end, free[thread])
            end = free[thread] = start + duration
            sketch.add(WORKER, kind, start, end, batch=batch, thread=thread)
        sketch.submit(0, batch, 0, 0)
        delivered = max(asked, end)
        sketch.wait(batch, asked, delivered, "worker-0")
        asked = delivered + 5
    assert exposed(sketch.data(), steady=True) == {"read": 48 * 5}


def test_workers_that_do_not_persist_start_anew_in_each_epoch():
    sketch = one_worker()
    for epoch in (0, 1):
        worker, begin = ("worker", 0, epoch), 1000 * epoch
        sketch.round(begin, begin + 100, epoch)
        sketch.add(worker, Kind.STARTUP, begin, begin + 60)
        sketch.add(worker, Kind.SUBMIT_QUEUE, begin, begin + 65, batch=epoch)
        sketch.add(worker, Kind.READ, begin + 65, begin + 100, batch=epoch)
        sketch.wait(epoch, begin, begin + 100, "worker-0", epoch=epoch)
    assert exposed(sketch.data()) == {"startup": 120, "submit_queue": 10, "read": 70}


def test_a_worker_that_persists_starts_once():
    sketch = one_worker()
    for epoch in (0, 1):
        begin = 1000 * epoch
        sketch.round(begin, begin + 100, epoch)
        sketch.submit(0, epoch, begin, begin + 65)
        sketch.add(WORKER, Kind.READ, begin + 65, begin + 100, batch=epoch)
        sketch.wait(epoch, begin, begin + 100, "worker-0", epoch=epoch)
    assert exposed(sketch.data()) == {"startup": 65, "submit_queue": 65, "read": 70}


def test_items_of_one_batch_do_not_wait_for_each_other_on_other_threads():
    """Decoding item 1 hangs on reading item 1, not on what ended as late for item 0."""
    sketch = SketchedRun({"workers": 0, "prefetch": 1})
    for thread, kind, start, end, item in (
        (1, Kind.READ, 0, 22, 0),
        (2, Kind.DECODE, 22, 43, 0),
        (3, Kind.PREPROCESS, 43, 46, 0),
        (1, Kind.READ, 22, 45, 1),
        (2, Kind.DECODE, 47, 53, 1),
    ):
        sketch.add(CONSUMER, kind, start, end, batch=0, sample=item, thread=thread)
    sketch.wait(0, 0, 53, "threads")
    assert exposed(sketch.data()) == {"read": 45, "worker_gap": 2, "decode": 6}


KINDS_THAT_LOAD = (
    *(kind for kind in Kind if kind < Kind.SAMPLER),
    *(Kind.SERIALISE, Kind.PIN, Kind.H2D, Kind.SAMPLER, Kind.UNPICKLE),
)


@pytest.mark.parametrize("kind", KINDS_THAT_LOAD, ids=lambda kind: kind.spelled)
@pytest.mark.parametrize("thread", ["worker", "loop"])
def test_every_kind_of_work_can_be_waited_for(kind, thread):
    sketch = one_worker()
    if thread == "worker":
        sketch.submit(0, 0, 0, 0)
        sketch.add(WORKER, kind, 0, 100, batch=0, label="mine")
    else:
        sketch.add(CONSUMER, kind, 0, 100, batch=0, label="mine")
    sketch.wait(0, 0, 100, "worker-0" if thread == "worker" else "consumer")
    (row,) = (row for row in exposure(sketch.data()).whole.stages if row.busy_ns)
    assert (row.stage, row.exposed_ns, row.busy_ns) == (stage_name(kind, "mine"), 100, 100)


def test_every_kind_that_is_waiting_can_be_waited_for():
    """One run that has them all; nothing else is in it but one nanosecond of reading a batch."""
    sketch = one_worker(expected_workers=["worker-0", "worker-1"])
    sketch.add(WORKER, Kind.STARTUP, 0, 10)
    sketch.submit(0, 0, 15, 20)
    sketch.add(WORKER, Kind.READ, 20, 21, batch=0)
    sketch.add(WORKER, Kind.DECODE, 24, 25, batch=0)
    sketch.add(CONSUMER, Kind.PIN, 30, 31, batch=0, thread=1)
    sketch.add(CONSUMER, Kind.HEAD_OF_LINE, 31, 33)
    sketch.wait(0, 0, 34, "worker-0")
    sketch.wait(1, 40, 47, "worker-1")
    sketch.shutdown(50, 58)
    assert exposed(sketch.data()) == {
        "startup": 10, "starved_submit": 5, "submit_queue": 5, "read": 1, "worker_gap": 3,
        "decode": 1, "ipc_wait": 5, "pin": 1, "head_of_line": 2, "handover": 1, "unknown": 7,
        "shutdown": 8,
    }  # fmt: skip


def test_splits_have_figures_of_their_own():
    """A validation loader's waits are its own, and all add up."""
    script = Script()
    train, validation = script.loader(1, 1, (30, 20, 10)), script.loader(0, 0, (7, 0, 0))
    for _ in range(2):
        for _ in range(4):
            train.next()
            script.compute(11)
        train.end()
        for _ in range(3):
            validation.next()
        validation.end()
    found = exposure(script.data())
    assert [each.n_batches for each in found.loaders] == [8, 6]
    assert found.loaders[1].wait_ns == 6 * 7 + 2 * 3
    assert sum(each.wait_ns for each in found.loaders) == found.whole.wait_ns
    assert found.whole.exposed_ns["shutdown"] == 4 * 3
