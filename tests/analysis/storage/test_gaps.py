"""Reasons for gaps: named with evidence, and never for want of a better name."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from traced_runs import MODULES, TracedRun

from iobench.analysis.run import Run
from iobench.recording.kinds import Kind
from iobench.storage.storage_trace import ModuleState, StorageTrace
from iobench.subjects.storage.figures import storage_of
from iobench.subjects.storage.gaps import COLUMNS, ByteRow, Known, name_gaps

NPY = 2_048_128
RAW = Known(
    "x.npy", asked=NPY, posix=NPY, stdio=0, segments=NPY, posix_reads=2, front=NPY,
    rchar=NPY + 110, device=NPY + 3968 - 110, n_reads=1, n_looks=1,
)  # fmt: skip
LOADED = Known(
    "x.npy", asked=NPY, posix=4096, stdio=NPY - 128, segments=4096, posix_reads=1, stdio_reads=1,
    front=4096,
)  # fmt: skip
NETCDF = Known(
    "x.nc", asked=20_480_000, asked_decoded=10_240_000, posix=14_704_937, stdio=4 << 20,
    segments=14_704_937, posix_reads=61, stdio_reads=1, sniffed=4 << 20, tables=14_559,
    front=28_000_000,
)  # fmt: skip
DECODING = {"kind": Kind.FUSED, "label": "read+decode"}


def settled(known):
    columns = {name: getattr(known, name) for name in COLUMNS}
    return ByteRow("file", known.name, **columns, gaps=name_gaps(known)).settled


@given(
    st.sampled_from([RAW, LOADED, NETCDF]),
    st.sampled_from(["posix", "stdio", "segments", "rchar"]),
    # Within the buffer that is read first, a header may have any length of NumPy's.
    st.integers(-3_000_000, 3_000_000).filter(lambda each: abs(each) > 4096),
)
def test_bytes_that_nothing_explains_are_not_settled(known, column, more):
    assume(getattr(known, column) is not None and getattr(known, column) + more >= 0)
    assert settled(known)
    changed = replace(known, **{column: getattr(known, column) + more})
    if column == "stdio":
        changed = replace(changed, sniffed=0)  # it is no multiple of what sniffing reads
    assert not settled(changed)
    assert any(not gap.name for gap in name_gaps(changed))


@given(st.integers(1, NPY))
def test_raw_reads_must_be_what_was_handed_on(less):
    assert not settled(replace(RAW, asked=RAW.asked - less))
    assert not settled(replace(RAW, asked=RAW.asked + less))


@given(st.integers(-4096, 4096).filter(lambda each: each % 16))
def test_a_header_of_an_impossible_length_is_no_header(more):
    assert not settled(replace(LOADED, asked=LOADED.asked + more))


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_gaps_add_up_to_the_differences(asked, posix, rchar):
    known = Known("x", asked=asked, posix=posix, stdio=0, rchar=rchar, n_looks=3)
    total = {}
    for gap in name_gaps(known):
        total[gap.between] = total.get(gap.between, 0) + gap.nbytes
    assert total.get(("posix+stdio", "asked"), 0) == posix - asked
    assert total.get(("rchar", "posix+stdio"), 0) == rchar - posix


def batch(run, worker, asked, posix=None, *, file="/data/x.npy", offset=0, stage=None, **counts):
    """Let a worker read a file once: what its stage handed on, and what the tracer counted."""
    number = len(run.waits)
    at = 10 * number
    fields = {"kind": Kind.READ, **(stage or {})}
    worker.span(fields.pop("kind"), at, at + 8, batch=number, nbytes=asked, detail=file, **fields)
    if posix is not None:
        worker.read(file, at + 1, at + 7, offset, posix)
    worker.count(file, **counts)
    run.wait(number, at, at + 9)
    return at + 9


def read_once(asked, posix=None, **more):
    run = TracedRun(config={"cold_known": True})
    batch(run, run.worker(), asked, posix, **more)
    return run


def ledger(run, modules=MODULES):
    """Return the rows of a run; None for the modules is a run that no tracer saw."""
    trace = modules and StorageTrace(tuple(each.log(modules) for each in run.workers))
    return storage_of(Run(run.profile(), trace).of_rank()).rows


def names(run, modules=MODULES):
    return [(gap.name, gap.nbytes) for gap in ledger(run, modules)[0].gaps]


def test_headers_are_small_and_at_the_front():
    stream = {"stdio_reads": 1, "stdio_read_nbytes": NPY - 128}
    assert names(read_once(NPY, 4096, **stream)) == [("header read twice", 3968)]
    assert names(read_once(NPY - 128, 4096, **stream)) == [("header read twice", 4096)]
    assert names(read_once(NPY, 4096, offset=1 << 20, **stream)) == [("", 3968)]
    assert names(read_once(NPY, 1 << 20, **stream)) == [("", (1 << 20) - 128)]
    # One call of the front that is kept does not stand for more than a buffer of others.
    large = read_once(NPY, 4096, posix_read_nbytes=(1 << 20) - 4096, **stream)
    assert names(large)[0] == ("", (1 << 20) - 128)


@pytest.mark.parametrize(
    ("decoded", "plain", "posix", "reason"),
    [
        (0, 900, 500, ""),
        (900, 0, 500, "compression"),
        (900, 0, 10, ""),  # nothing is stored in so few bytes
        (300, 600, 500, ""),  # what was not decoded must have been read in full
    ],
)
def test_only_what_is_decoded_was_stored_in_fewer_bytes(decoded, plain, posix, reason):
    run = TracedRun()
    worker = run.worker()
    batch(run, worker, decoded or plain, posix, stage=DECODING if decoded else None)
    if decoded and plain:
        batch(run, worker, plain)
    assert names(run) == [(reason, posix - decoded - plain)]


def test_a_mapping_that_the_tracer_saw_stands_for_what_no_call_returned():
    assert names(read_once(NPY, 4096)) == [("", 4096 - NPY)]
    assert names(read_once(NPY, 4096, posix_mmaps=1)) == [("mapping", 4096 - NPY)]
    assert names(read_once(NPY, NPY // 2, posix_mmaps=1)) == [("", NPY // 2 - NPY)]


def test_read_ahead_is_bounded_by_the_reads():
    def ahead(nbytes, n_reads=1):
        run = TracedRun(config={"cold_known": True})
        worker = run.worker()
        for number in range(n_reads):
            end = batch(run, worker, NPY)
            worker.look(end, number, NPY, NPY + nbytes * (not number))
        return names(run, None)

    assert ahead(100 << 10) == [("read-ahead", 100 << 10)]
    assert ahead(200 << 10) == [("", 200 << 10)]
    assert ahead(200 << 10, n_reads=2) == [("read-ahead", 200 << 10)]


def test_a_log_without_room_lacks_bytes_and_has_none_too_many():
    posix, stdio, single = MODULES
    full = (replace(posix, partial=True), stdio, single)
    assert names(read_once(900, 500), full) == [("partial log", -400)]
    assert names(read_once(900, 950), full) == [("", 50)]
    assert not ledger(read_once(900, 500), full)[0].settled
    # The tracer counted all, and kept one call of 100 bytes of it.
    some = read_once(900, 100, posix_read_nbytes=800)
    assert names(some) == [("", 800)]
    cut = (posix, stdio, ModuleState("DXT_POSIX", 1, partial=True))
    assert names(some, cut) == [("partial log", 800)]


def test_what_other_stages_of_the_first_batch_read_is_in_both_counts():
    run = TracedRun()
    worker = run.worker()
    for number in range(4):
        file = f"/data/{number}.npy"
        end = batch(run, worker, NPY, NPY, file=file)
        if not number:
            worker.span(Kind.PREPROCESS, 50, 58, batch=0)
            worker.read(file, 51, 57, 0, 16_384)
        worker.look(end, number, NPY + 100 + 16_384 * (not number))
    whole = run.figures().rows[0]
    assert [(gap.name, gap.nbytes, gap.between) for gap in whole.gaps] == [
        ("other stages", 16_384, ("posix+stdio", "asked")),
        ("own reads", 400, ("rchar", "posix+stdio")),
    ]  # fmt: skip
    assert whole.settled


def delivered(*device_nbytes):
    """Return the gaps and rows of workers that read one file's parts, and what devices gave."""
    run = TracedRun(config={"cold_known": True})
    for nbytes in device_nbytes:
        worker = run.worker()
        end = batch(run, worker, NPY, file="")
        worker.look(end, worker.number, NPY, nbytes)
    rows = {each.name: each for each in ledger(run, None) if each.scope == "process"}
    gaps = {name: [(gap.name, gap.nbytes) for gap in row.gaps] for name, row in rows.items()}
    return gaps["worker-0 (process 101)"], rows["worker-0 (process 101)"].settled


def test_what_was_read_for_other_processes():
    shared = [("read for other processes", 2 * NPY), ("read-ahead", 4096)]
    assert delivered(3 * NPY + 4096, 0, 0) == (shared, True)
    # Delivered more than all read together, or less: then something else was read as well.
    unnamed = ([("", 2 * NPY + 4096)], False)
    assert delivered(3 * NPY + 4096, 0) == unnamed
    assert delivered(3 * NPY + 4096, 0, 0, 0) == unnamed
    assert delivered(3 * NPY + 4096, 0, 0, -1) == unnamed


def test_what_nobody_counted_is_not_settled():
    (row, *_) = ledger(read_once(5), None)
    assert (row.asked, row.gaps, row.settled) == (5, (), False)


def test_gaps_of_opposite_signs_do_not_make_up_for_each_other():
    run = TracedRun()
    worker = run.worker()
    for number, more in enumerate((5, -5, 2)):
        batch(run, worker, 900, 900 + more, file=f"/data/{number}.npy")
    assert names(run) == [("", 7), ("", -5)]
    assert not ledger(run)[0].settled
