"""A loader of iobench's that somebody made, in a measured loop, with all that its threads do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from iobench.errors import IobenchError, WorkerError
from iobench.loaders.contract import HELD_BY_LOOP, IN_THREADS, Batch, PlannedBatch
from iobench.loaders.measured_loader import MeasuredLoader
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from iobench.loaders.ring.loader import RingLoader
    from iobench.recording.recorder import Recorder

NOTHING: Final = object()
REASON_LIMIT: Final = 500


class ReadyRing(MeasuredLoader):
    """Hands on the batches of a `RingLoader` as they are, epoch after epoch.

    Which samples make up a batch, and when an epoch ends, is the loader's business: a plan says how
    many batches, and their numbers and epochs are the loader's. A round ends with an epoch, as its
    threads do.
    """

    copied_from = None

    def __init__(
        self, loader: RingLoader, named: Callable[[Any], dict[str, Any]], *, recorder: Recorder
    ) -> None:
        super().__init__(threads=loader.threads, prefetch=max(1, loader.depth - HELD_BY_LOOP))
        self._loader = loader
        self._named = named
        self._recorder = recorder
        self._is_seen = loader.tell_spans(recorder)
        self._epoch = 0
        self._pass: Iterator[Any] | None = None

    def _deliver(self, plan: Iterator[PlannedBatch]) -> Generator[Batch]:
        n_batches = len(self._loader)
        for planned in plan:
            ready = [self._take(planned)]
            yield ready.pop()
            if (self._loader.delivered[0] + 1) % n_batches == 0:
                self._next()  # which ends the epoch
                return

    def _take(self, planned: PlannedBatch) -> Batch:
        start_ns = self._recorder.clock.now_ns()
        try:
            batch = self._next()
            if batch is NOTHING:
                raise WorkerError(f"epoch {self._epoch} of the loader has no batch")
            arrays = self._arrays(batch)
        except IobenchError:
            self.close()
            raise
        except Exception as error:
            self.close()
            reason = (str(error).strip().splitlines() or [""])[0]
            text = f"batch {planned.batch}: {type(error).__name__}: {reason}"
            raise WorkerError(text[:REASON_LIMIT]) from error
        number, epoch = self._loader.delivered
        if not self._is_seen:
            end_ns = self._recorder.clock.now_ns()
            self._recorder.emit(Kind.OPAQUE, start_ns, end_ns, batch=number, epoch=epoch)
        worker = IN_THREADS if self._is_seen else -1
        return Batch(PlannedBatch(number, epoch, ()), arrays, worker)

    def _next(self) -> Any:
        """Return the next batch of an epoch, `NOTHING` at its end: another one comes next."""
        if self._pass is None:
            self._loader.set_epoch(self._epoch)
            self._pass = iter(self._loader)
        batch = next(self._pass, NOTHING)
        if batch is NOTHING:
            self._pass = None
            self._epoch += 1
        return batch

    def _arrays(self, batch: Any) -> dict[str, Any]:
        is_named = isinstance(batch, Mapping) and all(
            hasattr(each, "nbytes") and hasattr(each, "ndim") for each in batch.values()
        )
        # Tensors stay where they are: on a device, too.
        return dict(batch) if is_named else self._named(batch)

    def _let_go(self) -> None:
        self._pass = None
        self._loader.close()
