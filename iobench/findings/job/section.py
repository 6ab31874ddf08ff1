"""What a job waited for, as people read it: rank by rank, and by rank and time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from iobench.findings.contract import Finding
from iobench.findings.job.ranks import job_of_ranks, rank_of_job
from iobench.report import units
from iobench.report.document import (
    NOT_APPLICABLE,
    Bytes,
    Column,
    Count,
    Duration,
    HeatMap,
    Section,
    Share,
    Table,
    sentences,
)
from iobench.report.sentences import kept_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.findings.job.figures import JobExposure, RankExposure
    from iobench.report.document import Cell, Sentence

MOST_RANKS: Final = 16
MOST_HEAT_RANKS: Final = 256


def job_section(job: JobExposure) -> Section:
    """Return what a job waited for, rank by rank."""
    return Section(
        "job",
        "All training processes",
        (
            *sentences(_lines(job)),
            *sentences(_missing(job), "caution"),
            *_heat_map(job),
            *_rank_table(job),
            *_communication(job),
        ),
    )


def _lines(job: JobExposure) -> list[str]:
    """Return what the job waited for, first of all; then how that was found."""
    n_batches, n_folded = sum(each.n_batches for each in job.ranks), job.n_folded
    lines = []
    if job.n_steps:
        share = units.fraction(job.wait_fraction)
        kept = f"In {kept_words(n_batches, n_folded)}, from" if n_folded else "From"
        lines.append(
            f"{kept} the first wait to the end of the last step, the job waits {share} of the time "
            f"for the last rank ({units.duration(job.wait_ns)} of "
            f"{units.duration(job.steps_wall_ns)}, {units.count(job.n_steps)} steps). For "
            f"{units.duration(job.exposed_ns)} of that, all other ranks had their batch."
        )
    if job.imbalance is not None:
        lines.append(f"The largest wait of a rank is {units.ratio(job.imbalance)} times the mean.")
    idle = [str(each.rank) for each in job.ranks if not each.n_batches]
    if idle:
        whose = f"Rank {idle[0]}" if len(idle) == 1 else f"Ranks {', '.join(idle)}"
        lines.append(
            f"{whose} asked no loader that iobench sees, so whether their input came late is "
            "unknown."
        )
    if job.n_single_steps:
        lines.append(f"Left out: steps of only one rank ({units.count(job.n_single_steps)}).")
    if job.clock_uncertainty_ns is not None:
        within = f"to within {units.duration(job.clock_uncertainty_ns)}"
        lines.append(
            f"Clocks of {units.count(len(job.hosts))} machines are aligned by their wall clocks "
            f"({within}, if those agree). In "
            f"{units.count(job.n_uncertain_steps)} steps the last two ranks are closer than this "
            "uncertainty."
        )
    return lines


def _missing(job: JobExposure) -> list[str]:
    """Return a line for each rank that is missing, or did not end as it should."""
    return [
        f"Rank {each.rank}{f' on {each.host}' if each.host else ''}: {each.what}."
        for each in job.missing
    ]


def _rank_table(job: JobExposure) -> tuple[Table, ...]:
    """Return the ranks that wait longest, and how many more there are."""
    shown = _slowest(job, MOST_RANKS)
    if not shown:
        return ()
    rest = _rest(shown, len(job.ranks))
    return (
        Table(
            f"Ranks{rest}",
            (
                *(Column("rank"), Column("host"), Column("batches"), Column("wait", "time")),
                *(Column("exposed"), Column("last in steps"), Column("alone", "time")),
            ),
            tuple(
                (
                    str(each.rank),
                    each.host or units.UNKNOWN,
                    Count(each.n_batches),
                    Duration(each.wait_ns) if each.n_batches else NOT_APPLICABLE,
                    _share(each.wait_ns, each.wall_ns),
                    Count(each.n_last),
                    Duration(each.exposed_ns),
                )
                for each in shown
            ),
        ),
    )


def _communication(job: JobExposure) -> tuple[Sentence | Table, ...]:
    """Return how long collective operations held the ranks, and what they carried."""
    known = [each for each in job.ranks if each.comm_held_ns is not None]
    if not known:
        return ()
    shown = [each for each in _slowest(job, MOST_RANKS) if each.comm_held_ns is not None]
    held_ns = sum(each.comm_held_ns or 0 for each in known)
    whose = f"loops of {units.count(len(known))} ranks" if len(known) > 1 else "loop of one rank"
    n_batches = sum(each.n_batches for each in job.ranks)
    kept = f"In {kept_words(n_batches, job.n_folded)}, collective" if job.n_folded else "Collective"
    line = (
        f"{kept} operations hold the training {whose} for {units.duration(held_ns)} in total, "
        "including waiting in them for ranks that arrive later."
    )
    return (
        *sentences([line]),
        Table(
            f"Communication{_rest(shown, len(known))}",
            (Column("rank"), Column("operations"), Column("held", "time"), Column("bytes")),
            tuple(
                (
                    str(each.rank),
                    Count(each.n_operations),
                    Duration(each.comm_held_ns),
                    Bytes(each.comm_nbytes),
                )
                for each in shown
            ),
        ),
    )


def _rest(shown: Sequence[RankExposure], n_all: int) -> str:
    return f", the {len(shown)} of {n_all} that wait longest" if n_all > len(shown) else ""


def _heat_map(job: JobExposure) -> tuple[HeatMap, ...]:
    """Return rank by time: how much of each bin was waited."""
    if not job.steps_wall_ns or not job.bin_ns or not job.ranks:
        return ()
    place = {each.rank: index for index, each in enumerate(job.ranks)}
    shown = sorted(each.rank for each in _slowest(job, MOST_HEAT_RANKS))
    return (
        HeatMap(
            "Waiting by rank and time, from blank (none) to full (all of the time); one column is "
            f"{units.duration(job.bin_ns)} of {units.duration(job.steps_wall_ns)}",
            tuple(map(str, shown)),
            tuple(
                tuple(value / job.bin_ns for value in job.matrix_ns[place[rank]]) for rank in shown
            ),
            job.bin_ns,
        ),
    )


def _slowest(job: JobExposure, most: int) -> list[RankExposure]:
    return sorted(job.ranks, key=lambda each: (-each.wait_ns, each.rank))[:most]


def _share(part_ns: int, whole_ns: int) -> Cell:
    return Share(part_ns / whole_ns) if whole_ns else NOT_APPLICABLE


FINDING: Final[Finding[Any]] = Finding(
    name="job",
    order=50,
    figures=rank_of_job,
    section=job_section,
    together=job_of_ranks,
    of_job=True,
)
"""What a job waited for, as the entry point names it."""
