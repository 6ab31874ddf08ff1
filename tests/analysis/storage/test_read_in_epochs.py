"""What was read for an epoch: by workers made anew, through mappings, before the loop."""

from pathlib import Path

import pytest
from ground_truth_profiles import span_file

from iobench.analysis.run import Run
from iobench.findings.storage.figures import storage_of
from iobench.findings.storage.section import storage_section
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from iobench.report.document import Sentence
from iobench.runs.reading import make_profile

MS = 1_000_000
MB = 1_000_000
EPOCHS, BATCHES, WORKERS = 3, 6, 2


def read(batch, start_ms, nbytes, **more):
    start_ns = start_ms * MS
    more = {"detail": f"/d/{batch}.npy", "end_ns": start_ns + 4 * MS, **more}
    return {"kind": Kind.READ, "batch": batch, "start_ns": start_ns, "nbytes": nbytes, **more}


def looked(batch, at_ms, rchar, device=-1):
    more = {"detail": "", "end_ns": at_ms * MS, "cpu_ns": device, "flags": Flag.IO}
    return read(batch, at_ms, rchar, **more)


def profile(*, rchar=MB, device=-1, untimed=(), before=0, short=False, **config):
    """Six batches of 1 MB an epoch, by two workers made anew for each: each batch takes 10 ms.

    ``untimed`` are batches of which no read is known, ``before`` is what the script reads before
    its loop.
    """
    loop, files = [], []
    if before:
        loop.append(read(-1, 0, before, end_ns=100 * MS))
    for epoch in range(EPOCHS):
        begin = 1000 + 100 * epoch
        made = {number: [] for number in range(WORKERS)}
        n_batches = BATCHES - (short and epoch > 0)
        for place in range(n_batches):
            batch, at = BATCHES * epoch + place, begin + 10 * place
            rows = made[place % WORKERS]
            if place in untimed:
                fused = {"kind": Kind.FUSED, "flags": Flag.SUMMED | Flag.ESTIMATED}
                rows.append(read(batch, at, -1, detail="", **fused))
            else:
                rows.append(read(batch, at, MB))
            rows.append(looked(batch, at + 4, rchar, device))
            loop.append(
                {
                    "kind": Kind.WAIT, "start_ns": at * MS, "end_ns": (at + 4) * MS, "nbytes": MB,
                    "batch": batch, "epoch": epoch, "sample": epoch,
                    "detail": f"worker-{place % WORKERS}",
                }
            )  # fmt: skip
        end_ns = (begin + 10 * n_batches) * MS
        loop += [
            {
                "kind": Kind.WAIT, "start_ns": end_ns, "end_ns": end_ns, "epoch": epoch,
                "sample": epoch, "label": "shutdown",
            },
            {
                "kind": Kind.OTHER, "start_ns": begin * MS, "end_ns": end_ns, "sample": epoch,
                "label": "round",
            },
        ]  # fmt: skip
        files += [
            span_file(200 + 10 * epoch + number, rows, worker=number, ppid=100)
            for number, rows in made.items()
        ]
    config = {"workers": WORKERS, "prefetch": 2, "batch_size": 1, **config}
    return make_profile(Path("run"), config, [span_file(100, loop), *files])


def storage(**settings):
    return storage_of(Run(profile(**settings)).of_rank())


def whole(**settings):
    return Run(profile(**settings)).of_rank().exposure.whole


def said_of(figures):
    blocks = storage_section(figures).blocks
    return " ".join(each.text for each in blocks if isinstance(each, Sentence))


def test_workers_made_anew_are_so_many_as_there_are_at_once():
    found = storage()
    assert found.sanity.nbytes == BATCHES * MB
    assert found.sanity.n_processes == WORKERS
    assert found.sanity.estimated_s == pytest.approx(BATCHES * 0.004 / WORKERS)
    assert found.sanity.epoch_s == pytest.approx(0.060)
    assert found.sanity.wait_s == pytest.approx(0.024)
    assert found.sanity.fits
    assert [*found.access.bytes_per_s] == ["worker-0", "worker-1"]
    said = said_of(found)
    assert "6.00 MB per epoch, read by 2 processes or threads at 250 MB/s each, is 12.0 ms" in said
    assert "an epoch took 60.0 ms, 36.0 ms of it without waiting: it can be hidden." in said


def test_what_is_read_before_the_loop_is_in_no_epoch():
    found = storage(before=500 * MB)
    assert found.rows[0].requested == 500 * MB + EPOCHS * BATCHES * MB
    assert found.sanity.nbytes == BATCHES * MB
    assert found.access.read_per_used == 1


def test_a_round_that_is_no_epoch_is_not_called_one():
    assert storage(n_samples=6).sanity.nbytes == BATCHES * MB
    assert storage(n_samples=100).sanity is None
    assert storage(n_samples=6, short=True).sanity.nbytes == BATCHES * MB


def test_an_epoch_of_which_not_all_reads_are_told_has_no_check():
    assert storage(untimed=(3,)).sanity is None


def test_read_per_byte_is_one_figure():
    profile_ = profile(rchar=3 * MB, before=500 * MB)
    measured = Run(profile_).of_rank()
    whole = measured.exposure.whole
    assert whole.read_nbytes / whole.nbytes == 3
    assert storage_of(measured).access.read_per_used == 3


@pytest.mark.parametrize(
    ("rchar", "device", "cold"),
    [
        (MB, MB, 1.0),
        (MB, MB + 4096, 1.0),  # whole pages
        (MB, 0, 0.0),
        (1000, 100_000, 0.1),  # through a mapping: no read call has it, the device does
        (0, 100_000, 0.1),
        (500_000, 500_000, 0.5),  # half of it through a mapping
        (100, 50 * MB, None),  # through a mapping of the script's own: nobody knows how much
    ],
)
def test_cold_is_of_all_that_was_read(rchar, device, cold):
    found = whole(rchar=rchar, device=device, cold_known=True)
    assert found.cold_fraction == (None if cold is None else pytest.approx(cold, rel=1e-3))
    assert found.read_nbytes == EPOCHS * BATCHES * max(rchar, MB)
