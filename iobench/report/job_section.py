"""The section that comes first for a script: where all of its job's time went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.analysis.job_figures import LOADS
from iobench.report import units
from iobench.report.document import (
    NOT_APPLICABLE,
    Bar,
    BarPart,
    Bars,
    Bytes,
    Column,
    Count,
    Duration,
    Section,
    Sentence,
    Share,
    Table,
    sentences,
)
from iobench.report.sentences import job_sentence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.analysis.exposure_figures import Exposure
    from iobench.analysis.job_figures import JobPart, JobTime

MOST_RANKS: Final = 16
WORTH_SAYING: Final = 0.01
PART_NAMES: Final = {
    "imports": "start of Python, imports",
    "initial_load": "initial load",
    "stage_in": "stage-in",
    "train_compute": "training: computing",
    "train_wait": "training: waiting for data",
    "validation_compute": "validation: computing",
    "validation_wait": "validation: waiting for data",
    "checkpoint": "checkpoints",
    "between": "outside of loops",
    "shutdown": "end of Python",
}
HELP: Final = {
    "imports": "what helps: import less, or from an environment on node-local storage.",
    "initial_load": (
        "what helps: read in the workers of a loader (in the dataset's __getitem__) instead of "
        "before it, open files lazily, convert them once (iobench convert), or stage them onto "
        "node-local storage. But data read later may be waited for in every epoch: compare both."
    ),
    "stage_in": (
        "what helps: stage while the job waits in its queue, or stage only the files that are read."
    ),
    "train_compute": "faster loading saves at most the time spent waiting for data.",
    "train_wait": "what helps: see 'What to try next'.",
    "validation_compute": (
        "what helps: validate less often or on fewer batches, with larger batches and without "
        "gradients."
    ),
    "validation_wait": (
        "what helps: workers for the validation's loader, or more of them, kept from one "
        "validation to the next (num_workers and persistent_workers of a DataLoader; "
        "num_parallel_calls and prefetch of tf.data), a larger batch, or reading while the "
        "training still computes."
    ),
    "checkpoint": (
        "what helps: checkpoints less often, to node-local storage, or written beside the training."
    ),
    "between": "what it was is not recorded; a Python profiler can show it.",
    "shutdown": "what happened while the process ended was not recorded.",
}


def job_time_sections(exposure: Exposure) -> tuple[Section, ...]:
    """Return where a script's time went; nothing of ``iobench profile``."""
    if not exposure.is_script:
        return ()
    if exposure.job is not None:
        return (job_time_section(exposure.job),)
    text = (
        "Where the job's time went is unknown: the start of its process was not recorded, only "
        "some of its steps were, or recording stopped."
    )
    return (Section("job_time", "Where the job's time went", (Sentence(text),)),)


def job_time_section(job: JobTime, *, of_ranks: bool = False) -> Section:
    """Return the parts of a job's time, and what would make the largest of them smaller.

    ``of_ranks`` where it is of several training processes.
    """
    longest = (
        f"Times are those of rank {job.rank}: among the ranks that ran longest, the one that "
        "spends most time getting data, for which the others may wait. Bytes and files are those "
        "of all ranks."
    )
    return Section(
        "job_time",
        "Where the job's time went",
        (
            *((Sentence(job_sentence(job), "strong"), Sentence(longest)) if of_ranks else ()),
            Bars(
                f"{units.duration(job.wall_ns)} from start to end, {units.duration(job.load_ns)} "
                "of it to get data",
                (Bar(tuple(_piece(each) for each in job.parts if each.ns)),),
            ),
            _table(job),
            *(_rank_table(job.ranks) if of_ranks else ()),
            *_first_batch(job),
            *_reload(job),
            *_communication(job),
            Sentence(f"The largest part, {PART_NAMES[job.bound_by]}: {_help(job)}"),
            *sentences(f"Not known: {text}." for text in (*job.unknown, *_unseen(job))),
        ),
    )


def _help(job: JobTime) -> str:
    """Return what helps against the largest part."""
    if job.bound_by == "between" and 2 * job.lost_end_ns > job.part("between").ns:
        return "what it did then is not known."
    if job.bound_by == "between" and 2 * job.reload_ns > job.part("between").ns:
        return HELP["initial_load"]
    return HELP[job.bound_by]


def _communication(job: JobTime) -> tuple[Sentence, ...]:
    """Return how much of computing is none, where that is worth saying."""
    if job.comm_ns < WORTH_SAYING * job.wall_ns:
        return ()
    return (
        Sentence(
            f"Of the computing, {units.duration(job.comm_ns)} is spent in collective operations, "
            "including waiting for other ranks in them."
        ),
    )


def _first_batch(job: JobTime) -> tuple[Sentence, ...]:
    """Return how long the first batch took, where that is worth saying."""
    if (job.first_batch_ns or 0) < WORTH_SAYING * job.wall_ns:
        return ()
    return (
        Sentence(
            f"The first batch came {units.duration(job.first_batch_ns)} after its loader was first "
            "asked. That includes waiting and whatever the loop did meanwhile, such as compiling."
        ),
    )


def _reload(job: JobTime) -> tuple[Sentence, ...]:
    """Return what of the time outside of loops is reading data again."""
    if job.reload_ns < WORTH_SAYING * job.wall_ns:
        return ()
    nbytes = job.part("between").nbytes
    return (
        Sentence(
            f"Of the time outside of loops, {units.duration(job.reload_ns)} is reading data after "
            "the first pass, including work between the "
            f"reads{'' if nbytes is None else f' ({units.nbytes(nbytes)})'}."
        ),
    )


def _unseen(job: JobTime) -> tuple[str, ...]:
    if not job.unseen_nbytes:
        return ()
    nbytes = units.nbytes(job.unseen_nbytes)
    return (
        f"how long it took to read at least {nbytes} before the first batch, which iobench did not "
        "see; that time counts as outside of loops",
    )


def _piece(part: JobPart) -> BarPart:
    return BarPart("exposed" if part.part in LOADS else "compute", part.ns, PART_NAMES[part.part])


def _table(job: JobTime) -> Table:
    return Table(
        "",
        (
            *(Column("part"), Column("time", "time"), Column("of the job")),
            *(Column("bytes"), Column("files")),
        ),
        tuple(
            (
                PART_NAMES[each.part],
                Duration(each.ns),
                Share(job.share(each.ns)),
                NOT_APPLICABLE if each.nbytes is None else Bytes(each.nbytes),
                NOT_APPLICABLE if each.n_files is None else Count(each.n_files),
            )
            for each in job.parts
            if each.ns
        ),
        total=("all", Duration(job.wall_ns), Share(1.0 if job.wall_ns else None), "", ""),
    )


def _rank_table(ranks: Sequence[JobTime]) -> tuple[Table, ...]:
    """Return a row for each training process, of many those that spend most on getting data."""
    if len(ranks) < 2:
        return ()
    shown = sorted(ranks, key=lambda each: (-each.load_ns, each.rank))[:MOST_RANKS]
    more = f", the {len(shown)} that spend most on getting data of {len(ranks)}"
    columns = (
        ("before the loop", ("initial_load", "stage_in")),
        ("waiting", ("train_wait", "validation_wait")),
        ("computing", ("train_compute", "validation_compute")),
        ("imports", ("imports",)),
        ("the rest", ("checkpoint", "between", "shutdown")),
    )
    return (
        Table(
            f"Ranks{more if len(shown) < len(ranks) else ''}",
            (
                *(Column("rank"), Column("all", "time")),
                *(Column(name, "time") for name, _ in columns),
                Column("most"),
            ),
            tuple(
                (
                    str(each.rank),
                    Duration(each.wall_ns),
                    *(Duration(sum(each.part(part).ns for part in of)) for _, of in columns),
                    PART_NAMES[each.bound_by],
                )
                for each in sorted(shown, key=lambda each: each.rank)
            ),
        ),
    )
