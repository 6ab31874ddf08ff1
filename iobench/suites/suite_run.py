"""Runs of a suite, each a process of its own, until nothing is left to measure.

One process measures at a time, others stand by: what runs beside a measurement disturbs it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime
from importlib.metadata import version
from platform import python_version
from typing import TYPE_CHECKING, Final

import msgspec

from iobench.errors import UNAVAILABLE, IobenchError
from iobench.files.atomic import storage_errors
from iobench.files.locks import locked
from iobench.launch.launched_processes import commit_of
from iobench.recording.clocks import SYSTEM_CLOCK
from iobench.recording.this_process import machine
from iobench.suites.metrics import figures_of_run
from iobench.suites.results import FAILED, MEASURED, NOT_AVAILABLE, Result, write_result

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from iobench.sources.request import Screen
    from iobench.suites.results import Job, Status, SuiteFolder

INTERRUPTED: Final = (75, -signal.SIGTERM, -signal.SIGINT, -signal.SIGUSR1)
"""How a process ends that a signal stopped."""
INTERRUPT_S: Final = 2.0
ERROR: Final = "iobench: "
"""How a command's line starts that says what is wrong."""
LONGEST_REASON: Final = 500


class Ended(msgspec.Struct, frozen=True):
    """How a command ended."""

    code: int | None  # or minus the signal; None where it took longer than its limit
    lines: tuple[str, ...]  # what it wrote, without empty ones

    @property
    def how(self) -> str:
        """The same in words, with its last line."""
        if self.code is None:
            return "took longer than its limit"
        how = f"ended with {self.code}"
        if self.code < 0:
            how = f"killed by {signal.Signals(-self.code).name}"
        return f"{how}: {self.lines[-1]}" if self.lines else how


def run_limited(
    command: Sequence[str], log: Path, limit_s: float, environment: Mapping[str, str] | None = None
) -> Ended:
    """Run a command to its end, or its limit; what it says goes into the log, nothing else stays.

    Its limit is never none: an interrupt as the system's wait begins would not end that.
    """
    interrupts: list[int] = []  # while it starts: a process that is not known yet is not ended
    handler = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:
        with log.open("w") as file:
            # A session of its own: what it starts ends with it, and no terminal interrupts it.
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
                env=environment,
            )
    finally:
        signal.signal(signal.SIGINT, handler)
    code = None
    try:
        if interrupts and callable(handler):
            handler(signal.SIGINT, None)
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(limit_s)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    lines = (line.strip() for line in log.read_text(errors="replace").splitlines())
    return Ended(code, tuple(line for line in lines if line))


def run_suite(folder: SuiteFolder, screen: Screen) -> None:
    """Measure all that is left of a suite; what is finished is kept, whatever ends it."""
    commit = commit_of([__file__], os.environ) or ""
    folder.create()
    with locked(folder.path, notice=lambda line: screen.note(f"{line}: standing by")):
        while jobs := folder.open_jobs():
            job = jobs[0]
            result = _measure(folder, job, commit)
            write_result(folder.place(job.cell), result)
            why = f", {result.reason}" if result.reason else ""
            screen.note(
                f"round {job.round + 1} of {folder.recipe.repeats}: {job.cell.name}: "
                f"{result.status}{why}; {runs_left(folder, len(jobs) - 1)}"
            )


def runs_left(folder: SuiteFolder, n_left: int) -> str:
    """Return how many runs are left, and how long they may take."""
    return f"{n_left} runs left, at most {folder.recipe.limit} each"


def _measure(folder: SuiteFolder, job: Job, commit: str) -> Result:
    """Run a cell once, and return its result."""
    place = folder.place(job.cell)
    run, log = place / f"round-{job.round}", place / f"round-{job.round}.log"
    with storage_errors(run):
        place.mkdir(parents=True, exist_ok=True)
        if run.exists():  # of a process that was killed
            shutil.rmtree(run)
    started = datetime.fromtimestamp(SYSTEM_CLOCK.wall_ns() / 1e9, UTC)
    kind, *words = job.cell.words
    command = [sys.executable, "-P", "-m", "iobench", kind, f"--out={run}", *words]
    environment = {**os.environ, "IOBENCH_RUN_NAME": folder.recipe.name, **job.cell.environment}
    with storage_errors(log):
        ended = run_limited(command, log, folder.recipe.limit_s, environment)
    figures: dict[str, float] = {}
    facts, digest, why = None, None, ""
    status: Status = FAILED
    if ended.code in INTERRUPTED:
        # Schedulers signal all processes of a job: ours unwinds this, a moment later perhaps.
        threading.Event().wait(INTERRUPT_S)
    if ended.code is None:
        why = f"{ended.how} of {folder.recipe.limit}"
    elif ended.code:
        status = NOT_AVAILABLE if ended.code == UNAVAILABLE else FAILED
        # What a script says itself, and of a profile our own line.
        lines = [each for each in ended.lines if each.startswith(ERROR) == (kind == "profile")]
        lines = lines or [*ended.lines]
        why = lines[-1].removeprefix(ERROR) if ended.code > 0 and lines else ended.how
    else:
        try:
            figures, facts, digest = figures_of_run(run)
            status = MEASURED
        except IobenchError as error:
            why = str(error)
    versions = {"iobench": version("iobench"), "commit": commit, "python": python_version()}
    return Result(
        suite=folder.recipe.name,
        recipe_digest=folder.recipe.digest,
        cell=job.cell.values,
        round=job.round,
        status=status,
        started=started.isoformat(timespec="seconds"),
        reason=why[:LONGEST_REASON] or None,
        figures=figures,
        machine=machine() if facts is None else facts.machine,
        versions=versions if facts is None else versions | dict(facts.versions),
        samples_digest=digest,
        stand_in=None if facts is None else facts.stand_in,
        run=run.name if (run / "run.json").exists() else None,
        options=job.cell.masked_options,
    )
