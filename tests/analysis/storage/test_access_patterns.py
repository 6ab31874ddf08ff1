"""Sizes, order and cost of reads."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from traced_runs import TracedRun

from iobench.analysis.run import Run
from iobench.findings.storage.figures import storage_of
from iobench.findings.storage.read_sizes import READ_DTYPE, dearest_half, distinct_nbytes
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag

KIB = 1 << 10


def reading(*reads, nbytes=None, epochs=1):
    """Return the figures of a worker that made these reads: file, offset, bytes."""
    run = TracedRun(config={"n_samples": epochs})
    worker = run.worker()
    at = 0
    for epoch in range(epochs):
        for file, offset, size in reads:
            worker.span(Kind.READ, at, at + 4, batch=epoch, nbytes=size, detail=file)
            worker.read(file, at + 1, at + 3, offset, size)
            at += 5
        run.wait(epoch, at - 1, at, nbytes=-1 if nbytes is None else nbytes)
    return run.figures()


def test_order_of_reads():
    access = reading(
        ("/d/a", 0, 100), ("/d/b", 500, 100), ("/d/a", 100, 50), ("/d/b", 700, 100),
        ("/d/a", 0, 100), ("/d/a", 100, 100),
    ).access  # fmt: skip
    assert access.n_reads == 6
    assert access.consecutive_fraction == 2 / 4
    assert access.sequential_fraction == 1 / 4
    assert access.random_fraction == 1 / 4


def test_sizes():
    sizes = (1, KIB - 1, KIB, 64 * KIB - 1, 64 * KIB, 200 * KIB, 64 << 20)
    access = reading(*((f"/d/{size}", 0, size) for size in sizes)).access
    bins = dict(zip((*access.size_edges, None), access.size_counts, strict=True))
    assert bins[KIB] == 2
    assert (bins[4 * KIB], bins[64 * KIB], bins[256 * KIB], bins[None]) == (1, 1, 2, 1)
    assert sum(access.size_counts) == access.n_reads == 7
    assert sum(access.size_nbytes) == sum(sizes)
    assert access.size_nbytes[0] == KIB
    assert access.small_read_fraction == 4 / 7


def test_ends_of_files_are_no_reads():
    access = reading(("/d/a", 0, 100), ("/d/a", 100, 0)).access
    assert access.n_reads == 1
    assert access.small_read_fraction == 1


def test_probes_of_pages_are_no_reads():
    run = TracedRun()
    worker = run.worker()
    for number in range(4):
        at, file = 10 * number, f"/d/{number}"
        worker.read(file, at + 0.1, at + 0.2, 8192, 1)
        worker.span(Kind.READ, at + 1, at + 5, batch=number, nbytes=KIB, detail=file)
        worker.read(file, at + 2, at + 4, 0, KIB)
        run.wait(number, at, at + 5, nbytes=KIB)
    access = run.figures().access
    assert (access.n_reads, access.of_segments) == (4, True)
    assert access.size_counts[:2] == (0, 4)


def test_bytes_read_again():
    access = reading(("/d/a", 0, 100), ("/d/a", 50, 100), ("/d/b", 0, 50), epochs=2).access
    assert access.reread_factor == 500 / 200


def test_bytes_read_for_bytes_used():
    found = reading(("/d/a", 0, 300), nbytes=100, epochs=2)
    assert found.access.read_per_used == 3
    assert reading(("/d/a", 0, 300)).access.read_per_used is None


def test_rates_and_the_sanity_line():
    found = reading(("/d/a", 0, 4_000_000), nbytes=10)
    assert found.access.bytes_per_s == {"worker-0": pytest.approx(2e9)}
    assert found.sanity.nbytes == 4_000_000
    assert found.sanity.estimated_s == pytest.approx(0.004)  # of the stage, not of its calls
    assert found.sanity.epoch_s == pytest.approx(0.005)
    assert found.sanity.fits


@pytest.mark.parametrize(
    ("wait_ms", "n_workers", "fits"), [(4, 2, True), (4, 1, False), (16, 2, False)]
)
def test_reading_fits_where_the_training_leaves_time_for_it(wait_ms, n_workers, fits):
    run = TracedRun(config={"n_samples": 2})
    workers = [run.worker() for _ in range(n_workers)]
    for batch in range(2):
        worker, at = workers[batch % n_workers], 10 * batch
        worker.span(Kind.READ, at, at + 9, batch=batch, nbytes=900, detail="/d/a")
        run.wait(batch, at + 10 - wait_ms / 2, at + 10)
    sanity = storage_of(Run(run.profile()).of_rank()).sanity
    assert sanity.nbytes == 1800
    assert sanity.estimated_s == pytest.approx(0.018 / n_workers)
    assert sanity.fits is fits


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 50), st.integers(1, 20)),
        min_size=1,
        max_size=15,
    )
)
def test_distinct_bytes(pairs):
    reads = np.zeros(len(pairs), READ_DTYPE)
    for name, column in zip(("file", "offset", "nbytes"), zip(*pairs, strict=True), strict=True):
        reads[name] = column
    covered = {(f, byte) for f, start, length in pairs for byte in range(start, start + length)}
    assert distinct_nbytes(reads) == len(covered)


@given(st.lists(st.integers(0, 100), min_size=1, max_size=30))
def test_the_dearest_reads_are_the_fewest_that_cost_more_than_half(exposed_ns):
    total = sum(exposed_ns)
    found = dearest_half(np.array(exposed_ns))
    if not total:
        assert found is None
        return
    fraction, share = found
    chosen = round(fraction * len(exposed_ns))
    dearest = sorted(exposed_ns, reverse=True)
    assert share == pytest.approx(sum(dearest[:chosen]) / total)
    assert 2 * sum(dearest[:chosen]) > total >= 2 * sum(dearest[: chosen - 1])


@pytest.mark.parametrize(("n_known", "known"), [(1, False), (23, True)])
def test_costs_are_ranked_where_nearly_all_are_known(n_known, known):
    run = TracedRun()
    worker = run.worker()
    for number in range(n_known):
        at = 10 * number
        worker.span(Kind.READ, at, at + 9, batch=number, nbytes=10, detail="/d/a")
        worker.read("/d/a", at + 1, at + 8, 10 * number, 10)
        run.wait(number, at, at + 9)
    worker.read("/d/a", 500, 507, 0, 10)  # in no stage: nobody knows what it cost
    access = run.figures().access
    assert access.n_reads == n_known + 1
    dearest = access.top_fraction, access.top_exposed_fraction
    assert dearest == ((12 / 24, pytest.approx(12 / 23, rel=0.02)) if known else (None, None))


def test_one_slow_read_costs_the_wait():
    run = TracedRun()
    worker = run.worker()
    for index in range(100):
        length = 80 if index == 40 else 1
        start = index * 2 + (80 if index > 40 else 0)
        worker.span(Kind.READ, start, start + length, batch=index, nbytes=10, detail="/d/a")
        worker.read("/d/a", start, start + length, 10 * index, 10)
        run.wait(index, start, start + length)
    found = run.figures()
    assert (found.access.top_fraction, found.access.of_segments) == (1 / 100, True)
    assert found.access.top_exposed_fraction > 0.5
    without = storage_of(Run(run.profile()).of_rank()).access
    assert (without.top_fraction, without.of_segments) == (1 / 100, False)


def test_sums_over_a_batch_are_no_single_reads():
    run = TracedRun()
    worker = run.worker()
    worker.span(Kind.READ, 0, 10, batch=0, nbytes=40, flags=Flag.SUMMED, pieces=4)
    run.wait(0, 0, 10)
    found = storage_of(Run(run.profile()).of_rank())
    assert found.access is None
    assert found.rows[0].requested == 40
