"""A recorded run opened for analysis: each thing that follows from its spans is made once."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from msgspec.structs import replace

from iobench.analysis.attribution import SpanSums, attribute, sums_of_spans, unknown_sums
from iobench.analysis.counters import counters_of
from iobench.analysis.deliveries import find_deliveries, roles_of_loaders
from iobench.analysis.exposure import exposure_of, refuse_what_has_no_sum
from iobench.analysis.job_time import job_time_of
from iobench.analysis.loop import ONLY, find_loop
from iobench.errors import ProfileError
from iobench.runs.contents import RunData
from iobench.runs.reading import RunFiles, run_paths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.analysis.attribution import Attribution
    from iobench.analysis.counters import Counters
    from iobench.analysis.deliveries import Deliveries
    from iobench.analysis.exposure_figures import Exposure
    from iobench.analysis.ledger import Ledger
    from iobench.analysis.loop import TrainingLoop
    from iobench.analysis.placement import Placement
    from iobench.recording.facts import ProcessFacts
    from iobench.runs.contents import Process
    from iobench.runs.run_facts import RunFacts
    from iobench.storage.storage_trace import StorageTrace

T = TypeVar("T")

FEW_RANKS: Final = 16
"""Up to so many training processes each is reported with all there is to say of it."""
ANALYSED_SPANS: Final = 1 << 21
"""Spans of the training processes of one run that are kept once analysed, but for a single one."""


class RankRun(RunData, frozen=True, dict=True, eq=False, kw_only=True):
    """One training process of a run and its loading processes; findings are cached."""

    rank: int
    job: RunData | None = None  # all ranks, where they were read together
    trace: StorageTrace | None = None  # what a tracer of storage saw of the run

    @cached_property
    def _findings(self) -> dict[Any, Any]:
        return {}

    def cached(self, find: Callable[[RankRun], T]) -> T:
        """Return what a function finds in this run, which is called once."""
        if find not in self._findings:
            self._findings[find] = find(self)
        result: T = self._findings[find]
        return result

    @property
    def data(self) -> RankRun:
        """Itself; like `Run.data`."""
        return self

    @property
    def own_facts(self) -> tuple[ProcessFacts, ...]:
        """What its processes say of themselves."""
        if self.is_alone:
            return self.facts
        return tuple(each for each in self.facts if each.rank == self.rank)

    @cached_property
    def about(self) -> RunFacts:
        """What ``run.json`` says; of a script, with what its loaders have in common."""
        facts, loaders = (self.job or self).run_facts, self.exposure.loaders
        if not facts.is_script:
            return facts
        used = [each for each in loaders if each.n_batches] or list(loaders)
        return replace(
            facts,
            dataset=facts.dataset or _common(each.name or None for each in used),
            framework=facts.framework or _common(each.framework or None for each in used),
            batch_size=facts.batch_size or _common(each.batch_size for each in used),
            threads=facts.threads or _common(each.threads for each in used) or 0,
        )

    @property
    def job_size(self) -> int:
        """Training processes of its job, those that left nothing too; 1 of ``iobench profile``."""
        if not self.is_script:
            return 1
        sizes = [self.run_facts.world_size or 1, *(each.world_size for each in self.facts)]
        return max([*sizes, *(rank + 1 for rank in self.ranks)])

    @property
    def all_processes(self) -> tuple[Process, ...]:
        """Those that recorded for it; where it is alone, all."""
        return self.job.processes if self.is_alone and self.job is not None else self.processes

    @property
    def unended(self) -> tuple[Process, ...]:
        """Processes killed or still running; workers of a script end files as they please."""
        result = tuple(each for each in self.all_processes if not each.closed)
        is_killed = not self.is_script or any(each.role == "consumer" for each in result)
        return result if is_killed else ()

    @property
    def is_alone(self) -> bool:
        """Whether no other training process left spans."""
        return self.job is not None and self.job.rank is None and len(self.ranks) < 2

    @property
    def is_one_of_many(self) -> bool:
        """Whether there are so many training processes that little is said of each."""
        return len(self.ranks) > FEW_RANKS

    @cached_property
    def loop(self) -> TrainingLoop:
        """The thread that waited for batches, and the loaders it asked."""
        refuse_what_has_no_sum(self)
        return find_loop(self, rank=self.rank)

    @cached_property
    def deliveries(self) -> Deliveries:
        """Its waits and what they brought, in order."""
        return find_deliveries(self, self.loop)

    @cached_property
    def attribution(self) -> Attribution:
        """Of each delivery the busy and exposed time by stage: the ledger."""
        return attribute(self, self.loop, self.deliveries)

    @cached_property
    def roles(self) -> dict[int, str]:
        """What its loaders are for, by their numbers, as far as that is known."""
        return roles_of_loaders(self.deliveries, self.deliveries.role)

    @property
    def ledger(self) -> Ledger:
        """Its time by delivery and stage: what figures are sums of."""
        return self.attribution.ledger

    @cached_property
    def counters(self) -> Counters:
        """Bytes and chunks counted for each delivery, by whoever counted them."""
        return counters_of(self, self.loop, self.deliveries)

    @cached_property
    def exposure(self) -> Exposure:
        """Who was waited for, of the whole run and its parts."""
        return exposure_of(self, job_time_of(self))

    def samples_in(self, chosen: NDArray[np.bool_]) -> int | None:
        """Return the samples of some batches: by their bytes, else by the batch size."""
        nbytes = self.deliveries.nbytes[chosen]
        sample_nbytes = self.run_facts.sample_nbytes
        if sample_nbytes and (nbytes >= 0).all() and not (nbytes % sample_nbytes).any():
            return int(nbytes.sum()) // sample_nbytes
        samples = self.deliveries.n_samples[chosen]
        if (samples < 0).any() or not (len(samples) or self.loop.loaders[ONLY].batch_size):
            return None
        return int(samples.sum())

    @cached_property
    def is_sound(self) -> bool:
        """Whether it can be analysed: not where the waits of the training loop overlap."""
        try:
            return self.attribution is not None
        except ProfileError:
            return False

    @cached_property
    def sums(self) -> SpanSums:
        """What of each span is counted where, by row of ``spans``; unknown if unsound."""
        if not self.is_sound:
            return unknown_sums(len(self.spans))
        return sums_of_spans(self, self.deliveries, self.attribution)

    @cached_property
    def placement(self) -> Placement | None:
        """What a tracer saw, on the clock of the spans and beside its stages; None without."""
        if self.trace is None:
            return None
        from iobench.analysis.placement import place_segments

        return place_segments(self, self.trace)


class Run:
    """A recorded run: its training processes, each read and analysed on first use.

    ``source`` is a run directory, also of a run that died or still goes on, or what was read of
    one; with ``logs`` the tracer's logs that the run has are read, and these. Of several processes
    as many stay in memory as have `ANALYSED_SPANS`; others are analysed again.
    """

    def __init__(
        self,
        source: Path | str | RunData,
        trace: StorageTrace | None = None,
        *,
        logs: Sequence[Path] | None = None,
    ) -> None:
        self._files = None if isinstance(source, RunData) else RunFiles(source)
        self._data = source if isinstance(source, RunData) else None
        if self._files is not None and len(self._files.ranks) < 2:
            self._data = self._files.read()
        known = self._data or self._files
        assert known is not None
        self.path, self.config, self.about = known.path, known.config, known.run_facts
        if logs is not None:
            from iobench.storage.darshan_reader import read_run_traces

            trace = read_run_traces(self.path, self.config, logs)
        self.trace = trace
        self.ranks = known.ranks if self._data is None else _ranks(self._data)
        self._analysed: dict[int, RankRun] = {}

    def __iter__(self) -> Iterator[RankRun]:
        """Go through its training processes."""
        return (self.of_rank(rank) for rank in self.ranks)

    def __len__(self) -> int:
        return len(self.ranks)

    @property
    def data(self) -> RunData:
        """What was read of all its training processes; of several, read again each time."""
        return self._data or self._directory.read()

    @property
    def _directory(self) -> RunFiles:
        assert self._files is not None
        return self._files

    @property
    def parts(self) -> Iterator[RankRun]:
        """All that was recorded, also of training processes that left nothing themselves."""
        ranks = self.ranks if self._data is None else self._data.ranks_read
        return (self.of_rank(rank) for rank in ranks)

    @property
    def sums(self) -> SpanSums:
        """What of each span is counted where, by row of ``data.spans``."""
        data = self.data
        ranks = data.ranks_read
        if len(ranks) == 1:
            return self.of_rank(ranks[0]).sums
        result = unknown_sums(len(data.spans))
        for rank in ranks:
            mine = np.array([each.rank == rank for each in data.processes], dtype=bool)
            rows, sums = mine[data.spans["process"]], self.of_rank(rank).sums
            for name in ("self_ns", "busy_ns", "exposed_ns", "share"):
                getattr(result, name)[rows] = getattr(sums, name)
        return result

    def has_spans(self, rank: int) -> bool:
        """Return whether a training process left any; one that was not read yet has."""
        return rank in self.ranks if self._data is None else bool(len(self._data.spans))

    def of_rank(self, rank: int | None = None) -> RankRun:
        """Return one training process; which may be left out where only one recorded."""
        if rank is None:
            if len(self.ranks) > 1:
                raise ProfileError(
                    f"{self.path}: training processes {[*self.ranks]} recorded, expected one; "
                    "name one of them as rank"
                )
            rank = self.ranks[0]
        if rank in self._analysed:
            return self._analysed[rank]
        result = self._read(rank)
        n_spans = sum(len(each.spans) for each in self._analysed.values())
        if len(self.ranks) < 2 or n_spans + len(result.spans) <= ANALYSED_SPANS:
            self._analysed[rank] = result
        return result

    def _read(self, rank: int) -> RankRun:
        if self._data is None:
            part, job = self._directory.read(rank), None
        else:
            part = job = self._data
            if any(process.rank != rank for process in part.processes):
                part = part.of_rank(rank)
        values = {name: getattr(part, name) for name in RunData.__struct_fields__}
        return RankRun(**{**values, "rank": rank}, job=job, trace=self.trace)


def _common(values: Iterable[T | None]) -> T | None:
    """Return the value all have; None where they differ, or there is none."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def _ranks(data: RunData) -> tuple[int, ...]:
    if data.rank is not None:
        return (data.rank,)
    recorded = {process.rank for process in data.processes if process.role == "consumer"}
    return tuple(sorted(recorded)) or (0,)


def open_runs(path: Path | str, logs: Sequence[Path] | None = None) -> tuple[Run, ...]:
    """Open a run directory, or those inside one that holds one per format, in their order.

    ``logs`` and errors are those of `Run`; it is a ProfileError too if there is no run at all, or
    several that are not one profile's.
    """
    runs = [Run(each, logs=logs) for each in run_paths(path)]
    return tuple(sorted(runs, key=lambda run: run.about.position or 0))


def exposure(run: Run | RunData, *, rank: int | None = None) -> Exposure:
    """Return who a training process waited for, for how long, and what stayed hidden.

    Parameters
    ----------
    run : Run or RunData
        A run with any number of loading processes, or none.
    rank : int, optional
        Which training process; may be left out where only one recorded.

    Returns
    -------
    Exposure
        All times in integer ns; the stages' exposed time adds up to the wait exactly.

    Raises
    ------
    ProfileError
        If several training processes recorded and none is named, or the waits of one overlap.
    """
    run = run if isinstance(run, Run) else Run(run)
    return run.of_rank(rank).exposure
