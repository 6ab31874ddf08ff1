"""What copying files nearer took beside an epoch: MLPerf HPC's T_staging / T_epoch."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from iobench.analysis.epochs import epoch_cost
from iobench.analysis.time_intervals import covered
from iobench.findings.contract import Finding
from iobench.recording.kinds import Kind
from iobench.report import units
from iobench.report.document import Section, Sentence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.analysis.run import RankRun


class Staging(msgspec.Struct, frozen=True):
    """What staging took, before the run or in it: T_staging, T_epoch and their ratio.

    ``staged_ns`` is the time in which at least one thread or process copied, or waited for one.
    ``epoch_ns`` is the median of whole epochs that began after all was copied; of
    ``iobench profile`` all samples at the time of one. None is unknown.
    """

    staged_ns: int
    nbytes: int | None
    epoch_ns: int | None
    staging_to_epoch: float | None


def staging_of(run: RankRun) -> Staging | None:
    """Return what staging took in a training process; None where nothing was staged."""
    spans = run.spans
    spans = spans[spans["kind"] == Kind.STAGE_IN]
    nbytes: int | None
    copy, last_ns = run.about.staged_copy, int(spans["end_ns"].max(initial=0))
    if not (spans["nbytes"] != 0).any() and copy is not None and copy.seconds:
        staged_ns, nbytes = round(copy.seconds * 1e9), copy.copied_nbytes
    elif len(spans):
        staged_ns = covered(spans["start_ns"].astype(np.int64), spans["end_ns"].astype(np.int64))
        nbytes = int(spans["nbytes"].sum()) if (spans["nbytes"] >= 0).all() else None
    else:
        return None
    after = _epochs(run, last_ns)
    epoch_ns = round(statistics.median(after)) if after else None
    late = len(run.deliveries) and int(run.deliveries.requested_ns.min()) >= last_ns
    if late and not run.is_script and (cost := epoch_cost(run)) is not None:
        epoch_ns = round(cost.later_s * 1e9)  # of all samples of a profile
    return Staging(staged_ns, nbytes, epoch_ns, staged_ns / epoch_ns if epoch_ns else None)


def staging_of_job(ranks: Sequence[Staging]) -> Staging:
    """Return that of the rank whose staging took longest; bytes are those of all."""
    known = [each.nbytes for each in ranks if each.nbytes is not None]
    longest = max(ranks, key=lambda each: each.staged_ns)
    return replace(longest, nbytes=sum(known) if len(known) == len(ranks) else None)


def _epochs(run: RankRun, after_ns: int) -> list[int]:
    """Return what whole epochs took that began then or later: the training of each."""
    waits, result = run.deliveries, []
    if not run.is_script:  # its rounds are turns, not epochs
        return []
    for number in sorted(waits.complete_epochs):
        rows = (waits.of_epoch == number) & waits.trains
        if rows.any() and int(waits.requested_ns[rows].min()) >= after_ns:
            result.append(int(waits.wall_ns[rows].sum()))
    return result


def staging_section(staging: Staging) -> Section:
    """Return what staging took beside an epoch, in one sentence."""
    text = (
        f"T_staging / T_epoch is {units.ratio(staging.staging_to_epoch)}: staging "
        f"{units.nbytes(staging.nbytes)} took {units.duration(staging.staged_ns)}, an epoch after "
        f"it takes {units.duration(staging.epoch_ns)}."
    )
    return Section("staging", "Staging", (Sentence(text),))


FINDING: Final = Finding("staging", 80, Staging, staging_of, staging_section, staging_of_job)
