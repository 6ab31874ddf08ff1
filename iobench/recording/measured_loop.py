"""The recording of a run whose training loop is iobench's own: ``iobench profile``."""

from __future__ import annotations

import contextlib
import os
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from iobench.recording import session
from iobench.recording.delivery_log import DeliveryLog
from iobench.recording.facts import facts_of_this_process, facts_path
from iobench.recording.job import JobRank
from iobench.recording.this_process import host_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from iobench.recording.recorder import Recorder
    from iobench.recording.run_directory import RunDirectory


class _OwnWaits(threading.local):
    """Says in every thread that somebody waits already: what loaders ask for is no wait then."""

    log: Final = SimpleNamespace(yields=False, waits=True)


class MeasuredRecording(session.Recording):
    """Lets a loader of scripts record into a run that has an owner."""

    def __init__(
        self,
        run: RunDirectory,
        recorder: Recorder,
        *,
        detail: str,
        unit_costs: Mapping[str, int | None],
    ) -> None:
        super().__init__(run.path, detail=detail, clock=recorder.clock)
        self.run, self.recorder = run, recorder
        self.job = JobRank(rank=recorder.rank)
        self.facts = facts_of_this_process(recorder.role, self.job, unit_costs=dict(unit_costs))
        self._unseen_path = facts_path(
            run.processes_path, host=host_name(), rank=recorder.rank, start_ns=self.clock.now_ns()
        )
        self.waiting = _OwnWaits()
        self._started = True
        self._log: DeliveryLog | None = None
        self._batch = -1

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        """Be what `current_recording` returns, within a ``with`` statement."""
        before, session._current = session._current, self
        try:
            yield
        finally:
            session._current = before

    def planned(self, batch: int, epoch: int) -> None:
        """Say which batch of the plan is the one that a loader draws now; else it counts itself."""
        self._batch = batch
        if self._log is not None:
            self._log.epoch = epoch

    def next_batch(self) -> int:
        """Return the number that the plan gave to what was drawn last; without a plan the next."""
        return self._batch if self._batch >= 0 else super().next_batch()

    @property
    def delivered(self) -> tuple[int, int, str]:
        """Number, epoch and maker of the batch that a loader delivered last."""
        if self._log is None:
            return -1, -1, ""
        return self._log.delivered[0], self._log.epoch, self._log.delivered[1]

    def open_log(self, log: session._Open) -> None:
        """Note the pass that begins."""
        super().open_log(log)
        if isinstance(log, DeliveryLog):
            self._log = log

    def write_facts(self) -> None:
        """Write what could not be observed, if there is anything; all else the owner tells."""
        of_loaders = [what for loader in self.facts.loaders for what in loader.unseen]
        unseen = list(dict.fromkeys([*self.facts.unseen, *of_loaders]))
        if unseen and os.getpid() == self._pid:
            replace(self.facts, loaders=[], unseen=unseen).write(self._unseen_path)

    def close(self, error: BaseException | None = None) -> None:
        """Record nothing more. Idempotent."""
        self._closed = True
