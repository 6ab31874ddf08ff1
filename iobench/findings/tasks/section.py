"""Tasks of dask, as people read them: threads against CPUs, chunks against samples, locks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from iobench.findings.contract import Finding
from iobench.findings.tasks.figures import tasks_of
from iobench.recording.kinds import stage_title
from iobench.report import units
from iobench.report.document import Section, sentences

if TYPE_CHECKING:
    from iobench.findings.tasks.figures import ChunkedVariable, Tasks

OFTEN: Final = 1.5
"""From so many reads of each byte in an epoch on, chunks do not fit the samples."""
LOCKED: Final = 0.05
"""Share of the tasks' time in which waiting for a lock is worth a sentence."""


def tasks_section(found: Tasks | None) -> Section | None:
    """Return what is to be said of dask's tasks, where there were any."""
    return None if found is None else Section("tasks", "Tasks of dask", sentences(_told(found)))


def _told(found: Tasks) -> Iterator[str]:
    if found.n_graphs:
        yield _who(found)
        yield (
            "A sample waits for the critical path of its tasks; preprocess (dask) is dask's own "
            "work between them. Building graphs is the script's own time: it counts as making "
            "samples, unless the script names it."
        )
    yield from map(_read_often, filter(_is_read_often, found.variables))
    if found.worked_ns and found.lock_ns > LOCKED * found.worked_ns:
        share = units.fraction(found.lock_ns / found.worked_ns)
        yield (
            f"Threads waited {units.duration(found.lock_ns)} for xarray's lock ({share} of the "
            "tasks' time): only one thread at a time reads NetCDF and HDF5, however many there "
            "are."
        )
    for stage in found.unseen:
        yield (
            f"{stage_title(stage)} is the wait for the work of other processes or a cluster: what "
            "they read and decode for a batch is not seen."
        )
    if found.unseen and found.elsewhere_nbytes:
        read = units.nbytes(found.elsewhere_nbytes)
        yield (
            f"Other recorded threads and processes read {read} during the loop, for no known batch."
        )


def _who(found: Tasks) -> str:
    graphs, tasks = units.count(found.n_graphs), units.count(found.n_tasks)
    text = f"dask computed {graphs} graphs of {tasks} tasks"
    if found.schedulers == ("synchronous",):
        return f"{text}, in the calling thread (scheduler synchronous)."
    text += f", in {units.count(found.threads)} thread{'s' * (found.threads != 1)}"
    if found.processes > 1:
        text += f" of each of {units.count(found.processes)} processes"
    if not found.oversubscribed:
        return f"{text}."
    return (
        f"{text}: up to {units.count(found.at_once)} at once on {units.count(found.cpus)} CPUs. "
        "DASK_NUM_WORKERS in the environment sets the threads of each process."
    )


def _is_read_often(variable: ChunkedVariable) -> bool:
    return (variable.reads_of_each or 0.0) >= OFTEN


def _read_often(variable: ChunkedVariable) -> str:
    read, reads = units.nbytes(variable.read_nbytes), units.count(variable.n_reads)
    whole, chunks = units.nbytes(variable.nbytes), units.count(variable.n_chunks)
    return (
        f"Each byte of {variable.name} was read {units.ratio(variable.reads_of_each)} times per "
        f"epoch on average: {read} in {reads} reads, from {whole} in {chunks} chunks. Either "
        "samples take parts of chunks (then chunks=None or smaller chunks read less), or they "
        "share chunks (then loading the data once reads less, where it fits into memory)."
    )


FINDING: Final = Finding("tasks", 90, tasks_of, tasks_section)
"""Tasks of dask, as the entry point names them."""
