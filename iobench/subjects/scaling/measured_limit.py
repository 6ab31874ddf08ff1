"""The limit of a run's storage that a probe found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iobench.errors import OptionError
from iobench.storage.limit_figures import DEVICE, SERVER, STORAGE, read_limits
from iobench.subjects.scaling.target import MeasuredLimit

if TYPE_CHECKING:
    from iobench.subjects.scaling.measured_job import MeasuredJob


def measured_limit(job: MeasuredJob) -> MeasuredLimit:
    """Return the limit of a run's storage, as its ``run.json`` has it.

    Raises
    ------
    OptionError
        If it has none of reads that storage served.
    """
    every = read_limits(job.storage_limits)
    for limits in every:
        found = [
            each
            for each in limits.reads
            if each.served_by in (DEVICE, SERVER, STORAGE) and each.bytes_per_s
        ]
        if found:
            best = max(found, key=lambda each: each.bytes_per_s or 0.0)
            return MeasuredLimit(
                bytes_per_s=best.bytes_per_s or 0.0,
                reads_per_s=best.reads_per_s or 0.0,
                readers=max(each.threads for each in found),
                request_nbytes=limits.request_nbytes,
                mount=limits.mount,
                wall_ns=limits.wall_ns,
            )
    why = "of reads that storage served" if every else "of its storage"
    raise OptionError(
        f"--storage-bandwidth measured: {job.name} has no limits {why}; measure again with "
        "--limits 10, or say a rate"
    )
