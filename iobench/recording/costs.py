"""What recording itself costs on this machine, so that a report can subtract and say it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from iobench.errors import StorageError
from iobench.recording.clocks import SYSTEM_CLOCK, Clock
from iobench.recording.kinds import Kind
from iobench.recording.process_io import ProcessIoReader
from iobench.recording.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable

# A recording starts in the user's time: 2 ms of it.
ROUNDS: Final = 9
SPANS_PER_ROUND: Final = 20


def unit_costs(
    clock: Clock = SYSTEM_CLOCK, *, directory: Path | None = None
) -> dict[str, int | None]:
    """Return ``light_ns``, ``full_ns`` and ``io_ns``: what a span, or a look at the I/O, costs.

    Each is the median over 9 rounds of the mean of 20, through the context managers, in a
    scratch recording of this thread, in ``directory`` or the system's for temporary files;
    ``io_ns`` is None where the system keeps no such count.

    Raises
    ------
    StorageError
        If there is nowhere to write a scratch recording.
    """
    try:
        scratch = tempfile.TemporaryDirectory(prefix="iobench-costs-", dir=directory)
    except OSError as error:
        raise StorageError(
            f"{directory or 'temporary files'}: no scratch directory can be made "
            f"({error.strerror or error}); set TMPDIR to a writable directory"
        ) from error
    with scratch as path, Recorder(Path(path), role="scratch", clock=clock) as recorder:

        def light() -> None:
            for _ in range(SPANS_PER_ROUND):
                with recorder.span(Kind.READ):
                    pass

        def full() -> None:
            for _ in range(SPANS_PER_ROUND):
                with recorder.full_span(Kind.READ):
                    pass

        read = ProcessIoReader()

        def look() -> None:
            for _ in range(SPANS_PER_ROUND):
                read()

        counted = read() is not None
        return {
            "light_ns": _median_cost_ns(light, clock),
            "full_ns": _median_cost_ns(full, clock),
            "io_ns": _median_cost_ns(look, clock) if counted else None,
        }


def _median_cost_ns(work: Callable[[], None], clock: Clock) -> int:
    rounds = []
    for _ in range(ROUNDS):
        start_ns = clock.now_ns()
        work()
        rounds.append(clock.now_ns() - start_ns)
    return sorted(rounds)[ROUNDS // 2] // SPANS_PER_ROUND
