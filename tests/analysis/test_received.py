"""Whose waits count where threads hand batches on: those of the thread that trains."""

import pytest

from iobench.analysis.diagnosis import diagnosis_of
from iobench.analysis.run import Run
from iobench.recording.facts import LoaderFacts
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from iobench.report.sentences import verdict_sentence
from tests.support.sketched_runs import SketchedRun

LOOP = ("consumer", -1)
PRODUCER = 1
READ_NS, COLLATE_NS = 8, 2


def received(run, batch, start_ns, end_ns, *, thread=0, made_by="threads"):
    run.wait(
        batch, start_ns, end_ns, made_by, sample=0, thread=thread,
        label="received", flags=Flag.DETAIL, epoch=0,
    )  # fmt: skip


def prefetched(n_batches=3, *, step_ns=27, held_back=()):
    """A thread draws batches of 10 ns from the second ns on; another one may take them."""
    run = SketchedRun(kind="script")
    run.processes[LOOP] = {"threads": ("MainThread", "producer", "logger")}
    run.loaders.append(LoaderFacts(0, "torch", "", "Samples", workers=0, batch_size=2))
    asks = {"thread": PRODUCER, "sample": 0, "epoch": 0}
    run.add(LOOP, Kind.WAIT, 0, 2, label="startup", detail="loader-0 training", **asks)
    at, ready = 2, []
    for batch in range(n_batches):
        if batch in held_back:
            at = held_back[batch]
            run.add(LOOP, Kind.SUBMIT_QUEUE, at, at, thread=PRODUCER, detail="consumer")
        stages = {Kind.READ: READ_NS, Kind.COLLATE: COLLATE_NS}
        end = run.work(LOOP, at, stages, thread=PRODUCER, batch=batch)
        run.wait(batch, at, end, "consumer", **asks)
        ready.append(at := end)
    run.add(LOOP, Kind.WAIT, at, at, label="shutdown", **asks)
    run.add(LOOP, Kind.OTHER, 0, at, label="round", detail="loader-0", thread=PRODUCER, sample=0)
    return run, ready


def trained(run, ready, step_ns, kind=Kind.STEP):
    """The main thread takes what is ready, a ns later if it waited, and trains on it."""
    now = 0
    for batch, ready_ns in enumerate(ready):
        got = max(now, ready_ns) + 1
        received(run, batch, now, got)
        run.add(LOOP, kind, got, got + step_ns)
        now = got + step_ns
    received(run, -1, now, now + 2, made_by="")
    return now + 2


@pytest.mark.parametrize("kind", [Kind.STEP, Kind.BACKWARD])
def test_work_that_a_thread_did_ahead_is_hidden(kind):
    run, ready = prefetched()
    end = trained(run, ready, 27, kind)
    found = run.open().of_rank().exposure
    assert found.whole.wall_ns == end
    assert found.whole.exposed_ns == {
        "startup": 2, "read": READ_NS, "collate": COLLATE_NS, "handover": 3, "shutdown": 2,
    }  # fmt: skip
    assert found.whole.wait_ns == 17
    hidden = {row.stage: row.hidden_ns for row in found.whole.stages if row.hidden_ns}
    assert hidden == {"read": 2 * READ_NS, "collate": 2 * COLLATE_NS}
    assert found.whole.n_batches == 3
    assert found.loaders[0].role == "training"


def test_what_the_thread_that_trains_waits_for_another_one_is_that_ones_work():
    run, ready = prefetched()
    trained(run, ready, 3)
    found = run.open().of_rank().exposure.whole
    # Batches are ready at 12, 22, 32; the loop has them at 13, 23, 33 and asks at 0, 16, 26.
    assert found.wait_ns == 13 + 7 + 7 + 2
    assert sum(found.exposed_ns.values()) == found.wait_ns
    assert found.exposed_ns["handover"] == 3
    assert found.exposed_ns["read"] + found.exposed_ns["collate"] == 10 + 6 + 6
    assert "worker_gap" not in found.exposed_ns


def test_a_full_queue_is_slack_of_the_thread_that_fills_it():
    run, ready = prefetched(2, held_back={1: 100})
    received(run, 0, 0, 13)
    run.add(LOOP, Kind.STEP, 13, 105)
    received(run, 1, 105, 111)
    run.add(LOOP, Kind.STEP, 111, 120)
    found = run.open().of_rank().exposure.whole
    assert ready == [12, 110]
    assert found.wait_ns == 13 + 6
    assert "worker_gap" not in found.exposed_ns
    assert found.exposed_ns["handover"] == 2


def test_a_thread_that_does_not_train_waits_for_nothing_by_what_it_received():
    run = SketchedRun(kind="script")
    run.processes[LOOP] = {"threads": ("MainThread", "producer", "logger")}
    run.loaders.append(LoaderFacts(0, "torch", "", "Samples", workers=0))
    run.add(LOOP, Kind.READ, 0, 4, batch=0)
    run.wait(0, 0, 5, "consumer", sample=0, epoch=0)
    run.add(LOOP, Kind.STEP, 5, 10)
    run.round(0, 12)
    before = Run(run.data()).of_rank().exposure
    received(run, 0, 0, 11, thread=2)
    assert Run(run.data()).of_rank().exposure == before
    assert before.whole.wait_ns == 5


def test_of_two_threads_that_ask_loaders_the_one_that_trains_is_the_loop():
    run = SketchedRun(kind="script")
    run.processes[LOOP] = {"threads": ("MainThread", "validation")}
    run.loaders += [LoaderFacts(number, "torch", "", "Samples", workers=0) for number in (0, 1)]
    for batch in range(5):
        run.wait(batch, 10 * batch, 10 * batch + 9, "consumer", sample=1, thread=1)
    run.wait(5, 0, 3, "consumer", sample=0)
    run.add(LOOP, Kind.STEP, 3, 20)
    found = run.open().of_rank().exposure
    assert found.whole.wait_ns == 3


@pytest.mark.parametrize("asks", [True, False], ids=["another thread asks", "nobody asks"])
def test_what_a_thread_waits_for_that_trains_on_unrecorded_batches_is_not_known(asks):
    run, ready = prefetched() if asks else (SketchedRun(kind="script"), (12, 22, 32))
    for at in ready:
        run.add(LOOP, Kind.BACKWARD, at + 2, at + 4)
        run.add(LOOP, Kind.STEP, at + 4, at + 5)
    rank = run.open().of_rank()
    found = rank.exposure
    # Steps are from 14 to 17, 24 to 27 and 34 to 37.
    assert (found.unjoined_ns, found.is_handed) == (14, asks)
    assert (found.has_consumer, found.loaders, found.whole.wait_ns) == (False, (), 0)
    said = verdict_sentence(diagnosis_of(rank))
    assert ("was handed its batches in a way that is not recorded" in said) is asks
    assert "What its steps waited for is not known; 14 ns between them are in question." in said


def test_waits_in_stages_and_for_batches_are_no_waits_for_something_else():
    run, ready = prefetched()
    trained(run, ready, 27)
    before = run.open().of_rank().exposure.whole
    # Batches are waited for until 13, steps are from 13 to 40 and from 41 to 68.
    for start_ns, end_ns in ((1, 9), (2, 13), (15, 20), (41, 45)):
        run.add(LOOP, Kind.BLOCKED, start_ns, end_ns, flags=Flag.DETAIL)
    run.add(LOOP, Kind.BLOCKED, 2, 9, thread=PRODUCER, flags=Flag.DETAIL)
    assert run.open().of_rank().exposure.whole == before


def test_what_else_a_thread_that_trains_waits_for_is_a_part_of_its_own():
    run = SketchedRun(kind="script")
    run.loaders.append(LoaderFacts(0, "torch", "", "Samples", workers=0))
    for batch, at in enumerate((0, 100)):
        run.wait(batch, at, at + 10, "consumer", sample=0, epoch=0)
        run.add(LOOP, Kind.STEP, at + 10, at + 30)
        run.add(LOOP, Kind.BLOCKED, at + 40, at + 90, flags=Flag.DETAIL)
    run.round(0, 200)
    rank = run.open().of_rank()
    stages = {row.stage: row.busy_ns for row in rank.exposure.whole.compute_stages}
    assert stages == {"step": 40, "blocked": 100}
    said = verdict_sentence(diagnosis_of(rank))
    assert "It waits another 50 % (50 ns) of it for something that was not recorded." in said
