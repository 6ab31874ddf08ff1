"""Which thread of which process is the training loop, what works for it, and its loaders."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from iobench.analysis.exposure_figures import OtherLoop
from iobench.errors import ProfileError
from iobench.recording.facts import LoaderFacts
from iobench.recording.kinds import Kind
from iobench.recording.span_keys import lane_keys

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from iobench.runs.contents import RunData

ONLY: Final = -1
"""Number of the loader of a run that has one, or of rounds whose loader is unknown."""


class TrainingLoop(msgspec.Struct, frozen=True):
    """The thread whose waits are counted, and everything that works for it.

    Parameters
    ----------
    process, thread : int
        Where it runs; -1 where nothing waited.
    mine : ndarray of bool, shape (n_processes,)
        Its process, and those that load for it.
    loaders : dict of int to LoaderFacts
        By number; `ONLY` is always there, for rounds whose loader is not known.
    waits : ndarray of SPAN_DTYPE
        Its waits, in order of time.
    others : tuple of OtherLoop
        Threads of the rank that waited as well, and are not counted.
    """

    rank: int
    process: int
    thread: int
    mine: NDArray[np.bool_]
    loaders: Mapping[int, LoaderFacts]
    waits: NDArray[Any]
    others: tuple[OtherLoop, ...]

    @property
    def has_loaders(self) -> bool:
        """Whether its process told of a loader."""
        return any(number != ONLY for number in self.loaders)

    def spans_of(self, profile: RunData) -> NDArray[Any]:
        """Return the spans of its process, and of those that load for it."""
        spans = profile.spans
        return spans if self.mine.all() else spans[self.mine[spans["process"]]]


def find_loop(profile: RunData, *, rank: int) -> TrainingLoop:
    """Return the training loop of a rank: of a script, the thread that waited most often.

    Raises
    ------
    ProfileError
        If the waits overlap, or two threads of one ``iobench profile`` run waited.
    """
    spans = profile.spans
    consumers = np.array(
        [each.role == "consumer" and each.rank == rank for each in profile.processes], dtype=bool
    )
    waits = spans[(spans["kind"] == Kind.WAIT) & (spans["flags"] == 0)]
    waits = waits[consumers[waits["process"]]]
    waits = waits[np.argsort(waits["start_ns"], kind="stable")]
    key = lane_keys(waits)
    lanes, number, counts = np.unique(key, return_inverse=True, return_counts=True)
    if len(lanes) > 1 and not profile.is_script:
        raise ProfileError(
            f"{profile.path}: {len(lanes)} threads waited for batches, expected one training loop"
        )
    chosen = int(np.argmax(counts)) if len(lanes) else -1
    others = tuple(
        _other(profile, waits[number.reshape(-1) == index])
        for index in range(len(lanes))
        if index != chosen
    )
    waits = waits[number.reshape(-1) == chosen]
    if (waits["start_ns"][1:] < waits["end_ns"][:-1]).any():
        raise ProfileError(
            f"{profile.path}: the waits of the training loop overlap, expected one after another"
        )
    process = int(waits["process"][0]) if len(waits) else -1
    told = process if process >= 0 else _first_with_loaders(profile, consumers)
    return TrainingLoop(
        rank=rank,
        process=process,
        thread=int(waits["thread"][0]) if len(waits) else -1,
        mine=_mine(profile, rank, process, consumers),
        loaders=_loaders(profile, told),
        waits=waits,
        others=others,
    )


def _other(profile: RunData, waits: NDArray[Any]) -> OtherLoop:
    process = profile.processes[waits["process"][0]]
    return OtherLoop(
        process=process.name,
        pid=process.pid,
        thread=process.threads[waits["thread"][0]],
        n_waits=len(waits),
        wait_ns=int((waits["end_ns"] - waits["start_ns"]).sum()),
    )


def _mine(
    profile: RunData, rank: int, process: int, consumers: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Tell which processes work for the loop: all of the rank, unless they are another's."""
    mine = np.array([each.rank == rank for each in profile.processes], dtype=bool)
    if process < 0 or consumers.sum() < 2:
        return mine
    # Several training processes of one rank: each has those it started itself.
    owner = {profile.processes[index].pid: index for index in np.flatnonzero(consumers).tolist()}
    for index in np.flatnonzero(consumers).tolist():
        told = profile.facts_of(index)
        for loader in told.loaders if told else ():
            owner.update(dict.fromkeys(loader.worker_pids, index))
    parent = {each.pid: each.ppid for each in profile.processes if each.rank == rank}
    for index in np.flatnonzero(mine).tolist():
        pid, seen = profile.processes[index].pid, set[int]()
        while pid not in owner and pid in parent and pid not in seen:
            seen.add(pid)
            pid = parent[pid]
        mine[index] = owner.get(pid, process) == process
    return mine


def _first_with_loaders(profile: RunData, consumers: NDArray[np.bool_]) -> int:
    """Return the first training process that made a loader, though nobody asked it; else -1."""
    for index in np.flatnonzero(consumers).tolist():
        told = profile.facts_of(index)
        if told is not None and told.loaders:
            return int(index)
    return -1


def _loaders(profile: RunData, process: int) -> dict[int, LoaderFacts]:
    told = profile.facts_of(process) if process >= 0 else None
    found = {
        each.number: replace(each, prefetch=each.prefetch or int(bool(each.workers)))
        for each in (told.loaders if told else ())
    }
    if len(found) == 1:
        return {ONLY: next(iter(found.values())), **found}
    return {ONLY: _configured(profile), **found}


def _configured(profile: RunData) -> LoaderFacts:
    """Return the loader of a run's configuration; what nobody wrote down is as it was seen."""
    about = profile.run_facts
    workers = about.workers
    if workers is None:
        workers = sum(process.role == "worker" for process in profile.processes)
    return LoaderFacts(
        ONLY, "", "", "", workers=workers,
        prefetch=about.prefetch or int(bool(workers)), batch_size=about.batch_size,
    )  # fmt: skip
