"""``instrument``: a DALI pipeline or iterator of a script, with every wait for it recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from iobench.errors import OptionError
from iobench.recording.delivery_log import DeliveryLog
from iobench.recording.kinds import Kind
from iobench.recording.session import current_recording

if TYPE_CHECKING:
    from iobench.recording.facts import LoaderFacts
    from iobench.recording.session import Recording

T = TypeVar("T")
OPAQUE: Final = "dali"
UNSEEN: Final = (
    "operators: DALI does not report what each one does when (NVTX ranges need NVIDIA's profiler), "
    "so the pipeline is one opaque stage"
)


def instrument(source: T, *, name: str = "") -> T:
    """Return a pipeline or iterator of DALI whose batches are waited for on record.

    The same object, of a subclass of its class: ``run()`` of a pipeline, ``next()`` of an
    iterator. Outside of a recording it behaves as before, and always returns the same. Of a
    pipeline that an iterator drives instrument the iterator.

    Parameters
    ----------
    name : str, optional
        What reports call it; by default its class.

    Raises
    ------
    OptionError
        If it is neither.
    """
    if hasattr(source, "_iobench_waits"):
        return source
    kind = type(source)
    method = "run" if hasattr(source, "schedule_run") else "__next__"
    if not kind.__module__.startswith("nvidia.dali") and not any(
        base.__module__.startswith("nvidia.dali") for base in kind.__mro__
    ):
        raise OptionError(
            f"instrument: {kind.__name__} given, expected a pipeline or an iterator of DALI"
        )
    if not hasattr(kind, method):
        raise OptionError(f"instrument: {kind.__name__} hands out no batches")
    waits = _Waits(name or kind.__name__, kind, source)
    members: dict[str, Any] = {
        method: _timed(getattr(kind, method)),
        "reset": _reset(getattr(kind, "reset", None)),
        "__module__": kind.__module__,
    }
    watched: Any = source
    watched.__class__ = type(kind.__name__, (kind,), members)
    watched._iobench_waits = waits
    return source


class _Waits:
    """The waits for one pipeline: a round begins with its first batch, and after each reset."""

    def __init__(self, name: str, kind: type, source: Any) -> None:
        self._name = name
        self._kind = f"{kind.__module__}.{kind.__qualname__}"
        self._batch_size = _number(source, "max_batch_size", "batch_size")
        self._prefetch = _number(source, "prefetch_queue_depth") or 2
        self._threads = _number(source, "num_threads") or 1
        self._facts: LoaderFacts | None = None
        self._recording: Recording | None = None
        self._log: DeliveryLog | None = None
        self._epoch = -1

    def log(self, recording: Recording) -> DeliveryLog:
        """Return the round that goes on, or begin one."""
        if self._recording is not recording or self._facts is None:
            self._recording, self._log, self._epoch = recording, None, -1
            self._facts = recording.add_loader(
                "dali",
                self._kind,
                self._name,
                threads=self._threads,
                prefetch=self._prefetch,
                batch_size=self._batch_size,
                unseen=[UNSEEN],
            )
        if self._log is None:
            self._epoch += 1
            self._log = DeliveryLog(recording, self._facts, epoch=self._epoch)
        return self._log

    def end_round(self) -> None:
        """Begin a new round with the next batch."""
        if self._log is not None:
            self._log.leave()
            self._log = None


def _number(source: Any, *names: str) -> int | None:
    pipelines = getattr(source, "_pipes", None)  # of an iterator; of a pipeline something else
    first = pipelines[0] if isinstance(pipelines, list) and pipelines else source
    for name in names:
        value = getattr(first, name, None)
        if isinstance(value, int):
            return value
    return None


def _timed(original: Any) -> Any:
    def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
        recording = current_recording()
        if recording is None:
            return original(self, *args, **kwargs)
        waits: _Waits = self._iobench_waits
        log = waits.log(recording)
        before_ns = log.delivered_ns
        log.ask()
        try:
            found = original(self, *args, **kwargs)
        except StopIteration:
            log.end()
            waits.end_round()
            raise
        except BaseException:
            log.fail()
            waits.end_round()
            raise
        number = recording.next_batch()
        log.deliver(number, maker="threads")
        if log.delivered_ns != before_ns:
            recorder = recording.recorder
            recorder.emit(
                Kind.OPAQUE, log.requested_ns, log.delivered_ns, batch=number, epoch=log.epoch,
                label=recorder.string(OPAQUE),
            )  # fmt: skip
        return found

    timed.__name__ = original.__name__
    timed.__doc__ = original.__doc__
    return timed


def _reset(original: Any) -> Any:
    def reset(self: Any, *args: Any, **kwargs: Any) -> Any:
        self._iobench_waits.end_round()
        return None if original is None else original(self, *args, **kwargs)

    return reset
