"""A line on how much a training waits, while it goes on: ``iobench run --live``.

Each look reads the spans that were written since the one before, and sums the waits that ended
meanwhile by the rules of the report; sums of all looks are those of the run so far.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from iobench.analysis.exposure import part_of
from iobench.analysis.run import Run
from iobench.masking import printable
from iobench.recording.clocks import SYSTEM_CLOCK, Clock
from iobench.recording.kinds import Kind, stage_title
from iobench.recording.run_directory import RunDirectory
from iobench.recording.span_reader import read_head
from iobench.report.units import duration, fraction
from iobench.runs.reading import RunFiles

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from iobench.analysis.deliveries import Deliveries
    from iobench.runs.contents import RunData

FIRST_NS: Final = 30_000_000_000
EVERY_S: Final = 60.0
MADE_BEFORE_NS: Final = 5_000_000_000
"""Spans of so long before an interval are read too: its batches were begun then."""
MOST_RANKS: Final = 16
MOST_SPANS: Final = 1500
"""Of each rank, for the stage that is waited for."""


class LiveSums(msgspec.Struct):
    """Sums of waits; times in nanoseconds."""

    until_ns: int  # when the loop asked for the first batch that is not in them
    batches: int = 0
    epoch: int = -1
    wait_ns: int = 0
    wall_ns: int = 0  # without recording's own

    def add(self, other: LiveSums) -> None:
        """Add those of other waits."""
        self.until_ns = max(self.until_ns, other.until_ns)
        self.epoch = max(self.epoch, other.epoch)
        self.batches += other.batches
        self.wait_ns += other.wait_ns
        self.wall_ns += other.wall_ns

    @property
    def share(self) -> float | None:
        """The exposed share; None of no time."""
        return self.wait_ns / self.wall_ns if self.wall_ns else None


class LiveFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What one line says; shares of the time that was not recording's own."""

    time_ns: int  # by the wall clock
    epoch: int | None  # from 0; null where nobody says it
    batches: int  # delivered so far, to the rank with most
    interval_s: float  # from the first to the last request for a batch since the last line
    exposed_fraction: float | None  # of the interval, all ranks; null where no batch came
    run_exposed_fraction: float | None  # of the run so far
    stage: str | None  # the one most waited for in the interval, as `iobench report --json` has it
    slowest_rank: int | None  # with the longest waits of the interval; null of one rank
    slowest_exposed_fraction: float | None
    waiting_s: float  # how long the rank that waits longest has been waiting now

    @property
    def line(self) -> str:
        """What is printed."""
        place = f"batch {self.batches:,}"
        if self.epoch is not None:
            place = f"epoch {self.epoch}, {place}"
        if self.exposed_fraction is None:
            waited = f"waiting for one since {duration(round(self.waiting_s * 1e9))}"
            return f"{place}: no batch came, {waited if self.waiting_s else 'none was asked for'}"
        text = (
            f"{place}: exposed {fraction(self.exposed_fraction)} of the last "
            f"{self.interval_s:.0f} s, {fraction(self.run_exposed_fraction)} of the run"
        )
        if self.stage is not None:
            text += f"; waits most for {printable(stage_title(self.stage))}"
        if self.slowest_rank is not None:
            text += f"; slowest rank {self.slowest_rank}"
            text += f" ({fraction(self.slowest_exposed_fraction)})"
        return text


class LiveRun:
    """Looks at a run that goes on, when it is time to.

    Parameters
    ----------
    run : Path
        The run directory in which its processes record.
    say : callable
        Prints a line.
    every_s : float
        From line to line; the first comes 30 s after the first batch was asked for, or as soon.
    file : Path, optional
        Gets a JSON object a line, as `LiveFigures` has them.
    """

    def __init__(
        self,
        run: Path,
        say: Callable[[str], None],
        *,
        every_s: float = EVERY_S,
        file: Path | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._run, self._say, self._file, self._clock = run, say, file, clock
        self._every_ns = round(every_s * 1e9)
        self._next_ns = 0  # 0: nobody has asked for a batch yet
        self._ranks: dict[int, LiveSums] = {}

    def look(self) -> None:
        """Print a line where it is time for one; what fails is said once, and ends all looks."""
        now_ns = self._clock.now_ns()
        try:
            if not self._next_ns and self._has_begun():
                self._next_ns = now_ns + min(FIRST_NS, self._every_ns)
            if not 0 < self._next_ns <= now_ns:
                return
            self._next_ns = now_ns + self._every_ns
            figures = self.figures()
            if figures is None:
                return
            self._say(figures.line)
            if self._file is not None:
                with self._file.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(msgspec.to_builtins(figures)) + "\n")
        except Exception as error:  # noqa: BLE001 - no training ends, or is left, by our mistake
            self._next_ns = -1
            self._say(f"no more lines of the training: {error}")

    def _has_begun(self) -> bool:
        """Return whether a training process has asked for a batch."""
        files = RunDirectory.open(self._run).span_files(live=True)
        return any(read_head(path).request[0] > 0 for path in files)

    def figures(self) -> LiveFigures | None:
        """Return what happened since the last look; None where no training process recorded."""
        files = RunFiles(self._run, live=True)
        latest = LiveSums(0)
        seen: dict[int, LiveSums] = {}
        exposed_ns: Counter[str] = Counter()
        waiting_ns = 0
        for rank in files.ranks[:MOST_RANKS]:
            known = self._ranks.setdefault(rank, LiveSums(0))
            data = files.read(rank, since_ns=known.until_ns - MADE_BEFORE_NS)
            data = _of_latest(data, known.until_ns)
            waits = Run(data).of_rank(rank).deliveries
            seen[rank] = _sums(waits, known.until_ns)
            known.add(seen[rank])
            latest.add(seen[rank])
            if seen[rank].wait_ns:
                exposed_ns.update(_latest_exposed_ns(data, rank))
            requested_ns = files.requested_ns(rank)
            if requested_ns > data.spans["end_ns"][data.spans["kind"] == Kind.WAIT].max(initial=0):
                waiting_ns = max(waiting_ns, self._clock.now_ns() - requested_ns)
        if not seen:
            return None
        every = LiveSums(0)
        for each in self._ranks.values():
            every.add(each)
        shares = {rank: each.share for rank, each in seen.items() if each.share is not None}
        slowest = max(shares, key=lambda rank: shares[rank]) if len(seen) > 1 and shares else None
        return LiveFigures(
            time_ns=self._clock.wall_ns(),
            epoch=None if every.epoch < 0 else every.epoch,
            batches=max(each.batches for each in self._ranks.values()),
            interval_s=max(each.wall_ns for each in seen.values()) / 1e9,
            exposed_fraction=latest.share,
            run_exposed_fraction=every.share,
            stage=next((name for name, ns in exposed_ns.most_common(1) if ns), None),
            slowest_rank=slowest,
            slowest_exposed_fraction=None if slowest is None else shares[slowest],
            waiting_s=waiting_ns / 1e9,
        )


def _of_latest(data: RunData, since_ns: int) -> RunData:
    """Return a run without the waits of processes of which others have taken the place."""
    spans = data.spans
    waits = (spans["kind"] == Kind.WAIT) & (spans["flags"] == 0)
    latest = np.unique(spans["process"][waits & (spans["start_ns"] > since_ns)])
    others = waits & ~np.isin(spans["process"], latest)
    return replace(data, spans=spans[~others]) if len(latest) else data


def _sums(waits: Deliveries, since_ns: int) -> LiveSums:
    """Return the sums of waits that began since and after which the loop asked on."""
    new = (waits.requested_ns >= since_ns) & waits.followed
    own_ns = np.clip(waits.own_ns, 0, waits.wall_ns - waits.wait_ns)
    return LiveSums(
        until_ns=int(waits.until_ns[new].max(initial=since_ns)),
        batches=int((waits.batch[new] >= 0).sum()),
        epoch=int(waits.epoch[new].max(initial=-1)),
        wait_ns=int(waits.wait_ns[new].sum()),
        wall_ns=int((waits.wall_ns - own_ns)[new].sum()),
    )


def _latest_exposed_ns(data: RunData, rank: int) -> dict[str, int]:
    """Return the exposed time of the latest batches by stage: all would cost more than 0.1 %."""
    spans = data.spans
    if len(spans) > MOST_SPANS:
        ends_ns = spans["end_ns"]
        first_ns = np.partition(ends_ns, len(spans) - MOST_SPANS)[len(spans) - MOST_SPANS]
        data = replace(data, spans=spans[ends_ns >= first_ns])
    run = Run(data).of_rank(rank)
    return part_of(run, run.deliveries.followed).exposed_ns
