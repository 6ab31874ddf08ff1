"""What holds of any run, however odd: sums that are exact, and bounds."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from iobench.analysis.epochs import epoch_figures
from iobench.analysis.run import Run
from iobench.recording.kinds import WAITING_KINDS, Kind, stage_name, stages_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.analysis.exposure_figures import PartExposure
    from iobench.analysis.run import RankRun
    from iobench.runs.contents import RunData

TIMES = ("wall_ns", "wait_ns", "own_ns", "compute_ns", "n_batches")


def check(data: RunData) -> None:
    """Assert all that holds of the training processes of a run."""
    run = Run(data)
    for rank in run:
        check_rank(rank)


def check_rank(rank: RankRun) -> None:
    """Assert that parts of a run add up, in whole nanoseconds."""
    figures, waits = rank.exposure, rank.deliveries
    whole = figures.whole
    for part in (whole, figures.steady, figures.recurring, figures.validation):
        if part is not None:
            check_part(part)
    assert int(waits.wait_ns.sum()) == whole.wait_ns
    assert 0 <= figures.startup_ns <= whole.wall_ns
    if figures.unjoined_ns is None:
        assert sum(loader.wait_ns for loader in figures.loaders) == whole.wait_ns
    assert sum(figures.waits_ns) <= whole.wait_ns
    assert min(figures.waits_ns, default=0) >= 0
    epochs = epoch_figures(rank)
    check_sums([each.part for each in epochs], whole)
    _, number = np.unique(waits.of_epoch, return_inverse=True)
    exposed_ns = rank.ledger.sum(number, "exposed_ns").sum(axis=1)
    assert exposed_ns.tolist() == [each.part.wait_ns for each in epochs]
    check_spans(rank)
    if figures.job is not None:
        assert sum(each.ns for each in figures.job.parts) == figures.job.wall_ns
        assert min(each.ns for each in figures.job.parts) >= 0


def check_part(part: PartExposure) -> None:
    between_ns = sum(each or 0 for each in part.between_ns.values())
    assert part.wait_ns + between_ns + part.own_ns + part.compute_ns == part.wall_ns
    assert min(part.wait_ns, part.own_ns, part.compute_ns, between_ns) >= 0
    assert sum(part.exposed_ns.values()) == part.wait_ns
    for row in part.stages:
        assert 0 <= row.exposed_ns <= row.busy_ns, row
        assert row.hidden_ns + row.exposed_ns == row.busy_ns
        assert row.n_spans >= 0
        assert row.nbytes is None or row.nbytes >= 0
    assert part.cold_fraction is None or 0 <= part.cold_fraction <= 1


def check_sums(parts: Sequence[PartExposure], whole: PartExposure) -> None:
    """Assert that disjoint parts of a run add up to it, stage by stage."""
    for name in TIMES:
        assert sum(getattr(part, name) for part in parts) == getattr(whole, name)
    for rows, name in (
        ("stages", "busy_ns"),
        ("stages", "exposed_ns"),
        ("compute_stages", "busy_ns"),
    ):
        total: Counter[str] = Counter()
        for part in parts:
            for row in getattr(part, rows):
                total[row.stage] += getattr(row, name)
        assert total == {row.stage: getattr(row, name) for row in getattr(whole, rows)}


def check_spans(rank: RankRun) -> None:
    """Assert that what is said of single spans adds up to their stages."""
    sums, spans, whole = rank.sums, rank.spans, rank.exposure.whole
    share = sums.share[~np.isnan(sums.share)]
    assert ((share >= 0) & (share <= 1 + 1e-9)).all()
    assert (sums.exposed_ns <= np.maximum(sums.busy_ns, 0))[sums.busy_ns >= 0].all()
    keys, number = stages_of(spans, rank.strings)
    names = np.array([stage_name(*key) for key in keys], dtype=object)[number]
    for row in whole.stages:
        mine = (names == row.stage) & (sums.exposed_ns >= 0)
        if mine.any() and row.kind not in {*WAITING_KINDS, Kind.OPAQUE}:
            assert int(sums.exposed_ns[mine].sum()) == row.exposed_ns, row.stage
