"""Tasks that dask computed for a training: by whom, what of chunks was read how often, locks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec
import numpy as np

from iobench.json_keys import HIDDEN, figure
from iobench.recording.kinds import Kind, Trait, is_one_of, kinds_that, stage_name
from iobench.recording.span_file import Flag
from iobench.recording.task_spans import CHUNKS, GRAPH, TASK

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.analysis.run import RankRun

THREADS: Final = "threads"
TELLS_READ: Final = kinds_that(Trait.TELLS_READ)
UNSEEN: Final = (f"{GRAPH} ", f"{GRAPH}.")
MOST_VARIABLES: Final = 8


class ChunkedVariable(msgspec.Struct, frozen=True):
    """A variable that was opened in dask's chunks, and what was read of it.

    Parameters
    ----------
    name : str
        File and variable.
    nbytes : int
        All of it, as the script gets it.
    n_chunks : int
        Dask's, of all of it.
    n_reads : int
        How often a chunk of it was read, or a part of one.
    read_nbytes : int
        Bytes of the arrays that came back from these.
    epochs : int
        In so many epochs.
    by_netcdf4 : bool
        Whether the library netCDF4 read it, and had to decode it.
    """

    name: str
    nbytes: int
    n_chunks: int
    n_reads: int
    read_nbytes: int
    epochs: int
    by_netcdf4: bool = False
    JSON_KEYS: ClassVar = {
        "by_netcdf4": HIDDEN,
    }

    @figure
    def reads_of_each(self) -> float | None:
        """How often each of its bytes was read in an epoch, averaged over all of them."""
        return self.read_nbytes / self.nbytes / self.epochs if self.nbytes else None


class Tasks(msgspec.Struct, frozen=True):
    """What dask computed while batches were made.

    Parameters
    ----------
    schedulers : tuple of str
        What ran the tasks: ``threads``, ``synchronous``.
    threads : int
        Of one process at most.
    processes : int
        That asked for graphs, each with threads of its own.
    cpus : int or None
        That there are for them.
    n_graphs, n_tasks : int
        Computed in all.
    lock_ns : int
        Time that threads waited for locks of xarray, which one of them at a time holds as it reads.
    unseen : tuple of str
        Stages whose work was not recorded.
    elsewhere_nbytes : int
        Bytes that threads and processes other than the training loop's read then, of no batch
        that is known.
    variables : tuple of ChunkedVariable
        Those of which most was read first.
    """

    schedulers: tuple[str, ...]
    threads: int
    processes: int
    cpus: int | None
    n_graphs: int
    n_tasks: int
    lock_ns: int
    unseen: tuple[str, ...]
    elsewhere_nbytes: int
    variables: tuple[ChunkedVariable, ...]
    worked_ns: int = 0
    JSON_KEYS: ClassVar = {
        "worked_ns": HIDDEN,
    }

    @property
    def at_once(self) -> int:
        """How many threads may be at work at once, over all processes."""
        return self.threads * self.processes

    @property
    def oversubscribed(self) -> bool:
        """Whether there are more threads than CPUs for them."""
        return self.cpus is not None and self.processes > 0 and self.at_once > self.cpus


def tasks_of(run: RankRun) -> Tasks | None:
    """Return what dask computed for a training process; None where it did nothing."""
    profile = run.profile
    spans, strings = profile.spans, profile.strings
    labels = {strings[number]: number for number in np.unique(spans["label"]).tolist()}
    preprocess = spans["kind"] == Kind.PREPROCESS
    graphs = spans[preprocess & (spans["label"] == labels.get(GRAPH, -1)) & (spans["batch"] >= 0)]
    unseen = tuple(
        stage_name(Kind.OPAQUE, label)
        for label, number in sorted(labels.items())
        if label.startswith(UNSEEN)
        and ((spans["kind"] == Kind.OPAQUE) & (spans["label"] == number)).any()
    )
    if not len(graphs) and not unseen:
        return None
    tasks = spans[preprocess & (spans["detail"] == profile.string_number(TASK))]
    told = [strings[number].split() for number in np.unique(graphs["detail"]).tolist()]
    told = [words for words in told if len(words) == 3 and words[2].isdigit()]
    in_threads = [int(words[2]) for words in told if words[1] == THREADS]
    locks = spans[spans["kind"] == Kind.LOCK]
    cpus = profile.about.machine.get("cpus")
    return Tasks(
        schedulers=tuple(sorted({words[1] for words in told})),
        threads=max(in_threads, default=min(len(graphs), 1)),
        processes=len(np.unique(graphs["process"])),
        cpus=cpus if isinstance(cpus, int) else None,
        n_graphs=len(graphs),
        n_tasks=len(tasks),
        lock_ns=int((locks["end_ns"] - locks["start_ns"]).sum()),
        unseen=unseen,
        elsewhere_nbytes=_elsewhere_nbytes(run, spans),
        variables=_variables(run, spans, strings, labels.get(CHUNKS, -1)),
        worked_ns=int((tasks["end_ns"] - tasks["start_ns"]).sum()),
    )


def _elsewhere_nbytes(run: RankRun, spans: NDArray[Any]) -> int:
    loop, deliveries = run.loop, run.deliveries
    if not len(deliveries):
        return 0
    other = (spans["process"] != loop.process) | (spans["thread"] != loop.thread)
    read = spans[other & is_one_of(spans["kind"], TELLS_READ) & (spans["nbytes"] > 0)]
    low_ns, high_ns = int(deliveries.from_ns.min()), int(deliveries.until_ns.max())
    meanwhile = (read["start_ns"] >= low_ns) & (read["start_ns"] < high_ns)
    return int(read["nbytes"][(read["batch"] < 0) & meanwhile].sum())


def _variables(
    run: RankRun, spans: NDArray[Any], strings: tuple[str, ...], chunks: int
) -> tuple[ChunkedVariable, ...]:
    told = spans[((spans["flags"] & Flag.DETAIL) != 0) & (spans["label"] == chunks)]
    read = spans[is_one_of(spans["kind"], TELLS_READ) & (spans["nbytes"] > 0)]
    read = read[read["batch"] >= 0]
    by_name: dict[str, list[int]] = {}
    for number in np.unique(read["detail"]).tolist():
        by_name.setdefault(_plain(strings[number]), []).append(number)
    deliveries = run.deliveries
    at = deliveries.of_batch(read["batch"].astype(np.int64))
    epoch = np.where(at >= 0, np.append(deliveries.of_epoch, -1)[at], -1)
    found = {}
    opened = np.unique(told["detail"]).tolist()
    for number in opened:
        name = strings[number]
        # Zarr's arrays know their place in the store alone.
        alone = sum(_plain(strings[each]).endswith(_inner(name)) for each in opened) == 1
        numbers = by_name.get(_plain(name)) or (by_name.get(_inner(name), []) if alone else [])
        of_it = np.isin(read["detail"], numbers)
        mine, epochs = read[of_it], np.unique(epoch[of_it & (epoch >= 0)])
        of_name = told[told["detail"] == number]
        if len(mine):
            found[name] = ChunkedVariable(
                name=name,
                nbytes=int(of_name["nbytes"].max()),
                n_chunks=int(of_name["pieces"].max()),
                n_reads=len(mine),
                read_nbytes=int(mine["nbytes"].sum()),
                epochs=max(1, len(epochs)),
                by_netcdf4=bool(((mine["kind"] == Kind.FUSED) & (mine["detail"] == number)).any()),
            )
    first = sorted(found.values(), key=lambda each: (-each.read_nbytes, each.name))
    return tuple(first[:MOST_VARIABLES])


def _plain(name: str) -> str:
    """Return file and variable as all libraries would spell them: HDF5's have a slash before."""
    file, _, variable = name.rpartition(":")
    return f"{file}:{variable.lstrip('/')}"


def _inner(name: str) -> str:
    return ":" + name.rpartition(":")[2]
