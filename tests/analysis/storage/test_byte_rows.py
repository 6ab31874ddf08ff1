"""Bytes of hand-made runs by who counted them, and why they differ."""

import pytest
from msgspec.structs import replace
from traced_runs import TracedRun

from iobench.analysis.run import Run
from iobench.findings.storage import storage_of
from iobench.recording.kinds import Kind
from iobench.storage.storage_trace import ModuleState, StorageTrace

BIG = 1_000_000
COLD = {"cold_known": True}


def raw_run(n_workers=2, n_files=3, named=True):
    """Each worker reads whole files with one call each, and looks at /proc."""
    run = TracedRun(config=COLD)
    for number in range(n_workers):
        worker = run.worker()
        for index in range(n_files):
            file, at, batch = f"/data/{number}-{index}.bin", 10 * index, index * n_workers + number
            detail = {"detail": file} if named else {}
            worker.span(Kind.READ, at, at + 8, batch=batch, nbytes=BIG, **detail)
            worker.read(file, at + 1, at + 7, 0, BIG)
            worker.look(at + 9, batch, BIG + 120, 0)
    for batch in range(n_workers * n_files):
        run.wait(batch, 5 * batch, 5 * batch + 4, nbytes=BIG)
    return run


def one_read(*details, kind=Kind.READ, label=""):
    run = TracedRun(config=COLD)
    for at, (detail, nbytes) in enumerate(details):
        worker = run.workers[0] if run.workers else run.worker()
        worker.span(kind, 9 * at, 9 * at + 8, batch=0, nbytes=nbytes, detail=detail, label=label)
    run.wait(0, 0, 9 * len(details))
    return run


def rows(run, trace=None):
    return {each.name: each for each in run.figures(trace).bytes}


def untraced(run):
    return storage_of(Run(run.data()).of_rank())


@pytest.mark.parametrize("named", [True, False])
def test_run_processes_and_files(named):
    run = raw_run(named=named)
    found = rows(run)
    whole = found["run"]
    counts = whole.requested_nbytes, whole.darshan_nbytes, whole.read_calls_nbytes
    assert counts == (6 * BIG, 6 * BIG, 6 * BIG + 720)
    assert (whole.device_nbytes, whole.reasons) == (0, ("page cache",))
    assert found["worker-1 (process 102)"].requested_nbytes == 3 * BIG
    assert found["/data/0-0.bin"].requested_nbytes == (BIG if named else None)
    assert found["/data/0-0.bin"].darshan_nbytes == BIG
    run.workers[0].span(Kind.READ, 80, 90, batch=0, nbytes=5 * BIG, detail="/data/z.bin")
    run.workers[0].read("/data/z.bin", 81, 89, 0, 5 * BIG)
    assert [*rows(run)] == [  # the largest first
        "run", "worker-0 (process 101)", "worker-1 (process 102)", "/data/z.bin",
        *(f"/data/{worker}-{file}.bin" for worker in range(2) for file in range(3)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "modules",
    [None, ModuleState("POSIX", 9, problem="new"), ModuleState("POSIX", 4, partial=True)],
    ids=["no log", "unreadable", "partial"],
)
def test_what_darshan_did_not_count_of_one_process_is_unknown_of_the_run(modules):
    run = raw_run()
    first, second = run.trace().processes
    logs = (first,) if modules is None else (first, replace(second, modules=(modules,)))
    found = rows(run, StorageTrace(logs))
    assert found["worker-0 (process 101)"].darshan_nbytes == 3 * BIG
    assert found["worker-1 (process 102)"].darshan_nbytes is None
    assert (found["run"].darshan_nbytes, found["run"].requested_nbytes) == (None, 6 * BIG)


def test_a_file_of_several_processes_and_a_store_are_one_row():
    run = raw_run(n_workers=2, n_files=1)
    for worker in run.workers:
        worker.span(Kind.READ, 20, 28, batch=worker.number, nbytes=10, detail="/data/all.nc:t2m")
        worker.read("/data/all.nc", 21, 22, 0, 10)
    shared = rows(run)["/data/all.nc"]
    assert (shared.requested_nbytes, shared.darshan_nbytes) == (20, 20)
    run = one_read(("/data/x.zarr", 900), kind=Kind.FUSED, label="read+decode")
    for at, (piece, nbytes) in enumerate({".zarray": 40, "0.0": 200, "0.1": 300}.items()):
        run.workers[0].read(f"/data/x.zarr/{piece}", at + 1, at + 2, 0, nbytes)
    found = rows(run)
    assert [name for name in found if name.startswith("/data")] == ["/data/x.zarr"]
    assert (found["run"].darshan_nbytes, found["run"].reasons) == (540, ("compression",))


@pytest.mark.parametrize(
    ("kind", "called", "reasons"),
    [
        (Kind.READ, 110, ("mmap",)),
        (Kind.READ, BIG // 2, ()),
        (Kind.FUSED, BIG // 2, ("compression",)),
        (Kind.FUSED, 110, ()),  # stored in few bytes, or mapped: nobody can tell
    ],
)
def test_what_read_calls_did_not_return(kind, called, reasons):
    run = one_read(("", BIG), kind=kind, label="read+decode" * (kind is Kind.FUSED))
    run.workers[0].look(9, 0, called, BIG)
    whole = untraced(run).bytes[0]
    assert (whole.read_calls_nbytes, whole.device_nbytes) == (called, BIG)
    assert whole.reasons == reasons


def test_strays_and_reads_of_other_files_are_in_no_row():
    run = raw_run(n_workers=1, n_files=1)
    worker, file = run.workers[0], "/data/0-0.bin"
    worker.read("/data/index.json", 200, 201, 0, 12_345)
    package = "/opt/venv/lib/python3.11/site-packages/numpy.dist-info/METADATA"
    worker.span(Kind.READ, 50, 51, batch=0, nbytes=57_000, detail=package)
    worker.count(file, stdio_opens=1, stdio_reads=1, posix_opens=1)
    worker.read(file, 9, 9.5, BIG, 30)
    found = rows(run)
    assert [*found] == ["run", "worker-0 (process 101)", file]
    assert (found["run"].requested_nbytes, found["run"].darshan_nbytes) == (BIG, BIG)
    (stage,) = run.figures().in_stages.values()
    assert stage.busy_ns == 8_000_000


def test_bytes_of_nested_reads_count_once_and_some_are_unknown():
    run = one_read(("/d/a", 100))
    for at, nbytes in ((1, 40), (4, 60)):
        run.workers[0].span(Kind.READ, at, at + 2, batch=0, nbytes=nbytes, detail="/d/a")
    assert rows(run, StorageTrace())["run"].requested_nbytes == 100
    run = raw_run(n_workers=1)
    next(each for each in run.spans if each["kind"] == Kind.READ)["nbytes"] = -1
    whole = rows(run)["run"]
    assert (whole.requested_nbytes, whole.darshan_nbytes) == (None, 3 * BIG)
    found = untraced(one_read())
    assert (found.bytes, found.in_stages) == ((), {})


@pytest.mark.parametrize(
    ("rchar", "device", "cold"),
    [
        (BIG, BIG, 1.0),
        (BIG, BIG + 4096, 1.0),  # whole pages
        (BIG, 0, 0.0),
        (1000, 100_000, 0.1),  # through a mapping: no read call has it, the device does
        (0, 100_000, 0.1),
        (500_000, 500_000, 0.5),  # half of it through a mapping
        (100, 50 * BIG, None),  # through a mapping of the script's own: nobody knows how much
    ],
)
def test_cold_is_of_all_that_was_read(rchar, device, cold):
    run = TracedRun(config=COLD)
    worker = run.worker()
    for batch in range(12):
        at = 10 * batch
        worker.span(Kind.READ, at, at + 4, batch=batch, nbytes=BIG, detail="/d/a")
        worker.look(at + 4, batch, rchar, device)
        run.wait(batch, at, at + 4, nbytes=BIG)
    found = Run(run.data()).of_rank().exposure.whole
    assert found.cold_fraction == (None if cold is None else pytest.approx(cold, rel=1e-3))
    assert found.read_nbytes == 12 * max(rchar, BIG)
