"""``record``: this process's part in a run of a user's own script."""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import sys
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, SupportsFloat

from iobench.errors import IobenchError, OptionError, StorageError
from iobench.recording.activation import activate
from iobench.recording.clocks import SYSTEM_CLOCK, Clock, process_start_ns
from iobench.recording.facts import EpochMetric, LoaderFacts, facts_of_this_process, facts_path
from iobench.recording.job import RUN_TOKEN, command_line, find_job, script_document
from iobench.recording.process_io import read_process_io, unit_costs
from iobench.recording.rotation import RUN_LOOP, LoopRotation, keep_nbytes
from iobench.recording.run_directory import RunDirectory, next_run_path
from iobench.recording.this_process import package_versions, thread_settings

if TYPE_CHECKING:
    from iobench.recording.delivery_log import DeliveryLog
    from iobench.recording.facts import ProcessFacts
    from iobench.recording.job import JobRank
    from iobench.recording.recorder import Recorder

logger = logging.getLogger(__name__)

RUN_PATH: Final = "IOBENCH_RUN"
"""Environment: the run directory that every process of a job writes to."""
RUN_DETAIL: Final = "IOBENCH_RUN_DETAIL"  # environment: ``auto``, ``sample`` or ``batch``
RUN_DIGESTS: Final = "IOBENCH_RUN_DIGESTS"  # environment: ``1`` keeps a digest of every batch
DETAILS: Final = ("auto", "sample", "batch")
MOST_METRICS: Final = 10_000
LONGEST_NAME: Final = 100
WRITTEN_PART: Final = 100
"""What a script adds to its facts is written for one part of so many of the time, at most."""
LOADER_LIMIT: Final = 64
"""Of more loaders than this, those that are alike count as one: scripts make them in loops."""
WITH_DIGESTS: Final = "torch"  # the framework whose loaders in scripts keep digests

_current: Recording | None = None
_refused = False
_this_pid = os.getpid()  # looked at for each batch of a loader: the system is asked once
_starting = threading.RLock()


class _Open(Protocol):
    """What goes on while there is a recording, and must end before it does."""

    def leave(self) -> None:
        """End it; idempotent."""


class Recording:
    """A process's part in a run; made by `record`, a context manager."""

    # From the start on: where it writes, what `stage` writes to, what else it says of itself.
    run: RunDirectory
    recorder: Recorder
    facts: ProcessFacts
    _rotation: LoopRotation

    def __init__(
        self,
        path: Path | None,
        *,
        detail: str,
        digests: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.job: JobRank = find_job()
        self.detail = detail
        self.digests = digests
        self.clock = clock
        # Where the training loop is: batches delivered so far, of all loaders; what passes that
        # begin now are for, and the epoch, where a framework says so; the pass that brought the
        # last batch, and the last one that may train.
        self.step = 0
        self.pass_role = ""
        self.epoch = -1
        self.latest: DeliveryLog | None = None
        self._training: DeliveryLog | None = None
        # What the calling thread waits for: the outermost loader, if loaders are nested; and
        # `held`: the pass whose batch it drew last, or the batch that another thread handed it;
        # `blocked`: what it waited for last, since when, until when; `trains`: whether it does.
        self.waiting = threading.local()
        self._path = path
        self._facts_path: Path | None = None
        self._started = self._closed = False
        self._pid = os.getpid()
        self._batches, self._rounds = itertools.count(), itertools.count()
        self._lock = threading.RLock()
        self._logs: weakref.WeakSet[_Open] = weakref.WeakSet()
        self._metrics: dict[tuple[str, int], EpochMetric] = {}
        self._joined: Recording | None = None
        self._is_joined = False
        self._environment: dict[str, str | None] = {}
        self._facts_due_ns, self._facts_late = 0, False
        self._due_step = 1

    # -- life -----------------------------------------------------------------------------

    def start(self, *, numbered: bool = True) -> Self:
        """Make or join the run directory, and record from now on."""
        with _starting:
            if _current is None or _current._closed:
                self._start(numbered=numbered)
            else:
                self._join(_current)
            return self

    def _start(self, *, numbered: bool) -> None:
        global _current
        if RUN_TOKEN in os.environ and os.environ.get(RUN_PATH):  # of a command that is recorded
            self._path = Path(os.environ[RUN_PATH])
        script = getattr(sys.modules.get("__main__"), "__file__", None) or "run"
        run = RunDirectory.create(
            next_run_path(Path(script).stem) if self._path is None else self._path,
            script_document(command_line(), self.job, detail=self.detail, digests=self.digests),
            token=self.job.token,
            numbered=numbered and self._path is not None,
        )
        if self._path is not None and run.path != self._path.absolute() and self.job.rank == 0:
            logger.warning("%s: holds a run already; recording into %s", self._path, run.path)
        self._begin(run, unit_costs(self.clock))
        values = {RUN_PATH: str(run.path), RUN_DETAIL: self.detail}
        if self.digests:
            values[RUN_DIGESTS] = "1"
        self._set_environment(values)
        _current = self

    def _begin(self, run: RunDirectory, costs: dict[str, int | None]) -> None:
        """Write to the files of this process from now on."""
        self.run = run
        folders = (run.spool or run.spans_path, run.spans_path)
        self._rotation = LoopRotation(keep_nbytes(), self._progress, folders)
        self.recorder = run.recorder(
            role="consumer", rank=self.job.rank, clock=self.clock, rotation=self._rotation
        )
        self._set_environment({RUN_LOOP: str(self.recorder.path or "")})
        # A notebook's kernel began long before; a clock that stands in knows of no process.
        is_script = self.clock is SYSTEM_CLOCK and command_line()[:1] != ["notebook"]
        self.facts = facts_of_this_process(
            "consumer",
            self.job,
            command=command_line(),
            unit_costs=costs,
            started_ns=process_start_ns() if is_script else None,
            thread_settings=thread_settings(),
        )
        self._facts_path = facts_path(
            run.processes_path,
            host=self.facts.host,
            rank=self.job.rank,
            start_ns=self.clock.now_ns(),
        )
        self._started = True
        self.write_facts()
        atexit.register(self.close)
        activate(self.recorder)

    def _join(self, other: Recording) -> None:
        """Be a view of the recording that goes on; ending this one ends nothing."""
        if self._path is not None and self._path.absolute() != other.run.path:
            if not other._is_joined:
                text = "%s: this process records into %s already; that continues"
                logger.warning(text, self._path, other.run.path)
            other._is_joined = True  # by another name
        self._joined = other
        self.run, self.recorder, self.facts = other.run, other.recorder, other.facts
        self.digests = other.digests = self.digests or other.digests
        other.detail = other.detail if self.detail == "auto" else self.detail

    def _set_environment(self, values: dict[str, str]) -> None:
        """Let processes that are started from here find the run."""
        for name, value in values.items():
            self._environment[name] = os.environ.get(name)
            os.environ[name] = value

    def close(self, error: BaseException | None = None) -> None:
        """End the recording: rounds that go on, the span file, the facts. Idempotent."""
        global _current
        if self._joined is not None or not self._started or self._closed:
            return
        if self.in_fork:
            return  # which left the normal way
        self._closed = True
        atexit.unregister(self.close)
        with self._lock:
            logs = [*self._logs]
        for log in logs:
            log.leave()
        activate(None)
        self._describe()
        self.recorder.own_ns += self.recorder.n_parts * (self.facts.unit_costs.get("light_ns") or 0)
        self.recorder.close()
        self.facts.ended = "closed" if error is None else type(error).__name__
        self.write_facts()
        for name, before in self._environment.items():
            if before is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = before
        if _current is self:
            _current = None
        try:
            self.run.gather()
        except StorageError as failure:
            logger.warning("%s", failure)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.close(error)

    # -- what is recorded -----------------------------------------------------------------

    @property
    def in_fork(self) -> bool:
        """Whether this is a fork of the process it belongs to; the system is asked."""
        return os.getpid() != (self._joined or self)._pid

    @property
    def closed(self) -> bool:
        """Whether it has ended, or this is a fork of the process it belongs to."""
        other = self._joined or self
        return other._closed or _this_pid != other._pid

    def next_batch(self) -> int:
        """Return a number no other batch of this process has."""
        return next(self._batches)

    def next_round(self) -> int:
        """Return a number no other round of this process has."""
        number = next(self._rounds)
        if not number:
            self._describe()
            self.write_facts()
        return number

    def _describe(self) -> None:
        """Look at the versions of what was imported by now, and at what was read."""
        began_ns = self.clock.now_ns()
        with self.recorder.quiet():
            self.facts.versions = package_versions()
        if self.facts.initial_nbytes is None:  # before the first round
            counted = read_process_io()
            self.facts.initial_nbytes = None if counted is None else counted[0]
        self.recorder.once_ns += self.clock.now_ns() - began_ns

    def add_loader(self, framework: str, kind: str, name: str, **more: Any) -> LoaderFacts:
        """Note a loader of this process; ``more`` as in `LoaderFacts`."""
        with self._lock:
            known = self.facts.loaders
            facts = LoaderFacts(len(known), framework, kind, name, **more)
            if len(known) >= LOADER_LIMIT:
                identity = facts.identity
                for before in reversed(known):
                    if before.identity == identity:
                        return before
            known.append(facts)
            if self.digests and framework != WITH_DIGESTS:
                facts.unseen.append("digests: of PyTorch's loaders only")
        self._write_facts_late()
        return facts

    def add_unseen(
        self, what: str, loader: LoaderFacts | None = None, *, replaces: str = ""
    ) -> None:
        """Note what cannot be observed in this process, or of a loader, once."""
        known = self.facts.unseen if loader is None else loader.unseen
        with self._lock:
            if what in known:
                return
            if replaces in known:
                known.remove(replaces)
            known.append(what)
        self.write_facts()

    def add_metric(self, name: str, value: float) -> None:
        """Take a figure of the script's own into the mean of the epoch that it is in."""
        log, known = self._training or self.latest, self._metrics
        epoch = self.epoch if self.epoch >= 0 or log is None else log.epoch
        with self._lock:
            metric = known.get((name, epoch))
            if metric is None and len(known) < MOST_METRICS:
                metric = known[name, epoch] = EpochMetric(name, epoch)
                self.facts.metrics.append(metric)
            if metric is not None:
                metric.add(value)
        if metric is None:
            self.add_unseen(f"metrics: those after the first {MOST_METRICS:,} names and epochs")
        else:
            self._write_facts_late()

    def write_facts(self) -> None:
        """Write the facts of this process; nothing in a fork of it."""
        if self.in_fork or self._facts_path is None:
            return
        with self._lock:
            began_ns, self._facts_late = self.clock.now_ns(), False
            self.facts.write(self._facts_path)
            self._facts_due_ns = WRITTEN_PART * (self.clock.now_ns() - began_ns) + began_ns

    def _write_facts_late(self) -> None:
        """Write the facts; where they were just now, as a later batch is delivered."""
        if self.clock.now_ns() >= self._facts_due_ns:
            self.write_facts()
        else:
            self._facts_late, self._due_step = True, 0

    def brought(self, log: DeliveryLog) -> None:
        """Note that a pass brought a batch."""
        self.latest = log
        if log.role in ("", "training"):
            self._training = log

    def optimizer_stepped(self) -> None:
        """Note that an optimiser took a step: what the last batch is from trains."""
        self.waiting.trains = True
        if self.latest is not None:
            self.latest.trained()

    def open_log(self, log: _Open) -> None:
        """Let a round, or what else goes on, be ended when the recording ends."""
        with self._lock:
            self._logs.add(log)

    def stepped(self) -> None:
        """Count a delivery."""
        with self._lock:  # loops of several threads count together
            self.step = step = self.step + 1
        if step >= self._due_step:  # seldom
            self._due_step = self._rotation.look(self.recorder)
            if self._facts_late:
                self._write_facts_late()

    def _progress(self) -> tuple[int, int]:
        """Return the number of the latest batch, and how many there were."""
        return -1 if self.latest is None else self.latest.delivered[0], self.step


def record(
    path: Path | str | None = None,
    *,
    detail: str = "auto",
    digests: bool = False,
) -> Recording:
    """Record what the loaders of this script do: ``with iobench.record("run"):``.

    It records loaders that iobench knows: `iobench.torch.DataLoader`, stores and datasets of
    iobench, what ``iobench.tensorflow.instrument`` and ``iobench.dali`` wrap; under ``iobench
    run`` all of PyTorch's and TensorFlow's. Setting ``IOBENCH_RUN=DIR`` does the same for a script.

    Parameters
    ----------
    path : Path or str, optional
        Run directory; by default ``$IOBENCH_RUN``, else the next ``iobench-runs/<script>-N``. If it
        holds another run already, ``<path>-2``, ``<path>-3``, ... Under ``iobench run`` that
        command's, whatever is given.
    detail : str
        ``auto``: every sample while that costs under 1 %; ``sample``: always; ``batch``: sums.
    digests : bool
        Keep a digest of every batch that PyTorch's loaders make, for ``iobench compare``.

    Raises
    ------
    OptionError
        If ``detail`` is none of these.
    MissingExtraError
        If ``digests`` are asked for, and xxhash is not installed.
    """
    if digests:
        from iobench.recording.digests import load_xxhash  # only recordings with digests need it

        load_xxhash()
    if path is None:
        path = os.environ.get(RUN_PATH) or None
    if detail not in DETAILS:
        raise OptionError(f"detail {detail!r}: expected one of {', '.join(DETAILS)}")
    return Recording(None if path is None else Path(path), detail=detail, digests=digests)


def metric(name: str, value: SupportsFloat) -> None:
    """Keep a figure of the script, such as its loss, with the epoch that the training is in.

    Reports have the mean of each epoch, over all ranks; ``iobench compare``, suites and the
    quarterly table have the last epoch's beside speed and energy. Without a recording the call does
    nothing.

    Parameters
    ----------
    name : str
        1 to 100 printable characters, such as ``"validation loss"``.
    value : float
        Or what ``float()`` takes, such as a tensor of one element, which waits for its device. An
        epoch with NaN or an infinity has no mean.

    Raises
    ------
    OptionError
        If the name or the value is none of these.
    """
    if not isinstance(name, str) or not (name.isprintable() and 0 < len(name) <= LONGEST_NAME):
        raise OptionError(
            f"metric {name!r}: expected a name of 1 to {LONGEST_NAME} printable characters"
        )
    if not hasattr(value, "__float__"):
        raise OptionError(f"metric {name!r}: {type(value).__name__} is no number, expected a float")
    recording = current_recording()
    if recording is None:
        return
    try:
        item = getattr(value, "item", None)  # by which a tensor with gradients does not warn
        recording.add_metric(name, float(value if item is None else item()))
    except (ArithmeticError, RuntimeError, TypeError, ValueError) as error:
        raise OptionError(f"metric {name!r}: expected a float ({error})") from error


def current_recording() -> Recording | None:
    """Return this process's recording; starts one where the environment names a run directory."""
    if _current is not None:
        return _current if os.getpid() == _current._pid else None
    path = os.environ.get(RUN_PATH)
    if not path or _refused:
        return None
    with _starting:  # several threads of a script may ask their first loaders at once
        return _start_from_environment(path) if _current is None else _current


def _start_from_environment(path: str) -> Recording | None:
    """Start the recording that the environment asks for; None, with a warning, if it cannot be."""
    global _refused
    if _refused:
        return None
    try:
        return record(
            path,
            detail=os.environ.get(RUN_DETAIL) or "auto",
            digests=os.environ.get(RUN_DIGESTS) == "1",
        ).start(numbered=False)  # the directory is that of its job, or none
    except IobenchError as error:
        _refused = True
        logger.warning("nothing is recorded: %s", error)
        return None


def loop_recording() -> Recording | None:
    """Return what a training loop of this process is recorded by; as `current_recording`."""
    global _current
    above = _current
    if current_recording() is not None or above is None or above._facts_path is None:
        return current_recording()
    fork = Recording(above.run.path, detail=above.detail, digests=above.digests, clock=above.clock)
    fork._begin(above.run, above.facts.unit_costs)
    _current = fork
    # Children of multiprocessing leave without the functions of ``atexit``.
    ending = sys.modules.get("multiprocessing.util")
    if ending is not None:
        ending.Finalize(None, fork.close, exitpriority=0)
    return fork


def _after_fork_in_child() -> None:
    global _starting, _this_pid
    _starting = threading.RLock()  # another thread may have held it
    _this_pid = os.getpid()


os.register_at_fork(after_in_child=_after_fork_in_child)
