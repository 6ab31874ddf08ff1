"""Runs of a suite, each a process of ``iobench profile``, until nothing is left to measure.

Processes share a suite through its folder. On one machine one of them measures, the others stand
by: what runs beside a measurement disturbs it. A cell stays with the machine that began it, and is
taken over once no process is at work there any more.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import threading
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import psutil

from iobench.errors import UNAVAILABLE, IobenchError
from iobench.files.atomic import storage_errors
from iobench.files.claims import claim, try_claim
from iobench.launch.script_commit import commit_of
from iobench.recording.clocks import SYSTEM_CLOCK, now_ns
from iobench.recording.this_process import host_name, machine, name_in_files
from iobench.storage.file_systems import file_system_of
from iobench.suites.metrics import figures_of_run
from iobench.suites.recipe import said_cell
from iobench.suites.results import FAILED, MEASURED, NOT_AVAILABLE, Result, write_result
from iobench.suites.suite_table import said_figure, said_metric
from iobench.trials.limited_run import end_group, run_limited

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.runs.run_facts import RunFacts
    from iobench.sources.request import Screen
    from iobench.suites.suite_folder import Job, SuiteFolder

POLL_S: Final = 2.0
INTERRUPTED: Final = (75, -signal.SIGTERM, -signal.SIGINT, -signal.SIGUSR1)
"""How a process ends that was told to stop."""
ERROR: Final = "iobench: "
"""How a command's line begins that says what is wrong."""
LONGEST_REASON: Final = 500


class Forecast(msgspec.Struct, frozen=True):
    """How long the rest of a suite may take.

    Parameters
    ----------
    n_left : int
        Runs.
    expected_s : float or None
        By what runs took so far; None before the first one.
    most_s : float
        If each run took all of its limit.
    """

    n_left: int
    expected_s: float | None
    most_s: float

    @property
    def words(self) -> str:
        """The same in words."""
        if not self.n_left:
            return "nothing is left"
        if self.expected_s is None:
            return f"at most {_long(self.most_s)} by its limits"
        return f"about {_long(self.expected_s)} left"


def forecast(folder: SuiteFolder, results: tuple[Result, ...], n_machines: int = 1) -> Forecast:
    """Return how long the runs that are left may take, on so many machines at once."""
    left = folder.open_jobs(results)
    took: dict[str, list[float]] = {}
    for each in results:
        if each.took_s and each.status == MEASURED:
            took.setdefault(said_cell(each.cell), []).append(each.took_s)
    means = {name: sum(each) / len(each) for name, each in took.items()}
    usual = sum(means.values()) / len(means) if means else None
    expected = None
    if usual is not None:
        expected = sum(means.get(job.cell.name, usual) for job in left) / max(n_machines, 1)
    return Forecast(len(left), expected, len(left) * folder.recipe.limit_s)


def run_suite(folder: SuiteFolder, screen: Screen) -> None:
    """Measure all that is left of a suite and is for this machine.

    Returns once all cells for this machine have their results, also those that other machines
    measure. What is finished is kept, whatever ends it.

    Raises
    ------
    StorageError
        If the folder cannot be written.
    """
    folder.make()
    with storage_errors(folder.host_place):
        folder.host_place.mkdir(parents=True, exist_ok=True)
    commit = _commit()
    with claim(folder.host_place, notice=lambda line: screen.note(f"{line}: standing by")):
        _end_what_was_left(folder.host_place)
        waiting = False
        while True:
            results = folder.results()
            left = folder.here(folder.open_jobs(results))
            if not left:
                return
            if not _measure_next(folder, left, results, commit, screen):
                if not waiting:
                    screen.note(f"{len(left)} runs are left to other machines: waiting for them")
                waiting = True
                threading.Event().wait(POLL_S)


def _measure_next(
    folder: SuiteFolder,
    left: Sequence[Job],
    results: tuple[Result, ...],
    commit: str,
    screen: Screen,
) -> bool:
    """Measure the first run that is nobody else's; return whether there was one."""
    here, others = name_in_files(host_name()), folder.live_hosts()
    others.discard(here)
    owners: dict[str, set[str]] = {}
    for each in results:
        name = said_cell(each.cell)
        owners.setdefault(name, set()).add(name_in_files(str(each.machine.get("host"))))
    for taken_over in (False, True):
        for job in left:
            hosts = owners.get(job.cell.name, {here})
            if hosts & others or (here not in hosts) != taken_over:
                continue
            place = folder.place(job.cell)
            with storage_errors(place):
                place.mkdir(parents=True, exist_ok=True)
            held = try_claim(place)
            if held is None:
                continue
            try:
                if folder.result_file(job).exists():
                    return True  # meanwhile; what is left has to be looked at again
                result = _measure(folder, job, commit)
                held.check()
                write_result(folder.result_file(job), result)
            finally:
                held.release()
            _say(folder, job, result, len(others) + 1, screen)
            return True
    return False


def _say(folder: SuiteFolder, job: Job, result: Result, n_machines: int, screen: Screen) -> None:
    told, metric = result.reason, folder.recipe.metrics[0]
    if told is None and metric in result.figures:
        told = f"{said_metric(metric)} {said_figure(metric, result.figures[metric])}"
    ahead = forecast(folder, folder.results([]), n_machines)
    total = len(folder.cells) * folder.recipe.repeats
    screen.note(
        f"round {job.round + 1} of {folder.recipe.repeats}, {total - ahead.n_left} of {total} "
        f"runs: {job.cell.name}: {result.status}{f', {told}' if told else ''}; {ahead.words}"
    )


def _measure(folder: SuiteFolder, job: Job, commit: str) -> Result:
    """Run a cell once, and return what it found."""
    place = folder.place(job.cell)
    run, log = place / f"round-{job.round}", place / f"round-{job.round}.log"
    with storage_errors(run):
        if run.exists():  # of a process that was killed
            shutil.rmtree(run)
    started, begun_ns = datetime.fromtimestamp(SYSTEM_CLOCK.wall_ns() / 1e9, UTC), now_ns()
    kind, *words = job.cell.words
    command = [sys.executable, "-P", "-m", "iobench", kind, f"--out={run}", *words]
    try:
        with storage_errors(log):
            ended = run_limited(
                command,
                log,
                folder.recipe.limit_s,
                partial(_note_process, folder.host_place),
                {**os.environ, "IOBENCH_RUN_NAME": folder.recipe.name, **job.cell.environment},
            )
    finally:
        _note_process(folder.host_place, None)
    took_s = (now_ns() - begun_ns) / 1e9
    found, status, why = None, MEASURED, ""
    if ended.code:
        if ended.code in INTERRUPTED:
            # Schedulers signal all processes of a job: ours unwinds this, a moment later perhaps.
            threading.Event().wait(POLL_S)
        status = NOT_AVAILABLE if ended.code == UNAVAILABLE else FAILED
        # What a script says itself, and of a profile our own line.
        ours = kind == "profile"
        told = [line for line in ended.lines if line.startswith(ERROR) == ours] or ended.lines
        why = told[-1].removeprefix(ERROR) if ended.code > 0 and told else ended.how
    elif ended.code is None:
        status, why = FAILED, f"{ended.how} of {_long(folder.recipe.limit_s)}"
    else:
        try:
            found = figures_of_run(run)
        except IobenchError as error:
            status, why = FAILED, str(error)
    facts = None if found is None else found.facts
    return Result(
        suite=folder.recipe.name,
        recipe_digest=folder.recipe.digest,
        cell=job.cell.values,
        round=job.round,
        status=status,
        started=started.isoformat(timespec="seconds"),
        reason=why[:LONGEST_REASON] or None,
        figures={} if found is None else found.figures,
        machine=_machine(facts),
        versions=_versions(commit, facts),
        samples_digest=None if found is None else found.samples_digest,
        stand_in=None if facts is None else facts.stand_in,
        run=run.name if (run / "run.json").exists() else None,
        took_s=took_s,
        options=job.cell.told,
    )


def _note_process(host: Path, pid: int | None) -> None:
    """Keep which process measures on this machine, for whoever comes if this one is killed."""
    file = host / "measuring"
    with contextlib.suppress(OSError, psutil.Error):
        if pid is None:
            file.unlink(missing_ok=True)
        else:
            file.write_text(f"{pid} {psutil.Process(pid).create_time()!r} {host_name()}")


def _end_what_was_left(host: Path) -> None:
    """End the run that a process of ours left behind when it was killed: it would disturb ours."""
    with contextlib.suppress(OSError, ValueError, psutil.Error):
        pid, created, name = (host / "measuring").read_text().split(" ", 2)
        process = psutil.Process(int(pid))
        # The same number may be another process's by now.
        if name == host_name() and abs(process.create_time() - float(created)) < 1:
            end_group(process.pid)
            process.wait(10)
    with contextlib.suppress(OSError):
        (host / "measuring").unlink()


def _commit() -> str:
    """Return the commit of iobench, ``""`` where it is no checkout."""
    return commit_of([__file__], os.environ).hash or ""


def _versions(commit: str, facts: RunFacts | None) -> dict[str, str]:
    own = version("iobench") if facts is None else facts.iobench_version
    python = (machine() if facts is None else facts.machine).get("python")
    others = {} if facts is None else facts.versions
    told = {"iobench": own, "commit": commit, "python": python, **others}
    return {name: str(each) for name, each in told.items() if each}


def _machine(facts: RunFacts | None) -> dict[str, Any]:
    """Return what a result says of a machine; what is not known is missing."""
    told = facts.machine if facts is not None else machine()
    memory = told.get("memory_nbytes") if facts is not None else psutil.virtual_memory().total
    found = {
        "host": told.get("host"),
        "cpu_model": told.get("cpu_model"),
        "cores": told.get("cpus"),
        "memory_bytes": memory,
        "kernel": told.get("system"),
    }
    if facts is not None:
        read = facts.store.path if facts.store is not None else facts.files_hint
        with contextlib.suppress(OSError, ValueError):
            if read and Path(read).exists():
                found["file_system"] = file_system_of(Path(read)).name
        if facts.device is not None:
            found["accelerator"] = facts.device.title or facts.device.name
    return {name: each for name, each in found.items() if each not in (None, "")}


def _long(seconds: float) -> str:
    """Return a time of many seconds."""
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 7200 else f"{whole // 3600} h {whole % 3600 // 60} min"
