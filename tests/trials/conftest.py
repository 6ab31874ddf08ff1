"""Runs as a loop without workers leaves them."""

from __future__ import annotations

import pytest

from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from tests.support.sketched_runs import CONSUMER, SketchedRun

MACHINE = {"host": "one", "cpus": 2, "cpu_model": "Some CPU", "system": "Linux 6.1"}
BATCH_SIZE, STEP_NS = 4, 1_000_000


@pytest.fixture
def make_run(tmp_path):
    """Return what writes a run and returns its folder."""

    def make(
        name="run", *, n_batches=100, reads=2, nbytes=100, wait_ns=50_000, config=None, flags=0,
        extra=None,
    ):  # fmt: skip
        facts = {"batch_size": BATCH_SIZE, "workers": 0, "machine": MACHINE}
        run = SketchedRun(facts | (config or {}))
        pieces, now = BATCH_SIZE if flags & Flag.SUMMED else 1, 0
        for batch in range(n_batches):
            end = now + (wait_ns if isinstance(wait_ns, int) else wait_ns(batch))
            at, each_ns, of = now, max((end - now) // (reads + 1), 1), {"batch": batch, "epoch": 0}
            for _ in range(reads):
                read = {"nbytes": nbytes, "flags": flags, "pieces": pieces, **of}
                at = run.work(CONSUMER, at, {Kind.READ: each_ns}, **read)
            run.add(CONSUMER, Kind.COLLATE, at, end, nbytes=80, **of)
            if extra is not None:
                extra(run, batch)
            run.wait(batch, now, end, epoch=0, nbytes=80)
            now = end + STEP_NS
        run.round(0, now)
        run.write(tmp_path / name)
        return tmp_path / name

    return make
