"""What is said of jobs that ended, or were ended, in a wait for a batch that did not come."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from iobench.analysis.diagnosis import Verdict, diagnose
from iobench.analysis.run import Run
from iobench.recording import span_file
from iobench.recording.facts import LoaderFacts
from iobench.recording.kinds import LOCKED, RECEIVED, STUCK, Kind
from iobench.recording.span_file import Flag
from iobench.recording.span_reader import Anchor
from iobench.report.report_document import report_document
from tests.support.sketched_runs import CONSUMER, SketchedRun

if TYPE_CHECKING:
    from pathlib import Path

MS = 1_000_000
SCRIPT = {"kind": "script", "command": "python train.py"}
HUNG = "No batch came in the last 12.0 s"
BOTH = f"{HUNG}: worker-0, worker-1 (processes 101, 102) finished nothing."
CALLED = BOTH.replace(")", ", in read (a.py:9))")
REMEDY = 'multiprocessing_context="forkserver" avoids that.'
MAYBE = f"If another thread held a lock while workers were forked, {REMEDY}"
STUCK_LOCK = "No thread of the process can release the lock that a worker waits for."
SURELY = f"{STUCK_LOCK} {MAYBE}"


def started(method: str, marks: dict[int, str]) -> SketchedRun:
    """Return a script with two workers, some of which noted that they were in ``read``."""
    run = SketchedRun(SCRIPT)
    run.loaders = [LoaderFacts(0, "torch", "DataLoader", "Fields", workers=2, start_method=method)]
    for worker in (0, 1):
        run.processes["worker", worker, 0] = {"pid": 101 + worker}
    for worker, mark in marks.items():
        more = {"label": mark, "detail": "read (a.py:9)", "flags": Flag.DETAIL}
        run.add(("worker", worker, 0), Kind.OTHER, 5 * MS, 6000 * MS, **more)
    return run


@pytest.mark.parametrize(
    ("waited_s", "finished", "method", "mark", "said"),
    [
        (4, 0, "fork", "", "No verdict: no batch was delivered."),
        (12, 0, "", "", f"{BOTH} {MAYBE}"),
        (12, 0, "fork", "", f"{BOTH} {MAYBE}"),
        (12, 0, "spawn", "", BOTH),
        (12, 0, "fork", STUCK, CALLED),
        (12, 0, "fork", LOCKED, f"{CALLED} {SURELY}"),
        (12, 0, "spawn", LOCKED, f"{CALLED} {STUCK_LOCK}"),
        (12, 1, "fork", "", f"{HUNG}: worker-1 (process 102) finished nothing."),
        (12, 2, "fork", "", f"{HUNG}."),
    ],
)
def test_a_job_that_hung_says_which_worker_gave_nothing(
    waited_s: int, finished: int, method: str, mark: str, said: str
) -> None:
    run = started(method, dict.fromkeys((0, 1), mark) if mark else {})
    for worker in range(finished):
        run.add(("worker", worker, 0), Kind.READ, MS, 2 * MS, batch=worker)
    run.add(CONSUMER, Kind.WAIT, 0, waited_s * 1000 * MS, label="failed", sample=0)
    (found,) = report_document([run.open()]).figures()["runs"]
    assert found["verdict"] == said


def test_one_worker_that_is_stuck_is_named_alone_and_nothing_is_advised() -> None:
    run = started("fork", {1: STUCK})
    for worker in (0, 1):
        run.add(("worker", worker, 0), Kind.READ, MS, 2 * MS, batch=worker)
    run.wait(0, 0, 3 * MS, "worker-0", sample=0)
    run.add(CONSUMER, Kind.WAIT, 4 * MS, 12_004 * MS, label="failed", sample=0)
    document = report_document([run.open()])
    (found,) = document.figures()["runs"]
    assert found["verdict"] == f"{HUNG}: worker-1 (process 102, in read (a.py:9)) finished nothing."
    assert "next" not in {section.key for section in document.sections}


def test_a_call_that_ended_is_not_the_one_it_hangs_in() -> None:
    run = started("fork", {0: LOCKED})
    run.add(("worker", 0, 0), Kind.READ, 6001 * MS, 6002 * MS, batch=0)
    run.add(CONSUMER, Kind.WAIT, 7000 * MS, 19_000 * MS, label="failed", sample=0)
    (found,) = report_document([run.open()]).figures()["runs"]
    assert found["verdict"] == BOTH


def test_a_hang_behind_a_queue_is_since_the_last_batch_that_came_out_of_it(tmp_path: Path) -> None:
    run = started("fork", {1: STUCK})
    for number in (0, 1):  # a thread asks, and puts what it gets into a queue
        run.add(("worker", number, 0), Kind.READ, MS, 2 * MS, batch=number)
        requested_ns, taken_ns = 2 * number * MS, (10 + number * 10) * MS
        run.wait(number, requested_ns, requested_ns + MS, f"worker-{number}", thread=1, sample=0)
        more = {"label": RECEIVED, "flags": Flag.DETAIL, "sample": 0}
        run.wait(number, taken_ns - MS, taken_ns, f"worker-{number}", **more)
        run.add(CONSUMER, Kind.STEP, taken_ns + 2 * MS, taken_ns + 3 * MS)
    more = {"label": "failed", "sample": 0, "thread": 1}
    run.add(CONSUMER, Kind.WAIT, 5 * MS, 12_020 * MS, **more)
    (found,) = report_document([run.write(tmp_path / "run")]).figures()["runs"]
    assert found["verdict"] == f"{HUNG}: worker-1 (process 102, in read (a.py:9)) finished nothing."


@pytest.mark.parametrize(
    ("asked_ms", "ended_ms", "more", "wait_ms"),
    [
        (100, 5100, {}, 5000),
        (100, 5099, {}, 0),  # too short to be worth a sentence
        (92, 60_000, {}, 0),  # answered
        (0, 60_000, {}, 0),  # recorded before waits were noted as they begin
        (100, None, {}, 0),  # nobody knows until when
        (100, 60_000, {"closed": True}, 0),
        (100, 60_000, {"later_ms": 9000}, 0),  # another process took its place
    ],
)
def test_a_killed_job_waited_until_its_launcher_saw_its_end(
    tmp_path: Path, asked_ms: int, ended_ms: int | None, more: dict[str, Any], wait_ms: int
) -> None:
    run = SketchedRun(SCRIPT)
    run.loaders = [LoaderFacts(0, "torch", "DataLoader", "Fields")]
    run.facts = {"role": "launcher", "ended_ns": None if ended_ms is None else ended_ms * MS}
    run.processes[CONSUMER] = {"closed": more.get("closed", False)}
    for batch in range(10):
        run.wait(batch, batch * 10 * MS, (batch * 10 + 2) * MS, "consumer", sample=0)
    if "later_ms" in more:
        anchors = (Anchor(more["later_ms"] * MS, 0),)
        run.processes["consumer", 9] = {"closed": False, "anchors": anchors}
    run.write(tmp_path / "run")
    (path,) = (tmp_path / "run" / "spans").glob("*-consumer.spans")
    with path.open("r+b") as file:
        file.seek(span_file.REQUEST_OFFSET)
        file.write(span_file.REQUEST.pack(asked_ms * MS, 0, 0))
    exposure = Run(tmp_path / "run").of_rank().exposure
    assert (exposure.hang.wait_ns if exposure.hang else 0) == wait_ms * MS
    assert exposure.whole.wait_ns == (20 + wait_ms) * MS
    assert (diagnose(exposure).verdict is Verdict.HUNG) is bool(wait_ms)


FORKED = """
import threading, torch
from torch.utils.data import DataLoader, Dataset

class Locked(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        with LOCK:
            return torch.ones(4)

LOCK, held = threading.Lock(), threading.Event()
def hold():
    with LOCK:
        held.set()
        threading.Event().wait()
threading.Thread(target=hold, daemon=True).start()
held.wait()
list(DataLoader(Locked(), 4, num_workers=1, multiprocessing_context="fork"))
"""


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_fork_deadlock_that_a_scheduler_kills_is_named_with_its_remedy(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FORKED)
    run = (sys.executable, "-m", "iobench", "run", "--out", "run", "--", sys.executable, "train.py")
    ended = subprocess.run(
        ("timeout", "60", *run), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 124
    (found,) = report_document([Run(tmp_path / "run")]).figures()["runs"]
    assert "worker-0 (process" in found["verdict"]
    assert "in __getitem__ (train.py:9)" in found["verdict"]
    assert found["verdict"].endswith(SURELY)
