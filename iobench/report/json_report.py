"""Reports for machines: plain values for strict JSON, unrounded; unknown is null, never 0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from iobench.analysis.epochs import EpochTime, epoch_times
from iobench.json_keys import INLINE, figure
from iobench.report.finding_sections import job_figures, job_to_plain
from iobench.report.json_walk import to_plain
from iobench.report.run_report import RunReport, make_reports
from iobench.report.sentences import verdict_sentence
from iobench.report.trust import unseen

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from iobench.analysis.exposure_figures import Exposure
    from iobench.analysis.run import Run

JSON_VERSION: Final = 2
"""Raised when a key changes its meaning or goes; new keys do not raise it."""
OF_PARTS: Final = (
    *("wall_ns", "wait_ns", "batches", "samples", "nbytes", "wait_fraction", "samples_per_s"),
    *("exposed_ns", "wait_per_step", "time_per_step"),
)
"""What is said of the steady state, of epochs after the first and of validations."""
NOT_WAITED: Final = ("stages", "compute_stages")


class RunDocument(msgspec.Struct, frozen=True):
    """One training process of a run, as JSON has it.

    Parameters
    ----------
    schema_version : int
        Raised when a key changes its meaning or goes.
    """

    report: RunReport
    schema_version: int = JSON_VERSION
    JSON_KEYS: ClassVar = {
        "report": INLINE,
    }

    @figure
    def verdict(self) -> str:
        """What is concluded, as a sentence; ``diagnosis`` is the same as data."""
        return verdict_sentence(self.report.diagnosis)

    @figure
    def epochs(self) -> tuple[EpochTime, ...] | None:
        """What each epoch took; null of one process of many."""
        return epoch_times(self.report.epochs) if self.report.epochs else None

    @figure
    def unseen(self) -> tuple[str, ...]:
        """What could not be observed, in words."""
        return unseen(self.report)

    @figure
    def children(self) -> tuple[str, ...]:
        """Commands of processes that do not record."""
        return tuple(child for known in self.report.told for child in known.children)

    @figure
    def ended(self) -> str | None:
        """How the training process ended: ``"closed"``, an exception, or null where unknown."""
        known = self.report.told
        return next((each.ended for each in known if each.role == "consumer"), None)


def to_json(runs: Iterable[Run]) -> dict[str, Any]:
    """Return ``{"runs": [...], "job": ...}`` for ``json.dumps(allow_nan=False)``.

    There is one for each run, of a job of several training processes one for each rank.

    Raises
    ------
    ProfileError
        If one cannot be analysed.
    """
    reports = make_reports(runs)
    return reports_to_json(reports, job_figures(reports) if reports else None)


def reports_to_json(
    reports: Sequence[RunReport], job: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return what `to_json` does, for runs analysed already, with the figures of their job."""
    alone = reports[0].exposure.job if len(reports) == 1 else None
    return {
        "runs": [_run(report) for report in reports],
        "job": to_plain(alone) if job is None else job_to_plain(job),
    }


def _run(report: RunReport) -> dict[str, Any]:
    document = to_plain(RunDocument(report))
    if report.exposure.has_consumer:
        document["processes"] = None
    return _completed(document, report.exposure)


def _completed(document: dict[str, Any], exposure: Exposure) -> dict[str, Any]:
    """Return a run without what nobody reads of its parts, or figures of a wait nobody had."""
    if not exposure.has_consumer:
        for name in to_plain(exposure.whole):
            document[name] = [] if name in NOT_WAITED else 0 if name == "batches" else None
        document["phases"] = None
    for part, names in (
        ("steady", (*OF_PARTS, "stages")),
        ("recurring", OF_PARTS),
        ("validation", OF_PARTS),
    ):
        if document[part] is not None:
            document[part] = {name: document[part][name] for name in names}
    return document
