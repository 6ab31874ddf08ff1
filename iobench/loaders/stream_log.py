"""What one thread of a stream records: its work, for which batch, and what held it back.

A thread that found no room for what it makes was held back by whoever makes room: the training
loop (that is slack), or a later stage's work. The *cause* goes from thread to thread with the room,
so that the analysis finds the work a late start hung on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from iobench.errors import IobenchError, WorkerError
from iobench.loaders.stage_timer import DetailPace
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from iobench.samples import handed_on_nbytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from iobench.loaders.stage_timer import Detail
    from iobench.recording.recorder import Recorder

CONSUMER: Final = "consumer"
"""The cause of what the training loop set free."""
REASON_LIMIT: Final = 500


class _Nothing:
    """Returned where there is no further item."""


NOTHING: Final = _Nothing()


@dataclass(frozen=True, slots=True)
class Work:
    """A sort of work: what its spans are, and what errors call it."""

    kind: Kind
    label: str
    name: str


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """Where in the stream an item is.

    Parameters
    ----------
    epoch : int
        The pass.
    item : int
        Number of the item in its pass.
    arrival : int
        Number, in its pass, of the first sample it becomes (of the first batch where stages hand
        on batches).
    batch : int
        The batch that needs it first.
    before : int
        Samples (or batches) that arrived in earlier passes.
    """

    epoch: int
    item: int
    arrival: int
    batch: int
    before: int


class _Sum:
    """Spans of one sort of work not written yet."""

    __slots__ = ("nbytes", "pieces", "place", "spent_ns", "start_ns")

    def __init__(self, start_ns: int, place: StreamPlace) -> None:
        self.start_ns = start_ns
        self.place = place
        self.spent_ns = self.nbytes = self.pieces = 0


class ThreadLog:
    """Times the work of one thread; used by no other.

    With ``--detail batch``, or where a span would cost over 1 % of the work, one summed span
    stands for all work of a sort that the thread did for one batch without having to wait.

    Parameters
    ----------
    recorder : Recorder
        Of the training process.
    name : str
        The thread's; its cause once it has worked.
    unit_costs : mapping of str to int
        ``light_ns`` and ``full_ns``: what recording one span costs.

    Attributes
    ----------
    cause : str
        Name of the thread whose work made this one's present moment possible.
    """

    def __init__(
        self,
        recorder: Recorder,
        name: str,
        *,
        detail: Detail,
        unit_costs: Mapping[str, int | None],
    ) -> None:
        self._recorder = recorder
        self.now_ns = recorder.clock.now_ns
        self.name = name
        self.cause = name
        self._detail = detail
        self._unit_costs = unit_costs
        self._paces: dict[Work, DetailPace] = {}
        self._sums: dict[Work, _Sum] = {}
        self._held: tuple[int, str] | None = None

    def started(self, since_ns: int) -> None:
        """Record that the thread was asked for at ``since_ns`` and begins now."""
        self._recorder.emit(Kind.STARTUP, since_ns, self.now_ns())
        self.held((since_ns, CONSUMER))

    def held(self, release: tuple[int, str]) -> None:
        """Say that the thread was held back until (time, cause); its next work is marked so.

        Not where it is the cause itself: the next stage had waited, and took what it was handed.
        """
        if release[1] != self.name:
            self._held = release
            self.cause = release[1]

    def fed(self, cause: str) -> None:
        """Say that the thread waited for its input, and which thread then handed it on."""
        self.cause = cause

    def run(
        self, work: Work | None, place: StreamPlace, call: Callable[[Any], Any], value: Any
    ) -> Any:
        """Return ``call(value)`` and record it; not timed without ``work``.

        Raises
        ------
        IobenchError
            Whatever the call raised of it; a WorkerError naming stage and item for anything else.
        """
        if work is None:
            return self._call(None, place, call, value)
        pace = self._pace(work)
        if self._sums and next(iter(self._sums.values())).place.batch != place.batch:
            self.flush()
        self._mark_held(place)
        recorder = self._recorder
        recorder.position(place.batch, place.epoch, place.arrival)
        with_cpu = pace.with_cpu and not pace.summed
        cpu = recorder.clock.cpu_ns() if with_cpu else 0
        start_ns = self.now_ns()
        result = self._call(work, place, call, value)
        end_ns = self.now_ns()
        spent_cpu = recorder.clock.cpu_ns() - cpu if with_cpu else -1
        self._note(work, pace, place, start_ns, end_ns, spent_cpu, result)
        self.cause = self.name
        return result

    def _note(
        self,
        work: Work,
        pace: DetailPace,
        place: StreamPlace,
        start_ns: int,
        end_ns: int,
        cpu_ns: int,
        result: Any,
    ) -> None:
        found = result is not NOTHING  # else it took time and made nothing: no piece
        nbytes = handed_on_nbytes(result) if found else 0
        if pace.summed:
            total = self._sums.setdefault(work, _Sum(start_ns, place))
            total.spent_ns += end_ns - start_ns
            total.pieces += found
            total.nbytes = -1 if total.nbytes < 0 or nbytes < 0 else total.nbytes + nbytes
        else:
            self._recorder.emit(
                work.kind, start_ns, end_ns, nbytes, cpu_ns,
                place.batch, place.epoch, place.arrival, pace.label, 0,
                0 if found else Flag.SUMMED, int(found),
            )  # fmt: skip
        if found:
            pace.note(end_ns - start_ns)

    def flush(self) -> None:
        """Write what was summed; before every wait, so that no sum reaches across one."""
        if not self._sums:
            return
        cursor_ns = 0
        for work, total in self._sums.items():
            cursor_ns = max(cursor_ns, total.start_ns)
            place = total.place
            self._recorder.emit(
                work.kind, cursor_ns, cursor_ns + total.spent_ns, total.nbytes, -1,
                place.batch, place.epoch, place.arrival, self._pace(work).label, 0,
                Flag.SUMMED, min(total.pieces, 0xFFFF),
            )  # fmt: skip
            cursor_ns += total.spent_ns
        self._sums.clear()

    def _pace(self, work: Work) -> DetailPace:
        pace = self._paces.get(work)
        if pace is None:
            label = self._recorder.string(work.label)
            pace = self._paces[work] = DetailPace(self._detail, self._unit_costs, label=label)
        return pace

    def _mark_held(self, place: StreamPlace) -> None:
        if self._held is None:
            return
        self.flush()
        release_ns, cause = self._held
        self._held = None
        self._recorder.emit(
            Kind.SUBMIT_QUEUE, release_ns, self.now_ns(), -1, -1,
            place.batch, place.epoch, place.arrival, 0, self._recorder.string(cause),
        )  # fmt: skip

    def _call(
        self, work: Work | None, place: StreamPlace, call: Callable[[Any], Any], value: Any
    ) -> Any:
        try:
            return call(value)
        except IobenchError:
            raise
        except Exception as error:
            reason = str(error).partition("\n")[0][:REASON_LIMIT]
            raise WorkerError(
                f"{work.name if work else 'items'}: item {place.item} of pass {place.epoch} could "
                f"not be made: {type(error).__name__}: {reason}"
            ) from error
