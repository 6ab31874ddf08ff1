"""What recording itself costs on this machine, so that a report can say it."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from iobench.recording.clocks import SYSTEM_CLOCK, Clock
from iobench.recording.kinds import Kind
from iobench.recording.process_io import ProcessIo
from iobench.recording.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

# A recording starts in the user's time: 2 ms of it.
ROUNDS: Final = 9
SPANS_PER_ROUND: Final = 20


def unit_costs(clock: Clock = SYSTEM_CLOCK) -> dict[str, int | None]:
    """Return ``light_ns``, ``full_ns`` and ``io_ns``: what a span, or a look at the I/O, costs."""
    try:
        scratch = tempfile.TemporaryDirectory(prefix="iobench-costs-")
    except OSError as error:
        logger.warning(
            "what a span costs is unknown: no scratch directory can be made (%s); "
            "set TMPDIR to a writable directory",
            error.strerror or error,
        )
        return {}
    with scratch as path, Recorder(Path(path), role="scratch", clock=clock) as recorder:

        def spans(span: Callable[[int], Any]) -> int:
            def work() -> None:
                for _ in range(SPANS_PER_ROUND):
                    with span(Kind.READ):
                        pass

            return _median_cost_ns(work, clock)

        read = ProcessIo().read

        def look() -> None:
            for _ in range(SPANS_PER_ROUND):
                read()

        return {
            "light_ns": spans(recorder.span),
            "full_ns": spans(recorder.full_span),
            "io_ns": None if read() is None else _median_cost_ns(look, clock),
        }


def _median_cost_ns(work: Callable[[], None], clock: Clock) -> int:
    rounds = []
    for _ in range(ROUNDS):
        start_ns = clock.now_ns()
        work()
        rounds.append(clock.now_ns() - start_ns)
    return sorted(rounds)[ROUNDS // 2] // SPANS_PER_ROUND
