"""Starts a command in the environment that its Python processes record in, and waits for it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from iobench.adapters import ADAPTERS
from iobench.command_words import KEEP_COMMAND
from iobench.errors import OptionError, StorageError
from iobench.launch.launched_processes import (
    commit_of,
    describe_processes,
    nothing_recorded,
    read_processes,
)
from iobench.launch.waiting import run_and_wait
from iobench.masking import as_typed
from iobench.recording.clocks import SYSTEM_CLOCK, Clock
from iobench.recording.facts import read_process_facts
from iobench.recording.free_data import FREE_DATA
from iobench.recording.job import RUN_TOKEN, JobRank, find_job, script_document, words_to_keep
from iobench.recording.machine_head import ENERGY, MONITOR, is_on
from iobench.recording.meter import start_meter
from iobench.recording.rotation import KEEP, RUN_LOOP, keep_nbytes
from iobench.recording.run_directory import RunDirectory, checked_name, next_run_path, run_name
from iobench.recording.session import RUN_DETAIL, RUN_DIGESTS, RUN_PATH, record
from iobench.recording.this_process import host_name, name_in_files
from iobench.registry import adapter_places
from iobench.storage.darshan_setup import (
    DarshanSetup,
    gather_logs,
    read_choice,
    ready_runtime,
    set_up,
)
from iobench.storage.file_systems import near_places

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


BOOT: Final = Path(__file__).parent / "boot"
PATIENCE_NS: Final = 10_000_000_000
LOOK_NS: Final = 50_000_000
INTERPRETER: Final = re.compile(r"(python|pypy)[\d.]*")
INHERITED: Final = (
    "IOBENCH_RUN_RECORDS",
    RUN_DIGESTS,
    RUN_LOOP,
    KEEP_COMMAND,
    FREE_DATA,
)
"""Environment of an ``iobench run`` around this one, which sees nothing of it."""


class ScriptRun(msgspec.Struct, frozen=True):
    """What ``iobench run`` is to do."""

    command: tuple[str, ...]  # the user's, as a shell would start it
    out: Path | None = None  # by default the next ``iobench-runs/<name or script>-N``
    name: str | None = None  # what the run is called in reports and by trackers
    detail: str = "auto"  # or "sample", "batch"
    digests: bool = False
    darshan: tuple[str, ...] = ("off",)  # or ("auto",), or paths of the user's own logs
    batches_per_step: int | None = None  # of the optimiser, where nobody sees that
    keep_command: bool = False  # with the values of options
    free_data: bool = False  # loaders hand on their first batches again and again


class EndedCommand(msgspec.Struct, frozen=True):
    """How a command ended, and what of it was recorded."""

    code: int  # minus the number of the signal that ended it
    run: Path | None  # None if nothing was recorded
    rank: int  # of this launcher, where a job starts several; only the first prints
    nothing: str = ""  # why no training process recorded anything; "" if one did


def run_script(
    requested: ScriptRun,
    say: Callable[[str], None],
    environment: Mapping[str, str] = os.environ,
    clock: Clock = SYSTEM_CLOCK,
    look_at: Callable[[RunDirectory], Callable[[], None]] | None = None,
) -> EndedCommand:
    """Run a command, recorded; return when it has ended.

    ``look_at`` gives what is called about once a second meanwhile, of one launcher of a job.
    """
    if shutil.which(requested.command[0], path=environment.get("PATH")) is None:
        program = requested.command[0]
        raise OptionError(f"{program}: no such program; try iobench run -- python train.py")
    record(Path(), detail=requested.detail, digests=requested.digests)  # refuses what it cannot do
    energy, machine = is_on(ENERGY, environment), is_on(MONITOR, environment)
    keep = keep_nbytes(environment)
    is_traced, darshan = read_choice(requested.darshan)
    job = _own_job(environment)
    words = words_to_keep(requested.command, keep_values=requested.keep_command)
    document = script_document(
        words,
        job,
        detail=requested.detail,
        digests=requested.digests,
        batches_per_step=requested.batches_per_step,
        name=checked_name(requested.name),
    )
    document |= {"free_data": requested.free_data, "darshan": darshan, **near_places()}
    run = _join(requested, job, document, environment, say)
    if run is None:
        return EndedCommand(run_and_wait(requested.command, dict(environment)), None, job.rank)
    inside = _environment(requested, job, run, environment)
    if job.rank == 0:
        say(
            f"recording into {as_typed(run.path)}; of more than {keep / 1e6:.0f} MB a "
            f"rank ({KEEP}) the first and the latest spans stay, and sums"
        )
    setup = None
    if is_traced:
        setup = begin_tracing(run, job, requested.command, environment, say)
    first = job.local_rank == 0  # of this machine's launchers, which reads its counters
    with contextlib.closing(
        start_meter([run.path], environment, energy=first and energy, machine=first and machine)
    ):
        started_ns = clock.now_ns()
        traced = inside if setup is None else setup.environment(inside)
        look = look_at(run) if look_at is not None and job.rank == 0 else None
        code = run_and_wait(requested.command, traced, look)
        ended_ns = clock.now_ns()
    try:
        run.gather()
    except StorageError as error:
        say(str(error))
    facts = describe_processes(run, words, job, code, (started_ns, ended_ns))
    facts.write(run.processes_path / f"launcher-{job.rank:05d}.json")
    if setup is not None:
        end_tracing(setup, run, job, say, clock)
    if job.rank == 0:
        _await_launchers(run, job.world_size, clock)
    recorded = read_process_facts(run.processes_path)
    nothing = "" if run.stopped() else nothing_recorded(recorded, facts)
    return EndedCommand(code, run.path, job.rank, nothing)


def _own_job(environment: Mapping[str, str]) -> JobRank:
    """Return which launcher of how many this is, with the token of the run it makes or joins."""
    nested = RUN_PATH in environment
    known = {name: value for name, value in environment.items() if name != RUN_TOKEN or not nested}
    job = find_job(known)
    # A job that is queued again keeps its number.
    again = environment.get("SLURM_RESTART_COUNT", "0")
    token = f"{job.token}:{again}" if job.token else secrets.token_hex(8)
    return JobRank(job.rank, job.world_size, job.local_rank, token)


def _join(
    requested: ScriptRun,
    job: JobRank,
    document: dict[str, Any],
    environment: Mapping[str, str],
    say: Callable[[str], None],
) -> RunDirectory | None:
    """Make or join the run directory; None, and said, where it cannot be written."""
    try:
        path = _default_path(requested, job) if requested.out is None else requested.out
        run = RunDirectory.create(path, document, token=job.token)
        (run.path / "launch").mkdir(exist_ok=True)
        if job.rank == 0:
            run.update(commit={"hash": commit_of(requested.command, environment)})
    except (OSError, StorageError) as error:
        if requested.out is not None and (requested.out / "run.json").exists():
            raise
        say(f"nothing is recorded: {error}")
        return None
    return run


def _default_path(requested: ScriptRun, job: JobRank) -> Path:
    name = checked_name(requested.name) or _name(requested.command)
    if job.world_size > 1:
        # All launchers of a job must find the same one, without talking to each other.
        code = hashlib.sha256(job.token.encode()).hexdigest()[:8]
        return Path("iobench-runs") / f"{run_name(name)}-{code}"
    return next_run_path(name)


def _name(command: Sequence[str]) -> str:
    """Return what to call a run: its script or module, else its program."""
    result = next((word for word in command if word.endswith((".py", ".sh"))), None)
    if result is None and "-m" in command[1:-1]:
        result = command[command.index("-m") + 1]
    return Path(result or command[0]).name.removesuffix(".py").removesuffix(".sh")


def _environment(
    requested: ScriptRun, job: JobRank, run: RunDirectory, environment: Mapping[str, str]
) -> dict[str, str]:
    inside = {name: value for name, value in environment.items() if name not in INHERITED}
    inside |= {RUN_PATH: str(run.path), RUN_TOKEN: job.token, RUN_DETAIL: requested.detail}
    inside[ADAPTERS] = ",".join("=".join(each) for each in adapter_places().items())
    if requested.digests:
        inside[RUN_DIGESTS] = "1"
    if requested.free_data:
        inside[FREE_DATA] = "1"
    if requested.keep_command:
        inside[KEEP_COMMAND] = "1"
    own = [path for path in inside.get("PYTHONPATH", "").split(os.pathsep) if path != str(BOOT)]
    # An empty entry would be the working directory: it must not come from us.
    inside["PYTHONPATH"] = os.pathsep.join([str(BOOT), *own] if own != [""] else [str(BOOT)])
    return inside


def _await_launchers(run: RunDirectory, n_launchers: int, clock: Clock) -> None:
    """Wait a little for the launchers of a job's other ranks: their commands end about now."""
    last_ns = clock.now_ns() + PATIENCE_NS
    while len(list(run.processes_path.glob("launcher-*.json"))) < n_launchers:
        now_ns = clock.now_ns()
        if now_ns >= last_ns:
            return
        clock.wait_until_ns(now_ns + LOOK_NS)


def begin_tracing(
    run: RunDirectory,
    job: JobRank,
    command: Sequence[str],
    environment: Mapping[str, str],
    say: Callable[[str], None],
) -> DarshanSetup | None:
    """Return how a command's processes are to be traced; None, and said, where they cannot be."""
    setup: DarshanSetup | None = None
    try:
        python = _python_of(command, environment)
        runtime = ready_runtime(environment, python)
        setup = set_up(run.path, runtime, python, environment)
        document, line = setup.document(run.path), setup.line()
    except StorageError as error:
        document = {"state": "off", "reason": str(error)}
        line = f"darshan: not traced: {error}; what /proc counts is used instead"
    if job.rank == 0:
        run.update(darshan=document)
        say(line)
    return setup


def end_tracing(
    setup: DarshanSetup, run: RunDirectory, job: JobRank, say: Callable[[str], None], clock: Clock
) -> None:
    """Wait for the logs of this machine's processes, 10 s at most, and say what there is."""
    host = host_name()
    pids = {
        each.pid for each in read_processes(run.path / "launch", f"{name_in_files(host)}-*.txt")
    }
    for facts in read_process_facts(run.processes_path):
        if facts.host == host and facts.role == "consumer":
            pids.update(pid for loader in facts.loaders for pid in loader.worker_pids)
    lines = gather_logs(setup.folder, setup.mmap, pids, clock=clock)
    for line in lines if job.rank == 0 else ():
        say(line)


def _python_of(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the Python that a command, also of ``srun`` or ``mpirun``, will run; else this one."""
    path = environment.get("PATH")
    programs = (shutil.which(word, path=path) for word in (*command, "python3"))
    pythons = (each for each in programs if each and INTERPRETER.fullmatch(Path(each).name))
    return next(pythons, sys.executable)
