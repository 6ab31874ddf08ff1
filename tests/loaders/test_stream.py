"""Streams in threads: order, equality with the stages run one by one, and every way to end."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import ExitStack
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from span_rows import rows_by_kind, rows_of
from tiny_pipeline import COSTS
from tiny_stream import batches, chain, decode, files, generator, read, shift, with_stage

from iobench.analysis.run import exposure
from iobench.datasets.own_pipelines import stream_samples
from iobench.errors import FileFormatError, IobenchError, OptionError, SampleError, WorkerError
from iobench.loaders.batch_plan import BatchPlan, plan_batches
from iobench.loaders.compute import parse_compute
from iobench.loaders.contract import IN_THREADS, PlannedBatch
from iobench.loaders.measure import MeasuredPipeline, measure
from iobench.loaders.stage_timer import Detail
from iobench.loaders.stream import StreamLoader
from iobench.profiles.reading import open_profile
from iobench.recording.kinds import Kind
from iobench.recording.run_directory import RunDirectory
from iobench.recording.span_file import Flag

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert not set(threading.enumerate()) - before


def planned(n_batches, first=0):
    return [PlannedBatch(number, 0, ()) for number in range(first, first + n_batches)]


def loader_of(consumer, stream, batch_size=3, **options):
    options = {"detail": Detail.SAMPLE, "unit_costs": COSTS, **options}
    return StreamLoader(stream, batch_size, recorder=consumer, **options)


def numbers(batch):
    return batch.arrays["number"].tolist()


def delivered(consumer, stream, batch_size, n_batches, **options):
    with loader_of(consumer, stream, batch_size, **options) as loader:
        return [numbers(batch) for batch in loader.batches(planned(n_batches))]


def flat(batches):
    return [number for batch in batches for number in batch]


def serial_numbers(stream, n):
    """Return the numbers of the first n samples of all passes, one by one."""
    found, epoch = [], 0
    while len(found) < n:
        found += [int(sample["number"]) for sample in stream_samples(stream, epoch)]
        epoch += 1
    return found[:n]


@pytest.fixture(scope="module")
def quiet(tmp_path_factory):
    """Where recording is not what is tested: a recorder for many loaders."""
    run = RunDirectory.create(tmp_path_factory.mktemp("quiet") / "run", {})
    with run.recorder(role="consumer") as recorder:
        yield recorder


shapes = {
    "batch_size": st.integers(1, 4),
    "n_batches": st.integers(1, 9),
    "threads": st.integers(1, 3),
    "ahead": st.integers(1, 3),
    "batches_ahead": st.integers(0, 2),
}


@given(n_samples=st.integers(1, 12), **shapes)
def test_a_chain_delivers_what_its_stages_make_one_by_one(
    quiet, n_samples, batch_size, n_batches, threads, ahead, batches_ahead
):
    stream = chain(n_samples, threads=threads, ahead=ahead, batches_ahead=batches_ahead)
    ours = delivered(quiet, stream, batch_size, n_batches)
    expected = serial_numbers(stream, batch_size * n_batches)
    assert flat(ours) == expected
    assert {len(batch) for batch in ours} == {batch_size}


@pytest.mark.thorough
@given(
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=4).filter(any),
    shuffle=st.integers(0, 6),
    **shapes,
)
def test_a_stage_that_spreads_keeps_the_order_and_the_shuffle_does_not_depend_on_threads(
    quiet, sizes, shuffle, batch_size, n_batches, threads, ahead, batches_ahead
):
    sizes = tuple(sizes)
    how = {"shuffle": shuffle, "batches_ahead": batches_ahead}
    stream = files(sizes, threads=threads, ahead=ahead, **how)
    ours = flat(delivered(quiet, stream, batch_size, n_batches, seed=5))
    alone = files(sizes, shuffle=shuffle, batches_ahead=0)
    assert ours == flat(delivered(quiet, alone, batch_size, n_batches, seed=5))
    passes = serial_numbers(stream, len(ours) + sum(sizes))
    for low in range(0, len(ours) - sum(sizes) + 1, sum(sizes)):
        assert sorted(ours[low : low + sum(sizes)]) == passes[low : low + sum(sizes)]
    # A sample leaves at the earliest when the buffer is full with it: no further forward.
    for place, number in enumerate(ours):
        arrived = passes.index(number)
        assert place >= arrived - max(shuffle - 1, 0)


def test_a_shuffle_buffer_moves_samples_and_its_seed_decides_how(quiet):
    stream = chain(40, shuffle=8)
    one, same, other = (flat(delivered(quiet, stream, 4, 10, seed=seed)) for seed in (1, 1, 2))
    assert one == same != other
    assert sorted(one) == sorted(other) == list(range(40))
    assert one != list(range(40))


def test_values_are_those_of_the_samples(quiet):
    stream = chain(7)
    with loader_of(quiet, stream, 2) as loader:
        held = [batch.arrays for batch in loader.batches(planned(3))]
    samples = list(stream_samples(stream))
    for number, arrays in enumerate(held):
        for name in stream.spec.names:
            expected = np.stack([sample[name] for sample in samples[2 * number : 2 * number + 2]])
            np.testing.assert_array_equal(arrays[name], expected, strict=True)


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_a_generator_without_stages_is_pulled_in_turn(quiet, ahead):
    stream = generator(5, batches_ahead=ahead)
    ours = delivered(quiet, stream, 2, 6)
    assert flat(ours) == serial_numbers(stream, 12)


@pytest.mark.parametrize("ahead", [0, 2])
def test_whole_batches_are_handed_on_as_they_are_the_short_one_too(quiet, ahead):
    stream = batches(7, 3, batches_ahead=ahead)
    ours = delivered(quiet, stream, 3, 6)
    assert [len(batch) for batch in ours] == [3, 3, 1, 3, 3, 1]
    assert flat(ours) == serial_numbers(stream, 14)


def test_who_made_a_batch_is_told(quiet):
    for stream, worker in (
        (generator(4, batches_ahead=0), -1),
        (generator(4, batches_ahead=1), IN_THREADS),
        (chain(4, batches_ahead=0), IN_THREADS),
    ):
        with loader_of(quiet, stream) as loader:
            assert [batch.worker for batch in loader.batches(planned(2))] == [worker] * 2


# -- rounds and ends --------------------------------------------------------------------------


def test_rounds_go_on_where_the_last_one_ended(quiet):
    with loader_of(quiet, chain(9), 3) as loader:
        first = loader.batches(planned(4))
        taken = [numbers(next(first)), numbers(next(first))]
        alive = set(threading.enumerate())
        rest = loader.batches(planned(3, first=2))  # the first one is left early
        taken += [numbers(batch) for batch in rest]
        assert list(first) == []
        assert set(threading.enumerate()) == alive
    assert flat(taken) == serial_numbers(chain(9), 15)


def test_a_run_may_begin_at_any_batch_but_has_no_gaps(run, consumer):
    with loader_of(consumer, chain()) as loader:
        assert len(list(loader.batches(planned(2, first=7)))) == 2
        with pytest.raises(OptionError, match="batch 4 is planned where 9 was expected"):
            next(loader.batches(planned(1, first=4)))
    assert min(row.batch for row in rows_of(run) if row.kind == Kind.READ) == 7


def test_an_empty_plan_starts_nothing(quiet):
    before = threading.active_count()
    with loader_of(quiet, chain()) as loader:
        assert list(loader.batches([])) == []
        assert threading.active_count() == before


@pytest.mark.parametrize("make", [chain, generator])
def test_an_abandoned_loader_ends_its_threads(quiet, make):
    loader = loader_of(quiet, make(100, shuffle=5, batches_ahead=2))
    iterator = loader.batches(planned(50))
    next(iterator)
    loader.close()
    loader.close()
    with pytest.raises(WorkerError, match="closed"):
        next(iterator)
    with pytest.raises(WorkerError, match="closed"):
        loader.batches(planned(1))


def test_closing_ends_the_items_of_a_generator(quiet):
    ended = []

    def items(epoch):
        try:
            yield from range(100)
        finally:
            ended.append(epoch)

    with loader_of(quiet, chain(100, items=items)) as loader:
        next(loader.batches(planned(3)))
        assert not ended
    assert ended == [0]


def test_threads_stop_when_enough_lies_ready(quiet):
    """One in each queue and one in each hand at most, however long the training loop computes."""
    pulled = []

    def items(epoch):
        for number in range(1000):
            pulled.append(number)
            yield number

    stream = chain(1000, items=items, ahead=2, batches_ahead=1)
    with loader_of(quiet, stream, 1) as loader:
        iterator = loader.batches(planned(20))
        for _ in range(20):
            next(iterator)
            # 3 stages keep 2 ready each and work on 1; 1 batch is ready, 1 being made.
            assert len(pulled) <= len(range(20)) + 3 * 3 + 2


# -- errors -----------------------------------------------------------------------------------


def breaking(run, at, error):
    def broken(value):
        number = value if isinstance(value, int) else int(np.frombuffer(value[1], "<i8")[0])
        if number == at:
            raise error
        return run(value)

    return broken


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize(("position", "run"), [(0, read), (1, decode)])
def test_an_error_reaches_the_loop_after_the_batches_before_it(
    quiet, threads, ahead, position, run
):
    stream = chain(20, threads=threads, batches_ahead=ahead)
    broken = breaking(run, 7, ValueError("bad\nnews"))
    stream = with_stage(stream, position, run=broken)
    got = []
    with (
        loader_of(quiet, stream, 3) as loader,
        pytest.raises(WorkerError, match=r"item 7 of pass 0 .* ValueError: bad$") as caught,
    ):
        got.extend(map(numbers, loader.batches(planned(9))))
    assert str(caught.value).startswith(stream.stages[position].name)
    assert isinstance(caught.value.__cause__, ValueError)
    assert got == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(WorkerError, match="closed"):
        loader.batches(planned(1))


def test_an_error_of_ours_is_raised_as_it_is(quiet):
    error = FileFormatError("x.nc: cut short")
    stream = with_stage(chain(), 0, run=breaking(read, 4, error))
    with loader_of(quiet, stream) as loader, pytest.raises(FileFormatError) as caught:
        list(loader.batches(planned(9)))
    assert caught.value is error


def test_a_thread_that_wants_to_exit_does_not_hang_the_loop(quiet):
    stream = with_stage(chain(), 1, run=breaking(decode, 4, SystemExit(3)))
    with loader_of(quiet, stream) as loader, pytest.raises(SystemExit):
        list(loader.batches(planned(9)))


@pytest.mark.parametrize("ahead", [0, 1])
def test_items_that_cannot_be_made_are_named(quiet, ahead):
    def items(epoch):
        yield 0
        raise OSError("gone")

    stream = chain(items=items, batches_ahead=ahead)
    with (
        loader_of(quiet, stream, 1) as loader,
        pytest.raises(
            WorkerError, match="items: item 1 of pass 0 could not be made: OSError: gone"
        ),
    ):
        list(loader.batches(planned(9)))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"items": lambda epoch: []}, "has no sample"),
        ({"items": lambda epoch: [1, 2], "n_samples": lambda item: 0}, "has no sample"),
        ({"n_samples_all": 9}, "hold 10 samples, expected 9"),
        ({"n_samples": lambda item: 2, "n_samples_all": 20}, "made 10 samples, .* become 20"),
    ],
)
@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("shuffle", [0, 4])
def test_a_stream_that_is_not_what_it_says_is_an_error(quiet, changes, says, ahead, shuffle):
    stream = chain(**changes, batches_ahead=ahead, shuffle=shuffle)
    with loader_of(quiet, stream) as loader, pytest.raises(WorkerError, match=says):
        list(loader.batches(planned(9)))


def test_a_sample_of_another_shape_is_refused(quiet):
    stream = with_stage(chain(), 2, run=lambda sample: {**shift(sample), "field": np.zeros(3)})
    with (
        loader_of(quiet, stream) as loader,
        pytest.raises(SampleError, match="sample 0 of pass 0: array 'field'"),
    ):
        next(loader.batches(planned(1)))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda batch: {**batch, "number": batch["number"][:1]},
        lambda batch: {name: array[:0] for name, array in batch.items()},
        lambda batch: {name: np.concatenate([array, array]) for name, array in batch.items()},
    ],
)
def test_a_batch_of_uneven_arrays_is_refused(quiet, spoil):
    stream = batches(6, 3)
    made = stream.stages[0].run
    stream = with_stage(stream, 0, run=lambda item: spoil(made(item)))
    with loader_of(quiet, stream) as loader, pytest.raises(SampleError, match="1 to 3 samples"):
        next(loader.batches(planned(1)))


@pytest.mark.parametrize(
    ("stream", "batch_size"),
    [
        (chain(), 0),
        (chain(batches_ahead=-1), 1),
        (chain(shuffle=-1), 1),
        (chain(threads=0), 1),
        (chain(ahead=0), 1),
        (batches(4, 2, shuffle=3), 2),
        (with_stage(files((2,)), 0, spreads=True), 1),
    ],
)
def test_numbers_that_cannot_be_used_are_refused(quiet, stream, batch_size):
    with pytest.raises(OptionError):
        loader_of(quiet, stream, batch_size)


# -- what is recorded -------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [0, 1, 4])
@pytest.mark.parametrize("threads", [1, 2])
def test_spans_carry_the_batch_that_needs_their_item_first(run, consumer, shuffle, threads):
    stream = chain(10, threads=threads, shuffle=shuffle)
    with loader_of(consumer, stream, 3) as loader:
        list(loader.batches(planned(7)))
    delay = max(shuffle - 1, 0)
    by_kind = rows_by_kind(run)
    for kind in (Kind.READ, Kind.DECODE, Kind.PREPROCESS):
        found = {(row.epoch, row.sample): row.batch for row in by_kind[kind]}
        for (epoch, sample), batch in found.items():
            assert batch == (10 * epoch + max(sample - delay, 0)) // 3
    assert [row.batch for row in by_kind[Kind.COLLATE]][:7] == list(range(7))


@pytest.mark.parametrize("threads", [1, 3])
def test_whoever_held_a_thread_back_is_named_and_is_another(run, consumer, threads):
    stream = chain(50, threads=threads)
    with loader_of(consumer, stream, 2) as loader:
        list(loader.batches(planned(40)))
    rows = rows_of(run)
    releases = [row for row in rows if row.kind == Kind.SUBMIT_QUEUE]
    assert {row.detail for row in releases} <= {"consumer", *(row.thread for row in rows)}
    assert all(row.detail != row.thread for row in releases)
    assert "consumer" in {row.detail for row in releases}  # who began the run


def test_parts_of_an_item_carry_their_own_batches(run, consumer):
    with loader_of(consumer, files((5, 0, 4)), 2) as loader:
        list(loader.batches(planned(4)))
    by_kind = rows_by_kind(run, epoch=0)
    assert [row.batch for row in by_kind[Kind.READ]] == [0, 2, 2]
    decoded = [(row.sample, row.batch) for row in by_kind[Kind.DECODE] if row.pieces]
    assert decoded[:8] == [(number, number // 2) for number in range(8)]
    # That an item has no further part takes time as well, and is no sample.
    assert sum(row.pieces for row in by_kind[Kind.DECODE]) == len(decoded)


def test_work_is_recorded_by_the_thread_that_did_it(run, consumer):
    stream = generator(6, batches_ahead=1)
    with loader_of(consumer, stream, 2) as loader:
        list(loader.batches(planned(3)))
    made = [row for row in rows_of(run) if row.kind == Kind.FUSED]
    assert {(row.label, row.thread) for row in made} == {("read+decode+preprocess", "0-batch-0")}
    with loader_of(consumer, chain(6), 2) as loader:
        list(loader.batches(planned(3)))
    by_kind = rows_by_kind(run)
    for kind, thread in (
        (Kind.READ, "0-read-0"),
        (Kind.DECODE, "1-decode-0"),
        (Kind.PREPROCESS, "2-preprocess-0"),
    ):
        assert {row.thread for row in by_kind[kind]} == {thread}
    assert {row.nbytes for row in by_kind[Kind.READ]} == {16}
    assert {row.nbytes for row in by_kind[Kind.COLLATE]} == {32}


def test_detail_decides_between_items_and_batches(tmp_path):
    spans = {}
    for detail in Detail:
        run = RunDirectory.create(tmp_path / detail.value, {})
        with run.recorder(role="consumer") as recorder:
            stream = generator(40, batches_ahead=0)
            costs = {"light_ns": 10**9, "full_ns": 10**9}  # always too much
            delivered(recorder, stream, 4, 10, detail=detail, unit_costs=costs)
        spans[detail] = rows_by_kind(run)[Kind.FUSED]
    assert len(spans[Detail.SAMPLE]) == 40
    assert spans[Detail.SAMPLE][-1].cpu_ns == -1  # too dear
    assert [row.batch for row in spans[Detail.BATCH]] == list(range(10))
    assert {row.pieces for row in spans[Detail.BATCH]} == {4}
    assert all(row.flags & Flag.SUMMED for row in spans[Detail.BATCH])
    assert {row.nbytes for row in spans[Detail.BATCH]} == {4 * 16}
    # The first item shows what it costs; from then on they are summed.
    assert 10 <= len(spans[Detail.AUTO]) <= 11


def test_cheap_spans_carry_cpu_time(run, consumer):
    costs = {"light_ns": 0, "full_ns": 0}
    delivered(consumer, chain(), 3, 3, unit_costs=costs, detail=Detail.AUTO)
    rows = rows_by_kind(run)
    for kind in (Kind.READ, Kind.DECODE, Kind.COLLATE):
        assert all(row.cpu_ns >= 0 and not row.flags for row in rows[kind])


@pytest.mark.parametrize("detail", list(Detail))
@pytest.mark.parametrize("make", [chain, generator, lambda **how: batches(10, 3, **how)])
@pytest.mark.parametrize("ahead", [0, 2])
def test_a_measured_run_adds_up(tmp_path, detail, make, ahead):
    document = {"workers": 0, "prefetch": ahead, "batch_size": 3}
    run = RunDirectory.create(tmp_path / "run", document)
    with ExitStack() as stack:
        recorder = stack.enter_context(run.recorder(role="consumer"))
        stream = make(batches_ahead=ahead)
        loader = stack.enter_context(loader_of(recorder, stream, 3, detail=detail))
        plan = BatchPlan(plan_batches(10, 3), limit=30)
        compute = parse_compute("none", None, batch_size=3, sample_nbytes=16)
        measured = MeasuredPipeline("source", loader, plan, recorder, compute)
        measure([measured])
    assert measured.n_batches == 30
    figures = exposure(open_profile(run.path))
    window = figures.whole
    assert (window.n_batches, figures.lost_spans) == (30, 0)
    assert sum(window.exposed_ns.values()) == window.wait_ns
    for row in window.stages:
        assert 0 <= row.exposed_ns <= row.busy_ns
    assert "unknown" not in window.exposed_ns
    assert figures.steady.n_batches == 30 - ahead - 1
    work = Counter({row.stage: row.n_spans for row in window.stages})
    if make is chain:
        assert work["read"] >= 90
    if ahead == 0 and make is generator:
        assert all(row.hidden_ns == 0 for row in window.stages)


def test_runs_that_take_turns_get_rounds_twice_as_long_as_their_fill(tmp_path):
    runs = []
    with ExitStack() as stack:
        for name in ("a", "b"):
            run = RunDirectory.create(tmp_path / name, {"workers": 0, "prefetch": 20})
            recorder = stack.enter_context(run.recorder(role="consumer"))
            loader = stack.enter_context(loader_of(recorder, chain(batches_ahead=20), 1))
            plan = BatchPlan(plan_batches(10, 1), limit=84)
            compute = parse_compute("none", None, batch_size=1, sample_nbytes=16)
            runs.append(MeasuredPipeline(name, loader, plan, recorder, compute))
        measure(runs)
    assert [run.n_rounds for run in runs] == [2, 2]
    figures = exposure(open_profile(tmp_path / "a"))
    assert (figures.n_rounds, figures.steady.n_batches) == (2, 84 - 2 * 21)


def test_errors_of_a_plan_pass_through(quiet):
    def plan():
        yield PlannedBatch(0, 0, ())
        raise IobenchError("no more")

    with loader_of(quiet, chain()) as loader, pytest.raises(IobenchError, match="no more"):
        list(loader.batches(plan()))


def test_samples_one_by_one_are_those_of_the_pass_asked_for():
    assert [int(sample["number"]) for sample in stream_samples(files((2, 1)), 3)] == [
        3000,
        3001,
        3002,
    ]
    taken = islice(stream_samples(batches(5, 2), 1), 3)
    assert [int(sample["number"]) for sample in taken] == [1000, 1001, 1002]
