"""Runs written as a loop without workers would, on a clock that is moved by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from iobench.recording.kinds import Kind
from iobench.recording.run_directory import RunDirectory
from iobench.recording.span_file import Flag
from iobench.testing import FakeClock

MACHINE = {"host": "one", "cpus": 2, "cpu_model": "Some CPU", "system": "Linux 6.1"}
STEP_NS = 1_000_000
MakeRun = Callable[..., Path]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Return what writes a run and returns its folder."""

    def make(
        name: str = "run",
        *,
        n_batches: int = 100,
        batch_size: int = 4,
        reads: int = 2,
        nbytes: int = 100,
        wait_ns: int | Callable[[int], int] = 50_000,
        config: dict[str, Any] | None = None,
        flags: int = 0,
        extra: Callable[[Any, int], None] | None = None,
        kind: Kind = Kind.READ,
    ) -> Path:
        document = {"batch_size": batch_size, "workers": 0, "machine": MACHINE, **(config or {})}
        run = RunDirectory.create(tmp_path / name, document)
        clock = FakeClock(1000)
        with run.recorder(role="consumer", clock=clock) as recorder:
            began_ns = clock.now_ns()
            for batch in range(n_batches):
                asked_ns = clock.now_ns()
                clock.advance(wait_ns if isinstance(wait_ns, int) else wait_ns(batch))
                ended_ns = clock.now_ns()
                each_ns = max((ended_ns - asked_ns) // (reads + 1), 1)
                for number in range(reads):
                    start_ns = asked_ns + number * each_ns
                    recorder.emit(
                        kind, start_ns, start_ns + each_ns, nbytes, -1, batch, 0, -1, 0, 0,
                        flags, batch_size if flags & Flag.SUMMED else 1,
                    )  # fmt: skip
                recorder.emit(Kind.COLLATE, asked_ns + reads * each_ns, ended_ns, 80, -1, batch, 0)
                if extra is not None:
                    extra(recorder, batch)
                recorder.emit(Kind.WAIT, asked_ns, ended_ns, 80, -1, batch, 0)
                clock.advance(STEP_NS)
            recorder.emit(Kind.OTHER, began_ns, clock.now_ns(), label=recorder.string("round"))
        return run.path

    return make
