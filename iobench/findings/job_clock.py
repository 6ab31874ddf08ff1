"""Where all of a script's time went, from the start of its process to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.analysis.exposure_figures import LOADS, JobTime, job_of_ranks
from iobench.findings.contract import Finding
from iobench.report import units
from iobench.report.document import (
    NOT_APPLICABLE,
    Bar,
    BarPart,
    Chart,
    Column,
    Quantity,
    Section,
    Table,
    sentences,
)
from iobench.report.sentences import PART_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iobench.analysis.exposure_figures import JobPart

WORTH_SAYING: Final = 0.01
HELP: Final = {
    "imports": "import less, or from an environment on node-local storage.",
    "initial_load": (
        "read in the workers of a loader (in the dataset's __getitem__), open files lazily, "
        "convert them once (iobench convert), or stage them onto node-local storage."
    ),
    "stage_in": "stage while the job waits in its queue, or only the files that are read.",
    "validation_compute": "validate less often, on fewer batches, or without gradients.",
    "validation_wait": (
        "workers for the validation's loader that persist (persistent_workers of a DataLoader), "
        "or a larger batch."
    ),
    "checkpoint": "checkpoints less often, or to node-local storage.",
}


def time_section(job: JobTime) -> Section:
    """Return the parts of a script's time, and what would make the largest of them smaller."""
    at_least = "at least " * (job.unjoined_ns is not None)
    of_rank = f" of rank {job.rank}, which loads longest" if job.n_ranks > 1 else ""
    return Section(
        "job_time",
        "Where the job's time went",
        (
            Chart(
                f"{units.duration(job.wall_ns)} from start to end{of_rank}, "
                f"{at_least}{units.duration(job.load_ns)} of it to get data",
                (Bar(tuple(_piece(each) for each in job.parts if each.ns)),),
            ),
            _part_table(job),
            *sentences(_time_lines(job)),
        ),
    )


def _time_lines(job: JobTime) -> Iterator[str]:
    least_ns = WORTH_SAYING * job.wall_ns
    if job.reload_ns >= least_ns:
        reload = units.duration(job.reload_ns)
        yield f"Of the time outside of loops, {reload} is reading data."
    if job.comm_ns >= least_ns:
        yield (
            f"Of the computing, {units.duration(job.comm_ns)} is spent in collective operations, "
            "including waiting for other ranks in them."
        )
    if job.bound_by in HELP:
        yield f"The largest part, {PART_NAMES[job.bound_by]}: {HELP[job.bound_by]}"
    yield from (f"Not known: {text}." for text in job.unknown)


def _piece(part: JobPart) -> BarPart:
    return BarPart("exposed" if part.part in LOADS else "compute", part.ns, PART_NAMES[part.part])


def _part_table(job: JobTime) -> Table:
    return Table(
        "",
        (Column("part"), Column("time", "time"), Column("of the job"), Column("bytes")),
        tuple(
            (
                PART_NAMES[each.part],
                Quantity(each.ns, "ns"),
                Quantity(job.share(each.ns), "share"),
                NOT_APPLICABLE if each.nbytes is None else Quantity(each.nbytes, "B"),
            )
            for each in job.parts
            if each.ns
        ),
        total=(
            "all",
            Quantity(job.wall_ns, "ns"),
            Quantity(1.0 if job.wall_ns else None, "share"),
            "",
        ),
    )


FINDING: Final[Finding[JobTime]] = Finding(
    "job", 75, JobTime, lambda run: run.exposure.job, time_section, together=job_of_ranks
)
"""Where a script's time went."""
