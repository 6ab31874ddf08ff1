"""``iobench report`` with logs of a tracer, as users call it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "storage" / "support"))

from made_logs import SEGMENT, MadeLog

from iobench.cli import main
from iobench.recording.kinds import Kind
from iobench.recording.span_reader import Anchor
from iobench.recording.this_process import host_name
from tests.support.sketched_runs import CONSUMER, SketchedRun

US, MS = 1_000, 1_000_000
WALL_NS = 1_795_000_000 * 10**9
BEGINS = [10 * MS * place + place % 4 * MS for place in range(20)]
NBYTES = 500_000


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Twenty samples of a file each, read and decoded in the training loop."""
    config = {"dataset": "own", "format": "source", "workers": 0, "prefetch": 0, "batch_size": 1}
    run = SketchedRun({**config, "framework": "workers"})
    run.process = {"pid": os.getpid(), "host": host_name(), "anchors": (Anchor(0, WALL_NS),)}
    for batch, begin in enumerate(BEGINS):
        of, read = {"nbytes": NBYTES, "batch": batch}, begin + 4 * MS
        run.add(CONSUMER, Kind.READ, begin, read, epoch=0, detail=f"/data/{batch}.bin", **of)
        run.add(CONSUMER, Kind.DECODE, read, begin + 6 * MS, epoch=0, **of)
        run.wait(batch, begin, begin + 6 * MS, "consumer", nbytes=NBYTES)
    end = BEGINS[-1] + 8 * MS
    run.shutdown(end, end + MS)
    run.round(0, end + MS)
    run.write(tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    """Return a log of Darshan of it: its marker, and one call in each stage, of 3 ms."""
    pytest.importorskip("darshan", reason="PyDarshan reads Darshan's logs")
    return write_log(tmp_path, os.getpid())


def write_log(folder: Path, pid: int) -> Path:
    names = [f"/data/{place}.bin".encode() for place in range(len(BEGINS))]
    log = MadeLog(
        [*names, b"/runs/iobench-clock-marker"],
        start_ns=WALL_NS, host=host_name().encode(),
    )  # fmt: skip
    for place, begin in enumerate(BEGINS):
        one = np.zeros(1, SEGMENT)
        one["length"], one["start"] = NBYTES, (begin + 500 * US) / 1e9
        one["end"] = one["start"] + 0.003
        log.count(place, OPENS=1, READS=1, BYTES_READ=NBYTES)
        log.trace(place, one)
    marks = np.zeros(4, SEGMENT)
    marks["offset"] = np.arange(4) * 10 * US
    marks["start"] = (marks["offset"] + 4 * US) / 1e9
    marks["end"] = (marks["offset"] + 6 * US) / 1e9
    log.trace(len(BEGINS), marks)
    return log.write(folder / f"me_python_id{pid}-{pid}_11-20-1-1_1.darshan")


def report(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = main(["report", "--full", *map(str, arguments)])
    told = capsys.readouterr()
    return code, told.out, told.err


def test_named_logs_are_laid_beside_the_stages(
    run: Path, calls: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = report(capsys, run, "--darshan", calls)
    assert code == 0, err
    text = " ".join(out.split())
    assert "Storage" in text
    code, out, _ = report(capsys, run, "--darshan", calls, "--json")
    storage = json.loads(out)["runs"][0]["storage"]
    read = storage["in_stages"]["read"]
    assert (read["busy_ns"], read["storage_ns"]) == (80_000_000, 60_000_000)
    assert storage["bytes"][0]["requested_nbytes"] == 10**7
    assert storage["bytes"][0]["darshan_nbytes"] == 10**7
