"""``instrument``: a DALI pipeline or iterator of a script, with every wait for it recorded."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final, TypeVar

from iobench.errors import OptionError
from iobench.recording.delivery_log import DeliveryLog
from iobench.recording.session import current_recording

if TYPE_CHECKING:
    from collections.abc import Callable

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
    kind, method = type(source), "run" if hasattr(source, "schedule_run") else "__next__"
    if hasattr(source, "_iobench_waits"):
        return source
    if not any(base.__module__.startswith("nvidia.dali") for base in kind.__mro__):
        raise OptionError(
            f"instrument: {kind.__name__} given, expected a pipeline or an iterator of DALI"
        )
    if not hasattr(kind, method):
        raise OptionError(f"instrument: {kind.__name__} hands out no batches")
    timed, reset = getattr(kind, method), getattr(kind, "reset", lambda _: None)
    waits = _Waits(name or kind.__name__, kind, source)

    @functools.wraps(timed)
    def take(self: Any, *args: Any, **kwargs: Any) -> Any:
        return waits.timed(lambda: timed(self, *args, **kwargs))

    def restart(self: Any, *args: Any, **kwargs: Any) -> Any:
        waits.end_round()
        return reset(self, *args, **kwargs)

    members = {method: take, "reset": restart, "__module__": kind.__module__}
    watched: Any = source
    watched.__class__ = type(kind.__name__, (kind,), members)
    watched._iobench_waits = waits
    return source


class _Waits:
    """The waits for one pipeline: a round begins with its first batch, and after each reset."""

    def __init__(self, name: str, kind: type, source: Any) -> None:
        self._settings: dict[str, Any] = {
            "threads": _number(source, "num_threads") or 1,
            "prefetch": _number(source, "prefetch_queue_depth") or 2,
            "batch_size": _number(source, "max_batch_size", "batch_size"),
        }
        self._names = f"{kind.__module__}.{kind.__qualname__}", name
        self._facts: LoaderFacts | None = None
        self._log: DeliveryLog | None = None
        self._recording: Recording | None = None
        self._epoch = -1

    def timed(self, take: Callable[[], Any]) -> Any:
        """Return what the function returns, and record the wait for it."""
        recording = current_recording()
        if recording is None:
            return take()
        if self._recording is not recording or self._facts is None:
            self._recording, self._log, self._epoch = recording, None, -1
            self._facts = recording.add_loader(
                "dali", *self._names, unseen=[UNSEEN], **self._settings
            )
        if self._log is None:
            self._epoch += 1
            self._log = DeliveryLog(recording, self._facts, epoch=self._epoch)
        try:
            return self._log.opaque_wait(take, OPAQUE, maker="threads")
        except BaseException:
            self.end_round()
            raise

    def end_round(self) -> None:
        """Begin a new round with the next batch."""
        if self._log is not None:
            self._log.leave()
            self._log = None


def _number(source: Any, *names: str) -> int | None:
    pipelines = getattr(source, "_pipes", None)  # of an iterator; of a pipeline something else
    first = pipelines[0] if isinstance(pipelines, list) and pipelines else source
    values = (getattr(first, name, None) for name in names)
    return next((value for value in values if isinstance(value, int)), None)
