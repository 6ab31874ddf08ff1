"""What a training loop asks one loader for: the waits, and the round around them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from iobench.recording.kinds import BETWEEN, FAILED, ROUND, SHUTDOWN, STARTUP, TRAINS, WHOLE, Kind
from iobench.recording.pass_names import generator_above
from iobench.recording.process_io import RunQueue
from iobench.recording.span_file import POSITION, Flag

if TYPE_CHECKING:
    from collections.abc import Callable

    from iobench.recording.facts import LoaderFacts
    from iobench.recording.recorder import Lane
    from iobench.recording.session import Recording

LOADER: Final = "loader-"
"""Which loader a pass is over, what for, and whether it goes on with one: detail of its first wait,
``"loader-1 validation resumed"``; detail of the pass itself, without the rest."""
RESUMED: Final = "resumed"
LOOK_EVERY: Final = 1000
"""Looks at the run queue are this many looks at an open file apart, so that two of them, each of
which opens it, take about one per cent of a loop's time."""
CONSUMER: Final = "consumer"  # who made a batch: the loop itself
THREADS: Final = "threads"  # or other threads of its process


class DeliveryLog:
    """Records one pass of a training loop over a loader: make one as ``iter(loader)`` is entered.

    Each call is one of ``ask`` followed by ``deliver``, ``end`` or ``fail``; the first one may be
    followed by ``started``. While a thread waits for a loader, what it asks other loaders for
    meanwhile is that loader's work, and no wait.
    """

    __slots__ = (
        "__weakref__", "_asking", "_asks", "_round_ns", "_trains", "_whole", "delivered",
        "delivered_ns", "epoch", "left", "loader", "number", "recording", "requested_ns", "resumed",
        "role", "waits", "yields",
    )  # fmt: skip

    def __init__(
        self,
        recording: Recording,
        loader: LoaderFacts | None,
        *,
        epoch: int = -1,  # the pass over the samples, where the loader knows
        yields: bool = False,  # a wait that a script times: a loader that is asked takes its place
    ) -> None:
        self.recording = recording
        self.loader = loader
        self.epoch = epoch
        self.yields = yields
        self.number = recording.next_round()
        # "training", "validation", "test", "prediction", "evaluation" (one of these three) or "";
        # this and `resumed`, of a pass of an earlier process, are set before `started`.
        self.role = recording.pass_role
        self.resumed = False
        self._trains = self._asks = False  # whether marks of these were written
        self._round_ns = -1
        self._whole = recording.recorder.described(Kind.WAIT, WHOLE, CONSUMER)
        self.requested_ns = self.delivered_ns = -1  # of the last wait that was recorded
        self.delivered = (-1, "")  # number and maker of the last batch, recorded or not
        self.waits = False  # for what was asked for, by this loop itself
        self.left = False  # whether the pass is over, or abandoned
        self._asking = False
        recording.open_log(self)

    def trained(self) -> None:
        """Note that an optimiser took a step on what this pass brought; once is enough."""
        if self._trains or self.left or self._round_ns < 0:
            return
        self._trains = True
        self._mark(TRAINS)

    def _mark(self, label: str, detail: str = "") -> None:
        recorder = self.recording.recorder
        now_ns = recorder.clock.now_ns()
        recorder.emit(
            Kind.OTHER, now_ns, now_ns, epoch=self.epoch, sample=self.number,
            label=recorder.string(label), detail=recorder.string(detail), flags=Flag.DETAIL,
        )  # fmt: skip

    def _note_asking_generator(self) -> None:
        self._asks = True
        self._mark(BETWEEN, generator_above())

    def ask(self, batch: int = -1) -> None:
        """Note that the loop waits from now on, for this batch if it is known."""
        recording = self.recording
        waiting = recording.waiting
        outer: DeliveryLog | None = getattr(waiting, "log", None)
        if outer is not None and outer.yields:
            outer.withdraw()
            outer = None
        self.waits = outer is None
        if not self.waits:
            return
        waiting.log, waiting.blocked = self, None
        self._asking = True
        recorder = recording.recorder
        entered_ns = recorder.clock.now_ns()
        recorder.position(batch, self.epoch)
        if getattr(waiting, "queue", None) is None:
            io_ns = recording.facts.unit_costs.get("io_ns") or 0
            waiting.queue = RunQueue(LOOK_EVERY * io_ns)
        waiting.queue.begin(self.delivered_ns)
        self.requested_ns = requested_ns = recorder.clock.now_ns()
        # The look at the run queue lets go of Python's lock, which threads that load may then keep.
        waiting.own_ns = getattr(waiting, "own_ns", 0) + requested_ns - entered_ns
        recorder.note_wait(requested_ns, self.number, self.epoch)

    def withdraw(self) -> None:
        """Unask: it was no wait of this loader."""
        if self.waits:
            self.recording.waiting.log = None
            self.recording.recorder.note_wait(0, -1, -1)
        self._asking = self.waits = False

    def started(self, end_ns: int = -1) -> None:
        """Note that ``iter(loader)`` has returned, now or then."""
        # Which loader it is, and what for, is told at once: a process that is killed says no more.
        text = "" if self.loader is None else f"{LOADER}{self.loader.number}"
        text = " ".join(filter(None, (text, self.role, RESUMED if self.resumed else "")))
        self._answer(label=STARTUP, detail=text, end_ns=end_ns)

    def began(self, requested_ns: int, started_ns: int) -> None:
        """Note that ``iter(loader)`` was asked and had returned then: in place of `started`."""
        self.ask()
        if self._asking:
            self.requested_ns = requested_ns
        self.started(started_ns)

    def deliver(self, batch: int, *, nbytes: int = -1, maker: str = "") -> None:
        """Note that the loop holds a batch, numbered by `Recording.next_batch`."""
        self.delivered = (batch, maker)
        if not self.waits:
            return
        self.recording.brought(self)
        self.recording.waiting.held = self
        self._answer(batch, nbytes, detail=maker)
        if not self._asks:
            self._note_asking_generator()
        self.recording.recorder.position(batch, self.epoch)
        self.recording.stepped()

    def opaque_wait(
        self,
        take: Callable[[], Any],
        label: str,
        nbytes_of: Callable[[Any], int] = lambda data: -1,
        *,
        maker: str = "",
        batch: int = -1,
    ) -> Any:
        """Return what is taken of a loader that nothing else is known of; record the wait."""
        before_ns, recorder = self.delivered_ns, self.recording.recorder
        self.ask(batch)
        try:
            data = take()
        except StopIteration:
            self.end()
            raise
        except BaseException:
            self.fail()
            raise
        batch = self.recording.next_batch() if batch < 0 else batch
        self.deliver(batch, nbytes=nbytes_of(data), maker=maker)
        if self.delivered_ns != before_ns:
            recorder.emit(
                Kind.OPAQUE, self.requested_ns, self.delivered_ns, batch=batch, epoch=self.epoch,
                label=recorder.string(label),
            )  # fmt: skip
        return data

    def waited(
        self, requested_ns: int, delivered_ns: int, batch: int, *, nbytes: int = -1, maker: str = ""
    ) -> None:
        """Note a wait of a compiled loop that is over, in place of ``ask`` and ``deliver``."""
        self.requested_ns, self.delivered_ns = requested_ns, delivered_ns
        self._write(batch, nbytes, SHUTDOWN if batch < 0 else "", maker)
        if batch >= 0:
            self.recording.stepped()

    def begin_whole(self, now_ns: int) -> bool:
        """Note that the loop makes a batch as a whole; `hold` or `fail_whole` follow."""
        waiting = self.recording.waiting
        outer: DeliveryLog | None = getattr(waiting, "log", None)
        if self.left or (outer is not None and not outer.yields):
            return False
        if outer is not None:
            outer.withdraw()
        waiting.log = self
        self.waits = True
        self.recording.recorder.note_wait(now_ns, self.number, self.epoch)
        return True

    def spent(self, own_ns: int) -> None:
        """Note what recording took of this thread's time outside of waits, since the last one."""
        waiting = self.recording.waiting
        if getattr(waiting, "log", None) is None:  # else it is within another loader's wait
            waiting.own_ns = getattr(waiting, "own_ns", 0) + own_ns

    def _own_ns(self) -> int:
        waiting = self.recording.waiting
        own_ns: int = getattr(waiting, "own_ns", -1)
        waiting.own_ns = 0
        return own_ns

    def hold(self, batch: int, requested_ns: int, held_ns: int, nbytes: int, lane: Lane) -> None:
        """Note that the loop holds a batch that it made as a whole; the lane is at that batch."""
        recording = self.recording
        waiting = recording.waiting
        waiting.log, waiting.held, waiting.blocked = None, self, None
        self.waits = False
        self.requested_ns, self.delivered_ns = requested_ns, held_ns
        self.delivered = (batch, CONSUMER)
        if recording.latest is not self:
            recording.brought(self)
        recording.step += 1
        position, lane.position = lane.position, POSITION.pack(self.number, batch, self.epoch)
        lane.write(requested_ns, held_ns, nbytes, self._own_ns(), self._whole)
        lane.position = position
        if not self._asks:
            self._note_asking_generator()

    def fail_whole(self, requested_ns: int) -> None:
        """Note that the loop made no batch since then; to be followed by `end` or `fail`."""
        self._asking = True
        self.requested_ns = requested_ns

    def end(self) -> None:
        """Note that there is no further batch."""
        self._answer(label=SHUTDOWN)
        self.leave()

    def fail(self) -> None:
        """Note that the wait ended with an exception."""
        self._answer(label=FAILED)
        self.leave()

    def abandon(self) -> None:
        """End the round unless a batch is being waited for: its iterator is about to go.

        In a fork it may go before anything else was told of the fork.
        """
        if not self._asking and not self.recording.in_fork:
            self.leave()

    def leave(self) -> None:
        """End the round: the pass is over, or abandoned. Idempotent."""
        if self._asking and self.yields:
            self.withdraw()  # begun, and nobody knows whether for anything
        elif self._asking:
            self._answer(label=FAILED)
        if self._round_ns < 0:
            return
        recorder = self.recording.recorder
        recorder.emit(
            Kind.OTHER, self._round_ns, recorder.clock.now_ns(), 0, epoch=self.epoch,
            sample=self.number, label=recorder.string(ROUND),
            detail=0 if self.loader is None else recorder.string(f"{LOADER}{self.loader.number}"),
        )  # fmt: skip
        self._round_ns = -1
        self.left = True

    def _answer(
        self,
        batch: int = -1,
        nbytes: int = -1,
        label: str = "",
        detail: str = "",
        end_ns: int = -1,
    ) -> None:
        if not self.waits:
            return
        if end_ns < 0:
            end_ns = self.recording.clock.now_ns()
        self.recording.waiting.log = None
        self.waits = False
        if not self._asking:
            return
        self._asking = False
        self.delivered_ns = end_ns
        if (queue := getattr(self.recording.waiting, "queue", None)) is not None:
            queue.emit(self.recording.recorder, batch, self.epoch, (self.requested_ns, end_ns))
        self._write(batch, nbytes, label, detail)

    def _write(self, batch: int, nbytes: int, label: str, detail: str) -> None:
        """Write the wait."""
        if self._round_ns < 0 and not self.left:
            self._round_ns = self.requested_ns
        recorder = self.recording.recorder
        recorder.emit(
            Kind.WAIT, self.requested_ns, self.delivered_ns, nbytes, self._own_ns(), batch,
            self.epoch, self.number, recorder.string(label), recorder.string(detail),
        )  # fmt: skip
