"""What the training process records of one iterator over a loader."""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

from iobench.adapters.scope import loading
from iobench.loaders.stage_timer import BUDGET_FRACTION, Detail
from iobench.recording.delivery_log import DeliveryLog
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from iobench.torch.batch_recorder import BatchRecorder, BatchTag, open_digests

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from iobench.recording.facts import LoaderFacts
    from iobench.recording.session import Recording

DETAIL: Final = int(Flag.DETAIL)
FULL_FRACTION: Final = BUDGET_FRACTION / 2
"""The part of a loop's time that batches recorded in full may take of ours: the others take the
rest of what recording may take."""
FULL_FIRST: Final = 3
"""Batches of a loader that are recorded in full before any is not: the first one is never usual."""


class FullBatches:
    """When the loop's thread records a batch in full, of loaders that are alike."""

    def __init__(self) -> None:
        self.begun = False
        self.due_ns = 0
        self.hushes = False
        self._n_full, self._least_ns = 0, sys.maxsize

    def recorded(self, spent_ns: int, now_ns: int, maker: BatchRecorder) -> None:
        """Note that one was, and took so long of ours."""
        self._n_full += 1
        self._least_ns = min(self._least_ns, spent_ns)
        self.hushes = not maker.watching_is_cheap
        due = self._n_full >= FULL_FIRST and maker.may_be_left_out
        self.due_ns = now_ns + int(self._least_ns / FULL_FRACTION) if due else 0


class KnownLoader:
    """A loader of the user's that was asked for batches."""

    def __init__(self, recording: Recording, facts: LoaderFacts, full: FullBatches) -> None:
        self.recording = recording
        self.facts = facts
        self.full = full
        self.n_rounds = 0
        self.makers: list[BatchRecorder] = []

    def new_log(self) -> DeliveryLog:
        """Return the log of another pass."""
        epoch, self.n_rounds = self.n_rounds, self.n_rounds + 1
        return DeliveryLog(self.recording, self.facts, epoch=epoch)

    def note_unseen(self, what: str) -> None:
        """Tell in the report what cannot be observed, and why; once."""
        self.recording.add_unseen(what, self.facts)


class Observation:
    """Of an iterator that nothing is known of but the waits for it."""

    armed = False
    blind = False

    def __init__(self, known: KnownLoader, log: DeliveryLog) -> None:
        self.known = known
        self.recording = known.recording
        self.recorder = known.recording.recorder
        self.log = log

    @property
    def live(self) -> bool:
        """Whether its recording goes on."""
        return not self.recording.closed

    def start_round(self, known: KnownLoader, log: DeliveryLog) -> None:
        """Record another pass with the same iterator, maybe in a later recording."""
        if log is self.log:
            return
        if self.live:
            self.log.leave()
        if known.recording is not self.recording:
            self.blind = True
            known.note_unseen("workers: they record into the run that they were started in")
        self.known, self.log = known, log
        self.recording, self.recorder = known.recording, known.recording.recorder

    def wait_for(self, take: Callable[[], Any], entered_ns: int = -1) -> Any:
        """Return what the function returns, and record the wait for it; entered before, if so."""
        if not self.live:
            return take()
        now_ns, log = self.recorder.clock.now_ns, self.log
        if entered_ns < 0:
            entered_ns = now_ns()
        log.spent(now_ns() - entered_ns)
        self.ask()
        requested_ns = now_ns()
        try:
            data = take()
        except StopIteration:
            self.log.end()
            raise
        except BaseException:
            self.log.fail()
            raise
        taken_ns = now_ns()
        self.deliver()
        ended_ns = now_ns()
        log.spent(ended_ns - max(log.delivered_ns, taken_ns))
        self.recorder.own_ns += ended_ns - taken_ns + requested_ns - entered_ns
        return data

    def _emit_pin(self, start_ns: int, nbytes: int, tag: BatchTag) -> None:
        now_ns = self.recorder.clock.now_ns()
        self.recorder.emit(Kind.PIN, start_ns, now_ns, nbytes, batch=tag.batch, epoch=tag.epoch)

    def ask(self) -> None:
        """Note that the training loop waits from now on."""
        self.log.ask()

    def deliver(self) -> None:
        """Note that the training loop has what it waited for."""
        self.log.deliver(self.recording.next_batch())

    def __del__(self) -> None:
        # Of an iterator that was dropped in the middle of a pass.
        if self.armed and self.live:
            self.log.leave()


class LocalObservation(Observation):
    """Of an iterator that makes the batches itself, in the training loop's own thread."""

    def __init__(
        self,
        known: KnownLoader,
        log: DeliveryLog,
        iterator: Mapping[str, Any],  # its attributes
        *,
        batches: bool,
    ) -> None:
        super().__init__(known, log)
        self.full, self.now_ns = known.full, self.recorder.clock.now_ns
        self.pins = bool(iterator.get("_pin_memory"))
        self._maker: BatchRecorder | None = None
        self._last_batch: tuple[int, int] = (-1, -1)
        self._dataset, self._batches = iterator["_dataset"], batches
        self._fetcher = iterator["_dataset_fetcher"]
        self._collate = self._fetcher.collate_fn

    @property
    def maker(self) -> BatchRecorder:
        """What records batches in full."""
        if self._maker is None:
            makers, recording = self.known.makers, self.recording
            # Passes that go on at once have one each.
            self._maker = (
                makers.pop()
                if makers
                else BatchRecorder(
                    self.recorder,
                    self._dataset,
                    batches=self._batches,
                    detail=Detail(recording.detail),
                    unit_costs=recording.facts.unit_costs,
                    digests=open_digests(recording.digests, recording.run.path, recording.job.rank),
                    sparse=not self.pins,
                )
            )
        return self._maker

    def watch_collate(self, is_recorded: bool) -> None:
        """Put what records it before the user's collate function, or leave that alone."""
        self._fetcher.collate_fn = (
            functools.partial(self.maker.collate, self._collate) if is_recorded else self._collate
        )

    def begin(self, index: Any, drawn_ns: int) -> Any:
        """Give a batch its number; return its index for the fetcher."""
        now_ns = self.recorder.clock.now_ns()
        tag = BatchTag(self.recording.next_batch(), self.log.epoch, now_ns, True)
        self.recorder.emit(Kind.SAMPLER, drawn_ns, now_ns, batch=tag.batch, epoch=tag.epoch)
        self.maker.theirs_ns += now_ns - drawn_ns
        return self.maker.begin(tag, index)

    def take(self, take: Callable[[], Any]) -> Any:
        """Return what the iterator makes, and record how."""
        now_ns = self.now_ns
        entered_ns, maker = now_ns(), self.maker
        maker.theirs_ns = 0
        with loading(), maker.methods:
            own_ns = self.recorder.own_ns  # what the wait counts is within what is counted here
            data_taken = self.wait_for(lambda: self._make(take), entered_ns)
            left_ns = now_ns()
        ended_ns = now_ns()
        spent_ns = ended_ns - entered_ns - maker.theirs_ns
        self.recorder.own_ns = own_ns + spent_ns
        if not self.pins:
            self.full.recorded(spent_ns, ended_ns, maker)
        self.log.spent(now_ns() - left_ns)
        return data_taken

    def __del__(self) -> None:
        super().__del__()
        if self.armed and self.live and not self.pins and self._maker is not None:
            self.known.makers.append(self._maker)

    def _make(self, take: Callable[[], Any]) -> Any:
        self._last_batch = (-1, -1)
        try:
            return take()
        finally:
            ended_ns, nbytes = self.maker.ended_ns, self.maker.nbytes
            tag = self.maker.finish()
            if tag is not None:
                self._last_batch = (tag.batch, nbytes)
                if self.pins and ended_ns >= 0:
                    self._emit_pin(ended_ns, nbytes, tag)

    def deliver(self) -> None:
        """Note that the training loop has the batch it made."""
        batch, nbytes = self._last_batch
        self.log.deliver(batch, nbytes=nbytes, maker="consumer")


class WorkersObservation(Observation):
    """Of an iterator with worker processes: which batches are under way, which is waited for."""

    def __init__(self, known: KnownLoader, log: DeliveryLog, *, pins: bool) -> None:
        super().__init__(known, log)
        self.got = -1
        self._pins = pins
        self._pinning: tuple[BatchTag, int, int] | None = None
        self._drawn: BatchTag | None = None
        self._tags: dict[int, BatchTag] = {}
        self._nbytes: dict[int, int] = {}
        self.taken = (-1, -1)  # the task handed over, and its worker
        self.iterator: weakref.ref[Any] | None = None
        self._consumer = threading.get_ident()

    def draw(self, start_ns: int = -1) -> BatchTag | None:
        """Give a batch its number, its indices drawn since then; None if nothing records."""
        if not self.live:
            return None
        is_recorded = not self.blind
        now_ns = self.recorder.clock.now_ns()
        tag = BatchTag(self.recording.next_batch(), self.log.epoch, now_ns, is_recorded)
        if is_recorded and start_ns >= 0:
            self.recorder.emit(Kind.SAMPLER, start_ns, now_ns, batch=tag.batch, epoch=tag.epoch)
        self._drawn = tag
        if start_ns >= 0:  # else the queue counts it
            self.spent(self.recorder.clock.now_ns() - now_ns)
        return tag

    def submitted(self, number: int) -> BatchTag | None:
        """Return the tag of what is submitted as this task."""
        tag, self._drawn = self._drawn or self.draw(), None
        if tag is None:
            self._tags.pop(number, None)
        else:
            self._tags[number] = tag
        self._nbytes.pop(number, None)
        return tag

    def taking(self) -> None:
        """End the pinning of a batch: the thread that did it asks for the next one."""
        if self._pinning is not None:
            (tag, nbytes, start_ns), self._pinning = self._pinning, None
            self._emit_pin(start_ns, nbytes, tag)

    def arrived(self, number: int, nbytes: int, start_ns: int, start_cpu_ns: int) -> None:
        """Record the unpickling of a batch, and in whose way it was: of the one waited for."""
        tag = self._tags.get(number)
        if tag is None:
            return
        clock, emit = self.recorder.clock, self.recorder.emit
        spent_ns, end_ns = clock.cpu_ns() - start_cpu_ns, clock.now_ns()
        flags, waited = 0, self._next_in_order()
        self._nbytes[number] = nbytes
        in_loop = threading.get_ident() == self._consumer
        if in_loop and waited is not None and waited.batch != tag.batch:
            emit(Kind.HEAD_OF_LINE, start_ns, end_ns, nbytes, spent_ns, waited.batch, waited.epoch)
            flags = DETAIL
        where = tag.batch, tag.epoch
        emit(Kind.UNPICKLE, start_ns, end_ns, nbytes, spent_ns, *where, flags=flags)
        if self._pins:
            self._pinning = (tag, nbytes, clock.now_ns())

    def spent(self, own_ns: int) -> None:
        """Count what recording took of the calling thread's time."""
        self.recorder.own_ns += own_ns

    def _next_in_order(self) -> BatchTag | None:
        """Return the batch that must be delivered next; None where any may."""
        iterator = None if self.iterator is None else self.iterator()
        if iterator is None or not getattr(iterator, "_in_order", True):
            return None
        return self._tags.get(getattr(iterator, "_rcvd_idx", -1))

    def ask(self) -> None:
        """Note that the training loop waits from now on, for a batch if the order is kept."""
        self._consumer = threading.get_ident()
        self.taken = (-1, -1)
        waited = self._next_in_order()
        self.log.ask(-1 if waited is None else waited.batch)

    def deliver(self) -> None:
        """Note that the training loop has the batch that was taken."""
        number, worker = self.taken
        tag = self._tags.pop(number, None)
        nbytes = self._nbytes.pop(number, -1)
        batch = self.recording.next_batch() if tag is None else tag.batch
        self.log.deliver(batch, nbytes=nbytes, maker="" if worker < 0 else f"worker-{worker}")

    def workers_ended(self, start_ns: int) -> None:
        """Record that the workers were told to end then, and have."""
        self.taking()
        self.recorder.emit(Kind.SHUTDOWN, start_ns, self.recorder.clock.now_ns())
