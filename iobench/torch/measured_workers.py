"""What loaders of a measured loop that stand on torch's ``DataLoader`` have in common."""

from __future__ import annotations

import contextlib
import signal
import threading
from abc import abstractmethod
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, ClassVar, Final

from iobench.errors import WorkerError
from iobench.loaders.measured_loader import MeasuredLoader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.process import BaseProcess
    from types import TracebackType

    from iobench.recording.measured_loop import MeasuredRecording

JOIN_S: Final = 5.0
DYING_S: Final = 1.0


class MeasuredWorkers(MeasuredLoader):
    """Rounds of a torch iterator whose workers stay alive between them, and their end."""

    without_workers: ClassVar[str]
    """How a user has the consumer load, where a failure shows itself."""

    def __init__(self, recording: MeasuredRecording, *, workers: int, prefetch: int) -> None:
        super().__init__(workers=workers, prefetch=prefetch)
        self._recording = recording
        self._iterator: Any = None

    @abstractmethod
    def _forget(self) -> None:
        """Let go of all that holds the iterator."""

    def _unfinished(self) -> str:
        """Return which batches are under way, as an error says it; empty where nobody knows."""
        return ""

    def worker_pids(self) -> list[int]:
        """Return the process ids of the workers that run."""
        return [process.pid or 0 for process in self._processes()]

    def _processes(self) -> list[BaseProcess]:
        return list(getattr(self._iterator, "_workers", ()))

    @contextlib.contextmanager
    def _naming_dead_workers(self) -> Iterator[None]:
        # Torch raises RuntimeError for a dead worker; its half-sent batch may fail in other ways.
        try:
            yield
        except (RuntimeError, OSError, EOFError) as error:
            named = self._named(error)
            if named is None:
                raise
            raise named from error

    def _named(self, error: BaseException) -> WorkerError | None:
        """Return the error that names the dead workers and close; None if none has died."""
        if isinstance(error, WorkerError):
            return None
        try:
            dead = self._dead(error)
        except RuntimeError:  # torch's SIGCHLD handler raises once, wherever the consumer is
            dead = self._dead(error)
        if not dead:
            return None
        unfinished = self._unfinished()
        self.close()
        return WorkerError(
            f"{', '.join(dead)}{unfinished}: its spans are kept; look for the out-of-memory killer "
            f"if this was SIGKILL, at /dev/shm if SIGBUS, or run with {self.without_workers} to "
            "see the failure itself"
        )

    def _dead(self, error: BaseException) -> list[str]:
        """Return which workers have ended, and how; waits for one whose connection broke."""
        dead, processes = [], self._processes()
        # A process that is killed closes its connections, and its sentinel, before it has ended.
        patience_s = DYING_S if isinstance(error, ConnectionError | EOFError) else 0
        ending = wait([process.sentinel for process in processes], patience_s)
        for number, process in enumerate(processes):
            process.join(None if process.sentinel in ending else 0)
            if process.exitcode is not None:
                code = process.exitcode
                how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited ({code})"
                dead.append(f"worker-{number} (pid {process.pid}) {how}")
        return dead

    def _let_go(self) -> None:
        """End the workers, killing those that do not end in time."""
        processes, iterator = self._processes(), self._iterator
        # What the iterator does when it is collected; a traceback may keep it alive for long.
        shutdown = getattr(iterator, "_shutdown_workers", None)
        self._iterator = None
        self._forget()
        if shutdown is not None:
            # One that was killed may have held the lock of torch's event, which is then never free.
            if any((process.exitcode or 0) < 0 for process in processes):
                ending = threading.Thread(target=_run_quietly, args=(shutdown,), daemon=True)
                ending.start()
                ending.join(JOIN_S)
            else:
                _run_quietly(shutdown)
        del iterator, shutdown
        self._recording.close()
        for process in processes:
            process.join(JOIN_S)
            if process.exitcode is None:
                process.kill()
                process.join()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Torch's SIGCHLD handler raises wherever the consumer is: in its compute stage, too.
        named = self._named(error) if isinstance(error, RuntimeError) else None
        self.close()
        if named is not None:
            raise named from error


def _run_quietly(shutdown: Callable[[], None]) -> None:
    # Torch's SIGCHLD handler raises again for a worker already known to be dead.
    with contextlib.suppress(RuntimeError):
        shutdown()
