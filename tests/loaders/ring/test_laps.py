"""Where the spans of a batch's turns lie: not before the first turn began."""

from __future__ import annotations

from iobench.loaders.ring.log import Laps
from iobench.recording.kinds import Kind


class Log:
    """Notes spans by a clock that tells what the test says."""

    is_on = True

    def __init__(self, *moments: int) -> None:
        self._moments = iter(moments)
        self.spans: list[tuple[Kind, int, int, int]] = []

    def now_ns(self) -> int:
        return next(self._moments)

    def add(self, kind: Kind, start_ns: int, end_ns: int, *, nbytes: int) -> None:
        self.spans.append((kind, start_ns, end_ns, nbytes))


def test_what_comes_before_the_first_turn_moves_no_span() -> None:
    log = Log(0, 100, 130)
    laps = Laps(log)  # type: ignore[arg-type]
    laps.start()
    laps.end(Kind.READ, 7)
    laps.emit()
    assert log.spans == [(Kind.READ, 100, 130, 7)]


def test_turns_are_told_one_after_another_from_the_first() -> None:
    log = Log(0, 100, 130, 140, 500, 520)
    laps = Laps(log)  # type: ignore[arg-type]
    laps.start()
    laps.end(Kind.READ, 7)
    laps.end(Kind.VERIFY, 7)
    laps.start()
    laps.end(Kind.READ, 5)
    laps.emit()
    assert log.spans == [(Kind.READ, 100, 150, 12), (Kind.VERIFY, 150, 160, 7)]
