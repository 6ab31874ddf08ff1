"""What copying files nearer took, what of it the training saw, and when that pays for itself."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, ClassVar

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from iobench.analysis.break_even import BreakEven
from iobench.analysis.replay.replay import slowdown_at_rate
from iobench.analysis.replay.runs import reported_loaders
from iobench.analysis.time_intervals import covered, overlap_ns, union
from iobench.json_keys import figure, key
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.analysis.run import RankRun

Integers = NDArray[np.int64]


class Staging(msgspec.Struct, frozen=True, kw_only=True):
    """What staging took; ``outside + waited + hidden`` is all of it, exactly.

    Parameters
    ----------
    staged_ns : int
        T_staging: the time in which at least one thread or process copied, or waited for one that
        did.
    outside_ns : int
        Of it, what lies before, between and after the passes over loaders, or held the loop's own
        thread up: exposed.
    waited_ns : int
        Beside a wait for a batch, by other threads: exposed, though that wait may have been for
        something else.
    hidden_ns : int
        Beside a loop that computed.
    nbytes : int or None
        Bytes copied; None where a span does not say.
    copy_of : str or None
        What was staged before the run, which only reads the copy: then all of these times lie
        outside of it. None where it was staged in the run.
    epoch_ns : int or None
        T_epoch: the median of whole epochs that began after all was copied; of ``iobench profile``
        all samples at the time of one. None without.
    n_epochs : int
        How many epochs that is of.
    n_all_epochs : int
        Whole epochs of the run.
    slowdown : float or None
        How much longer an epoch would take, by replay, if loading read at the rate at which files
        were copied, shared by all its workers; None where it cannot be replayed.
    """

    staged_ns: int
    outside_ns: int
    waited_ns: int
    hidden_ns: int
    nbytes: int | None
    copy_of: str | None = None
    epoch_ns: int | None = None
    n_epochs: int = 0
    n_all_epochs: int = 0
    slowdown: float | None = None
    JSON_KEYS: ClassVar = {
        "n_epochs": key("epochs_measured"),
        "n_all_epochs": key("epochs"),
        "slowdown": key("slowdown_at_rate"),
    }

    @figure
    def bytes_per_s(self) -> float | None:
        """What copying obtained; null where bytes were not recorded, or none were copied."""
        return self.nbytes / self.staged_ns * 1e9 if self.nbytes and self.staged_ns else None

    @figure
    def at_rate(self) -> BreakEven | None:
        """When staging has paid for itself against reading at that rate; null where unknown."""
        if self.epoch_ns is None:
            return None
        epoch_s = self.epoch_ns / 1e9
        saved_s = None if self.slowdown is None else epoch_s * (self.slowdown - 1)
        before_s = None if saved_s is None else epoch_s + saved_s
        return BreakEven.of(self.staged_ns / 1e9, before_s, saved_s)

    @figure
    def staging_to_epoch(self) -> float | None:
        """T_staging / T_epoch, as MLPerf HPC has it; null without a whole epoch after it."""
        return self.staged_ns / self.epoch_ns if self.epoch_ns else None


def staging_of(run: RankRun) -> Staging | None:
    """Return what staging took in a training process; None where nothing was staged."""
    spans = run.spans
    spans = spans[spans["kind"] == Kind.STAGE_IN]
    copy = run.about.staged_copy
    if not (spans["nbytes"] != 0).any() and copy is not None and copy.seconds:
        staged_ns, last_ns = round(copy.seconds * 1e9), int(spans["end_ns"].max(initial=0))
        before = Staging(
            staged_ns=staged_ns, outside_ns=staged_ns, waited_ns=0, hidden_ns=0,
            nbytes=copy.copied_nbytes, copy_of=copy.source,
        )  # fmt: skip
        return _with_epochs(run, before, last_ns)
    if not len(spans):
        return None
    start, end = (spans[name].astype(np.int64) for name in ("start_ns", "end_ns"))
    waits = run.deliveries
    own = (spans["process"] == run.loop.process) & (spans["thread"] == run.loop.thread)
    beside = union(start[~own], end[~own])
    in_loop = union(start[own], end[own])
    waited = _common(beside, (waits.asked_ns, waits.delivered_ns), without=in_loop)
    looped = _common(beside, (waits.from_ns, waits.until_ns), without=in_loop)
    staged_ns, known = covered(start, end), spans["nbytes"] >= 0
    nbytes = int(spans["nbytes"].sum()) if known.all() else None
    found = Staging(
        staged_ns=staged_ns,
        outside_ns=staged_ns - looped,
        waited_ns=waited,
        hidden_ns=looped - waited,
        nbytes=nbytes,
    )
    return _with_epochs(run, found, int(end.max()))


def _with_epochs(run: RankRun, found: Staging, last_ns: int) -> Staging:
    """Return what staging took beside the epochs that began after it had ended."""
    waits = run.deliveries
    after = _epochs(run, last_ns)
    rate = found.bytes_per_s
    runs = [each for each in run.cached(reported_loaders) if not each.evaluates] if rate else []
    trained = max(runs, key=lambda each: each.wall_ns, default=None)
    return replace(
        found,
        epoch_ns=round(statistics.median(after)) if after else _of_samples(run, last_ns),
        n_epochs=len(after),
        n_all_epochs=len(waits.complete_epochs),
        slowdown=slowdown_at_rate(trained, rate) if trained is not None and rate else None,
    )


def staging_of_job(ranks: Sequence[Staging]) -> Staging:
    """Return that of the rank whose staging took longest; bytes are those of all."""
    longest = max(ranks, key=lambda each: each.staged_ns)
    known = [each.nbytes for each in ranks if each.nbytes is not None]
    return replace(longest, nbytes=sum(known) if len(known) == len(ranks) else None)


def _common(
    first: tuple[Integers, Integers],
    second: tuple[Integers, Integers],
    *,
    without: tuple[Integers, Integers],
) -> int:
    """Return how long intervals of both go on at once, outside of others."""
    start, end = second
    low, high = union(start, end)
    pieces = [
        (np.maximum(begin, low), np.minimum(until, high))
        for begin, until in zip(*first, strict=True)
    ]
    if not pieces:
        return 0
    start, end = (np.concatenate(each) for each in zip(*pieces, strict=True))
    start, end = start[end > start], end[end > start]
    both = covered(start, end) if len(start) else 0
    lost = sum(
        int(overlap_ns(start, end, begin, until).sum())
        for begin, until in zip(*without, strict=True)
    )
    return both - lost


def _epochs(run: RankRun, after_ns: int) -> list[int]:
    """Return what whole epochs took that began then or later: the training of each."""
    waits, found = run.deliveries, []
    if not run.is_script:  # its rounds are turns, not epochs
        return []
    for number in sorted(waits.complete_epochs):
        rows = (waits.of_epoch == number) & waits.trains
        if rows.any() and int(waits.asked_ns[rows].min()) >= after_ns:
            found.append(int(waits.wall_ns[rows].sum()))
    return found


def _of_samples(run: RankRun, after_ns: int) -> int | None:
    """Return what all samples take of a profile whose batches came after all was staged."""
    judged, samples = run.exposure.judged, run.about.n_samples_all
    late = len(run.deliveries) and int(run.deliveries.asked_ns.min()) >= after_ns
    if run.is_script or not (late and samples and judged.n_samples):
        return None
    return round(judged.wall_ns / judged.n_samples * samples)
