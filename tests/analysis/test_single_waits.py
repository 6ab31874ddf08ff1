"""Single waits, written down by hand: what each is given to, and what is summed beside it."""

import numpy as np
import pytest
from drawn_runs import graph_of
from invariants import check
from msgspec.structs import replace
from schedules import THREADS, exposed, phases, pool, stream, stream_sketch

from iobench.analysis.partition import leaf_pieces
from iobench.analysis.run import exposure
from iobench.errors import ProfileError
from iobench.recording.kinds import GRAPH, TASK, Kind, lane_keys, stage_name
from iobench.recording.span_file import Flag
from tests.support.sketched_runs import CONSUMER, SketchedRun

MS = 1_000_000
WORKER, OTHER = ("worker", 0), ("worker", 1)


def row(lane, kind, start, end, batch=0, **more):
    return {"lane": lane, "kind": kind, "start_ns": start, "end_ns": end, "batch": batch, **more}


def work(kind, start, end, batch=0, **more):
    return row(WORKER, kind, start, end, batch, **more)


def loop(kind, start, end, batch=0, **more):
    return row(CONSUMER, kind, start, end, batch, **more)


def queued(start, end, batch=0, lane=WORKER):
    return row(lane, Kind.SUBMIT_QUEUE, start, end, batch)


def waited(start, end, batch=0, maker="worker-0", **more):
    return row(CONSUMER, Kind.WAIT, start, end, batch, detail=maker, **more)


def on_thread(thread, kind, start, end, item, batch=0, **more):
    """Work of a thread of the loop's process."""
    return loop(kind, start, end, batch, sample=item, thread=thread, **more)


def released(thread, time, batch, by):
    """Until when a thread was held back, and by which one."""
    return loop(Kind.SUBMIT_QUEUE, time, time, batch, thread=thread, detail=by)


def one_worker(*rows, **config):
    sketch = SketchedRun({"workers": 1, "prefetch": 2, **config})
    sketch.spans += rows
    return sketch


def threads(*rows):
    sketch = stream_sketch()
    sketch.spans += rows
    return sketch


READ, DECODE, OPEN, UNPICKLE = Kind.READ, Kind.DECODE, Kind.OPEN, Kind.UNPICKLE
TURNS = [
    each
    for item in range(6)
    for each in (
        released(item % 2 + 1, 10 * item, item, THREADS[2 - item % 2] if item else "consumer"),
        on_thread(item % 2 + 1, READ, 10 * item, 10 * item + 10, item, item),
        on_thread(item % 2 + 1, DECODE, 10 * item + 10, 10 * item + 14, item, item),
        waited(*((10 * item + 14,) * 2 if item < 5 else (55, 64)), item, "threads"),
    )
]
CASES = {
    "the pick-up, to its own spans and else to the hand-over": (
        one_worker(
            queued(0, 0), work(READ, 0, 100), loop(UNPICKLE, 90, 130),
            loop(Kind.SAMPLER, 140, 150), waited(80, 160),
        ),
        {"read": 20, "unpickle": 30, "sampler": 10, "handover": 20},
    ),
    "spans of a user inside a stage": (
        one_worker(
            queued(0, 0), work(Kind.PREPROCESS, 20, 50, -1, label="augment"), work(READ, 0, 100),
            waited(0, 100),
        ),
        {"read": 70, "preprocess:augment": 30},
    ),
    "a batch is ready when it is pinned": (
        one_worker(
            queued(0, 0), work(READ, 0, 50), loop(Kind.PIN, 60, 90, thread=1), waited(0, 100),
        ),
        {"read": 50, "ipc_wait": 10, "pin": 30, "handover": 10},
    ),
    # Nothing else is in it but one nanosecond of reading a batch, and of decoding it.
    "every kind that is waiting": (
        one_worker(
            work(Kind.STARTUP, 0, 10, -1), queued(15, 20), work(READ, 20, 21),
            work(DECODE, 24, 25), loop(Kind.PIN, 30, 31, thread=1),
            loop(Kind.HEAD_OF_LINE, 31, 33, -1), waited(0, 34), waited(40, 47, 1, "worker-1"),
            waited(50, 58, -1, "", label="shutdown"),
            expected_workers=["worker-0", "worker-1"],
        ),
        {
            "startup": 10, "starved_submit": 5, "submit_queue": 5, "read": 1, "worker_gap": 3,
            "decode": 1, "ipc_wait": 5, "pin": 1, "head_of_line": 2, "handover": 1, "unknown": 7,
            "shutdown": 8,
        },
    ),
    "a batch moved to a device in the wait": (
        one_worker(queued(0, 0), work(READ, 0, 50), loop(Kind.H2D, 50, 90), waited(0, 100)),
        {"read": 50, "h2d": 40, "handover": 10},
    ),
    # Decoding item 1 hangs on reading item 1, not on what ended as late for item 0.
    "items of one batch on other threads": (
        threads(
            on_thread(1, READ, 0, 22, 0), on_thread(2, DECODE, 22, 43, 0),
            on_thread(3, Kind.PREPROCESS, 43, 46, 0), on_thread(1, READ, 22, 45, 1),
            on_thread(2, DECODE, 47, 53, 1), waited(0, 53, 0, "threads"),
        ),
        {"read": 45, "worker_gap": 2, "decode": 6},
    ),
    # Reading item 2 waits for room that decoding item 0 makes. Before decoding 2: reading 2 (10),
    # then decoding 0 (90) and reading 0 (10); 10 of 115 waited.
    "a stage held back by the next one": (
        threads(
            *(on_thread(1, READ, at, at + 10, n, n) for n, at in enumerate((0, 10, 100))),
            on_thread(2, DECODE, 10, 100, 0, 0), on_thread(2, DECODE, 100, 105, 1, 1),
            on_thread(2, DECODE, 110, 115, 2, 2), released(1, 100, 2, THREADS[2]),
            waited(100, 100, 0, "threads"), waited(105, 105, 1, "threads"),
            waited(105, 115, 2, "threads"),
        ),
        {"decode": 8, "read": 2},
    ),
    "a stage held back by the loop": (
        threads(
            on_thread(1, READ, 0, 10, 0, 0), on_thread(1, READ, 1000, 1010, 1, 1),
            released(1, 1000, 1, "consumer"), waited(1000, 1000, 0, "threads"),
            waited(1005, 1010, 1, "threads"),
        ),
        {"read": 5},
    ),
    "threads that left no spans": (threads(waited(0, 50, 0, "threads")), {"unknown": 50}),
    # Two threads take turns at a costly source; each then decodes while the other one pulls. Six
    # times reading and the last decoding, one after another: 9 of 64 were waited for.
    "a thread up to where it let another one go on": (threads(*TURNS), {"read": 8, "decode": 1}),
    # Finding that a file has no further part is work of its own, long before the next file. All of
    # the first 55; then reading 50 and decoding 10, less the 5 that the first batch's path had
    # beside this reading, share a wait of 50.
    "the end of one item is not the begin of the next": (
        threads(
            on_thread(1, READ, 0, 50, 0, 0), on_thread(2, DECODE, 50, 55, 0, 0),
            on_thread(2, DECODE, 55, 56, 1, 1, flags=Flag.SUMMED, pieces=0),
            on_thread(1, READ, 50, 100, 1, 1), on_thread(2, DECODE, 100, 110, 1, 1),
            waited(0, 55, 0, "threads"), waited(60, 110, 1, "threads"),
        ),
        {"read": 50 + 45, "decode": 5 + 5},
    ),
    # While one worker reads the other one is waited for, twice; then the reader for the rest.
    "batches taken as they come, to what all workers are at": (
        one_worker(
            queued(0, 0), work(READ, 0, 90), queued(0, 0, 1, OTHER), queued(10, 10, 2, OTHER),
            row(OTHER, DECODE, 0, 10, 1), row(OTHER, DECODE, 10, 20, 2),
            waited(0, 10, 1, "worker-1"), waited(10, 20, 2, "worker-1"), waited(20, 90),
        ),
        {"read": 5 + 5 + 70, "decode": 5 + 5},
    ),
    # A thread that asks a loader draws the next samples, then does more for the batch it got.
    "drawing the next samples does not hold a batch up": (
        one_worker(
            queued(0, 0), work(READ, 0, 80), queued(91, 91, 1), waited(0, 95),
            on_thread(1, Kind.UNPICKLE, 80, 90, -1), on_thread(1, Kind.SAMPLER, 90, 91, -1, 1),
            on_thread(1, Kind.PREPROCESS, 91, 95, -1),
        ),
        {"read": 80, "unpickle": 10, "sampler": 1, "preprocess": 4},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("sketch", "expected"), CASES.values(), ids=CASES)
def test_a_wait_is_given_to(sketch, expected):
    assert exposed(sketch.data()) == expected
    check(sketch.data())


def test_sampled_and_counting_records_take_no_time():
    sketch = one_worker(
        queued(0, 0), work(READ, 0, 70, flags=Flag.SUMMED, pieces=4),
        work(DECODE, 70, 100, flags=Flag.SUMMED, pieces=4),
        work(DECODE, 10, 20, flags=Flag.DETAIL), work(READ, 0, 100, flags=Flag.IO), waited(0, 100),
    )  # fmt: skip
    figures = exposure(sketch.data()).whole
    assert figures.exposed_ns == {"read": 70, "decode": 30}
    assert [each.n_spans for each in figures.stages] == [4, 4]


@pytest.mark.parametrize("persists", [True, False])
def test_workers_start_once_or_anew_in_each_epoch(persists):
    sketch = one_worker()
    for epoch in (0, 1):
        lane, begin = WORKER if persists else (*WORKER, epoch), 1000 * epoch
        sketch.round(begin, begin + 100, epoch)
        if not persists:
            sketch.add(lane, Kind.STARTUP, begin, begin + 60)
        sketch.spans += (
            queued(begin, begin + 65, epoch, lane), row(lane, READ, begin + 65, begin + 100, epoch),
            waited(begin, begin + 100, epoch, epoch=epoch),
        )  # fmt: skip
    starts = (65, 65) if persists else (120, 10)
    expected = {"startup": starts[0], "submit_queue": starts[1], "read": 70}
    assert exposed(sketch.data()) == expected


KINDS_THAT_LOAD = (
    *(kind for kind in Kind if kind < Kind.SAMPLER),
    *(Kind.SERIALISE, Kind.PIN, Kind.H2D, Kind.SAMPLER, Kind.UNPICKLE),
)


@pytest.mark.parametrize("kind", KINDS_THAT_LOAD, ids=lambda kind: kind.spelled)
def test_every_kind_of_work_can_be_waited_for(kind):
    in_worker = one_worker(queued(0, 0), work(kind, 0, 100, label="mine"), waited(0, 100))
    in_loop = one_worker(loop(kind, 0, 100, label="mine"), waited(0, 100, 0, "consumer"))
    for sketch in (in_worker, in_loop):
        (only,) = (each for each in exposure(sketch.data()).whole.stages if each.busy_ns)
        assert (only.stage, only.exposed_ns, only.busy_ns) == (stage_name(kind, "mine"), 100, 100)


def test_nothing_delivered():
    figures = exposure(SketchedRun(workers=2, expected_workers=["worker-0"]).data())
    assert (figures.whole.wall_ns, figures.whole.wait, figures.steady) == (0, None, None)
    assert figures.missing_workers == ("worker-0",)


def test_a_killed_round_ends_with_its_last_span():
    sketch = pool([[5, 3, 1]] * 4, workers=1, step_ns=50)
    spans = [s for s in sketch.spans if s["kind"] != Kind.OTHER and s.get("label") != "shutdown"]
    killed = sketch.with_spans([*spans, loop(Kind.FORWARD, 159, 180)])
    assert exposure(killed.data()).whole.wall_ns == 180


def test_gaps_beside_lost_spans_are_unknown():
    sketch = one_worker(queued(0, 0), work(READ, 0, 40), work(DECODE, 60, 100), waited(0, 100))
    sketch.processes[WORKER] = {"lost": 7}
    assert exposure(sketch.data()).lost_spans == 7
    assert exposed(sketch.data()) == {"read": 40, "decode": 40, "unknown": 20}


def test_batches_kept_ready_and_one_more_are_the_fill():
    run = stream([[3, 1, 1]] * 20, [1] * 20, batches_ahead=4).open().of_rank()
    assert (phases(run), run.exposure.prefetch) == ([1, 4, 0, 15, 1], 4)


def times(figures, name):
    return {each.stage: getattr(each, name) for each in figures.stages if getattr(each, name)}


@pytest.mark.parametrize("maker", ["worker-0", "consumer"])
def test_the_critical_path_of_tasks_is_waited_for(maker):
    # Thread 1 reads 30 and computes 10; thread 2 reads 50; then thread 1 joins both.
    tasks = [(1, 20, 60, 30), (2, 20, 70, 50), (1, 75, 85, 0)]
    figures = exposure(graph_of(tasks, end=100, maker=maker).data()).whole
    expected = {"fused": 20, "preprocess:dask": 20, "read": 50, "preprocess": 10}
    assert times(figures, "exposed_ns") == expected
    assert times(figures, "busy_ns") == expected | {"read": 80, "preprocess": 20}


def test_tasks_of_other_samples_are_not_laid_into_this_one():
    sketch = graph_of([(1, 20, 60, 30)], end=100)
    for span in [span for span in sketch.spans if span.get("thread")]:
        span["sample"] = 4
    figures = exposure(sketch.data()).whole
    assert times(figures, "exposed_ns") == {"fused": 20, "preprocess:dask": 80}


def test_a_graph_inside_of_a_task_is_part_of_it():
    sketch = graph_of([(1, 20, 80, 0)], end=100)
    at = {"batch": 0, "epoch": 0, "sample": 3}
    sketch.add(WORKER, READ, 40, 55, thread=5, **at)
    sketch.add(WORKER, Kind.PREPROCESS, 40, 60, detail=TASK, thread=5, **at)
    sketch.add(WORKER, Kind.PREPROCESS, 40, 50, detail=TASK, thread=6, **at)
    sketch.add(WORKER, Kind.PREPROCESS, 30, 70, label=GRAPH, thread=1, **at)
    figures = exposure(sketch.data()).whole
    # Of the task 20 on its own; of the graph in it 20 that no task explains.
    assert times(figures, "exposed_ns") == {
        "fused": 20, "preprocess:dask": 20 + 20, "preprocess": 20 + 5, "read": 15,
    }  # fmt: skip
    assert times(figures, "busy_ns")["preprocess"] == 20 + 5 + 10


def looked(lane, start, end, queued_ns, batch=0, **more):
    """How long a thread was on the run queue, as it looked at the end."""
    return row(lane, Kind.CPU_WAIT, start, end, batch, cpu_ns=queued_ns, flags=Flag.IO, **more)


def one_batch(*, queued_ns, in_loop_ns=0, until=100):
    """Submitted at 0, begun at 20, made at 100, unpickled from 110 to 150, held at 160."""
    return one_worker(
        queued(0, 20), work(READ, 20, 40), work(DECODE, 40, 100),
        loop(UNPICKLE, 110, 150, cpu_ns=10), waited(0, 160), looked(WORKER, 0, until, queued_ns),
        looked(CONSUMER, 0, 160, in_loop_ns),
    )  # fmt: skip


USUAL = {"decode": 60, "unpickle": 40, "read": 20, "startup": 20, "handover": 20}


@pytest.mark.parametrize(
    ("queued_ns", "in_loop_ns", "expected"),
    [
        (0, 0, {}),
        # First what nobody worked in, before the first stage;
        (20, 0, {"startup": 0, "cpu_wait": 20}),
        # then the stages in proportion.
        (60, 0, {"startup": 0, "decode": 30, "read": 10, "cpu_wait": 60}),
        # In the loop unpickling but for its CPU time, then the hand-over from its end.
        (0, 25, {"unpickle": 15, "cpu_wait": 25}),
        (0, 45, {"unpickle": 10, "handover": 5, "cpu_wait": 45}),
    ],
)
def test_waiting_for_a_cpu_is_taken_first_from_what_nobody_works_in(
    queued_ns, in_loop_ns, expected
):
    data = one_batch(queued_ns=queued_ns, in_loop_ns=in_loop_ns).data()
    assert exposed(data) == {stage: ns for stage, ns in (USUAL | expected).items() if ns}
    check(data)


def test_unpickling_waits_for_its_worker_that_waits_for_a_cpu():
    # Until 200 the worker makes another batch, half of the time on the run queue.
    sketch = one_batch(queued_ns=90, until=200)
    sketch.spans += queued(100, 100, 1), work(DECODE, 100, 200, 1)
    # 180 ns of work after 20 of idle: 20 of the 90 were these; of 30 ns off the CPU 30 * 90 / 200.
    figures = exposed(sketch.data())
    assert figures["unpickle"] == 40 - 30 * (40 * 90 // 200) // 40
    assert sum(figures.values()) == 160


def pieces_of(*rows):
    table = one_worker(*rows).data().spans
    return table, leaf_pieces(table, lane_keys(table))


def test_nested_spans_in_pieces():
    for rows, expected in (
        ([work(OPEN, 1, 2), work(DECODE, 1, 3), work(READ, 0, 8)], {OPEN: 1, DECODE: 1, READ: 6}),
        # Of two alike the one written first is inside.
        ([work(OPEN, 0, 10), work(READ, 0, 10)], {OPEN: 10, READ: 0}),
    ):
        table, pieces = pieces_of(*rows)
        ns = np.bincount(table["kind"][pieces.span], pieces.duration_ns)
        assert {kind: ns[kind] for kind in expected} == expected
    _, pieces = pieces_of(work(OPEN, 2, 5, -1), work(READ, 0, 10, 7))
    assert pieces.batch.tolist() == [7, 7, 7]  # one without a batch is of that around it,
    _, pieces = pieces_of(
        work(READ, 0, 1, 4), work(OPEN, 1, 2, -1), work(READ, 2, 3, 4), work(OPEN, 3, 4, -1)
    )
    assert pieces.batch.tolist() == [4, 4, 4, -1]  # or between two of one batch


@pytest.mark.parametrize(
    ("inner", "expected"), [(2, {OPEN: 2, READ: 7}), (-1, {OPEN: -1, READ: -1})]
)
def test_cpu_time_is_less_that_of_spans_directly_inside_or_unknown(inner, expected):
    table, pieces = pieces_of(work(OPEN, 2, 5, cpu_ns=inner), work(READ, 0, 10, cpu_ns=9))
    kinds = map(Kind, table["kind"][pieces.span[pieces.first]].tolist())
    assert dict(zip(kinds, pieces.cpu_ns[pieces.first].tolist(), strict=True)) == expected


def test_shares_of_single_spans():
    sketch = one_worker(work(READ, 0, 40), waited(20, 50), work(READ, 50, 90, 1))
    sketch.round(0, 100)
    data = sketch.data()
    share = sketch.open().sums.share
    assert share[data.spans["kind"] == READ].tolist() == [0.5, 0.0]  # on no path: not waited for
    sketch = one_worker(
        work(READ, 30, 40, flags=Flag.DETAIL, sample=3),
        work(READ, 0, 40, flags=Flag.SUMMED, pieces=4),
        work(READ, 70, 80, 1, flags=Flag.DETAIL, sample=9), waited(10, 50),
    )  # fmt: skip
    sketch.round(0, 100)
    share = sketch.open().sums.share[sketch.data().spans["kind"] == READ]
    assert share[:2].tolist() == [0.75, 0.75]  # a sample has that of the sum beside it
    assert share[2] != share[2]


def counted(*rows, **config):
    """A batch of 120 bytes that is waited for, and what is told of its work."""
    return exposure(
        one_worker(queued(0, 0), waited(0, 100, nbytes=120), *rows, **config).data()
    ).whole


def test_bytes_and_cpu_time_of_a_stage_are_unknown_where_one_span_does_not_tell():
    told, untold = work(READ, 0, 40, nbytes=7, cpu_ns=30), work(READ, 40, 80)
    for rows, expected in (((told,), (7, 30, 1)), ((told, untold), (None, None, 2))):
        (read,) = (each for each in counted(*rows).stages if each.stage == "read")
        assert (read.nbytes, read.cpu_ns, read.n_spans) == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [({"sample_nbytes": 40}, 3), ({"batch_size": 5}, 5), ({"sample_nbytes": 7}, None), ({}, None)],
)
def test_samples_are_counted_by_their_bytes_else_by_the_batch_size(config, expected):
    assert counted(**config).n_samples == expected


@pytest.mark.parametrize(
    ("counters", "config"),
    [
        ([(100, 25), (100, -1)], {}),
        ([(100, 25)], {"cold_known": False}),
        ([], {}),
        ([(0, 0)], {}),
    ],
)
def test_cold_is_unknown_where_the_file_system_does_not_tell(counters, config):
    looks = (
        work(READ, 0, 100, nbytes=read, cpu_ns=device, flags=Flag.IO) for read, device in counters
    )
    assert counted(*looks, **config).cold_fraction is None


@pytest.mark.parametrize(
    ("piped", "nbytes", "read"), [(False, 360, 360), (True, 360, None), (True, 6000, 6000)]
)
def test_pipes_to_workers_are_no_files_that_are_read(piped, nbytes, read):
    rows = [work(READ, 0, 100, nbytes=nbytes, cpu_ns=nbytes // 2, flags=Flag.IO)]
    whole = counted(*rows, *[work(Kind.SERIALISE, 0, 5)] * piped)
    known = (whole.read_nbytes, whole.read_per_byte, whole.cold_fraction)
    assert known == (None, None, None) if read is None else (read, read / 120, 0.5)


COSTS = {"light_ns": 1, "full_ns": 4, "io_ns": 2}


def test_overhead_is_what_processes_measured_of_themselves_else_spans_times_their_cost():
    rows = (
        work(READ, 0, 40, cpu_ns=30), work(DECODE, 40, 80, flags=Flag.SUMMED, pieces=10),
        work(READ, 80, 80, flags=Flag.IO, cpu_ns=0),
    )  # fmt: skip
    rows = *rows, loop(Kind.OTHER, 0, 200, -1, label="round", sample=0)
    # Light: the wait, the round, the submission and ten decodings; then one full and one counter.
    assert counted(*rows, unit_costs=COSTS).overhead_fraction == (13 + 4 + 2) / (200 * 2)
    assert counted(*rows).overhead_fraction is None
    assert counted(*rows, unit_costs={**COSTS, "light_ns": None}).overhead_fraction is None
    data = one_worker(queued(0, 0), waited(0, 100), *rows, unit_costs=COSTS).data()
    own = {"consumer": (6, 30), "worker": (9, 50)}
    processes = tuple(
        replace(each, own_ns=own[each.role][0], once_ns=own[each.role][1])
        for each in data.processes
    )
    figures = exposure(replace(data, processes=processes))
    assert figures.whole.overhead_fraction == 9 / 200, "of the worker, which it slows most"
    assert figures.overhead_once_ns == 50


def test_work_on_the_path_of_a_steady_delivery_counts_as_steady():
    figures = exposure(pool([[30, 20, 10]] * 20, workers=1, step_ns=59).data())
    assert sum(each.busy_ns for each in figures.steady.stages) == 60 * figures.steady.n_batches


@pytest.mark.parametrize(
    ("second", "said"), [(waited(50, 150, 1), "overlap"), (waited(150, 170, 1, thread=1), "2 thr")]
)
def test_waits_that_cannot_be_of_one_loop_are_refused(second, said):
    with pytest.raises(ProfileError, match=said):
        counted(second)


@pytest.mark.parametrize(
    ("waits", "expected"),
    [
        ([50] * 20, None),
        ([10] * 99 + [200], None),
        ([10 if step % 10 else 5000 for step in range(100)], (10, 50_000, 5000)),
    ],
    ids=["equal", "too short", "every tenth"],
)
def test_few_long_waits_that_a_median_hides(waits, expected):
    figures = exposure(pool([(each, 0, 0) for each in waits], workers=0, step_ns=100).data())
    long = figures.long_waits
    assert (long and (long.n_waits, long.wait_ns, long.typical_ns)) == expected
